"""What the decision's sentence says beside the fleet: doubts, what is lacking, and a choice that is safer."""

from collections.abc import Sequence

from loadslice.plan.decision.settle import Cost
from loadslice.spec.latency import LatencyTable
from loadslice.spec.plan import Plan, PlannedFleet
from loadslice.spec.plan_confidence import Confidence

CAVEAT = "But other programs disturbed the study's runs: repeat it on a quiet machine before deciding."


def doubted(plan: Plan, recommended: PlannedFleet | None, latency: LatencyTable | None) -> str:
    """What the study's own errors, and the machine that was measured, leave of the decision."""
    sentence = ""
    doubt = None if recommended is None else plan.doubt(recommended)
    if doubt is not None:
        sentence += f" That is as simulated, and {doubt}."
    if plan.observed is not None and plan.observed.disturbed is not None:
        sentence += f" {CAVEAT}"
    if latency is not None and latency.disturbed is not None:
        sentence += f" That is not to be relied on: {latency.disturbed}"
    return sentence


def lacking(fleets: Sequence[PlannedFleet], near: str | None) -> str:
    """What the nearest fleet breaks, where none is recommended: how much more it would take."""
    fleet = next((fleet for fleet in fleets if fleet.name == near), None)
    broken = [] if fleet is None else [one for one in fleet.limits if one.met is False]
    if fleet is None or not broken:
        return ""
    told = [f"{one.name} ({_amount(one.value)} against {_amount(one.limit)})" for one in broken]
    return f" The nearest is {fleet.label}, which breaks {' and '.join(told)}."


def _amount(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if 100 <= value < 1e12 else f"{value:.3g}"


def safer(
    fleets: Sequence[PlannedFleet], recommended: str | None, sure: Confidence | None, cost: Cost, currency: str
) -> str:
    """A fleet that stays the best more often, and what it costs more; empty: there is none."""
    if sure is None or sure.safer is None or sure.survives is None or sure.safer_survives is None:
        return ""
    by_name = {fleet.name: fleet for fleet in fleets}
    other = by_name[sure.safer]
    own, price = cost(by_name[recommended or ""]), cost(other)
    if own is None or price is None:
        more = ""
    else:
        more = f", which costs {abs(price - own):,.0f} {currency} {'more' if price >= own else 'less'}"
    return (
        f" Safer is {other.label}{more}: it stays the best in {sure.safer_survives:.0%} of the worlds that were drawn, "
        f"this one in {sure.survives:.0%}."
    )
