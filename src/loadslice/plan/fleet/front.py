"""Which fleets are worth a look: nobody is better in cost, P99 and energy at once; where none holds, the nearest."""

import math
from collections.abc import Sequence

import msgspec

from loadslice.spec.plan import Limit, PlannedFleet

TOLERANCE = 1e-9
ALIKE = 0.05
"""Fleets that differ by less in cost, P99 and energy are one to whoever reads the table."""


def mark(fleets: Sequence[PlannedFleet]) -> list[PlannedFleet]:
    """The fleets, each with the name of one that dominates it.

    Only fleets that keep the promise within the limits dominate; a figure that is unknown makes two fleets
    incomparable.
    """
    marked = []
    for fleet in fleets:
        by = next((other.name for other in fleets if other is not fleet and _dominates(other, fleet)), None)
        marked.append(msgspec.structs.replace(fleet, dominated_by=by))
    return marked


def _dominates(one: PlannedFleet, other: PlannedFleet) -> bool:
    if one.meets_slo is not True or any(limit.met is False for limit in one.limits):
        return False
    pairs = [
        (one.cost_per_hour, other.cost_per_hour),
        (one.latency_ms.p99, other.latency_ms.p99),
        (one.energy_j, other.energy_j),
    ]
    better = False
    for first, second in pairs:
        if first is None and second is None:
            continue
        if first is None or second is None or first > second * (1 + TOLERANCE):
            return False
        better = better or first < second * (1 - TOLERANCE)
    return better


def apart(there: Sequence[PlannedFleet], others: Sequence[PlannedFleet]) -> list[PlannedFleet]:
    """Of other fleets, in their order, those that better every fleet before them by more than `ALIKE` in something."""
    kept: list[PlannedFleet] = []
    for fleet in others:
        if not any(_alike(known, fleet) for known in (*there, *kept)):
            kept.append(fleet)
    return kept


def _alike(known: PlannedFleet, fleet: PlannedFleet) -> bool:
    """It is hardly worse in anything."""
    if known.meets_slo is not True:
        return False
    pairs = [
        (known.cost_per_hour, fleet.cost_per_hour),
        (known.latency_ms.p99, fleet.latency_ms.p99),
        (known.energy_j, fleet.energy_j),
    ]
    return all(
        first is second if first is None or second is None else first <= second * (1 + ALIKE) for first, second in pairs
    )


def nearest(fleets: Sequence[PlannedFleet]) -> str | None:
    """Name of the fleet whose worst limit is missed least; ``None``: none was simulated."""
    simulated = [fleet for fleet in fleets if fleet.judged == "simulated"]
    misses = {fleet.name: max(map(_missed, fleet.limits), default=math.inf) for fleet in simulated}
    return min(misses, key=misses.__getitem__, default=None)


def _missed(limit: Limit) -> float:
    """Figure over limit; 0 where it is met or cannot be told."""
    if limit.met is not False:
        return 0.0
    return math.inf if limit.value is None or not limit.limit else limit.value / limit.limit
