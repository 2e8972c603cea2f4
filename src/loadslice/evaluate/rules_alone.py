"""Rules about one placement by itself: what its own figures mean. `loadslice.evaluate.rules` says how rules work."""

from collections.abc import Callable

from loadslice.evaluate.layers import attribution as attributions
from loadslice.evaluate.layers import ramp as ramps
from loadslice.evaluate.layers.soak import Soak
from loadslice.evaluate.seen import Seen
from loadslice.spec.evaluation import Evaluation
from loadslice.spec.evaluation_report import Effect, Rule

OneRule = Callable[[Seen, Seen, Evaluation], Rule | None]
"""A placement, the reference and the file; ``None``: it does not fire."""


def rule(code: str, seen: Seen, text: str, evidence: str | None, effect: Effect = "regression") -> Rule:
    """A rule that fired for a placement."""
    return Rule(code=code, placement=seen.name, text=text, evidence=evidence or "", effect=effect)


def not_run(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """It could not be started here."""
    if seen.state != "not_run":
        return None
    return rule("not-run", seen, "It did not run here; that says nothing for it or against it.", seen.why, "warning")


def died(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """It ended under evaluation."""
    if seen.state != "died":
        return None
    return rule("died", seen, "The server ended during the evaluation; later layers are missing.", seen.why)


def not_finite(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Overflow."""
    if seen.correctness is None or not seen.correctness.not_finite:
        return None
    return rule(
        "not-finite", seen, "Outputs hold NaN or infinity for ordinary inputs: an overflow in the scheme. Refuse it.",
        f"{seen.correctness.not_finite} values",
    )  # fmt: skip


def unanswered(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Ordinary inputs without an answer."""
    if seen.correctness is None or not (seen.correctness.unanswered or seen.correctness.unreadable):
        return None
    return rule(
        "unanswered", seen, "Ordinary inputs got no answer that could be compared.",
        f"{len(seen.correctness.unanswered)} unanswered, {seen.correctness.unreadable} not readable",
    )  # fmt: skip


def degraded_operators(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Lone requests that were not served as the placement says: a degraded reply, or an engine behind the first."""
    if seen.correctness is None:
        return None
    paths = {path for path in seen.correctness.paths if path}
    elsewhere = paths if len(paths) > 1 and not seen.balances else set()
    if not seen.correctness.degraded and not elsewhere:
        return None
    return rule(
        "degraded-operators", seen, "Lone requests were served by a degraded reply, or not all on the same engines.",
        f"{seen.correctness.degraded} degraded replies; paths {'; '.join(sorted(elsewhere)) or 'one'}", "warning",
    )  # fmt: skip


def load_changes_answers(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """The same input, another answer once others are beside it."""
    if seen.loaded is None or not seen.loaded["differing"]:
        return None
    return rule(
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
    return rule("metric-lost", seen, "The task metric fell below what must be kept.", f"{metric:.4f}; {against}")


def limit_missed(seen: Seen, _: Seen, wanted: Evaluation) -> Rule | None:
    """An absolute limit."""
    if wanted.floors.p95_ms is None or seen.lone is None:
        return None
    times_ms = sorted(seen.lone.times_ms())
    p95_ms = times_ms[int(0.95 * (len(times_ms) - 1))] if times_ms else None
    if p95_ms is None or p95_ms <= wanted.floors.p95_ms:
        return None
    return rule(
        "limit-missed", seen, "Even single requests miss the latency limit.",
        f"p95 {p95_ms:.1f} ms, limit {wanted.floors.p95_ms:g} ms",
    )  # fmt: skip


def decay(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Latency that rises while the load does not, and not that of a fresh server on the same minutes."""
    if seen.soak is None or not seen.soak.decays or seen.soak.latency is None:
        return None
    return rule(
        "decay", seen, "Latency rises under constant load: a leak, or a polluted cache.",
        f"{_rise(seen.soak)}; {_over_fresh(seen.soak)}",
    )  # fmt: skip


def machine_slowed(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Latency that rises, and a fresh server's as well."""
    if seen.soak is None or not seen.soak.rises or seen.soak.decays is not False:
        return None
    return rule(
        "machine-slowed", seen,
        "Latency rises, and a fresh server is as slow: the machine slowed down (heat, a power cap, other programs).",
        f"{_rise(seen.soak)}; {_over_fresh(seen.soak)}", "warning",
    )  # fmt: skip


def rise_unexplained(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Latency that rises, and no fresh server to compare with."""
    if seen.soak is None or not seen.soak.rises or seen.soak.decays is not None:
        return None
    return rule(
        "rise-unexplained", seen,
        "Latency rises under constant load; whether the server or its machine slowed down cannot be told, for no "
        "fresh server of it could be asked.",
        _rise(seen.soak), "warning",
    )  # fmt: skip


def _rise(found: Soak) -> str:
    assert found.latency is not None
    return (
        f"{found.latency.slope:+.3g} ms per hour, surely above {found.latency.low:.3g}, at {found.latency_ms:.3g} ms "
        f"in {found.for_s:.0f} s"
    )


def _over_fresh(found: Soak) -> str:
    ratios = sorted(found.aged_ratios or [])
    if not ratios:
        return "no fresh server was asked"
    return (
        f"x{ratios[len(ratios) // 2]:.2f} of a fresh server's in {len(ratios)} rounds by turns, least x{ratios[0]:.2f}"
    )


def growth(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Memory that rises while the load does not."""
    if seen.soak is None or not seen.soak.grows or seen.soak.memory is None:
        return None
    return rule(
        "growth", seen, "Memory rises under constant load: a leak.",
        f"{seen.soak.memory.slope / 1e6:+.3g} MB per hour, surely above {seen.soak.memory.low / 1e6:.3g}",
    )  # fmt: skip


def starvation(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Some wait out of all proportion, or for ever."""
    if seen.soak is None or not (seen.soak.starved or seen.soak.left_inside):
        return None
    left = f"; {seen.soak.left_inside:.0f} requests left inside" if seen.soak.left_inside else ""
    return rule(
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
    return rule("errors-under-load", seen, "Requests fail under a load it should stand.", f"{share:.1%} in the soak")


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
    return rule("weak-recovery", seen, "Bad input hangs it or is not recovered from: weak recovery.", "; ".join(said))


def bad_input_blamed(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """A 5xx where the client is at fault."""
    failed = [one.name for one in seen.abnormal.tried if one.fate == "failed"] if seen.abnormal is not None else []
    if not failed:
        return None
    return rule(
        "bad-input-blamed-on-server", seen, "Bad input is answered as a fault of the server; clients will come back.",
        f"{len(failed)}: {', '.join(failed[:3])}", "warning",
    )  # fmt: skip


def passes_nan_on(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """NaN in, NaN out, with a 200."""
    passed = [one.name for one in seen.abnormal.tried if one.not_finite] if seen.abnormal is not None else []
    if not passed:
        return None
    return rule(
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
    return rule(
        "scheduling-dominates", seen, "A lone request spends more time beside the engines than in them.",
        f"{beside:.2f} ms beside, {compute:.2f} ms computing", "warning",
    )  # fmt: skip


def knee_off(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """The prediction missed: the machine changed meanwhile, or load does something that single requests do not show."""
    found = seen.ramp
    if found is None or found.knee is None or found.knee_error is None or abs(found.knee_error) <= ramps.KNEE_WITHIN:
        return None
    evidence = f"rate {found.knee_error:+.1%}, clients {found.clients_error or 0.0:+.1%}"
    if found.knee.throughput_range is not None:
        spread = found.knee.throughput_range
        evidence += f"; {found.knee.rounds} rounds from {spread.low:.4g} to {spread.high:.4g}/s"
    if found.drift is not None:
        evidence += f"; one client took {found.drift:+.1%} longer than single requests before"
    moved = found.clients_error is not None and abs(found.clients_error) <= ramps.KNEE_WITHIN
    cause = (
        "the machine became faster or slower meanwhile; the knee's clients were where they had been predicted"
        if moved
        else "load does something here that single requests do not show, or the machine was unsteady"
    )
    return rule("knee-mispredicted", seen, f"The knee was not where it had been predicted: {cause}.", evidence, "note")


def attribution_open(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Parts that do not add up."""
    found = seen.attribution
    if found is None or not found.from_journal or abs(found.unexplained_share) <= attributions.CLOSED_WITHIN:
        return None
    return rule(
        "attribution-open", seen, "The parts of the latency do not add up to it.",
        f"{found.unexplained_share:+.1%} unexplained", "note",
    )  # fmt: skip


ABSOLUTE: tuple[OneRule, ...] = (
    not_run, died, not_finite, unanswered, degraded_operators, load_changes_answers, metric_lost, limit_missed, decay,
    machine_slowed, rise_unexplained, growth, starvation, errors_under_load, weak_recovery, bad_input_blamed,
    passes_nan_on, scheduling_dominates, knee_off, attribution_open,
)  # fmt: skip
