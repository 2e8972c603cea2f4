import msgspec
import numpy as np
import pytest

from loadslice.plan.confidence import Table, confidence
from loadslice.plan.money.bill import bill
from loadslice.plan.money.specimen import BUDGET, PRICES, engine, fleet
from loadslice.plan.money.tco import costs_by_year
from loadslice.plan.shocks import Assumption, assumptions, time_error, time_of
from loadslice.spec.latency import Entry, Milliseconds, ModelError
from loadslice.spec.prices import Part
from loadslice.spec.simulation import LatencyMs

CHEAP = fleet("cpu-only", {"cpu": engine("cpu", 2)}, boxes=1)
DEAR = fleet("gpu-only", {"gpu": engine("gpu", 4)}, boxes=2)
CARRIES = {"cpu-only": 9.0, "gpu-only": 9.0}


def latency(p99: float) -> LatencyMs:
    return LatencyMs(p50=10.0, p95=20.0, p99=p99, mean=12.0)


def wide(line: str, sd: float) -> Assumption:
    return Assumption(time_of(line), sd, 4, "modelled")


def test_a_recommendation_far_ahead_survives_and_needs_no_experiment() -> None:
    made = confidence([CHEAP, DEAR], "cpu-only", BUDGET, PRICES, carries=CARRIES, draws=1000)
    assert made.survives == 1.0
    assert (made.rivals, made.experiment) == ({}, None)
    assert made.expected_loss == pytest.approx(0.0)


def test_a_modelled_time_near_the_limit_makes_it_unsure_and_the_borrowed_device_settles_it() -> None:
    near = fleet("cpu-only", {"cpu": engine("cpu", 2)}, latency_ms=latency(180.0))
    made = confidence([near, DEAR], "cpu-only", BUDGET, PRICES, times={"cpu": wide("cpu", 0.3)}, carries=CARRIES)
    assert 0.5 < (made.survives or 0) < 0.8
    assert set(made.rivals) == {"gpu-only"}
    assert made.experiment == "profile on this machine: loadslice profile"
    assert made.experiment_cost == 400.0
    assert made.tornado[0].assumption == "time of cpu"
    assert made.tornado[0].turns_at == pytest.approx(200 / 180, rel=1e-3)
    assert made.tornado[0].turns_to == "gpu-only"


def test_a_turning_point_is_where_the_costs_are_as_far_apart_as_it_says() -> None:
    alike = msgspec.structs.replace(PRICES, hours=dict.fromkeys(("cpu", "gpu"), PRICES.hours["cpu"]))
    four, one_gpu = fleet("cpu-only", {"cpu": engine("cpu", 4)}), fleet("gpu-only", {"gpu": engine("gpu", 1)})
    made = confidence([four, one_gpu], "cpu-only", BUDGET, alike, carries=CARRIES, draws=200)
    swing = next(one for one in made.tornado if one.assumption == "price of gpu")
    assert swing.turns_at is not None
    assert swing.turns_at < 1
    prices = msgspec.structs.replace(alike, parts=PRICES.parts | {"gpu": Part(purchase=3000 * swing.turns_at)})
    totals = {
        one.name: costs_by_year(one, BUDGET, prices, years=[3], carries=9.0)[0].total or 0 for one in (four, one_gpu)
    }
    assert totals["gpu-only"] == pytest.approx(0.95 * totals["cpu-only"], rel=1e-3)


def test_more_traffic_than_the_headroom_bears_makes_a_fleet_dearer_until_another_is_better() -> None:
    made = confidence([CHEAP, DEAR], "cpu-only", BUDGET, PRICES, carries={"cpu-only": 1.1, "gpu-only": 9.0}, draws=200)
    swing = next(one for one in made.tornado if one.assumption == "traffic")
    assert swing.turns_at is not None
    assert swing.turns_at > 1
    assert swing.turns_to == "gpu-only"


def test_draws_repeat_with_their_seed_and_differ_with_another() -> None:
    near = fleet("cpu-only", {"cpu": engine("cpu", 2)}, latency_ms=latency(190.0))
    settings = {"times": {"cpu": wide("cpu", 0.1)}, "carries": CARRIES, "draws": 500}
    first = confidence([near, DEAR], "cpu-only", BUDGET, PRICES, seed=1, **settings)
    assert confidence([near, DEAR], "cpu-only", BUDGET, PRICES, seed=1, **settings) == first
    assert confidence([near, DEAR], "cpu-only", BUDGET, PRICES, seed=2, **settings).survives != first.survives


