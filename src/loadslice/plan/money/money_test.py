import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.plan.money import tco, wall, years
from loadslice.plan.money.bill import Line, bill
from loadslice.plan.money.specimen import BUDGET, PRICES, engine, fleet
from loadslice.plan.money.years import Shocks, over, units
from loadslice.plan.racks import racks_needed
from loadslice.spec.budget import Budget, Money, Power
from loadslice.spec.prices import Hours, Part, Prices

HOURS = 730.5
GPU = fleet("gpu-only", {"gpu": engine("gpu", 2)})


def replaced(thing: object, **changes: object):
    return msgspec.structs.replace(thing, **changes)


def test_what_draws_its_power_out_of_a_rent_needs_no_tariff() -> None:
    rented = replaced(PRICES, parts={"server": Part(rent_per_hour=2.0), "gpu": Part(purchase=0.0)})
    cost = tco.costs_by_year(GPU, replaced(BUDGET, power=Power()), rented, years=[2], carries=9.0)[0]
    assert (cost.power, cost.cooling, cost.missing) == (0.0, 0.0, [])
    assert cost.total == cost.at_least


def test_a_total_is_the_sum_that_a_calculator_gives() -> None:
    two = tco.costs_by_year(GPU, BUDGET, PRICES, years=[2], carries=9.0)[0]
    watts = 100 + 2 * (40 + 0.5 * 200)
    assert two.purchase == pytest.approx(5000 + 2 * 3000)
    assert two.depreciation == two.purchase
    assert two.power == pytest.approx(watts / 1000 * HOURS * 24 * 0.2)
    assert two.cooling == pytest.approx(two.power * 0.5)
    assert two.space == pytest.approx(2 * 10 * 24)
    assert two.migration == pytest.approx((40 + 4 * 2 * 2) * 100)
    assert two.upkeep == pytest.approx(2 * 24 * 100 + 0.05 * 5000 * 2)
    assert two.total == pytest.approx(
        two.depreciation + two.power + two.cooling + two.space + two.migration + two.upkeep
    )
    assert two.at_least == pytest.approx(two.total)
    assert two.missing == []


def test_two_and_three_years_and_the_horizon_of_the_budget_are_looked_at() -> None:
    assert tco.horizons(BUDGET) == (2, 3)
    assert tco.horizons(replaced(BUDGET, money=Money(horizon_years=5))) == (2, 3, 5)


def test_power_follows_utilisation_between_idle_and_active_and_not_the_rated_power() -> None:
    idle = fleet("idle", {"gpu": engine("gpu", 1, utilisation=0.0)})
    half = fleet("half", {"gpu": engine("gpu", 1, utilisation=0.5)})
    full = fleet("full", {"gpu": engine("gpu", 1, utilisation=1.0)})
    cost = [tco.costs_by_year(one, BUDGET, PRICES, years=[2], carries=9.0)[0].power or 0 for one in (idle, half, full)]
    per_w = HOURS * 24 * 0.2 / 1000
    assert cost == [pytest.approx(watts * per_w) for watts in (140, 240, 340)]


def test_a_curve_with_a_knee_is_followed() -> None:
    curve = Prices(currency="EUR", parts={"gpu": Part(power_curve=[(0.0, 40.0), (0.2, 200.0), (1.0, 240.0)])})
    line = next(line for line in bill(GPU, BUDGET, curve).lines if line.name == "gpu")
    assert line.power_w(0.1) == pytest.approx(120)
    assert line.power_w(0.5) == pytest.approx(215)
    costs = over(bill(GPU, BUDGET, curve), BUDGET, 24, 9.0)
    assert costs.power[0] == pytest.approx((100 + 2 * 215) / 1000 * HOURS * 24 * 0.2)


