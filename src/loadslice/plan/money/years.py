"""Cost month by month: the one formula behind a total, its interval, and every draw of the Monte Carlo.

All of it is computed for K worlds at once (`Shocks`); a plain total is K = 1.

- Traffic of month m is ``(1 + growth) ** (m / 12)`` times today's. A fleet that carries ``headroom`` times today's
  grows when that is passed: each type of engine then needs ``ceil(count x traffic x time / headroom)``, ``time`` being
  the factor on service times, and as many machines as hold them. Units bought stay.
- Purchase: what is bought beyond what is owned, when it is bought. Residual: straight line from the month of purchase
  to ``residual_share`` after ``depreciation_years`` (German HGB 253 (3), US GAAP ASC 360-10-35: cost less residual
  value over the useful life). Without ``depreciation_years`` it is written off to ``residual_share`` over the years
  looked at, whenever in them it was bought.
- Power: watts of the curve at the utilisation of that month, hour by hour of the day where the curve bends, x hours x
  tariff. Cooling: the same x (PUE - 1); PUE is the site's power over the machines' (ISO/IEC 30134-2).
- Money of a later month counts less by the budget's discount; what is left of a purchase counts as at the end.
- A rented unit costs its rent; power, cooling, space and spares are in it, and the power of what stands in it.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadslice.plan.money.bill import Bill, Line
from loadslice.spec.budget import Budget
from loadslice.spec.currency import HOURS_PER_MONTH

Array = NDArray[np.float64]

UTILISATION_MAX = 0.7
"""Where no simulation says how much more a fleet carries: waits of an M/M/1 queue are 2.3 times the service there and
grow without bound beyond (Kleinrock, Queueing Systems vol. 1, ch. 3)."""


USED_LEAST = 1e-9
"""A share of the time below which an engine idles."""


@dataclass(frozen=True, slots=True)
class Shocks:
    """Factors on what is assumed, K worlds. A name that is absent is 1."""

    traffic: Array
    tariff: Array
    hours: Array
    price: dict[str, Array]
    """By line."""
    time: dict[str, Array]
    """On service times, by line."""

    @classmethod
    def none(cls, worlds: int = 1) -> "Shocks":
        """Everything as assumed."""
        one = np.ones(worlds)
        return cls(one, one, one, {}, {})


@dataclass(frozen=True, slots=True)
class Costs:
    """Money over the years, [K] each. NaN: unknown."""

    purchase: Array
    """Without rent."""
    rent: Array
    depreciation: Array
    power: Array
    cooling: Array
    space: Array
    migration: Array
    upkeep: Array

    @property
    def parts(self) -> dict[str, Array]:
        """What adds up to the total."""
        return {
            "rent": self.rent,
            "depreciation": self.depreciation,
            "power": self.power,
            "cooling": self.cooling,
            "space": self.space,
            "migration": self.migration,
            "upkeep": self.upkeep,
        }

    @property
    def total(self) -> Array:
        """What is gone after the years: the purchase counts by what it lost."""
        total: Array = np.sum(list(self.parts.values()), axis=0)
        return total


def headroom(bill: Bill, utilisation_peak: float | None = None) -> float:
    """Traffic, as a multiple of today's, that a fleet carries, where no simulation says so.

    Args:
        bill: Its lines' mean utilisation stands in where the busiest hour's is unknown.
        utilisation_peak: Of its busiest engine in the busiest hour, 0 to 1.
    """
    busiest = utilisation_peak
    if busiest is None:
        busiest = max((line.utilisation for line in bill.lines if line.utilisation > 0), default=0.0)
    return max(1.0, UTILISATION_MAX / busiest) if busiest > 0 else float("inf")


def over(bill: Bill, budget: Budget, months: int, headroom: float, shocks: Shocks | None = None) -> Costs:
    """Cost of a fleet over so many months.

    Args:
        bill: The fleet as it stands today.
        budget: Tariff, PUE, hours, growth, depreciation.
        months: How long.
        headroom: Traffic, as a multiple of today's, that it keeps the promise under.
        shocks: Factors on what is assumed; ``None``: none.
    """
    shocks = shocks or Shocks.none()
    worlds = len(shocks.traffic)
    load = shocks.traffic[:, None] * (1.0 + budget.growth_per_year) ** (np.arange(months) / 12.0)
    zero = np.zeros(worlds)
    costs = Costs(zero, zero, zero, zero, zero, zero, zero, zero)
    count = grown(bill, load, headroom, shocks)
    for line in bill.lines:
        strained = load * _time(line, bill, shocks)[:, None]
        costs = _add(costs, _of_line(line, budget, strained, count[line.name], shocks))
    return _with_hours(costs, bill, budget, months, load, headroom, shocks)


def unpriced(bill: Bill, budget: Budget, months: int, headroom: float) -> list[str]:
    """Parts without a price of which more must be bought within so many months than are there."""
    load = (1.0 + budget.growth_per_year) ** (np.arange(months) / 12.0)[None, :]
    count = grown(bill, load, headroom, Shocks.none())
    return [
        line.name
        for line in bill.lines
        if not line.rented and math.isnan(line.purchase) and count[line.name][0, -1] > line.owned
    ]


def grown(bill: Bill, load: Array, headroom: float, shocks: Shocks) -> dict[str, Array]:
    """Line -> units month by month, [K, months]: engines by the load, machines by the engines that stand in them.

    Args:
        bill: The fleet as it stands today.
        load: [K, months] traffic as a multiple of today's.
        headroom: What the fleet carries of it as it stands.
        shocks: Slower engines need more of them.
    """
    strained = {line.name: load * _time(line, bill, shocks)[:, None] for line in bill.lines}
    found = {line.name: units(line.count, strained[line.name], headroom) for line in bill.lines}
    today = {line.name: line.count for line in bill.lines}
    for line in bill.lines:
        if line.holds:
            now = max(sum(share * today[name] for name, share in room) for room in line.holds)
            filled = np.zeros_like(load)
            for room in line.holds:
                filled = np.maximum(filled, np.sum([share * found[name] for name, share in room], axis=0))
            # Where watts ask for more machines than cores and cards do, they go on to.
            thinner = line.count / now if line.count > math.ceil(now - 1e-9) else 1.0
            needed = np.ceil(filled * thinner - 1e-9)
            found[line.name] = np.maximum.accumulate(np.maximum(needed, line.count), axis=1)
    return found


def _time(line: Line, bill: Bill, shocks: Shocks) -> Array:
    """Factor on the times of a line, [K]; a machine's is that of the slowest engine of the fleet."""
    one = np.ones(len(shocks.traffic))
    if not line.cores:
        return shocks.time.get(line.name, one)
    slowest: Array = np.max([shocks.time.get(other.name, one) for other in bill.lines if not other.cores], axis=0)
    return slowest


