"""What is there, renting against buying, and fleets for later months, against a look at every fleet."""

import itertools
import time

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.plan.fleet import specimen
from loadslice.plan.fleet.around import Tools
from loadslice.plan.fleet.beside import Beside, beside, later_months
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.setting import POLICIES, Setting, set_up
from loadslice.plan.sweep import Ledger, local
from loadslice.spec.budget import Budget, Money
from loadslice.spec.offers import Box, Offer, Offers
from loadslice.spec.prices import Part, Prices

TOOLS = Tools(
    clock=time.perf_counter,
    runner=lambda judge, _: local(judge, 1),
    ledger=lambda _: Ledger(None, ""),
    tell=lambda _: None,
    jobs=1,
    seed=0,
)
OFFERS = Offers(
    version=1,
    currency="EUR",
    boxes={
        "old": Box(cores=16, price_purchase=900.0, idle_w=60.0),
        "new": Box(cores=32, cards=2, price_purchase=3000.0, idle_w=80.0),
        "vm": Box(cores=8, price_per_hour=0.2, idle_w=60.0),
    },
    engines={
        "there": Offer(kind="cpu", box="old", times="cpu", cores=8, price_purchase=0.0, idle_w=8, active_w=60),
        "gpu": Offer(kind="gpu", box="new", cards=1, price_purchase=2500.0, idle_w=16, active_w=72),
        "cloud": Offer(kind="cpu", box="vm", times="cpu", cores=8, price_purchase=0.0, idle_w=8, active_w=60),
    },
)
OWNED = Prices(currency="EUR", parts={"old": Part(owned=1)})


def searched(rate_per_s: float, budget: Budget = specimen.BUDGET) -> tuple[Setting, Judge, dict[str, Beside]]:
    draws = np.random.default_rng(3)
    trace = pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / rate_per_s, 400))})
    setting = set_up(trace, specimen.pipeline(), specimen.latency(), OFFERS, budget, prices=OWNED)
    judge = Judge(setting.lowered.problem, setting.design, setting.traffic, budget.slo, POLICIES, 0)
    return setting, judge, {one.name: one for one in beside(setting, budget, judge, TOOLS)}


def cheapest(setting: Setting, judge: Judge, allowed: str) -> float:
    """Cost of the cheapest fleet of some types that holds, by trying all."""
    from loadslice.plan.fleet.search import Seeker

    seeker = Seeker(setting.lowered.problem, judge, time.perf_counter)
    found = []
    for counts in itertools.product(range(5), repeat=3):
        if not sum(counts) or any(n and name not in allowed for n, name in zip(counts, OFFERS.engines, strict=True)):
            continue
        wanted = np.array(counts)
        verdict, boxes = seeker.verdict(wanted)
        priced = None if boxes is None else seeker.priced(wanted, verdict)
        found += [priced.mix.cost_per_hour] if priced is not None and priced.holds else []
    return min(found)


def test_what_is_there_is_judged_whether_it_holds_or_not() -> None:
    _, _, light = searched(60.0)
    present = light["present"].fleet
    assert present is not None
    assert present.holds
    assert list(present.mix.counts[1:]) == [0, 0]
    assert list(present.mix.boxes) == [1, 0, 0]
    _, _, heavy = searched(215.0)
    present = heavy["present"].fleet
    assert present is not None
    assert not present.holds
    assert list(present.mix.boxes) == [1, 0, 0]
    _, _, beyond = searched(300.0)
    assert beyond["present"].fleet is None


def test_renting_alone_and_buying_alone_are_each_the_cheapest_there_is() -> None:
    setting, judge, found = searched(300.0)
    for name, allowed in (("rented-only", "cloud"), ("bought-only", "there gpu")):
        fleet = found[name].fleet
        assert fleet is not None
        assert found[name].found.proven
        assert fleet.mix.cost_per_hour == pytest.approx(cheapest(setting, judge, allowed))


def test_a_fleet_for_a_later_month_carries_its_traffic_and_today_s() -> None:
    budget = msgspec.structs.replace(specimen.BUDGET, growth_per_year=0.6)
    _, judge, found = searched(200.0, budget)
    months = later_months(budget)
    assert [month for month, _ in months] == [18, 36]
    assert months[1][1] == pytest.approx(1.6 ** (35 / 12))
    for month, times in months:
        fleet = found[f"month-{month}"].fleet
        assert fleet is not None
        assert fleet.holds
        later = judge.at_speed(times)(fleet.mix.counts, fleet.mix.boxes)
        assert later is not None
        assert later.holds


def test_traffic_that_hardly_grows_or_beyond_all_planning_is_not_searched() -> None:
    assert later_months(specimen.BUDGET) == []
    money = Money(currency="EUR", horizon_years=5)
    fast = msgspec.structs.replace(specimen.BUDGET, growth_per_year=0.9, money=money)
    assert [month for month, _ in later_months(fast)] == [30]
