"""Machines of its own for offline work: what filling the valleys is compared with."""

import math
from collections.abc import Sequence

import msgspec

from loadslice.plan import valleys
from loadslice.plan.decision.scenario import is_hybrid
from loadslice.plan.decision.settle import Cost
from loadslice.plan.money.tco import costs_by_year
from loadslice.spec.budget import Budget, Offline
from loadslice.spec.plan import Load, PlannedFleet, ValleyFill
from loadslice.spec.prices import Prices


def separate_fleet(fleet: PlannedFleet, load: Load, offline: Offline) -> PlannedFleet | None:
    """As many machines of a fleet's kind as the offline work keeps busy to `valleys.FILL_MAX` in its window.

    Args:
        fleet: Simulated, of one kind.
        load: What it was simulated on.
        offline: Asks per request what a recorded request asks.

    Returns:
        ``None``: its utilisation is unknown.
    """
    window_s = offline.window_minutes * 60.0
    engines = {}
    share = 0.0
    for name, engine in fleet.engines.items():
        if not engine.count:
            continue
        if not engine.utilisation or load.rate_per_s <= 0:
            return None
        work_s = engine.utilisation * engine.count / load.rate_per_s * offline.requests_per_day
        count = max(1, math.ceil(work_s / (window_s * valleys.FILL_MAX)))
        share = max(share, count / engine.count)
        used = min(1.0, work_s / (count * 86_400.0))
        engines[name] = msgspec.structs.replace(
            engine,
            count=count,
            utilisation=used,
            utilisation_peak_hour=None,
            utilisation_over_time=_within(used, window_s),
        )
    boxes = {
        name: msgspec.structs.replace(box, count=max(1, math.ceil(box.count * share)))
        for name, box in fleet.boxes.items()
        if box.count
    }
    label = " + ".join(f"{engine.count} x {name}" for name, engine in engines.items())
    return msgspec.structs.replace(fleet, name="offline", label=label, engines=engines, boxes=boxes)


def _within(used: float, window_s: float) -> list[tuple[float, float]]:
    """Busy in the window alone, the rest of the day idle."""
    part = min(1.0, window_s / 86_400.0)
    return [(part, min(1.0, used / part)), (1.0 - part, 0.0)]


def fill(
    fleet: PlannedFleet, fleets: Sequence[PlannedFleet], load: Load, budget: Budget, prices: Prices | None, cost: Cost
) -> ValleyFill:
    """What fits into the valleys of a fleet, against the cheapest machines of one kind for the offline work alone.

    Hours are not counted on either side: the kind is looked after anyway.
    """
    offline, years = budget.offline, budget.money.horizon_years
    filled = valleys.filling(fleet, load, offline)
    separate, separate_total = None, None
    power_total, saved, evidence = None, None, filled.evidence
    if offline is not None:
        separate, separate_total = _cheapest_separate(fleets, load, budget, prices, offline, cost)
        watts = valleys.extra_w(fleet, load, offline)
        tariff, cooling = budget.power.tariff_per_kwh, budget.power.cooling_factor
        if watts is None or tariff is None or cooling is None:
            evidence += "; what it saves is unknown: power, tariff or cooling factor are not stated"
        else:
            made = valleys.saving(
                filled, separate_total, extra_w=watts, tariff_per_kwh=tariff, cooling_factor=cooling, years=years
            )
            power_total, saved, evidence = made.power_total, made.saved, made.evidence
    return ValleyFill(
        fleet=fleet.name,
        fill_max=valleys.FILL_MAX,
        engine_hours_per_day=dict(valleys.by_kind(filled)),
        requests_per_day=filled.requests_per_day,
        fits=filled.fits,
        fits_in_window=filled.window_requests,
        years=years,
        separate=separate,
        separate_total=separate_total,
        power_total=power_total,
        saved=saved,
        evidence=evidence,
    )


def _cheapest_separate(
    fleets: Sequence[PlannedFleet], load: Load, budget: Budget, prices: Prices | None, offline: Offline, cost: Cost
) -> tuple[str | None, float | None]:
    """Label and total of the cheapest; the total without migration and upkeep."""
    found: list[tuple[float, str]] = []
    for fleet in fleets:
        if is_hybrid(fleet) or not fleet.meets_slo or cost(fleet) is None:
            continue
        alone = separate_fleet(fleet, load, offline)
        if alone is None:
            continue
        steady = msgspec.structs.replace(budget, growth_per_year=0.0)
        priced = costs_by_year(alone, steady, prices, years=[budget.money.horizon_years], carries=math.inf)[0]
        if priced.total is not None:
            found.append((priced.total - (priced.migration or 0.0) - (priced.upkeep or 0.0), alone.label))
    if not found:
        return None, None
    total, label = min(found)
    return label, total