def units(line_count: int, load: Array, headroom: float) -> Array:
    """Units month by month, [K, months]: they grow when the headroom is passed and never shrink."""
    needed = np.ceil(line_count * load / headroom - 1e-9)
    return np.maximum.accumulate(np.maximum(needed, line_count), axis=1)


def _of_line(line: Line, budget: Budget, load: Array, count: Array, shocks: Shocks) -> Costs:
    """One line's purchase, rent, power, cooling, space and spares; so many units are there in each month."""
    worlds, months = load.shape
    later = discounts(budget, months)
    price = shocks.price.get(line.name, np.ones(worlds))
    zero = np.zeros(worlds)
    if line.rented:
        rent = (count * later).sum(axis=1) * HOURS_PER_MONTH * line.rent_per_hour * price
        return Costs(zero, rent, zero, zero, zero, zero, zero, zero)
    bought = np.diff(np.maximum(count - line.owned, 0.0), axis=1, prepend=0.0)
    purchase = _times(bought.sum(axis=1), line.purchase * price)
    gone = np.sum(bought * share_gone(budget, months), axis=1)
    present_units = (count * later).sum(axis=1)
    # Work is the same on more units; each then works less.
    watts = _mean_w(line, load * line.count / count)
    kwh = zero if not line.powered else (watts * count * later).sum(axis=1) * HOURS_PER_MONTH / 1000.0
    power = _times(kwh, _or_nan(budget.power.tariff_per_kwh) * shocks.tariff)
    cooling = _or_nan(budget.power.cooling_factor) - 1.0
    space = _times(line.rack_units * present_units, _or_nan(budget.money.rack_unit_per_month) * np.ones(worlds))
    spares = _times(line.spares_share * present_units / 12.0, line.purchase * price)
    return Costs(
        purchase=purchase,
        rent=zero,
        depreciation=_times(gone, line.purchase * price),
        power=power,
        cooling=_times(power, cooling * np.ones(worlds)),
        space=space,
        migration=zero,
        upkeep=spares,
    )