def test_a_curve_that_bends_is_followed_through_the_hours_of_the_day() -> None:
    curve = Prices(currency="EUR", parts={"gpu": Part(power_curve=[(0.0, 40.0), (0.2, 200.0), (1.0, 240.0)])})
    day = [(0.75, 0.0), (0.25, 0.8)]
    tidal = fleet("tidal", {"gpu": engine("gpu", 1, utilisation=0.2, utilisation_over_time=day)})
    hours_w = 0.75 * 40 + 0.25 * 230
    per_w = HOURS * 24 * 0.2 / 1000
    assert over(bill(tidal, BUDGET, curve), BUDGET, 24, 9.0).power[0] == pytest.approx((100 + hours_w) * per_w)
    half = Shocks(np.full(1, 0.5), np.ones(1), np.ones(1), {}, {})
    halved_w = 0.75 * 40 + 0.25 * 210
    assert over(bill(tidal, BUDGET, curve), BUDGET, 24, 9.0, half).power[0] == pytest.approx((100 + halved_w) * per_w)
    straight_w = 40 + 0.2 * 200
    assert over(bill(tidal, BUDGET), BUDGET, 24, 9.0).power[0] == pytest.approx((100 + straight_w) * per_w)


@pytest.mark.parametrize(
    ("life", "residual", "gone"),
    [(None, 0.0, 1.0), (None, 0.2, 0.8), (4.0, 0.0, 0.5), (4.0, 0.2, 0.4), (1.0, 0.1, 0.9)],
)
def test_depreciation_is_a_straight_line_to_the_residual_value(
    life: float | None, residual: float, gone: float
) -> None:
    money = msgspec.structs.replace(BUDGET.money, depreciation_years=life, residual_share=residual)
    two = tco.costs_by_year(GPU, replaced(BUDGET, money=money), PRICES, years=[2], carries=9.0)[0]
    assert two.depreciation == pytest.approx(gone * 11_000)


@pytest.mark.parametrize(
    ("change", "part", "names"),
    [
        ({"power": Power(cooling_factor=1.5)}, "power", "power.tariff_per_kwh of the budget"),
        ({"power": Power(tariff_per_kwh=0.2)}, "cooling", "power.cooling_factor of the budget"),
        ({"money": Money(hour_cost=100.0)}, "space", "money.rack_unit_per_month of the budget"),
        ({"money": Money(rack_unit_per_month=10.0)}, "upkeep", "money.hour_cost of the budget"),
        ({"model": type(BUDGET.model)()}, "migration", "model.changes_per_year of the budget"),
    ],
)
def test_what_the_budget_does_not_state_is_null_and_named(change: dict[str, object], part: str, names: str) -> None:
    cost = tco.costs_by_year(GPU, replaced(BUDGET, **change), PRICES, years=[2])[0]
    assert getattr(cost, part) is None
    assert cost.total is None
    assert names in cost.missing
    assert 0 < cost.at_least < math.inf


def test_a_missing_price_is_null_and_named_and_the_rest_stays() -> None:
    unpriced = fleet("gpu-only", {"gpu": engine("gpu", 2, price_purchase=None, active_w=None)})
    cost = tco.costs_by_year(unpriced, BUDGET, PRICES, years=[3])[0]
    assert cost.missing == ["the price of gpu", "idle_w and active_w of gpu"]
    assert (cost.purchase, cost.power, cost.total) == (None, None, None)
    assert cost.space == 2 * 10 * 36


def test_hours_that_nobody_states_are_unknown_and_named_by_kind() -> None:
    cost = tco.costs_by_year(GPU, BUDGET, None, years=[2])[0]
    assert cost.migration is None
    assert "hours.gpu.migration of the price file" in cost.missing


def test_what_is_owned_costs_no_purchase_but_power() -> None:
    owned = replaced(PRICES, parts={"server": Part(owned=1), "gpu": Part(owned=2)})
    cost = tco.costs_by_year(GPU, BUDGET, owned, years=[2], carries=9.0)[0]
    assert cost.purchase == 0
    assert cost.power
    free = fleet("gpu-only", {"gpu": engine("gpu", 2, price_purchase=None)})
    assert "the price of gpu" not in tco.costs_by_year(free, BUDGET, owned, years=[2], carries=9.0)[0].missing


@pytest.mark.parametrize(
    ("part", "growth"), [(Part(owned=2, spares_share=0.05), 0.0), (Part(owned=2), 0.5)], ids=["spares", "growth"]
)
def test_what_is_owned_needs_a_price_only_where_more_is_bought_and_then_says_so(part: Part, growth: float) -> None:
    owned = replaced(PRICES, parts={"server": Part(owned=9), "gpu": part})
    free = fleet("gpu-only", {"gpu": engine("gpu", 2, price_purchase=None)})
    cost = tco.costs_by_year(free, replaced(BUDGET, growth_per_year=growth), owned, years=[2], carries=1.0)[0]
    assert (cost.total, cost.missing) == (None, ["the price of gpu"])


