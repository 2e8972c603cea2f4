"""Offers, budget and demand as one problem in numbers, with what nobody stated written down beside it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from loadslice.plan.fleet.demand import Demand
from loadslice.plan.fleet.problem import Float64s, Int64s, Problem
from loadslice.plan.money.years import discounts, share_gone
from loadslice.spec.budget import Budget
from loadslice.spec.currency import HOURS_PER_MONTH
from loadslice.spec.offers import Box, Offer, Offers
from loadslice.spec.prices import Part, Prices, hours_of, part_of

STAND_IN_BOX, STAND_IN_ENGINE = 1.0, 1e-3
"""Money per hour where no price at all is known: the fewest machines are then the cheapest, then the fewest engines."""
KINDS = ("cpu", "gpu", "npu")


@dataclass(frozen=True, slots=True)
class Lowered:
    """A problem and what is known about its money."""

    problem: Problem
    missing: dict[str, tuple[str, ...]]
    """Engine type or box -> prices and powers that nobody stated."""
    priced: bool
    """Prices are money; otherwise they count machines."""
    owned: dict[str, int]
    """Engine type or box -> how many are there already."""

    def unpriced(self, counts: Int64s, boxes: Int64s) -> list[str]:
        """What of a fleet has no price, in words; what is there already needs none."""
        names = [*self.problem.engines, *self.problem.boxes]
        return [
            f"the price of {name}"
            for name, count in zip(names, [*counts, *boxes], strict=True)
            if count > self.owned.get(name, 0) and "price" in self.missing.get(name, ())
        ]


def lower(offers: Offers, budget: Budget, demand: Demand, prices: Prices | None = None) -> Lowered:
    """Lower offers.

    A mix is priced by what grows with the number of engines and machines: what is lost of the purchase over the
    horizon, rent, power, spares, rack space and hours spent on each. Hours that a kind of engine takes whatever its
    number are the same for every mix of those kinds, and enter when kinds are compared.

    Args:
        offers: Checked, in the budget's currency.
        budget: Its horizon spreads purchases, its tariff prices power.
        demand: Its last axis is in the order of the offers' engines.
        prices: Spares and hours, where they are stated.
    """
    engines, boxes = list(offers.engines.values()), list(offers.boxes.values())
    missing = {name: _missing(box) for name, box in offers.boxes.items()}
    missing |= {name: _missing(offer) for name, offer in offers.engines.items()}
    priced = any(_price(box) is not None for box in boxes)
    kept = _Kept.of(budget, prices)
    per_w_hour = kept.later * (budget.power.tariff_per_kwh or 0.0) / 1000 * (budget.power.cooling_factor or 1.0)
    watts = np.array([[_watts(offer)[0], _watts(offer)[1]] for offer in engines])
    # The power of what is rented, and of what stands in a rented machine, is in the rent.
    paid = np.array([0.0 if box.price_per_hour else per_w_hour for box in boxes])
    engine_paid = np.array(
        [0.0 if one.price_per_hour or offers.boxes[one.box].price_per_hour else per_w_hour for one in engines]
    )
    box_of = np.array([list(offers.boxes).index(offer.box) for offer in engines], np.int64)
    per_hour = _per_hour(offers.engines, kept, STAND_IN_ENGINE * (1.0 if not priced else 1e-3))
    box_per_hour = _per_hour(offers.boxes, kept, 0.0 if priced else STAND_IN_BOX)
    parts: list[tuple[str, Box | Offer]] = [*offers.engines.items(), *offers.boxes.items()]
    own = {name: _owned(name, part, prices) for name, part in parts}
    # Whoever has a part does not pay for it: its price, or what stands in for one that nobody stated.
    spared = [
        stand_in if _price(part) is None else (part.price_purchase or 0.0) * kept.gone_per_hour
        for (_, part), stand_in in zip(parts, [*per_hour, *box_per_hour], strict=True)
    ]
    problem = Problem(
        engines=tuple(offers.engines),
        boxes=tuple(offers.boxes),
        box_of=box_of,
        takes=np.array([[offer.cores, offer.cards] for offer in engines], np.float64),
        room=np.array([[box.cores, box.cards] for box in boxes], np.int64),
        slots=np.array([offer.slots for offer in engines], np.int64),
        seconds=demand.seconds,
        work_s=demand.work_s,
        per_hour=per_hour + watts[:, 0] * engine_paid,
        box_per_hour=box_per_hour + np.array([box.idle_w or 0.0 for box in boxes]) * paid,
        per_busy_s=np.array([(_watts(offer)[1] - _watts(offer)[0]) / offer.slots for offer in engines])
        * engine_paid
        / 3600,
        purchase=np.array([offer.price_purchase or 0.0 for offer in engines]),
        box_purchase=np.array([box.price_purchase or 0.0 for box in boxes]),
        watts=watts,
        box_watts=np.array([box.idle_w or 0.0 for box in boxes]),
        rack_units=np.array([box.rack_units for box in boxes]),
        count_max=np.array([offer.count_max for offer in engines], np.int64),
        box_max=np.array([box.count_max for box in boxes], np.int64),
        purchase_max=math.inf if budget.money.purchase_max is None else budget.money.purchase_max,
        per_box_w=math.inf if budget.power.per_box_w is None else budget.power.per_box_w,
        per_rack_w=math.inf if budget.power.per_rack_w is None else budget.power.per_rack_w,
        racks_max=budget.power.racks,
        owned=np.array(list(own.values()), np.int64) if any(own.values()) else None,
        spared_per_hour=np.array(spared) if any(own.values()) else None,
    )
    return Lowered(problem, {name: parts for name, parts in missing.items() if parts}, priced, own)


def _owned(name: str, part: Box | Offer, prices: Prices | None) -> int:
    """How many are there already."""
    stated = part_of(prices, name, part.device if isinstance(part, Offer) else None)
    return 0 if stated is None else stated.owned


def _price(part: Box | Offer) -> float | None:
    return part.price_purchase if part.price_purchase is not None else part.price_per_hour


def _missing(part: Box | Offer) -> tuple[str, ...]:
    absent = []
    if _price(part) is None:
        absent.append("price")
    if part.idle_w is None:
        absent.append("idle_w")
    if isinstance(part, Offer) and part.active_w is None:
        absent.append("active_w")
    return tuple(absent)


def _watts(offer: Offer) -> tuple[float, float]:
    """Idle and active; what is not known counts nothing and is named elsewhere."""
    idle = offer.idle_w or 0.0
    return idle, max(idle, offer.active_w or 0.0)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What keeping a part costs beside its price and its power."""

    gone_per_hour: float
    """Of a purchase, what is lost in an hour, as a share."""
    later: float
    """What money that is paid month by month counts today, as a share."""
    hour_cost: float
    rack_unit_per_hour: float
    prices: Prices | None

    @classmethod
    def of(cls, budget: Budget, prices: Prices | None) -> Self:
        """By a budget."""
        money, months = budget.money, 12 * budget.money.horizon_years
        later = float(discounts(budget, months).mean())
        return cls(
            float(share_gone(budget, months)[0]) / (months * HOURS_PER_MONTH),
            later,
            (money.hour_cost or 0.0) * later,
            (money.rack_unit_per_month or 0.0) * later / HOURS_PER_MONTH,
            prices,
        )

    def per_hour(self, name: str, part: Box | Offer) -> float:
        """Money for one part that is there, without its power."""
        bought, rented = part.price_purchase or 0.0, part.price_per_hour or 0.0
        if rented:
            return rented * self.later + self._hours(name, part)
        stated = part_of(self.prices, name, part.device if isinstance(part, Offer) else None) or Part()
        spares = stated.spares_share * bought * self.later / (12 * HOURS_PER_MONTH)
        space = part.rack_units * self.rack_unit_per_hour if isinstance(part, Box) else 0.0
        return bought * self.gone_per_hour + spares + space + self._hours(name, part)

    def _hours(self, name: str, part: Box | Offer) -> float:
        if isinstance(part, Box):
            return 0.0
        each = hours_of(self.prices, name, part.device, part.kind).each_per_month
        return each * self.hour_cost / HOURS_PER_MONTH


def _per_hour(parts: Mapping[str, Box | Offer], kept: _Kept, stand_in: float) -> Float64s:
    """Money per hour of each part; one without a price is taken to be as dear as the dearest, never as a gift."""
    known = [kept.per_hour(name, part) for name, part in parts.items() if _price(part) is not None]
    stand_in = max([stand_in, *known])
    return np.array([stand_in if _price(part) is None else kept.per_hour(name, part) for name, part in parts.items()])


def for_energy(problem: Problem) -> Problem:
    """The same fleet problem with watts for prices: the least of it is the least energy."""
    busy_w = (problem.watts[:, 1] - problem.watts[:, 0]) / problem.slots
    return replace(
        problem,
        per_hour=problem.watts[:, 0] + 1e-6,
        box_per_hour=problem.box_watts + 1e-6,
        per_busy_s=busy_w / 3600,
        owned=None,
        spared_per_hour=None,
    )
