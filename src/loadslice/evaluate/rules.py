"""Interpretation rules: what the figures of a placement, beside the reference's, mean in plain words.

Each rule has a code, fires or does not, and says on what evidence. `regression` makes the verdict negative, `warning`
asks somebody to look, `note` explains. Comparative rules are asked of every placement but the reference; the others of
all. Differences below `NOISE` are none.
"""

from collections.abc import Callable

from loadslice.evaluate.layers import attribution as attributions
from loadslice.evaluate.layers import ramp as ramps
from loadslice.evaluate.seen import Seen
from loadslice.spec.evaluation import Evaluation
from loadslice.spec.evaluation_report import Effect, Rule

NOISE = 0.05
DEVICE_DOWN = 0.10
"""A device that is less busy than the reference's by this share of its time, at the same throughput, waits."""

OneRule = Callable[[Seen, Seen, Evaluation], Rule | None]


def fired(found: list[Seen], wanted: Evaluation) -> list[Rule]:
    """All rules over all placements, in order of the placements."""
    reference = next(seen for seen in found if seen.reference)
    rules: list[Rule] = []
    for seen in found:
        asked = ABSOLUTE if seen.reference else ABSOLUTE + COMPARATIVE
        if seen.state == "not_run":
            asked = (not_run,)
        rules += [rule for ask in asked if (rule := ask(seen, reference, wanted)) is not None]
    return rules


