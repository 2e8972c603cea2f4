"""Offers, budget and demand as one problem in numbers, with what nobody stated written down beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadslice.plan.fleet.demand import Demand
from loadslice.plan.fleet.problem import HOURS_PER_YEAR, Float64s, Problem
from loadslice.spec.budget import Budget
from loadslice.spec.offers import Box, Offer, Offers

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

    def unpriced(self, names: Sequence[str]) -> list[str]:
        """What of these parts has no price, in words."""
        return [f"{what} of {name}" for name in names for what in self.missing.get(name, ()) if what == "price"]


def lower(offers: Offers, budget: Budget, demand: Demand) -> Lowered:
    """Lower offers.

    Args:
        offers: Checked, in the budget's currency.
        budget: Its horizon spreads purchases, its tariff prices power.
        demand: Its last axis is in the order of the offers' engines.
    """
    engines, boxes = list(offers.engines.values()), list(offers.boxes.values())
    missing = {name: _missing(box) for name, box in offers.boxes.items()}
    missing |= {name: _missing(offer) for name, offer in offers.engines.items()}
    priced = any(_price(box) is not None for box in boxes)
    per_w_hour = (budget.power.tariff_per_kwh or 0.0) / 1000 * (budget.power.cooling_factor or 1.0)
    hours = budget.money.horizon_years * HOURS_PER_YEAR
    watts = np.array([[_watts(offer)[0], _watts(offer)[1]] for offer in engines])
    problem = Problem(
        engines=tuple(offers.engines),
        boxes=tuple(offers.boxes),
        box_of=np.array([list(offers.boxes).index(offer.box) for offer in engines], np.int64),
        takes=np.array([[offer.cores, offer.cards] for offer in engines], np.float64),
        room=np.array([[box.cores, box.cards] for box in boxes], np.int64),
        slots=np.array([offer.slots for offer in engines], np.int64),
        seconds=demand.seconds,
        work_s=demand.work_s,
        per_hour=_per_hour(engines, hours, STAND_IN_ENGINE * (1.0 if not priced else 1e-3)) + watts[:, 0] * per_w_hour,
        box_per_hour=_per_hour(boxes, hours, 0.0 if priced else STAND_IN_BOX)
        + np.array([(box.idle_w or 0.0) * per_w_hour for box in boxes]),
        per_busy_s=np.array([(_watts(offer)[1] - _watts(offer)[0]) / offer.slots for offer in engines])
        * per_w_hour
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
    )
    return Lowered(problem, {name: parts for name, parts in missing.items() if parts}, priced)


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


def _per_hour(parts: Sequence[Box | Offer], hours: float, stand_in: float) -> Float64s:
    return np.array(
        [
            stand_in if _price(part) is None else (part.price_purchase or 0.0) / hours + (part.price_per_hour or 0.0)
            for part in parts
        ]
    )


def for_energy(problem: Problem) -> Problem:
    """The same fleet problem with watts for prices: the least of it is the least energy."""
    busy_w = (problem.watts[:, 1] - problem.watts[:, 0]) / problem.slots
    return replace(
        problem,
        per_hour=problem.watts[:, 0] + 1e-6,
        box_per_hour=problem.box_watts + 1e-6,
        per_busy_s=busy_w / 3600,
    )


def scaled_demand(problem: Problem, factor: float) -> Problem:
    """The same with so many times the traffic."""
    return replace(problem, work_s=problem.work_s * factor)
