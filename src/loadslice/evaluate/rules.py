"""Interpretation rules: what the figures of a placement, beside the reference's, mean in plain words.

Each rule has a code, fires or does not, and says on what evidence. `regression` makes the verdict negative, `warning`
asks somebody to look, `note` explains. Comparative rules are asked of every placement but the reference; the others of
all. Differences below `NOISE` are none.
"""

from loadslice.evaluate.rules_alone import ABSOLUTE, OneRule, not_run, rule
from loadslice.evaluate.seen import Seen
from loadslice.spec.evaluation import Evaluation
from loadslice.spec.evaluation_report import Effect, Rule

NOISE = 0.05
DEVICE_DOWN = 0.10
"""A device that is less busy than the reference's by this share of its time, at the same throughput, waits."""


def fired(found: list[Seen], wanted: Evaluation) -> list[Rule]:
    """All rules over all placements, in order of the placements."""
    reference = next(seen for seen in found if seen.reference)
    rules: list[Rule] = []
    for seen in found:
        asked = ABSOLUTE if seen.reference else ABSOLUTE + COMPARATIVE
        if seen.state == "not_run":
            asked = (not_run,)
        rules += [one for ask in asked if (one := ask(seen, reference, wanted)) is not None]
    return rules


def outputs_identical(seen: Seen, _: Seen, __: Evaluation) -> Rule | None:
    """Bit for bit."""
    if seen.correctness is None or seen.correctness.alike != "identical":
        return None
    return rule(
        "outputs-identical", seen, "Outputs are identical: enable it.",
        f"{len(seen.correctness.differences)} inputs compared, all bit-equal", "note",
    )  # fmt: skip


def outputs_slightly_different(seen: Seen, _: Seen, wanted: Evaluation) -> Rule | None:
    """Within what rounding explains."""
    if seen.correctness is None or seen.correctness.alike != "slightly":
        return None
    return rule(
        "outputs-slightly-different", seen,
        f"Outputs differ as the order of rounding in {wanted.scheme or 'fp32'} can explain: check it, then enable.",
        _apart(seen), "note",
    )  # fmt: skip


def outputs_clearly_different(seen: Seen, _: Seen, wanted: Evaluation) -> Rule | None:
    """More than rounding: a shift, a scale, outliers, other shapes or text."""
    if seen.correctness is None or seen.correctness.alike != "clearly":
        return None
    return rule(
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


def throughput_down(seen: Seen, reference: Seen, wanted: Evaluation) -> Rule | None:
    """Below the floor."""
    ratio = _ratio(seen.most_per_s, reference.most_per_s)
    if ratio is None or ratio >= wanted.floors.throughput_ratio:
        return None
    return rule("throughput-down", seen, "It serves less than the reference.", _rates(seen, reference, ratio))


def latency_up(seen: Seen, reference: Seen, wanted: Evaluation) -> Rule | None:
    """Above the floor, by more than both intervals; for offline work a warning."""
    ratio = _ratio(seen.median_ms, reference.median_ms)
    if ratio is None or ratio <= wanted.floors.latency_ratio:
        return None
    mine = seen.lone.interval if seen.lone is not None else None
    its = reference.lone.interval if reference.lone is not None else None
    if mine is not None and its is not None and mine.low <= its.high * wanted.floors.latency_ratio:
        return None
    return rule(
        "latency-up", seen, "Single requests take longer than the reference's.",
        f"{seen.median_ms:.2f} against {reference.median_ms:.2f} ms",
        "warning" if wanted.scenario == "offline" else "regression",
    )  # fmt: skip


def throughput_up_first_later(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """More is served, but the first result comes later."""
    rate, first = _ratio(seen.most_per_s, reference.most_per_s), _ratio(seen.first_ms, reference.first_ms)
    if rate is None or first is None or rate <= 1 + NOISE or first <= 1 + NOISE:
        return None
    return rule(
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
    return rule(
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
    return rule(
        "no-dual-bank-gain", seen,
        "Two banks bring nothing over one: the graph cannot be split, bandwidth or bank synchronisation eats the gain, "
        "or the framework does not expose the parallelism.",
        f"throughput x{rate:.2f}", "warning",
    )  # fmt: skip


def _banks(seen: Seen) -> bool:
    """Engines named ``x.bank0``, ``x.bank1``."""
    return len({engine for engine in seen.devices if ".bank" in engine}) > 1


def no_benefit(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """Nothing gained that its cost would pay for."""
    rate, latency = _ratio(seen.most_per_s, reference.most_per_s), _ratio(seen.median_ms, reference.median_ms)
    if rate is None or latency is None or rate > 1 + NOISE or latency < 1 - NOISE:
        return None
    cost = _ratio(seen.cost_per_hour, reference.cost_per_hour)
    if cost is not None and cost < 1 - NOISE:
        return None
    return rule(
        "no-benefit", seen, "It brings nothing that would pay for running it: stay with the reference.",
        f"throughput x{rate:.2f}, latency x{latency:.2f}", "warning",
    )  # fmt: skip


def pays(seen: Seen, reference: Seen, _: Evaluation) -> Rule | None:
    """Cheaper per answer."""
    cost, rate = _ratio(seen.cost_per_hour, reference.cost_per_hour), _ratio(seen.most_per_s, reference.most_per_s)
    if cost is None or rate is None or rate <= 0 or cost / rate >= 1 - NOISE:
        return None
    return rule("pays", seen, "An answer costs less than on the reference.", f"x{cost / rate:.2f} per answer", "note")


def replay_slower(seen: Seen, reference: Seen, wanted: Evaluation) -> Rule | None:
    """On recorded traffic."""
    mine, its = (one.replay.get("latency_ms_p95") if one.replay else None for one in (seen, reference))
    ratio = _ratio(mine, its)
    if ratio is None or ratio <= wanted.floors.latency_ratio:
        return None
    effect: Effect = "warning" if wanted.scenario == "offline" else "regression"
    return rule("replay-slower", seen, "Recorded traffic waits longer.", f"p95 {mine:.1f} against {its:.1f} ms", effect)


COMPARATIVE: tuple[OneRule, ...] = (
    outputs_identical, outputs_slightly_different, outputs_clearly_different, throughput_down, latency_up,
    throughput_up_first_later, throughput_flat_device_idle, no_dual_bank_gain, no_benefit, pays, replay_slower,
)  # fmt: skip


def _ratio(value: float | None, over: float | None) -> float | None:
    return value / over if value is not None and over else None


def _rates(seen: Seen, reference: Seen, ratio: float) -> str:
    return f"{seen.most_per_s:.2f}/s against {reference.most_per_s:.2f}/s (x{ratio:.2f})"
