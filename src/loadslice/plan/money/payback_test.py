import msgspec
import pytest

from loadslice.plan.money.bill import bill
from loadslice.plan.money.payback import break_even, growth, outgrown, paid, tenure
from loadslice.plan.money.specimen import BUDGET, PRICES, engine, fleet
from loadslice.plan.money.tco import costs_by_year
from loadslice.spec.plan import PlannedFleet
from loadslice.spec.prices import Part, Prices

HOURS = 730.5
FREE = msgspec.structs.replace(BUDGET, money=msgspec.structs.replace(BUDGET.money, rack_unit_per_month=0.0))
NO_HOURS = {
    kind: type(hours)(migration=0.0, retuning=0.0, upkeep_per_month=0.0) for kind, hours in PRICES.hours.items()
}
PLAIN = Prices(currency="EUR", hours=NO_HOURS)


def bought(name: str = "bought", cards: int = 1, **changes: object) -> PlannedFleet:
    """A machine of 5,000 and a card of 3,000 that draw 100 + 140 W: 240 W x 0.2 a kWh x 1.5."""
    return fleet(name, {"gpu": engine("gpu", cards, **changes)})


def rented(per_hour: float, **changes: object) -> PlannedFleet:
    made = fleet("rented", {"cloud": engine("gpu", 1, price_purchase=0.0)}, **changes)
    box = msgspec.structs.replace(made.boxes["server"], price_purchase=None, price_per_hour=per_hour)
    engines = {"cloud": msgspec.structs.replace(made.engines["cloud"], box="vm")}
    return msgspec.structs.replace(made, engines=engines, boxes={"vm": box})


POWER_A_MONTH = 240 / 1000 * HOURS * 0.2 * 1.5


def test_a_purchase_has_paid_for_itself_in_the_month_a_calculator_gives() -> None:
    own, other = bought(), rented(1.0)
    (found,) = break_even(own, [own, other], FREE, PLAIN, {"bought": 9.0, "rented": 9.0})
    months = 8000 / (HOURS * 1.0 - POWER_A_MONTH)
    assert (found.what, found.against, found.less_from_month) == ("rented", "rented", int(months) + 1)
    assert found.saved == pytest.approx(36 * (HOURS - POWER_A_MONTH) - 8000)
    assert found.dearer_by_most == pytest.approx(8000 + POWER_A_MONTH - HOURS)
    assert found.less_until_month is None


def test_renting_is_cheaper_until_a_purchase_would_have_paid_for_itself() -> None:
    own, other = rented(1.0), bought()
    (found,) = break_even(own, [own, other], FREE, PLAIN, {"bought": 9.0, "rented": 9.0})
    assert (found.what, found.less_from_month, found.less_until_month) == ("bought", None, 11)
    assert found.saved < 0
    assert "until month 11 only" in found.told("EUR", 3)


def test_what_is_cheap_from_the_first_month_says_so_and_discounts_change_nothing() -> None:
    money = msgspec.structs.replace(FREE.money, discount_per_year=0.2, depreciation_years=8.0)
    budget = msgspec.structs.replace(FREE, money=money)
    own, other = rented(0.05), bought()
    (found,) = break_even(own, [own, other], budget, PLAIN, {"bought": 9.0, "rented": 9.0})
    assert found.less_from_month == 1
    assert found.saved == pytest.approx(8000 + 36 * (POWER_A_MONTH - 0.05 * HOURS))


def test_what_is_there_is_compared_though_it_breaks_the_promise_and_is_not_grown() -> None:
    prices = msgspec.structs.replace(PLAIN, parts={"server": Part(owned=1), "old": Part(owned=1)})
    there = fleet("present", {"old": engine("gpu", 1)}, meets_slo=False)
    budget = msgspec.structs.replace(FREE, growth_per_year=1.0)
    own = bought()
    assert tenure(there, budget, prices) == "present"
    assert tenure(own, budget, prices) == "bought"
    (found,) = break_even(own, [own, there], budget, prices, {"bought": 9.0})
    assert (found.what, found.keeps, found.less_from_month) == ("present", False, None)
    assert "which does not keep the promise" in found.told("EUR", 3)


def test_an_unknown_price_is_no_comparison() -> None:
    own, other = bought(), rented(1.0)
    unknown = bought("unknown", price_purchase=None)
    assert break_even(unknown, [unknown, other], FREE, PLAIN, {}) == []
    assert [one.against for one in break_even(other, [other, own, unknown], FREE, PLAIN, {})] == ["bought"]


def test_money_paid_by_the_end_of_the_horizon_is_the_total_where_all_of_it_is_gone() -> None:
    total = costs_by_year(bought(), BUDGET, PRICES, years=[3], carries=9.0)[0].total
    assert paid(bill(bought(), BUDGET, PRICES), BUDGET, 9.0)[-1] == pytest.approx(total)


def test_growth_is_told_by_month_and_part_and_what_buying_ahead_costs() -> None:
    budget = msgspec.structs.replace(FREE, growth_per_year=0.5)
    made = [bought(), bought("month-36", 4)]
    priced = [
        msgspec.structs.replace(one, tco=costs_by_year(one, budget, PLAIN, carries=c))
        for one, c in zip(made, (1.6, 9.0), strict=True)
    ]
    found = growth(priced[0], priced, budget, PLAIN, {"bought": 1.6, "month-36": 9.0})
    assert found is not None
    # 1.5 ** (m / 12) passes 1.6 in month 13.9, and 3.2 in month 34.4: months are counted from 1.
    assert [(one.month, one.part, one.count) for one in found.buys] == [
        (15, "gpu", 1),
        (15, "server", 1),
        (36, "gpu", 1),
        (36, "server", 1),
    ]
    assert found.traffic_at_end == pytest.approx(1.5 ** (35 / 12))
    assert list(found.instead) == ["month-36"]
    assert growth(priced[0], priced, FREE, PLAIN, {}) is None


def test_a_fleet_that_growth_asks_more_of_than_is_offered_breaks_its_capacity() -> None:
    budget = msgspec.structs.replace(FREE, growth_per_year=0.5)
    (limit,) = outgrown(bought(count_max=2), budget, PLAIN, 1.6, 36)
    assert (limit.name, limit.limit, limit.value, limit.met) == ("capacity", 2.0, 3.0, False)
    assert limit.evidence == "growth asks for 3 x gpu by month 36, 2 offered: enough to month 35"
    assert outgrown(bought(count_max=3), budget, PLAIN, 1.6, 36) == []
    assert outgrown(bought(count_max=1), FREE, PLAIN, 1.6, 36) == []
