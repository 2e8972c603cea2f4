"""Searches over the specimen, simulated: the wiring of demand, candidates, judge and planner."""

import time

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.plan.fleet import planner, specimen
from loadslice.plan.fleet.around import Tools
from loadslice.plan.fleet.candidate import Policy, pipeline_of, table_of
from loadslice.plan.fleet.front import nearest
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.problem import fixed_per_hour
from loadslice.plan.fleet.setting import POLICIES, set_up
from loadslice.plan.sweep import Ledger, local
from loadslice.sim import simulate
from loadslice.spec.budget import Money, Slo
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import check
from loadslice.spec.plan import PlannedFleet
from loadslice.spec.prices import Part, Prices


def trace(requests: int = 1500, rate_per_s: float = 400.0) -> pl.DataFrame:
    draws = np.random.default_rng(7)
    return pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / rate_per_s, requests))})


def tools(**changes) -> Tools:
    given = {
        "clock": time.perf_counter,
        "runner": lambda judge, _: local(judge, 2),
        "ledger": lambda _: Ledger(None, ""),
        "tell": lambda _: None,
        "jobs": 1,
        "seed": 0,
    }
    return Tools(**(given | changes))


def made(objective="cost", budget=specimen.BUDGET, offers=specimen.OFFERS) -> planner.Planned:
    """A plan of the specimen; the same one is made once."""
    key = str((objective, budget, offers))
    if key not in PLANS:
        PLANS[key] = plan_of(objective, budget, offers)
    return PLANS[key]


PLANS: dict[str, planner.Planned] = {}


def plan_of(objective="cost", budget=specimen.BUDGET, offers=specimen.OFFERS, frame=None) -> planner.Planned:
    frame = trace() if frame is None else frame
    setting = set_up(frame, specimen.pipeline(), specimen.latency(), offers, budget)
    return planner.make(setting, budget, objective, tools())


def test_demand_is_rows_times_the_least_time_per_row() -> None:
    setting = set_up(trace(), specimen.pipeline(), specimen.latency(), specimen.OFFERS, specimen.BUDGET)
    total = setting.demand.work_s.sum(axis=(0, 1))
    mean = {"cpu": 9.0, "npu": 4.0}
    for name, ms in mean.items():
        assert total[list(setting.offers.engines).index(name)] == pytest.approx(1500 * ms / 1000, rel=0.04)
    gpu = total[list(setting.offers.engines).index("gpu")]
    assert gpu == pytest.approx(1500 * 12 / 16 / 1000, rel=0.04)


def test_a_simulated_candidate_is_what_its_files_simulate_to() -> None:
    setting = set_up(trace(), specimen.pipeline(), specimen.latency(), specimen.OFFERS, specimen.BUDGET)
    judge = Judge(setting.lowered.problem, setting.design, setting.traffic, specimen.BUDGET.slo, POLICIES, 0)
    counts, boxes = np.array([1, 1, 2]), np.array([1])
    verdict = judge.under(counts, boxes, Policy())
    pipeline = pipeline_of(setting.design, counts, Policy())
    assert verdict is not None
    assert pipeline is not None
    check(pipeline, "candidate")
    again = simulate.summarise(
        simulate.run(simulate.prepare(trace(), pipeline, table_of(setting.design, counts, boxes, pipeline)))
    )
    assert verdict.latency_ms.p99 == pytest.approx(again.latency_ms.p99)
    assert again.energy_j is not None
    assert verdict.energy_j == pytest.approx(again.energy_j + 80.0 * again.span_s, rel=1e-3)