def not_run(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """It could not be started here."""
    if seen.state != "not_run":
        return None
    return _rule("not-run", seen, "It did not run here; that says nothing for it or against it.", seen.why, "warning")


def died(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """It ended under evaluation."""
    if seen.state != "died":
        return None
    return _rule("died", seen, "The server ended during the evaluation; later layers are missing.", seen.why)


def outputs_identical(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Bit for bit."""
    if seen.correctness is None or seen.correctness.alike != "identical":
        return None
    return _rule(
        "outputs-identical", seen, "Outputs are identical: enable it.",
        f"{len(seen.correctness.differences)} inputs compared, all bit-equal", "note",
    )  # fmt: skip


def outputs_slightly_different(seen: Seen, _: Seen, wanted: Evaluation) -> Rule | None:
    """Within what rounding explains."""
    if seen.correctness is None or seen.correctness.alike != "slightly":
        return None
    return _rule(
        "outputs-slightly-different", seen,
        f"Outputs differ as the order of rounding in {wanted.scheme or 'fp32'} can explain: check it, then enable.",
        _apart(seen), "note",
    )  # fmt: skip


def outputs_clearly_different(seen: Seen, _: Seen, wanted: Evaluation) -> Rule | None:
    """More than rounding: a shift, a scale, outliers, other shapes or text."""
    if seen.correctness is None or seen.correctness.alike != "clearly":
        return None
    return _rule(
        "outputs-clearly-different", seen,
        f"Outputs differ by more than rounding in {wanted.scheme or 'fp32'} can explain: refuse it.", _apart(seen),
    )  # fmt: skip


def _apart(seen: Seen) -> str:
    assert seen.correctness is not None
    differences = seen.correctness.differences
    differing = sum(not one.identical for one in differences)
    errors = [one.relative_error for one in differences if one.relative_error is not None]
    slopes = [one.slope for one in differences if one.slope is not None]
    said = [f"{differing} of {len(differences)} inputs differ"]
    said += [f"relative error up to {max(errors):.2g}"] if errors else []
    said += [f"slope {sorted(slopes)[len(slopes) // 2]:.4f}"] if slopes else []
    said += [f"{texts} texts differ"] if (texts := sum(one.text_differs for one in differences)) else []
    return ", ".join(said)


def not_finite(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Overflow."""
    if seen.correctness is None or not seen.correctness.not_finite:
        return None
    return _rule(
        "not-finite", seen, "Outputs hold NaN or infinity for ordinary inputs: an overflow in the scheme. Refuse it.",
        f"{seen.correctness.not_finite} values",
    )  # fmt: skip


def unanswered(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Ordinary inputs without an answer."""
    if seen.correctness is None or not (seen.correctness.unanswered or seen.correctness.unreadable):
        return None
    return _rule(
        "unanswered", seen, "Ordinary inputs got no answer that could be compared.",
        f"{len(seen.correctness.unanswered)} unanswered, {seen.correctness.unreadable} not readable",
    )  # fmt: skip


def degraded_operators(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Lone requests that were not served as the placement says: a degraded reply, or an engine behind the first."""
    if seen.correctness is None:
        return None
    elsewhere = {path for path in seen.correctness.paths if path} if len(seen.correctness.paths) > 1 else set()
    if not seen.correctness.degraded and not elsewhere:
        return None
    return _rule(
        "degraded-operators", seen, "Lone requests were served by a degraded reply, or not all on the same engines.",
        f"{seen.correctness.degraded} degraded replies; paths {'; '.join(sorted(elsewhere)) or 'one'}", "warning",
    )  # fmt: skip


def load_changes_answers(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """The same input, another answer once others are beside it."""
    if seen.loaded is None or not seen.loaded["differing"]:
        return None
    return _rule(
        "load-changes-answers", seen, "Under load, inputs are answered otherwise than alone: a path is wrong.",
        f"{seen.loaded['differing']} of {seen.loaded['answers']} answers",
    )  # fmt: skip


def metric_lost(seen: Seen, reference: Seen, wanted: Evaluation) -> Rule | None:
    """Labels say so."""
    metric = seen.correctness.metric if seen.correctness is not None else None
    if metric is None:
        return None
    floors = wanted.floors
    before = reference.correctness.metric if reference.correctness is not None and not seen.reference else None
    below = floors.metric is not None and metric < floors.metric
    lost = before is not None and metric < before - floors.metric_loss
    if not below and not lost:
        return None
    against = f"the floor is {floors.metric:g}" if below else f"the reference has {before:.4f}"
    return _rule("metric-lost", seen, "The task metric fell below what must be kept.", f"{metric:.4f}; {against}")


def throughput_down(seen: Seen, reference: Seen, wanted: Evaluation) -> Rule | None:
    """Below the floor."""
    ratio = _ratio(seen.most_per_s, reference.most_per_s)
    if ratio is None or ratio >= wanted.floors.throughput_ratio:
        return None
    return _rule("throughput-down", seen, "It serves less than the reference.", _rates(seen, reference, ratio))


def latency_up(seen: Seen, reference: Seen, wanted: Evaluation) -> Rule | None:
    """Above the floor, by more than both intervals; for offline work a warning."""
    ratio = _ratio(seen.median_ms, reference.median_ms)
    if ratio is None or ratio <= wanted.floors.latency_ratio:
        return None
    mine = seen.lone.interval if seen.lone is not None else None
    its = reference.lone.interval if reference.lone is not None else None
    if mine is not None and its is not None and mine.low <= its.high * wanted.floors.latency_ratio:
        return None
    return _rule(
        "latency-up", seen, "Single requests take longer than the reference's.",
        f"{seen.median_ms:.2f} against {reference.median_ms:.2f} ms",
        "warning" if wanted.scenario == "offline" else "regression",
    )  # fmt: skip


def limit_missed(seen: Seen, _: Seen, wanted: Evaluation) -> Rule | None:
    """An absolute limit."""
    if wanted.floors.p95_ms is None or seen.lone is None:
        return None
    times_ms = sorted(seen.lone.times_ms())
    p95_ms = times_ms[int(0.95 * (len(times_ms) - 1))] if times_ms else None
    if p95_ms is None or p95_ms <= wanted.floors.p95_ms:
        return None
    return _rule(
        "limit-missed", seen, "Even single requests miss the latency limit.",
        f"p95 {p95_ms:.1f} ms, limit {wanted.floors.p95_ms:g} ms",
    )  # fmt: skip


def throughput_up_first_later(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """More is served, but the first result comes later."""
    rate, first = _ratio(seen.most_per_s, reference.most_per_s), _ratio(seen.first_ms, reference.first_ms)
    if rate is None or first is None or rate <= 1 + NOISE or first <= 1 + NOISE:
        return None
    return _rule(
        "throughput-up-first-later", seen,
        "Throughput rises and the first result comes later: scheduling overhead. Use it for offline work only.",
        f"throughput x{rate:.2f}, first result x{first:.2f}", "warning",
    )  # fmt: skip


def throughput_flat_device_idle(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """The device is given less to do and nothing is gained."""
    rate = _ratio(seen.most_per_s, reference.most_per_s)
    if rate is None or seen.device_use is None or reference.device_use is None:
        return None
    if rate > 1 + NOISE or seen.device_use > reference.device_use - DEVICE_DOWN:
        return None
    return _rule(
        "throughput-flat-device-idle", seen,
        "Throughput does not rise and the device is less busy: it waits for bandwidth, copies or scheduling.",
        f"throughput x{rate:.2f}, device busy {seen.device_use:.0%} against {reference.device_use:.0%}", "warning",
    )  # fmt: skip


def no_dual_bank_gain(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """Two banks that do no more than one."""
    if seen.placement.built_in != "dual-bank" and not _banks(seen):
        return None
    rate = _ratio(seen.most_per_s, reference.most_per_s)
    if rate is None or rate > 1 + NOISE:
        return None
    return _rule(
        "no-dual-bank-gain", seen,
        "Two banks bring nothing over one: the graph cannot be split, bandwidth or bank synchronisation eats the gain, "
        "or the framework does not expose the parallelism.",
        f"throughput x{rate:.2f}", "warning",
    )  # fmt: skip


def _banks(seen: Seen) -> bool:
    """Engines named ``x.bank0``, ``x.bank1``."""
    return len({engine for engine in seen.devices if ".bank" in engine}) > 1


def decay(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Latency that rises while the load does not."""
    if seen.soak is None or not seen.soak.decays or seen.soak.latency is None:
        return None
    return _rule(
        "decay", seen, "Latency rises under constant load: a leak, a polluted cache, or a power cap.",
        f"{seen.soak.latency.slope:+.3g} ms per hour, surely above {seen.soak.latency.low:.3g}, "
        f"in {seen.soak.for_s:.0f} s",
    )  # fmt: skip


def growth(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Memory that rises while the load does not."""
    if seen.soak is None or not seen.soak.grows or seen.soak.memory is None:
        return None
    return _rule(
        "growth", seen, "Memory rises under constant load: a leak.",
        f"{seen.soak.memory.slope / 1e6:+.3g} MB per hour, surely above {seen.soak.memory.low / 1e6:.3g}",
    )  # fmt: skip


def starvation(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Some wait out of all proportion, or for ever."""
    if seen.soak is None or not (seen.soak.starved or seen.soak.left_inside):
        return None
    left = f"; {seen.soak.left_inside:.0f} requests left inside" if seen.soak.left_inside else ""
    return _rule(
        "starvation", seen, "Requests starve beside others.",
        f"{len(seen.soak.starved)} of {len(seen.soak.heards)}: {', '.join(seen.soak.starved[:2])}{left}",
    )  # fmt: skip


def errors_under_load(seen: Seen, _: Seen, wanted: Evaluation) -> Rule | None:
    """Failures at a load it should stand."""
    if seen.soak is None or not seen.soak.heards:
        return None
    share = seen.soak.failed / len(seen.soak.heards)
    if share <= wanted.floors.error_rate:
        return None
    return _rule("errors-under-load", seen, "Requests fail under a load it should stand.", f"{share:.1%} in the soak")


def weak_recovery(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """A hang on bad input, or a good request that suffers after one."""
    if seen.abnormal is None:
        return None
    hung = [one.name for one in seen.abnormal.tried if one.fate == "hung"]
    lost = [one.name for one in seen.abnormal.tried if not one.recovered]
    if not hung and not lost and seen.abnormal.alive:
        return None
    said = [f"hung on {', '.join(hung[:3])}"] if hung else []
    said += [f"not well after {', '.join(lost[:3])}"] if lost else []
    said += ["the server ended"] if not seen.abnormal.alive else []
    return _rule("weak-recovery", seen, "Bad input hangs it or is not recovered from: weak recovery.", "; ".join(said))


def bad_input_blamed(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """A 5xx where the client is at fault."""
    failed = [one.name for one in seen.abnormal.tried if one.fate == "failed"] if seen.abnormal is not None else []
    if not failed:
        return None
    return _rule(
        "bad-input-blamed-on-server", seen, "Bad input is answered as a fault of the server; clients will come back.",
        f"{len(failed)}: {', '.join(failed[:3])}", "warning",
    )  # fmt: skip


def passes_nan_on(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """NaN in, NaN out, with a 200."""
    passed = [one.name for one in seen.abnormal.tried if one.not_finite] if seen.abnormal is not None else []
    if not passed:
        return None
    return _rule(
        "not-finite-passed-on", seen, "Inputs that are no numbers are answered with numbers that are none.",
        ", ".join(passed[:3]), "note",
    )  # fmt: skip


def scheduling_dominates(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """More time between the parts than in them."""
    found = seen.attribution
    if found is None or found.parts_ms["scheduling"] is None:
        return None
    beside = sum(found.parts_ms[name] or 0.0 for name in ("copy", "queueing", "scheduling", "front", "transport"))
    compute = found.parts_ms["compute"] or 0.0
    if beside <= compute:
        return None
    return _rule(
        "scheduling-dominates", seen, "A lone request spends more time beside the engines than in them.",
        f"{beside:.2f} ms beside, {compute:.2f} ms computing", "warning",
    )  # fmt: skip


def knee_off(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """The prediction missed."""
    error = seen.ramp.knee_error if seen.ramp is not None else None
    if error is None or abs(error) <= ramps.KNEE_WITHIN:
        return None
    return _rule(
        "knee-mispredicted", seen, "The knee was not where the profile put it: the machine was not as it was profiled.",
        f"{error:+.1%}", "note",
    )  # fmt: skip


def attribution_open(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Parts that do not add up."""
    found = seen.attribution
    if found is None or not found.from_journal or abs(found.unexplained_share) <= attributions.CLOSED_WITHIN:
        return None
    return _rule(
        "attribution-open", seen, "The parts of the latency do not add up to it.",
        f"{found.unexplained_share:+.1%} unexplained", "note",
    )  # fmt: skip


def no_benefit(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """Nothing gained that its cost would pay for."""
    rate, latency = _ratio(seen.most_per_s, reference.most_per_s), _ratio(seen.median_ms, reference.median_ms)
    if rate is None or latency is None or rate > 1 + NOISE or latency < 1 - NOISE:
        return None
    cost = _ratio(seen.cost_per_hour, reference.cost_per_hour)
    if cost is not None and cost < 1 - NOISE:
        return None
    return _rule(
        "no-benefit", seen, "It brings nothing that would pay for running it: stay with the reference.",
        f"throughput x{rate:.2f}, latency x{latency:.2f}", "warning",
    )  # fmt: skip


def pays(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """Cheaper per answer."""
    cost, rate = _ratio(seen.cost_per_hour, reference.cost_per_hour), _ratio(seen.most_per_s, reference.most_per_s)
    if cost is None or rate is None or rate <= 0 or cost / rate >= 1 - NOISE:
        return None
    return _rule("pays", seen, "An answer costs less than on the reference.", f"x{cost / rate:.2f} per answer", "note")


def replay_slower(seen: Seen, reference: Seen, wanted: Evaluation) -> Rule | None:
    """On recorded traffic."""
    mine, its = (one.replay.get("latency_ms_p95") if one.replay else None for one in (seen, reference))
    ratio = _ratio(mine, its)
    if ratio is None or ratio <= wanted.floors.latency_ratio:
        return None
    effect: Effect = "warning" if wanted.scenario == "offline" else "regression"
    return _rule(
        "replay-slower", seen, "Recorded traffic waits longer.", f"p95 {mine:.1f} against {its:.1f} ms", effect
    )


ABSOLUTE: tuple[OneRule, ...] = (
    not_run, died, not_finite, unanswered, degraded_operators, load_changes_answers, metric_lost, limit_missed, decay,
    growth, starvation, errors_under_load, weak_recovery, bad_input_blamed, passes_nan_on, scheduling_dominates,
    knee_off, attribution_open,
)  # fmt: skip
COMPARATIVE: tuple[OneRule, ...] = (
    outputs_identical, outputs_slightly_different, outputs_clearly_different, throughput_down, latency_up,
    throughput_up_first_later, throughput_flat_device_idle, no_dual_bank_gain, no_benefit, pays, replay_slower,
)  # fmt: skip


def _rule(code: str, seen: Seen, text: str, evidence: str | None, effect: Effect = "regression") -> Rule:
    return Rule(code=code, placement=seen.name, text=text, evidence=evidence or "", effect=effect)


def _ratio(value: float | None, over: float | None) -> float | None:
    return value / over if value is not None and over else None


def _rates(seen: Seen, reference: Seen, ratio: float) -> str:
    return f"{seen.most_per_s:.2f}/s against {reference.most_per_s:.2f}/s (x{ratio:.2f})"