def test_an_experiment_on_nothing_unsure_is_worth_nothing() -> None:
    made = confidence([CHEAP, DEAR], "cpu-only", BUDGET, PRICES, carries=CARRIES, draws=200)
    assert made.experiments
    assert all(one.worth == pytest.approx(0.0) for one in made.experiments)
    known = [one.cost for one in made.experiments if one.cost is not None]
    assert known == sorted(known)
    # Nobody states what a GPU costs for a day: that is unknown, not free.
    assert {one.name: one.cost for one in made.experiments}["borrow a GPU for a day and profile on it"] is None


def test_knowing_what_decides_is_worth_no_more_than_knowing_everything() -> None:
    near = fleet("cpu-only", {"cpu": engine("cpu", 2)}, latency_ms=latency(180.0))
    made = confidence([near, DEAR], "cpu-only", BUDGET, PRICES, times={"cpu": wide("cpu", 0.3)}, carries=CARRIES)
    worth = {one.name: one.worth or 0.0 for one in made.experiments}
    assert max(worth.values()) == worth["profile on this machine: loadslice profile"] > 0
    assert max(worth.values()) <= (made.expected_loss or 0) * 1.15


def test_an_experiment_is_not_credited_with_what_one_would_do_without_it() -> None:
    # The other fleet is the better bet already, so asking for a quote, which changes nothing, is worth nothing.
    near = fleet("cpu-only", {"cpu": engine("cpu", 40)}, latency_ms=latency(195.0))
    made = confidence([near, DEAR], "cpu-only", BUDGET, PRICES, times={"cpu": wide("cpu", 0.4)}, carries=CARRIES)
    worth = {one.name: one.worth or 0.0 for one in made.experiments}
    assert worth["ask for a price quote"] < 0.01 * worth["profile on this machine: loadslice profile"]


def test_fleets_that_cannot_be_compared_are_named_with_the_reason() -> None:
    unpriced = fleet("npu-only", {"npu": engine("npu", 1, price_purchase=None)})
    lossy = fleet("hybrid", {"gpu": engine("gpu", 1)}, error_rate=0.5)
    made = confidence([CHEAP, unpriced, lossy], "cpu-only", BUDGET, PRICES, draws=100)
    assert made.left_out == {
        "npu-only": "unknown: the price of npu",
        "hybrid": "it was not simulated, or loses too many requests",
    }
    assert made.survives == 1.0


def test_a_recommended_fleet_without_a_price_has_no_confidence_and_says_why() -> None:
    unpriced = fleet("npu-only", {"npu": engine("npu", 1, price_purchase=None)})
    made = confidence([unpriced, CHEAP], "npu-only", BUDGET, PRICES)
    assert made.survives is None
    assert "the price of npu" in made.left_out["npu-only"]


def test_without_an_hour_cost_experiments_keep_their_hours() -> None:
    rented = {name: Part(rent_per_hour=rate) for name, rate in (("server", 1.0), ("gpu", 0.5), ("cpu", 0.1))}
    free = msgspec.structs.replace(BUDGET, money=msgspec.structs.replace(BUDGET.money, hour_cost=None))
    hours = {
        kind: msgspec.structs.replace(one, migration=0.0, retuning=0.0, upkeep_per_month=0.0)
        for kind, one in PRICES.hours.items()
    }
    made = confidence(
        [CHEAP, DEAR], "cpu-only", free, msgspec.structs.replace(PRICES, parts=rented, hours=hours), draws=100
    )
    assert made.survives is not None
    assert {one.cost for one in made.experiments} == {None}
    assert all(one.hours > 0 for one in made.experiments)


def test_the_recommended_stays_while_nothing_is_clearly_cheaper_and_fails_where_it_does_not_hold() -> None:
    table = Table(
        np.array([[100.0, 100.0, 100.0, 100.0], [96.0, 90.0, 90.0, 90.0]]),
        np.array([[True, True, False, False], [True, True, True, False]]),
    )
    assert list(table.best(0)) == [0, 1, 1, -1]
    assert list(table.paid[0]) == [100.0, 100.0, 190.0, 200.0]