def test_the_reference_plans_are_always_in_the_table_and_one_is_recommended() -> None:
    plan = made()
    names = [fleet.name for fleet in plan.fleets]
    assert names[:4] == ["cpu-only", "gpu-only", "npu-only", "hybrid"]
    assert plan.recommended is not None
    assert plan.proof.cheapest_proven
    assert plan.proof.lower_bound_per_hour == pytest.approx(plan.proof.cost_per_hour)
    for fleet in plan.fleets[:4]:
        assert fleet.interval_95 is not None
        low, high = fleet.interval_95["latency_ms.p99"]
        assert 0 < low <= (fleet.latency_ms.p99 or 0.0) * 1.1
        assert high >= (fleet.latency_ms.p99 or 0.0) / 1.1


def test_no_rival_planner_is_cheaper_and_one_that_knows_no_queues_had_to_add() -> None:
    budget = msgspec.structs.replace(specimen.BUDGET, slo=Slo(p99_ms=14.0, error_rate=0.001))
    plan = made(budget=budget)
    assert [one.planner for one in plan.compared] == ["fluid", "greedy"]
    assert all(one.saves_pct is None or one.saves_pct >= -1e-3 for one in plan.compared)


def test_a_kind_that_is_not_offered_says_so() -> None:
    offers = msgspec.structs.replace(specimen.OFFERS, engines={"npu": specimen.OFFERS.engines["npu"]})
    plan = made(offers=offers)
    gpu = next(fleet for fleet in plan.fleets if fleet.name == "gpu-only")
    assert gpu.meets_slo is None
    assert gpu.limits[0].name == "devices"
    assert "--device" in gpu.limits[0].evidence
    assert plan.recommended == "npu-only"


def test_a_promise_nothing_keeps_names_the_nearest_and_what_binds() -> None:
    budget = msgspec.structs.replace(specimen.BUDGET, slo=Slo(p99_ms=1.0))
    plan = made(budget=budget)
    assert plan.recommended is None
    near = next(fleet for fleet in plan.fleets if fleet.name == nearest(plan.fleets))
    assert any(limit.name == "p99_ms" and limit.met is False for limit in near.limits)


def test_money_that_buys_too_little_binds() -> None:
    budget = msgspec.structs.replace(specimen.BUDGET, money=Money(currency="EUR", purchase_max=3000.0))
    plan = made(budget=budget)
    assert plan.recommended is None
    for fleet in plan.fleets:
        assert [limit.name for limit in fleet.limits if limit.met is False] == ["purchase_max"]
    near = next(fleet for fleet in plan.fleets if fleet.name == nearest(plan.fleets))
    assert near.meets_slo
    assert min(limit.value or 0.0 for limit in near.limits if limit.name == "purchase_max") > 3000.0


def test_what_no_rack_holds_is_not_searched_and_what_it_holds_is_found_though_dearer() -> None:
    budget = msgspec.structs.replace(specimen.BUDGET, slo=Slo(p99_ms=14.0, error_rate=0.001))
    free = made(budget=budget)
    drawn_w = chosen(free).power_w or 0.0
    power = msgspec.structs.replace(budget.power, per_rack_w=drawn_w - 1.0)
    held_down = made(budget=msgspec.structs.replace(budget, power=power))
    assert (chosen(held_down).power_w or 0.0) < drawn_w
    assert held_down.proof.cheapest_proven
    assert (held_down.proof.cost_per_hour or 0.0) > (free.proof.cost_per_hour or 0.0)


def test_a_trace_that_is_short_says_what_it_cannot_tell() -> None:
    few = set_up(trace(500), specimen.pipeline(), specimen.latency(), specimen.OFFERS, specimen.BUDGET).warnings
    assert few[0] == "500 requests are too few for a P99: record 1,000 or more."
    assert few[1].startswith("the trace covers 0.022 minutes; it is taken for every day")
    day = pl.DataFrame({"arrival_s": np.linspace(0, 86_400, 1500)})
    long = set_up(day, specimen.pipeline(), specimen.latency(), specimen.OFFERS, specimen.BUDGET).warnings
    assert not [line for line in long if "too few" in line or "the trace covers" in line]