def _mean_w(line: Line, times: Array) -> Array:
    """Mean watts of one unit that works so many times what it works today.

    A curve that bends is followed through the hours of the day: watts at the mean utilisation are not the mean of the
    watts (Jensen). Over the factor that is again a curve of straight pieces, which bends where some hour meets a point
    of the part's own.
    """
    if not line.curve_w or math.isnan(line.utilisation):
        return np.full_like(times, np.nan)
    shares, watts = np.array(line.curve_w).T
    day = line.day if line.day and len(shares) > 2 else ((1.0, line.utilisation),)
    bends = np.unique(np.concatenate([[0.0], *(shares / used for _, used in day if used > USED_LEAST)]))
    mean = np.sum([part * np.interp(used * bends, shares, watts) for part, used in day], axis=0)
    found: Array = np.interp(times, bends, mean)
    return found


def discounts(budget: Budget, months: int) -> Array:
    """What money of each month counts today, [months]."""
    later: Array = (1.0 + budget.money.discount_per_year) ** (-np.arange(months) / 12.0)
    return later


def share_gone(budget: Budget, months: int) -> Array:
    """Share of a purchase that is gone at the end, by the month it was bought in, as it counts today, [months]."""
    kept_months = months - np.arange(months)
    life = budget.money.depreciation_years
    written_off = np.ones(months) if life is None else np.minimum(kept_months / (12.0 * life), 1.0)
    left = 1.0 - written_off * (1.0 - budget.money.residual_share)
    gone: Array = discounts(budget, months) - left * discounts(budget, months + 1)[-1]
    return gone


def _with_hours(
    costs: Costs, bill: Bill, budget: Budget, months: int, load: Array, headroom: float, shocks: Shocks
) -> Costs:
    """Hours of engineers: migration once, retuning with the model, upkeep every month."""
    hour = _or_nan(budget.money.hour_cost) * shocks.hours
    migration, upkeep = costs.migration, costs.upkeep
    later = discounts(budget, months)
    for kind in bill.care:
        changes = _or_nan(budget.model.changes_per_year) / 12.0 * float(later.sum())
        retuning = 0.0 if changes == 0 or kind.retuning_hours == 0 else kind.retuning_hours * changes
        migration = migration + _times(np.full(len(hour), kind.migration_hours + retuning), hour)
        each = kind.each_hours_per_month * (units(kind.count, load, headroom) * later).sum(axis=1)
        upkeep = upkeep + _times(kind.upkeep_hours_per_month * float(later.sum()) + each, hour)
    return replace(costs, migration=migration, upkeep=upkeep)


def _times(amount: Array, price: Array) -> Array:
    """Nothing costs nothing, even at an unknown price."""
    return np.where(amount == 0, 0.0, amount * price)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _add(first: Costs, second: Costs) -> Costs:
    return Costs(
        purchase=first.purchase + second.purchase,
        rent=first.rent + second.rent,
        depreciation=first.depreciation + second.depreciation,
        power=first.power + second.power,
        cooling=first.cooling + second.cooling,
        space=first.space + second.space,
        migration=first.migration + second.migration,
        upkeep=first.upkeep + second.upkeep,
    )