def test_rent_holds_power_cooling_and_space() -> None:
    rented = replaced(PRICES, parts={"server": Part(rent_per_hour=2.0), "gpu": Part(rent_per_hour=0.5)})
    bare = Budget(slo=BUDGET.slo, money=Money(hour_cost=100.0), model=BUDGET.model)
    cost = tco.costs_by_year(GPU, bare, rented, years=[2], carries=9.0)[0]
    assert cost.rent == pytest.approx((2.0 + 2 * 0.5) * HOURS * 24)
    assert cost.purchase == cost.rent
    assert (cost.power, cost.space, cost.depreciation) == (0, 0, 0)
    assert cost.missing == []


def test_a_fleet_grows_in_the_month_in_which_its_headroom_is_passed() -> None:
    load = (1.5 ** (np.arange(36) / 12))[None, :]
    assert list(units(2, load, 1.2)[0, [0, 5, 6, 17, 18]]) == [2, 2, 3, 3, 4]
    growing = replaced(BUDGET, growth_per_year=0.5)
    stays = over(bill(GPU, growing, PRICES), growing, 36, 9.0)
    grows = over(bill(GPU, growing, PRICES), growing, 36, 1.2)
    assert grows.purchase[0] > stays.purchase[0]


def test_machines_are_bought_when_those_that_are_there_hold_no_more_engines() -> None:
    load = np.array([[1.0, 2.0, 4.0, 5.0, 8.0]])
    two = fleet("two", {"gpu": engine("gpu", 1, cards=1), "cpu": engine("cpu", 1, cores=10.0)})
    count = years.grown(bill(two, BUDGET, PRICES), load, 1.0, Shocks.none())
    assert list(count["gpu"][0]) == [1, 2, 4, 5, 8]
    # A server holds four cards and three engines of ten of its 32 cores.
    assert list(count["server"][0]) == [1, 1, 2, 2, 3]
    full = fleet("full", {"a": engine("cpu", 1, cores=8.0), "b": engine("cpu", 2, cores=12.0)})
    assert list(years.grown(bill(full, BUDGET, PRICES), load, 8.0, Shocks.none())["server"][0]) == [1, 1, 1, 1, 1]
    spread = fleet("spread", {"gpu": engine("gpu", 2, cards=1)}, boxes=2)
    count = years.grown(bill(spread, BUDGET, PRICES), load, 1.0, Shocks.none())
    assert list(count["server"][0]) == [2, 4, 8, 10, 16], "what stands alone for its watts stands alone later"


def test_falling_traffic_sells_nothing() -> None:
    load = (0.5 ** (np.arange(24) / 12))[None, :]
    assert set(units(3, load, 1.0)[0]) == {3.0}


def test_without_a_simulation_the_headroom_is_what_the_busiest_engine_leaves() -> None:
    assert years.headroom(bill(GPU, BUDGET, PRICES), 0.35) == pytest.approx(2.0)
    assert years.headroom(bill(GPU, BUDGET, PRICES)) == pytest.approx(1.4)
    assert years.headroom(bill(GPU, BUDGET, PRICES), 0.9) == 1.0


def test_engines_of_one_device_are_migrated_once() -> None:
    pair = fleet("two", {"gpu0": engine("gpu", 1), "gpu1": engine("gpu", 1)})
    single = fleet("one", {"gpu0": engine("gpu", 2)})
    cost = [tco.costs_by_year(one, BUDGET, PRICES, years=[2])[0].migration for one in (pair, single)]
    assert cost[0] == cost[1]


def test_hybrids_pay_the_hours_of_every_kind() -> None:
    hybrid = fleet("hybrid", {"gpu": engine("gpu", 1), "npu": engine("npu", 1)})
    assert tco.costs_by_year(hybrid, BUDGET, PRICES, years=[2])[0].migration == pytest.approx((48 + 8 + 120 + 64) * 100)