def test_bounds_hold_95_of_100_draws() -> None:
    rng = np.random.default_rng(0)
    for one in (Assumption("traffic", 0.1), Assumption("time of gpu", 0.2, 4)):
        low, high = one.bounds_95
        drawn = one.draw(rng, 20_000)
        assert np.mean((drawn > low) & (drawn < high)) == pytest.approx(0.95, abs=0.01)
        assert np.median(drawn) == pytest.approx(1.0, abs=0.01)


def test_a_quarter_either_way_is_assumed_of_price_tariff_and_traffic() -> None:
    known = {one.name: one for one in assumptions([bill(DEAR, BUDGET, PRICES)])}
    assert set(known) == {"traffic", "tariff", "hours", "price of server", "price of gpu", "time of gpu"}
    for name in ("traffic", "tariff", "price of gpu"):
        assert known[name].bounds_95 == (pytest.approx(0.8), pytest.approx(1.25))


def test_what_is_owned_or_free_has_no_price_to_be_wrong_about() -> None:
    owned = msgspec.structs.replace(PRICES, parts={"server": Part(owned=2), "gpu": Part(owned=9)})
    names = {one.name for one in assumptions([bill(DEAR, BUDGET, owned)])}
    assert not any(name.startswith("price") for name in names)


def test_the_widest_error_of_an_engines_times_counts() -> None:
    times = Milliseconds(p50=1.0)
    error = ModelError(device="l4", device_sd=0.3, model_sd=0.4, freedom=5, why="calibrated on two kernels")
    entries = [
        Entry(variant="v", engine="gpu", batch=1, latency_ms=times, basis="measured"),
        Entry(variant="w", engine="gpu", batch=1, latency_ms=times, basis="modelled", error=error),
    ]
    found = time_error("gpu", entries)
    assert (found.sd, found.freedom) == (pytest.approx(0.5), 5)
    assert "calibrated on two kernels" in found.why
    assert time_error("gpu", entries[:1]).freedom is None


def test_a_modelled_time_without_a_stated_error_is_as_unsure_as_a_price() -> None:
    entry = Entry(variant="v", engine="gpu", batch=1, latency_ms=Milliseconds(p50=1.0), basis="modelled")
    assert time_error("gpu", [entry]).bounds_95 == (pytest.approx(0.8), pytest.approx(1.25))


def test_a_machine_whose_runs_differ_widens_what_was_measured_on_it() -> None:
    entry = Entry(variant="v", engine="cpu", batch=1, latency_ms=Milliseconds(p50=1.0), basis="measured")
    assert time_error("cpu", [entry], drift=0.01).sd == pytest.approx(0.03)
    restless = time_error("cpu", [entry], drift=0.2)
    assert (restless.sd, restless.why) == (pytest.approx(0.2), "measured: sd 20%, as its runs differed")


def test_what_is_owned_at_no_known_price_is_compared_and_not_counted_where_more_of_it_is_needed() -> None:
    owned = msgspec.structs.replace(PRICES, parts={"server": Part(owned=1), "cpu": Part(owned=2)})
    free = fleet("cpu-only", {"cpu": engine("cpu", 2, price_purchase=None)})
    roomy = confidence([free, DEAR], "cpu-only", BUDGET, owned, carries=CARRIES, draws=500)
    assert (roomy.survives, roomy.left_out) == (1.0, {})
    tight = confidence([free, DEAR], "cpu-only", BUDGET, owned, carries={"cpu-only": 1.1, "gpu-only": 9.0}, draws=500)
    assert 0.5 < (tight.survives or 0.0) < 1.0
    assert set(tight.rivals) == {"gpu-only"}


def test_where_a_little_more_money_is_much_safer_that_is_said_and_no_experiment_is_made_for_it() -> None:
    near = fleet("cpu-only", {"cpu": engine("cpu", 2)}, latency_ms=latency(196.0))
    roomy = fleet("more", {"cpu": engine("cpu", 2, price_purchase=50.0)}, latency_ms=latency(120.0))
    alone = {"cpu-only": 9.0, "more": 9.0}
    made = confidence([near, roomy], "cpu-only", BUDGET, PRICES, carries=alone)
    assert 0.6 < (made.survives or 0.0) < 0.95
    assert made.safer == "more"
    assert (made.safer_survives or 0.0) > 0.95
    assert made.experiment is None
    assert all(abs(one.gain) < 0.02 for one in made.experiments if "time of cpu" not in one.settles)
