"""The power wall: what boxes and racks may draw, checked with everything busy at once.

Mean power pays the bill; full load trips the fuse. A promise that holds at the mean and not at the peak is none.
"""

import math
from dataclasses import dataclass

from loadslice.plan.money.bill import bill
from loadslice.plan.racks import racks_needed
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
    """Of each box; empty: unknown."""
    boxes_units: tuple[float, ...]
    """Height of each."""
    missing: tuple[str, ...]


def full_load(fleet: PlannedFleet, budget: Budget, prices: Prices | None = None) -> FullLoad:
    """Watts of a fleet at full load.

    Engines are dealt out over the boxes of their type, the hungriest first, each to the box that draws least so far.
    """
    lowered = bill(fleet, budget, prices)
    lines = {line.name: line for line in lowered.lines}
    missing = tuple(f"idle_w and active_w of {line.name}" for line in lowered.lines if not line.curve_w)
    if missing:
        return FullLoad(None, None, (), (), missing)
    boxes: list[float] = []
    units: list[float] = []
    for name, box in fleet.boxes.items():
        if not box.count:
            continue
        own = [lines[name].power_w(1.0)] * box.count
        inside = [(key, one.count) for key, one in fleet.engines.items() if one.box == name and one.count]
        for full_w, count in sorted(((lines[key].power_w(1.0), count) for key, count in inside), reverse=True):
            for _ in range(count):
                own[min(range(box.count), key=own.__getitem__)] += full_w
        boxes += own
        units += [lines[name].rack_units] * box.count
    return FullLoad(sum(boxes), max(boxes, default=0.0), tuple(boxes), tuple(units), ())


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
    needed = racks_needed(load.boxes_w, load.boxes_units, per_rack_w)
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