def test_a_thousand_inferences_cost_the_total_over_all_of_them() -> None:
    growing = replaced(BUDGET, growth_per_year=1.0)
    assert tco.per_1000(31_557.6, 1, 1.0, BUDGET) == pytest.approx(1.0)
    assert tco.per_1000(31_557.6, 1, 1.0, growing) < 0.75
    assert tco.per_1000(None, 2, 1.0, BUDGET) is None
    assert tco.per_1000(100.0, 2, None, BUDGET) is None
    assert tco.per_1000(100.0, 2, 0.0, BUDGET) is None


def test_money_of_a_later_month_counts_less_and_so_does_what_is_left_of_a_purchase() -> None:
    money = msgspec.structs.replace(BUDGET.money, discount_per_year=0.1, depreciation_years=4.0)
    two = tco.costs_by_year(GPU, replaced(BUDGET, money=money), PRICES, years=[2], carries=9.0)[0]
    later = sum(1.1 ** (-month / 12) for month in range(24))
    assert two.purchase == pytest.approx(11_000)
    assert two.depreciation == pytest.approx(11_000 - 5_500 / 1.21)
    assert two.power == pytest.approx((100 + 2 * 140) / 1000 * HOURS * 0.2 * later)
    assert two.space == pytest.approx(2 * 10 * later)
    assert two.migration == pytest.approx((40 + 4 * 2 / 12 * later) * 100)
    rented = replaced(PRICES, parts={"server": Part(rent_per_hour=2.0), "gpu": Part(rent_per_hour=0.5)})
    cost = tco.costs_by_year(GPU, replaced(BUDGET, money=money), rented, years=[2], carries=9.0)[0]
    assert cost.rent == pytest.approx(3.0 * HOURS * later)


@settings(deadline=None, max_examples=60)
@given(
    factor=st.floats(0.5, 2.0),
    growth=st.floats(-0.5, 1.0),
    carries=st.floats(1.0, 5.0),
    life=st.one_of(st.none(), st.floats(1.0, 8.0)),
)
def test_many_worlds_at_once_cost_what_each_costs_alone(
    factor: float, growth: float, carries: float, life: float | None
) -> None:
    money = msgspec.structs.replace(BUDGET.money, depreciation_years=life)
    budget = replaced(BUDGET, growth_per_year=growth, money=money)
    lowered = bill(fleet("hybrid", {"gpu": engine("gpu", 2), "npu": engine("npu", 3)}), budget, PRICES)
    ones = np.ones(3)
    mixed = np.array([1.0, factor, 1.0 / factor])
    shocks = Shocks(traffic=mixed, tariff=mixed, hours=mixed, price={"gpu": mixed}, time={"npu": mixed})
    together = over(lowered, budget, 36, carries, shocks)
    for world in range(3):
        one = ones[:1] * mixed[world]
        alone = over(lowered, budget, 36, carries, Shocks(one, one, one, {"gpu": one}, {"npu": one}))
        for name, part in together.parts.items():
            assert part[world] == pytest.approx(alone.parts[name][0]), name


def test_faster_engines_need_fewer_machines_as_less_traffic_does() -> None:
    growing = replaced(BUDGET, growth_per_year=0.5)
    lowered = bill(GPU, growing, PRICES)
    one, half = np.ones(1), np.full(1, 0.5)
    faster = over(lowered, growing, 36, 1.2, Shocks(one, one, one, {}, {"gpu": half}))
    less = over(lowered, growing, 36, 1.2, Shocks(half, one, one, {}, {}))
    assert faster.total[0] == pytest.approx(less.total[0])


@settings(deadline=None, max_examples=60)
@given(traffic=st.floats(1.0, 4.0), price=st.floats(1.0, 3.0), tariff=st.floats(1.0, 3.0))
def test_no_shock_upwards_makes_a_fleet_cheaper(traffic: float, price: float, tariff: float) -> None:
    lowered = bill(GPU, BUDGET, PRICES)
    base = over(lowered, BUDGET, 36, 1.4).total[0]
    shocks = Shocks(np.array([traffic]), np.array([tariff]), np.ones(1), {"gpu": np.array([price])}, {})
    assert over(lowered, BUDGET, 36, 1.4, shocks).total[0] >= base - 1e-6


