"""From a study's rehearsals and replays to what its plan may be wrong by, and the two verdicts side by side."""

import math
from collections.abc import Collection, Sequence

from loadslice.evaluate.rehearsed import Rehearsed
from loadslice.evaluate.verdict import QUIET_SHARE
from loadslice.spec.budget import Slo
from loadslice.spec.observed import Observed
from loadslice.spec.plan import Plan, PlannedFleet
from loadslice.spec.report import PlanReport

MOST_OF_A_STAGE = 0.5
"""A stage whose requests mostly went to one engine tells of that engine's times."""


def observed(
    plans: Sequence[PlanReport], rehearsed: Sequence[Rehearsed], models: Collection[str], slo: Slo
) -> Observed | None:
    """What the plans that were measured say about times and tails; ``None``: none was both predicted and measured.

    Args:
        plans: An emulated one says nothing about this machine.
        rehearsed: What rehearsals said.
        models: Stages that are models; Python's are not what a plan buys engines for.
        slo: Its first latency is the tail.
    """
    measured = [
        plan
        for plan in plans
        if plan.simulated is not None and plan.measured is not None and plan.measured.basis == "measured"
    ]
    if not measured:
        return None
    seen: dict[str, list[float]] = {}
    for factors in [*(_rehearsed(one, models) for one in rehearsed), *(_replayed(plan, models) for plan in measured)]:
        for engine, factor in factors.items():
            seen.setdefault(engine, []).append(round(factor, 4))
    tail = next(iter(slo.latency_limits_ms))
    tails = {plan.title: off for plan in measured if (off := _tail(plan, tail)) is not None}
    shares = {plan.title: plan.cpu.others_utilisation for plan in measured if plan.cpu is not None}
    loud = ", ".join(f"{share:.0%} ({title})" for title, share in shares.items() if share > QUIET_SHARE)
    return Observed(
        times_sd={name: math.sqrt(sum(math.log(one) ** 2 for one in all_) / len(all_)) for name, all_ in seen.items()},
        times_seen=seen,
        tail=tail,
        tail_seen=tails,
        disturbed=f"other programs took part of this machine while it was measured: {loud}" if loud else None,
    )


def _rehearsed(rehearsal: Rehearsed, models: Collection[str]) -> dict[str, float]:
    """Engine -> geometric mean over its models of (time in the server / profiled time)."""
    logs: dict[str, list[float]] = {}
    for (stage, engine), ratio in rehearsal.ratios.items():
        if stage in models and ratio > 0:
            logs.setdefault(engine, []).append(math.log(ratio))
    return {engine: math.exp(sum(own) / len(own)) for engine, own in logs.items()}


def _replayed(plan: PlanReport, models: Collection[str]) -> dict[str, float]:
    """Engine -> (measured / predicted) service of the models that mostly ran on it, of one replay."""
    sums: dict[str, tuple[float, float]] = {}
    for stage in plan.stages:
        if stage.stage not in models or stage.predicted is None or stage.measured is None:
            continue
        engine, share = max(stage.measured.engine_share.items(), key=lambda pair: pair[1])
        if share > MOST_OF_A_STAGE:
            took, said = sums.get(engine, (0.0, 0.0))
            sums[engine] = took + stage.measured.service_ms_mean, said + stage.predicted.service_ms_mean
    return {engine: took / said for engine, (took, said) in sums.items() if took > 0 and said > 0}


def _tail(plan: PlanReport, name: str) -> float | None:
    figure = next((one for one in plan.compared if one.figure == name), None)
    if figure is None or not figure.predicted or not figure.measured:
        return None
    return round(figure.measured / figure.predicted, 4)


def side_by_side(plans: Sequence[PlanReport], recommended: str | None, planned: Plan | None, slo: Slo) -> list[str]:
    """The study's verdict and the planner's on the same engines: whether they agree, and why not.

    Args:
        plans: Measured.
        recommended: Name of the one that the study's verdict recommends.
        planned: ``None``: no fleet was sought.
        slo: What is promised.
    """
    if planned is None:
        return []
    fleet = next((one for one in planned.fleets if one.name == planned.recommended), None)
    if fleet is None:
        return []
    same = _on_the_same_engines(plans, fleet)
    if same is None:
        return [f"The planner's {fleet.label} stands on engines that no plan of this study has; it was not measured."]
    text = [_compared(same, fleet, planned, slo)]
    best = next((plan for plan in plans if plan.name == recommended), None)
    if best is not None and best.name != same.name:
        text.append(
            f"The study recommends {best.title}, by what was measured at this pace (kept promise, then least processor "
            f"time); the planner recommends {fleet.label}, by cost on the whole trace at its recorded pace, simulated."
        )
    return text


def _on_the_same_engines(plans: Sequence[PlanReport], fleet: PlannedFleet) -> PlanReport | None:
    names = {name for name, engine in fleet.engines.items() if engine.count}
    return next((plan for plan in plans if set(plan.engines) == names and plan.meets_slo is not None), None)


def _compared(plan: PlanReport, fleet: PlannedFleet, planned: Plan, slo: Slo) -> str:
    tail = next(iter(slo.latency_limits_ms))
    assert plan.measured is not None
    took_ms, said_ms = getattr(plan.measured.latency_ms, tail), getattr(fleet.latency_ms, tail)
    name = tail.upper()
    measured = f"{plan.title}, measured at {plan.measured.speed:.3g} times the recorded pace"
    measured += f" ({name} {took_ms:.0f} ms)" if took_ms is not None else ""
    simulated = f"{fleet.label}, simulated on the whole trace at its recorded pace"
    simulated += f" ({name} {said_ms:.0f} ms)" if said_ms is not None else ""
    if plan.meets_slo == fleet.meets_slo:
        verb = "keep" if plan.meets_slo else "break"
        return f"Both answers agree: {measured} and {simulated} {verb} the promise."
    keeps, breaks = (simulated, measured) if fleet.meets_slo else (measured, simulated)
    seen = planned.observed
    factor = None if seen is None else seen.tail_seen.get(plan.title)
    why = [] if plan.measured.speed == 1 else ["the pace differs"]
    if factor is not None:
        why.append(f"the measured {name} was {factor:.2g} times its own prediction, so a simulation misses this much")
    if seen is not None and seen.disturbed is not None:
        why.append(seen.disturbed)
    reasons = f" Why: {'; '.join(why)}." if why else ""
    return (
        f"Two answers on the same engines differ. Keeps the promise: {keeps}. Breaks it: {breaks}.{reasons} What was "
        "measured goes before what was simulated: repeat the study on a quiet machine, or measure longer, before "
        "buying."
    )