def test_what_is_there_needs_no_price_to_be_the_cheapest() -> None:
    boxes = {"server": msgspec.structs.replace(specimen.OFFERS.boxes["server"], price_purchase=None)}
    engines = {"cpu": specimen.OFFERS.engines["cpu"], "gpu": specimen.OFFERS.engines["gpu"]}
    offers = msgspec.structs.replace(specimen.OFFERS, boxes=boxes, engines=engines)
    prices = Prices(currency="EUR", parts={"server": Part(owned=1)})
    setting = set_up(trace(), specimen.pipeline(), specimen.latency(), offers, specimen.BUDGET, prices=prices)
    there = setting.lowered
    assert there.unpriced(np.array([3, 0]), np.array([1])) == []
    assert there.unpriced(np.array([3, 0]), np.array([2])) == ["the price of server"]
    first, second = (fixed_per_hour(there.problem, np.array([1, 0]), np.array([n])) for n in (1, 2))
    assert second > 2 * first


def test_a_missing_price_is_named_and_the_plan_stays() -> None:
    engines = dict(specimen.OFFERS.engines)
    engines["gpu"] = msgspec.structs.replace(engines["gpu"], price_purchase=None)
    plan = made(offers=msgspec.structs.replace(specimen.OFFERS, engines=engines))
    gpu = next(fleet for fleet in plan.fleets if fleet.name == "gpu-only")
    assert gpu.meets_slo
    assert gpu.cost_per_hour is None
    assert gpu.missing_prices == ["the price of gpu"]
    assert plan.recommended != "gpu-only"


def test_a_stage_that_no_offer_can_run_is_refused_by_name() -> None:
    table = msgspec.structs.replace(specimen.latency(), entries=specimen.latency().entries[:1])
    offers = msgspec.structs.replace(specimen.OFFERS, engines={"npu": specimen.OFFERS.engines["npu"]})
    with pytest.raises(InputError, match=r"stage .classify.*has it on cpu"):
        set_up(trace(), specimen.pipeline(), table, offers, specimen.BUDGET)


def held(plan: planner.Planned) -> list[PlannedFleet]:
    return [fleet for fleet in plan.fleets if fleet.meets_slo]


def chosen(plan: planner.Planned) -> PlannedFleet:
    return next(fleet for fleet in plan.fleets if fleet.name == plan.recommended)


def test_for_energy_no_fleet_found_uses_less() -> None:
    plan = made(objective="energy")
    assert chosen(plan).energy_j == min(fleet.energy_j for fleet in held(plan))
    assert chosen(plan).energy_j <= chosen(made()).energy_j * 1.01


def test_for_latency_p99_is_the_shortest_and_shorter_than_that_of_the_cheapest() -> None:
    few = {name: msgspec.structs.replace(offer, count_max=3) for name, offer in specimen.OFFERS.engines.items()}
    plan = made(objective="latency", offers=msgspec.structs.replace(specimen.OFFERS, engines=few))
    assert chosen(plan).latency_ms.p99 == min(fleet.latency_ms.p99 for fleet in held(plan))
    assert chosen(plan).latency_ms.p99 < chosen(made()).latency_ms.p99


def test_for_throughput_it_carries_the_most_and_more_than_the_cheapest() -> None:
    few = {name: msgspec.structs.replace(offer, count_max=2) for name, offer in specimen.OFFERS.engines.items()}
    plan = made(objective="throughput", offers=msgspec.structs.replace(specimen.OFFERS, engines=few))
    assert plan.carries[plan.recommended] == max(plan.carries.values())
    assert plan.carries[plan.recommended] > made().carries[made().recommended]


def test_a_service_time_above_the_limit_is_found_out_by_few_fleets_of_few_engines() -> None:
    budget = msgspec.structs.replace(specimen.BUDGET, slo=Slo(p99_ms=2.0))
    plan = made(budget=budget)
    assert plan.recommended is None
    assert plan.proof.simulated < 60
    assert max(engine.count for fleet in plan.fleets for engine in fleet.engines.values()) < 64