def test_the_interval_of_a_total_holds_it() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(1.0, 0.1, 2000)
    shocks = Shocks(np.ones(2000), draws, np.ones(2000), {"gpu": draws}, {})
    total = tco.costs_by_year(GPU, BUDGET, PRICES, years=[2], carries=9.0)[0].total or 0
    low, high = tco.with_interval(GPU, BUDGET, PRICES, shocks, years=2, carries=9.0) or (0, 0)
    assert low < total < high
    assert tco.with_interval(GPU, replaced(BUDGET, power=Power()), PRICES, shocks, years=2) is None


def test_the_wall_is_checked_with_everything_busy_at_once() -> None:
    load = wall.full_load(GPU, BUDGET, PRICES)
    assert load.box_w == 100 + 2 * 240
    assert [limit.met for limit in wall.limits(GPU, BUDGET, PRICES)] == [True, True]
    tight = replaced(BUDGET, power=Power(per_box_w=500.0, per_rack_w=6000.0))
    box, rack = wall.limits(GPU, tight, PRICES)
    assert (box.met, box.value, rack.met) == (False, 580, True)


def test_engines_spread_over_their_boxes_before_the_wall_is_checked() -> None:
    spread = fleet("spread", {"gpu": engine("gpu", 3)}, boxes=2)
    assert wall.full_load(spread, BUDGET, PRICES).boxes_w == (580.0, 340.0)


@pytest.mark.parametrize(
    ("boxes_w", "racks"),
    [((), 0), ((600.0, 600.0), 2), ((500.0, 500.0, 500.0), 2), ((700.0, 300.0), 1), ((1100.0,), None)],
)
def test_racks_take_boxes_up_to_their_power(boxes_w: tuple[float, ...], racks: int | None) -> None:
    assert racks_needed(boxes_w, [1.0] * len(boxes_w), 1000.0) == racks


def test_racks_take_boxes_up_to_their_height() -> None:
    assert racks_needed([10.0] * 21, [4.0] * 21, math.inf) == 3
    assert racks_needed([10.0] * 3, [0.0] * 3, math.inf) == 1
    assert racks_needed([10.0], [43.0], math.inf) is None


def test_a_wall_that_more_racks_would_solve_says_so_and_one_box_too_much_for_a_rack_too() -> None:
    many = fleet("many", {"gpu": engine("gpu", 4)}, boxes=4)
    two = replaced(BUDGET, power=Power(per_rack_w=700.0, racks=2))
    assert wall.limits(many, two, PRICES)[0].met is True
    one = replaced(BUDGET, power=Power(per_rack_w=700.0))
    limit = wall.limits(many, one, PRICES)[0]
    assert (limit.met, limit.value, limit.evidence) == (False, 1360.0, "1,360 W with everything busy, in 2 racks of 1")
    small = replaced(BUDGET, power=Power(per_rack_w=300.0))
    assert wall.limits(many, small, PRICES)[0].evidence == "one box takes 340 W, more than a whole rack may"


def test_unknown_power_is_no_met_limit() -> None:
    dark = fleet("dark", {"gpu": engine("gpu", 1, idle_w=None)})
    assert [limit.met for limit in wall.limits(dark, BUDGET, PRICES)] == [None, None]
    assert wall.limits(dark, BUDGET, PRICES)[0].evidence == "unknown: idle_w and active_w of gpu"


def test_a_line_beyond_full_load_draws_no_more_than_full_load() -> None:
    line = Line("gpu", 1, 0, 1.0, 0.0, ((0.0, 10.0), (1.0, 20.0)), 0.5, 0.0, 0.0, 0.25)
    assert line.power_w(1.5) == 20
    assert math.isnan(line.power_w(math.nan))


def test_hours_for_each_engine_come_on_top() -> None:
    each = replaced(PRICES, hours={"gpu": Hours(migration=0.0, retuning=0.0, upkeep_per_month=1.0, each_per_month=2.0)})
    cost = tco.costs_by_year(GPU, BUDGET, each, years=[2], carries=9.0)[0]
    assert cost.upkeep == pytest.approx((1 + 2 * 2) * 24 * 100 + 500)
