"""Total cost of ownership of a planned fleet over whole years, and of a thousand inferences."""

import math
from collections.abc import Sequence

import numpy as np

from loadslice.plan.money.bill import bill
from loadslice.plan.money.years import Array, Costs, Shocks, discounts, headroom, over, unpriced
from loadslice.spec.budget import Budget
from loadslice.spec.plan import PlannedFleet
from loadslice.spec.plan_money import YearCost
from loadslice.spec.prices import Prices

SECONDS_PER_MONTH = 365.25 * 86_400 / 12

HORIZONS = (2, 3)


def horizons(budget: Budget) -> tuple[int, ...]:
    """Years to look at: two and three, and what the budget asks for."""
    return tuple(sorted({*HORIZONS, budget.money.horizon_years}))


def costs_by_year(
    fleet: PlannedFleet,
    budget: Budget,
    prices: Prices | None = None,
    *,
    years: Sequence[int] | None = None,
    carries: float | None = None,
) -> list[YearCost]:
    """What a fleet costs.

    Args:
        fleet: With the utilisation that a simulation found.
        budget: Tariff, hours, growth.
        prices: What the offers do not state.
        years: Horizons; ``None``: `horizons`.
        carries: Traffic, as a multiple of the recorded, under which a simulation showed it to keep the promise;
            ``None``: as far as `UTILISATION_MAX` of its busiest engine allows.
    """
    lowered = bill(fleet, budget, prices)
    limit = carried(fleet, budget, prices, carries)
    found = []
    for span in years or horizons(budget):
        costs = over(lowered, budget, 12 * span, limit)
        outgrown = [f"the price of {name}" for name in unpriced(lowered, budget, 12 * span, limit)]
        found.append(_year_cost(span, costs, list(dict.fromkeys([*lowered.missing, *outgrown]))))
    return found


def with_interval(
    fleet: PlannedFleet,
    budget: Budget,
    prices: Prices | None,
    shocks: Shocks,
    *,
    years: int,
    carries: float | None = None,
) -> tuple[float, float] | None:
    """Bounds of the total that hold 95 of 100 of the drawn worlds; ``None``: the total is unknown."""
    lowered = bill(fleet, budget, prices)
    limit = carried(fleet, budget, prices, carries)
    totals = over(lowered, budget, 12 * years, limit, shocks).total
    if np.isnan(totals).any():
        return None
    low, high = np.quantile(totals, [0.025, 0.975])
    return float(low), float(high)


def per_1000(total: float | None, years: int, completed_per_s: float | None, budget: Budget) -> float | None:
    """Money for 1000 completed requests over the years; discounted, where money is (levelised cost).

    Args:
        total: Over the years; ``None``: unknown.
        years: Whole years.
        completed_per_s: At today's traffic; ``None``: unknown.
        budget: How traffic grows, and what later counts.
    """
    if total is None or not completed_per_s:
        return None
    growth = (1.0 + budget.growth_per_year) ** (np.arange(12 * years) / 12.0)
    requests = completed_per_s * SECONDS_PER_MONTH * float((growth * discounts(budget, 12 * years)).sum())
    return 1000.0 * total / requests


def carried(fleet: PlannedFleet, budget: Budget, prices: Prices | None, carries: float | None = None) -> float:
    """Traffic, as a multiple of the recorded, that a fleet keeps the promise under: as simulated, else by its peak."""
    return carries if carries is not None else headroom(bill(fleet, budget, prices), _peak(fleet))


def _peak(fleet: PlannedFleet) -> float | None:
    peaks = [engine.utilisation_peak_hour for engine in fleet.engines.values() if engine.count]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _year_cost(years: int, costs: Costs, missing: list[str]) -> YearCost:
    known = [float(part[0]) for part in costs.parts.values()]
    return YearCost(
        years=years,
        total=_first(costs.total),
        purchase=_first(costs.purchase + costs.rent),
        depreciation=_first(costs.depreciation),
        power=_first(costs.power),
        cooling=_first(costs.cooling),
        space=_first(costs.space),
        migration=_first(costs.migration),
        upkeep=_first(costs.upkeep),
        rent=_first(costs.rent),
        at_least=sum(part for part in known if not math.isnan(part)),
        missing=missing,
    )


def _first(values: Array) -> float | None:
    value = float(values[0])
    return None if math.isnan(value) else value
