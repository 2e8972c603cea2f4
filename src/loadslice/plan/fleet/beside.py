"""Fleets that answer a buyer's next questions, searched beside the reference plans where cost is what counts.

- ``present``: the best that what is there already can do.
- ``rented-only`` and ``bought-only``, where both are offered.
- ``month-N``: the cheapest for the traffic of a later month, bought today; against it stands what grows with the
  traffic, which the money adds up (`loadslice.plan.money.growth`).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from loadslice.plan.fleet.around import Tools
from loadslice.plan.fleet.grow import CARRIES_MAX
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.problem import Problem
from loadslice.plan.fleet.search import Fleet, Search, Seeker
from loadslice.plan.fleet.setting import Setting
from loadslice.spec.budget import Budget
from loadslice.spec.offers import Box, Offer

PRESENT, RENTED, BOUGHT = "present", "rented-only", "bought-only"
REQUESTS_MAX = 400_000
"""Longer traffic is not searched again at other speeds."""
GREW = 1.02
"""Traffic that has grown by less is today's."""


@dataclass(frozen=True, slots=True)
class Beside:
    """One of these searches."""

    name: str
    found: Search
    fleet: Fleet | None
    """The best that holds; of ``present`` otherwise the nearest; ``None``: nothing is to be shown."""


def beside(setting: Setting, budget: Budget, full: Judge, tools: Tools) -> list[Beside]:
    """Search all that the offers, the price file and the budget's growth ask for; several at a time.

    Args:
        setting: Traffic and offers.
        budget: Its growth and its horizon.
        full: Judges any fleet on the recorded traffic.
        tools: Clock and ledgers.
    """

    def limited(name: str, problem: Problem) -> Beside:
        found = Seeker(problem, tools.ledger("any").judging(full), tools.clock).cheapest()
        best = found.best or (found.nearest if name == PRESENT else None)
        return Beside(name, found, best)

    def later(month: int, times: float) -> Beside:
        problem = setting.lowered.problem
        name = f"month-{month}"
        judging = tools.ledger(f"{name} x {times:.6g}").judging(full.at_speed(times))
        grown = replace(problem, seconds=problem.seconds / times)
        found = Seeker(grown, judging, tools.clock).cheapest()
        if found.best is None:
            return Beside(name, found, None)
        verdict = full(found.best.mix.counts, found.best.mix.boxes)
        fleet = Seeker(problem, full, tools.clock).priced(found.best.mix.counts, verdict)
        return Beside(name, found, fleet if fleet is not None and fleet.holds else None)

    with ThreadPoolExecutor(max(1, tools.jobs)) as pool:
        running = [pool.submit(limited, name, problem) for name, problem in _limited(setting).items()]
        if len(setting.traffic.arrival_ns) <= REQUESTS_MAX:
            running += [pool.submit(later, month, times) for month, times in later_months(budget)]
        return [one.result() for one in running]


def later_months(budget: Budget) -> list[tuple[int, float]]:
    """Months in the middle and at the end of the horizon, with their traffic as a multiple of today's."""
    last = 12 * budget.money.horizon_years
    found = [(month, (1.0 + budget.growth_per_year) ** ((month - 1) / 12)) for month in (last // 2, last)]
    return [(month, times) for month, times in found if GREW <= times <= CARRIES_MAX]


def _limited(setting: Setting) -> dict[str, Problem]:
    """Name -> the problem with fewer engines and machines to choose from."""
    problem, offers = setting.lowered.problem, setting.offers
    engines, boxes = list(offers.engines.values()), list(offers.boxes.values())
    rented_box = np.array([_rented(box) for box in boxes])
    rented = np.array([_rented(offer) for offer in engines]) | rented_box[problem.box_of]
    found = {}
    if problem.owned is not None:
        own, own_boxes = problem.owned[: len(engines)], problem.owned[len(engines) :]
        free = np.array([offer.price_purchase == 0 for offer in engines])  # cores of a machine are there with it
        counts = np.where(rented, 0, np.where(free, problem.count_max, np.minimum(own, problem.count_max)))
        found[PRESENT] = replace(problem, count_max=counts, box_max=np.minimum(problem.box_max, own_boxes))
    if rented.any() and not rented.all():
        found[RENTED] = replace(problem, count_max=np.where(rented_box[problem.box_of], problem.count_max, 0))
        found[BOUGHT] = replace(problem, count_max=np.where(rented, 0, problem.count_max))
    return found


def _rented(part: Box | Offer) -> bool:
    return bool(part.price_per_hour)
