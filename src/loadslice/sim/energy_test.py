"""Energy is power times time, or what the profile measured; money is hours times price."""

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy import columns as c
from loadslice.sim import replicas, simulate
from loadslice.sim.energy import lower_energy
from loadslice.sim.faults_test import TIMES, plan
from loadslice.sim.replicas_test import NOISY
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Batch, Canary, Pipeline
from loadslice.spec.simulation import Simulation

WATTS = {"npu": (8.0, 1.5), "cpu": (65.0, 20.0)}
"""Engine -> active, idle."""


def powered(**stage: object) -> Pipeline:
    pipeline = plan(**stage)
    engines = {
        name: msgspec.structs.replace(engine, active_w=WATTS[name][0], idle_w=WATTS[name][1])
        for name, engine in pipeline.engines.items()
    }
    return msgspec.structs.replace(pipeline, engines=engines)


def run(pipeline: Pipeline, latency: LatencyTable, *, gap_s: float = 0.004, requests: int = 400) -> simulate.Run:
    return simulate.run(simulate.prepare(pl.DataFrame({"arrival_s": np.arange(requests) * gap_s}), pipeline, latency))


def measured(*joules: tuple[int, float]) -> LatencyTable:
    """10 ms a batch on both engines, and so many joules for so many rows."""
    return LatencyTable(
        entries=[
            msgspec.structs.replace(entry, batch=rows, energy_j=energy_j)
            for entry in TIMES.entries
            for rows, energy_j in joules
        ]
    )


def test_energy_is_active_power_while_busy_and_idle_power_otherwise() -> None:
    finished = run(powered(prefer="fastest"), TIMES)
    result = simulate.summarise(finished)
    total = 0.0
    for e, (active_w, idle_w) in enumerate(WATTS.values()):
        busy_s = finished.state.engines[e, c.N_BUSY_NS] / 1e9
        assert 0 < busy_s < result.span_s
        total += active_w * busy_s + idle_w * (result.span_s - busy_s)
    assert result.energy_j == pytest.approx(total, rel=1e-12)


def test_measured_joules_of_batches_stand_in_for_active_power() -> None:
    # 10 ms every 40 ms, one row each: 0.3 J a batch while it runs, idle power for the rest.
    result = simulate.summarise(run(powered(), measured((1, 0.3), (4, 0.9)), gap_s=0.04, requests=100))
    busy_s = 100 * 0.010
    npu_j = 100 * 0.3 + 1.5 * (result.span_s - busy_s)
    assert result.energy_j == pytest.approx(npu_j + 20.0 * result.span_s, rel=1e-9)


def test_joules_between_measured_rows_lie_on_a_line() -> None:
    batch = {"npu": Batch(size=2, window_ms=5)}
    result = simulate.summarise(run(powered(batch=batch), measured((1, 0.3), (4, 0.9)), gap_s=0.0, requests=2))
    assert result.engines["npu"].batches == 1
    assert result.energy_j == pytest.approx(0.5 + 20.0 * result.span_s, rel=1e-9)


def test_energy_that_is_unknown_is_null_and_says_whose() -> None:
    result = simulate.summarise(run(plan(), TIMES))
    assert result.energy_j is None
    assert "energy is unknown: engine 'npu' states no idle_w and no active_w." in result.warnings


def test_money_is_hours_times_price_of_every_engine_busy_or_not() -> None:
    pipeline = powered()
    prices = {"npu": 0.9, "cpu": 3.6}
    engines = {
        name: msgspec.structs.replace(engine, cost_per_hour=prices[name]) for name, engine in pipeline.engines.items()
    }
    result = simulate.summarise(run(msgspec.structs.replace(pipeline, engines=engines, currency="EUR"), TIMES))
    assert result.cost is not None
    assert result.cost.total == pytest.approx(4.5 * result.span_s / 3600)
    assert result.cost.per_1000 == pytest.approx(result.cost.total / result.outcomes["completed"] * 1000)
    assert result.cost.currency == "EUR"


def test_a_price_that_is_missing_is_null_and_says_whose() -> None:
    result = simulate.summarise(run(powered(), TIMES))
    assert result.cost is None
    assert any(line.startswith("cost is unknown: engine 'npu' states no cost_per_hour") for line in result.warnings)


def test_replicas_give_energy_an_interval_that_holds_the_run() -> None:
    trace = pl.DataFrame({"arrival_s": np.arange(300) * 0.012})
    prepared = simulate.prepare(trace, powered(), NOISY)
    first, intervals = replicas.run(prepared, seed=0, replicas=8)
    result: Simulation = simulate.summarise(first)
    low, high = intervals["energy_j"]
    assert result.energy_j is not None
    assert low < result.energy_j < high


def test_a_second_slot_that_hardly_runs_saves_no_energy() -> None:
    """Ten milliseconds every forty: one batch at a time, whatever the slots."""
    one = powered()
    two = msgspec.structs.replace(
        one, engines={name: msgspec.structs.replace(engine, max_inflight=2) for name, engine in one.engines.items()}
    )
    joules = [simulate.summarise(run(pipeline, TIMES, gap_s=0.04, requests=100)).energy_j for pipeline in (one, two)]
    assert joules[0] == pytest.approx(joules[1], rel=1e-12)


def test_overlapping_batches_are_one_active_time() -> None:
    """Two at once for 10 ms draw active power for 10 ms."""
    pipeline = powered()
    engines = {
        name: msgspec.structs.replace(engine, max_inflight=2) if name == "npu" else engine
        for name, engine in pipeline.engines.items()
    }
    pairs = pl.DataFrame({"arrival_s": np.repeat(np.arange(50) * 0.04, 2)})
    finished = simulate.run(simulate.prepare(pairs, msgspec.structs.replace(pipeline, engines=engines), TIMES))
    assert finished.state.engines[0, [c.N_BUSY_NS, c.N_ACTIVE_NS]].tolist() == [1_000_000_000, 500_000_000]


def test_a_canary_without_joules_is_not_given_the_old_versions() -> None:
    """Its engine has its power and its time instead."""
    pipeline = powered(canary=Canary(variant="new"))
    table = measured((1, 0.3))
    newer = [msgspec.structs.replace(entry, variant="new", energy_j=None) for entry in table.entries]
    energy = lower_energy(pipeline, LatencyTable(entries=[*table.entries, *newer]))
    assert energy.measured.tolist() == [0, 0]
