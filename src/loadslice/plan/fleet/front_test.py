from loadslice.plan.fleet.front import apart, mark, nearest
from loadslice.plan.money.specimen import engine, fleet
from loadslice.spec.plan import Limit, PlannedFleet
from loadslice.spec.simulation import LatencyMs


def one(name: str, cost: float | None, p99: float, energy_j: float = 1.0, **changes: object) -> PlannedFleet:
    latency_ms = LatencyMs(p50=1.0, p95=1.0, p99=p99, mean=1.0)
    return fleet(
        name, {"gpu": engine("gpu", 1)}, cost_per_hour=cost, latency_ms=latency_ms, energy_j=energy_j, **changes
    )


def test_a_fleet_no_better_in_anything_is_dominated_and_an_unknown_price_compares_with_none() -> None:
    marked = mark([one("a", 1.0, 10.0), one("b", 1.0, 11.0), one("c", 2.0, 9.0), one("d", None, 99.0)])
    assert [fleet.dominated_by for fleet in marked] == [None, "a", None, None]


def test_fleets_that_hardly_differ_from_one_before_them_are_not_told_again() -> None:
    there = [one("a", 1.0, 10.0)]
    others = [
        one("alike", 1.02, 9.7),
        one("quicker", 1.1, 5.0),
        one("alike too", 1.11, 4.9),
        one("thrifty", 1.2, 5.0, 0.5),
    ]
    assert [fleet.name for fleet in apart(there, others)] == ["quicker", "thrifty"]


def test_a_fleet_that_breaks_the_promise_hides_nobody() -> None:
    assert len(apart([one("late", 1.0, 1.0, meets_slo=False)], [one("holds", 1.0, 1.0)])) == 1


def test_the_nearest_is_the_one_whose_worst_limit_is_missed_least() -> None:
    def missed(by: float) -> list[Limit]:
        return [Limit(name="purchase_max", limit=100.0, value=100.0 * by, met=False, evidence="")]

    fleets = [one("far", 1.0, 1.0, limits=missed(9.0)), one("near", 1.0, 1.0, limits=missed(1.2))]
    assert nearest(fleets) == "near"
    assert nearest([one("none", 1.0, 1.0, judged="not judged")]) is None
