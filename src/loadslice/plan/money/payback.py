"""From which month on a fleet has cost less than another, and what growth makes one buy when.

Money as it is paid, month by month, nothing discounted and no residual value counted: what a purchase is worth in the
end is in the totals (`tco`), not in the month in which it has paid for itself.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadslice.plan.money.bill import Bill, bill
from loadslice.plan.money.tco import carried
from loadslice.plan.money.years import Array, Shocks, grown, over
from loadslice.spec.budget import Budget
from loadslice.spec.plan import Limit, PlannedFleet
from loadslice.spec.plan_money import BreakEven, Growth, Later, Tenure
from loadslice.spec.prices import Prices

CENT = 0.005
MONTH = "month-"
"""How fleets that are bought today for a later month's traffic are named (`loadslice.plan.fleet.beside`)."""


def paid(lowered: Bill, budget: Budget, headroom: float) -> Array:
    """Money paid by the end of each month of the horizon, [months]; NaN: unknown.

    Args:
        lowered: The fleet.
        budget: Its growth grows the fleet; its discount is left out.
        headroom: As of `over`.
    """
    plain = msgspec.structs.replace(budget, money=msgspec.structs.replace(budget.money, discount_per_year=0.0))
    found = []
    for month in range(1, 12 * budget.money.horizon_years + 1):
        costs = over(lowered, plain, month, headroom)
        found.append(float((costs.total - costs.depreciation + costs.purchase)[0]))
    return np.array(found)


def tenure(fleet: PlannedFleet, budget: Budget, prices: Prices | None) -> Tenure:
    """How one comes by a fleet: bought, rented, both, or there already."""
    lines = bill(fleet, budget, prices).lines
    rents = any(line.rented for line in lines)
    # A price that nobody states is a purchase all the same.
    buys = any(not line.rented and line.count > line.owned and line.purchase != 0 for line in lines)
    return "mixed" if rents and buys else "rented" if rents else "bought" if buys else "present"


def break_even(
    chosen: PlannedFleet,
    fleets: Sequence[PlannedFleet],
    budget: Budget,
    prices: Prices | None,
    carries: Mapping[str, float],
) -> list[BreakEven]:
    """The recommended fleet against what is there, and against the cheapest that is rented or bought instead.

    Args:
        chosen: Recommended.
        fleets: Simulated and priced.
        budget: Horizon and growth.
        prices: What is there already, and what offers do not state.
        carries: As of `advice.complete`.
    """
    own = tenure(chosen, budget, prices)
    mine = paid(bill(chosen, budget, prices), budget, carried(chosen, budget, prices, carries.get(chosen.name)))
    found: list[BreakEven] = []
    for what in ("present", "rented", "bought"):
        others = [
            (float(theirs[-1]), fleet, theirs)
            for fleet in fleets
            if fleet.engines
            and fleet.judged == "simulated"
            and (fleet.meets_slo or what == "present")
            and tenure(fleet, budget, prices) == what != own
            for theirs in [paid(bill(fleet, budget, prices), budget, _limit(fleet, budget, prices, carries))]
            if not np.isnan(theirs).any()
        ]
        if others and not np.isnan(mine).any():
            # What is there and keeps the promise goes before what is there and does not.
            _, other, theirs = min(others, key=lambda one: (not one[1].meets_slo, one[0], one[1].name))
            found.append(_compared(mine, theirs, other, what))
    return found


def _limit(fleet: PlannedFleet, budget: Budget, prices: Prices | None, carries: Mapping[str, float]) -> float:
    """Traffic under which a fleet grows; one that breaks the promise as it stands is left as it stands."""
    return carried(fleet, budget, prices, carries.get(fleet.name)) if fleet.meets_slo else np.inf


def _compared(mine: Array, theirs: Array, other: PlannedFleet, what: Tenure) -> BreakEven:
    less = mine <= theirs + CENT
    dearer = np.flatnonzero(~less)
    last = int(dearer[-1]) + 1 if len(dearer) else 0
    return BreakEven(
        against=other.name,
        what=what,
        keeps=bool(other.meets_slo),
        less_from_month=None if last == len(mine) else last + 1,
        less_until_month=int(dearer[0]) if less[0] and last == len(mine) else None,
        saved=float(theirs[-1] - mine[-1]),
        dearer_by_most=float(max(0.0, (mine - theirs).max())),
    )


def growth(
    chosen: PlannedFleet,
    fleets: Sequence[PlannedFleet],
    budget: Budget,
    prices: Prices | None,
    carries: Mapping[str, float],
) -> Growth | None:
    """What growth makes one buy when, and whether buying for a later month today is cheaper; ``None``: none grows."""
    if budget.growth_per_year <= 0:
        return None
    months = 12 * budget.money.horizon_years
    load = ((1.0 + budget.growth_per_year) ** (np.arange(months) / 12.0))[None, :]
    lowered = bill(chosen, budget, prices)
    limit = carried(chosen, budget, prices, carries.get(chosen.name))
    count = grown(lowered, load, limit, Shocks.none())
    buys = []
    for line in lowered.lines:
        more = np.diff(count[line.name][0], prepend=line.count)
        buys += [Later(month=int(month) + 1, part=line.name, count=int(more[month])) for month in np.flatnonzero(more)]
    return Growth(
        traffic_at_end=float(load[0, -1]),
        carries=float(limit) if np.isfinite(limit) else None,
        simulated=chosen.name in carries,
        buys=sorted(buys, key=lambda one: (one.month, one.part)),
        instead=_instead(chosen, fleets, budget),
    )


def outgrown(
    fleet: PlannedFleet, budget: Budget, prices: Prices | None, carries: float | None, months: int
) -> list[Limit]:
    """Parts of which growth asks for more within so many months than are offered."""
    if budget.growth_per_year <= 0 or not fleet.meets_slo:
        return []
    load = ((1.0 + budget.growth_per_year) ** (np.arange(months) / 12.0))[None, :]
    count = grown(bill(fleet, budget, prices), load, carried(fleet, budget, prices, carries), Shocks.none())
    offered = {name: box.count_max for name, box in fleet.boxes.items()}
    offered |= {name: engine.count_max for name, engine in fleet.engines.items()}
    found = []
    for name, units in count.items():
        most = offered[name]
        if most is not None and units[0, -1] > most:
            month = int(np.argmax(units[0] > most)) + 1
            asked = float(units[0, -1])
            told = f"growth asks for {asked:g} x {name} by month {months}, {most} offered: enough to month {month - 1}"
            found.append(Limit(name="capacity", limit=float(most), value=asked, met=False, evidence=told))
    return found


def _instead(chosen: PlannedFleet, fleets: Sequence[PlannedFleet], budget: Budget) -> dict[str, float]:
    """Buying ahead against growing: the fleets for later months, and the cheapest of the others where it is one."""
    own = _total(chosen, budget)
    totals = {
        fleet.name: total
        for fleet in fleets
        if fleet.meets_slo and fleet.name != chosen.name and (total := _total(fleet, budget)) is not None
    }
    ahead = [name for name in totals if name.startswith(MONTH)]
    others = [name for name in totals if name not in ahead]
    if chosen.name.startswith(MONTH) and others:
        ahead.append(min(others, key=totals.__getitem__))
    return {} if own is None else {name: totals[name] - own for name in ahead}


def _total(fleet: PlannedFleet, budget: Budget) -> float | None:
    return next((one.total for one in fleet.tco or [] if one.years == budget.money.horizon_years), None)
