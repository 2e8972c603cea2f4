"""The power wall: what boxes and racks may draw, checked with everything busy at once.

Mean power pays the bill; full load trips the fuse. A promise that holds at the mean and not at the peak is none.
"""

import math
from dataclasses import dataclass

from loadslice.plan.money.bill import bill
from loadslice.spec.budget import Budget
from loadslice.spec.plan import Limit, PlannedFleet
from loadslice.spec.prices import Prices


@dataclass(frozen=True, slots=True)
class FullLoad:
    """Watts with everything busy; ``None``: unknown."""

    fleet_w: float | None
    box_w: float | None
    """Of the box that draws most."""
    boxes_w: tuple[float, ...]
    """Of each box, descending; empty: unknown."""
    missing: tuple[str, ...]


def full_load(fleet: PlannedFleet, budget: Budget, prices: Prices | None = None) -> FullLoad:
    """Watts of a fleet at full load.

    Engines of one type are dealt out evenly over the boxes of their type: a box holds ``ceil(engines / boxes)``.
    """
    lowered = bill(fleet, budget, prices)
    lines = {line.name: line for line in lowered.lines}
    missing = tuple(f"idle_w and active_w of {line.name}" for line in lowered.lines if not line.curve_w)
    if missing:
        return FullLoad(None, None, (), missing)
    boxes: list[float] = []
    for name, box in fleet.boxes.items():
        own = [0.0] * box.count
        for engine_name, engine in fleet.engines.items():
            if engine.box != name or not engine.count or not box.count:
                continue
            full_w = lines[engine_name].power_w(1.0)
            # The boxes that have least so far take the next engine.
            for _ in range(engine.count):
                least = min(range(box.count), key=own.__getitem__)
                own[least] += full_w
        boxes += [lines[name].power_w(1.0) + part for part in own] if box.count else []
    return FullLoad(sum(boxes), max(boxes, default=0.0), tuple(sorted(boxes, reverse=True)), ())


def racks_needed(boxes_w: tuple[float, ...], per_rack_w: float) -> int | None:
    """Racks that hold the boxes, first fit of the largest first; ``None``: a box is too much for any.

    First fit decreasing needs at most 11/9 of the fewest plus one (Johnson 1973); with equal boxes it is exact.
    """
    racks: list[float] = []
    for box_w in boxes_w:
        if box_w > per_rack_w:
            return None
        fitting = next((index for index, used in enumerate(racks) if used + box_w <= per_rack_w), None)
        if fitting is None:
            racks.append(box_w)
        else:
            racks[fitting] += box_w
    return len(racks)


def limits(fleet: PlannedFleet, budget: Budget, prices: Prices | None = None) -> list[Limit]:
    """The budget's power limits against a fleet at full load; empty: it sets none."""
    power = budget.power
    load = full_load(fleet, budget, prices)
    unknown = f"unknown: {'; '.join(load.missing)}" if load.missing else ""
    found = []
    if power.per_box_w is not None:
        met = None if load.box_w is None else load.box_w <= power.per_box_w
        evidence = unknown or f"the box that draws most takes {_w(load.box_w)} with all its engines busy"
        found.append(Limit(name="per_box_w", limit=power.per_box_w, value=load.box_w, met=met, evidence=evidence))
    if power.per_rack_w is not None:
        found.append(_rack_limit(load, power.per_rack_w, power.racks, unknown))
    return found


def _rack_limit(load: FullLoad, per_rack_w: float, racks: int, unknown: str) -> Limit:
    if load.fleet_w is None:
        return Limit(name="per_rack_w", limit=per_rack_w, value=None, met=None, evidence=unknown)
    needed = racks_needed(load.boxes_w, per_rack_w)
    if needed is None:
        return Limit(
            name="per_rack_w",
            limit=per_rack_w,
            value=load.box_w,
            met=False,
            evidence=f"one box takes {_w(load.box_w)}, more than a whole rack may",
        )
    return Limit(
        name="per_rack_w",
        limit=per_rack_w,
        value=load.fleet_w / max(1, min(needed, racks)),
        met=needed <= racks,
        evidence=f"{_w(load.fleet_w)} with everything busy, in {needed} rack{'s' if needed != 1 else ''} of {racks}",
    )


def _w(value: float | None) -> str:
    return "unknown" if value is None or math.isnan(value) else f"{value:.3g} W" if value < 1000 else f"{value:,.0f} W"
