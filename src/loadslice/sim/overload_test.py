"""What must not make an overload look good, and what a simulated journal keeps of a request."""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy import columns as c
from loadslice.sim import journal, simulate
from loadslice.sim.faults_test import TIMES, plan
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Fault
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Canary, Engine, Failover, Pipeline, Queue, Stage, Tenant, check

TWICE_TOO_MUCH = pl.DataFrame({"arrival_s": np.arange(1000) * 0.005})


def alone(**stage: object) -> Pipeline:
    """One engine, 10 ms a request."""
    pipeline = plan(**stage)
    only = msgspec.structs.replace(pipeline.stages[0], engines=["npu"], failover=None, **stage)
    short = msgspec.structs.replace(pipeline.engines["npu"], queue=Queue(limit=20))
    return msgspec.structs.replace(pipeline, engines={"npu": short}, stages=[only])


def summed(pipeline: Pipeline, trace: pl.DataFrame = TWICE_TOO_MUCH) -> simulate.spec.Simulation:
    return simulate.summarise(simulate.run(simulate.prepare(trace, pipeline, TIMES)))


def test_degraded_replies_are_in_no_latency_and_in_no_rate() -> None:
    plain, degraded = summed(alone()), summed(alone(degraded="stages:sorry"))
    refused = plain.outcomes["rejected"]
    assert refused > 100, "it is an overload"
    assert degraded.outcomes["completed"] == 1000
    assert degraded.decisions["degraded"] == refused
    assert degraded.latency_ms == plain.latency_ms
    assert (degraded.throughput_per_s, degraded.goodput_per_s) == (plain.throughput_per_s, plain.goodput_per_s)
    assert any(f"{refused:,} of 1,000 attempts got a degraded reply" in warning for warning in degraded.warnings)


def test_overload_costs_no_capacity_where_one_engine_serves_the_first_and_the_last_stage() -> None:
    """Three times what it can take. Dropped half-way for newcomers behind them, most would be work for nothing."""
    engines = {name: Engine(backend="twin", queue=Queue(limit=64)) for name in ("host", "npu")}
    stages = [Stage(name=name, variant=name, engine=on) for name, on in (("in", "host"), ("s", "npu"), ("out", "host"))]
    pipeline = check(
        Pipeline(version=1, pipeline="p", engines=engines, stages=stages, deadline_ms=200, max_requests=256), "test"
    )
    times_ms = {("in", "host"): 9.0, ("s", "npu"): 4.0, ("out", "host"): 1.0}
    entries = [
        Entry(variant=variant, engine=engine, batch=1, basis="modelled",
              latency_ms=Milliseconds(mean=ms, family="constant"))
        for (variant, engine), ms in times_ms.items()
    ]  # fmt: skip
    trace = pl.DataFrame({"arrival_s": np.arange(3000) / 300})
    found = simulate.summarise(simulate.run(simulate.prepare(trace, pipeline, LatencyTable(entries=entries))))
    assert found.throughput_per_s > 0.95 * 100


@pytest.mark.parametrize("engines", [["host"], ["host", "spare"]])
def test_overload_costs_no_capacity_where_the_last_stage_takes_longest(engines: list[str]) -> None:
    """What was begun ended hopeless at the second stage, and more so beside an engine that only stands second there."""
    names = {name: Engine(backend="twin", queue=Queue(limit=64)) for name in ("host", "spare")}
    stages = [Stage(name="in", variant="in", engine="host"), Stage(name="s", variant="s", engines=engines)]
    pipeline = check(
        Pipeline(version=1, pipeline="p", engines=names, stages=stages, deadline_ms=200, max_requests=256), "test"
    )
    entries = [
        Entry(variant=variant, engine=engine, batch=1, basis="modelled",
              latency_ms=Milliseconds(mean=ms, family="constant"))
        for variant, engine, ms in (("in", "host", 3.0), ("s", "host", 10.0), ("s", "spare", 10.0))
    ]  # fmt: skip
    trace = pl.DataFrame({"arrival_s": np.arange(1000) / 300})
    found = simulate.summarise(simulate.run(simulate.prepare(trace, pipeline, LatencyTable(entries=entries))))
    assert found.throughput_per_s == pytest.approx(1000 / 13, rel=0.02)


def test_a_canary_without_times_is_refused_and_not_taken_for_the_old_version() -> None:
    with pytest.raises(InputError, match=r"canary of stage 's' has no time on engine 'npu' \(variant 'new'\)"):
        summed(alone(canary=Canary(variant="new")))


@pytest.mark.parametrize("deadline_ms", [1e13, -1.0])
def test_a_deadline_past_a_day_or_before_the_request_is_refused(deadline_ms: float) -> None:
    trace = TWICE_TOO_MUCH.with_columns(deadline_ms=pl.lit(deadline_ms))
    with pytest.raises(InputError, match=r"trace row 0: deadline_ms .* is not between 0 and"):
        summed(alone(), trace)


def test_a_simulated_journal_keeps_tenant_and_version(tmp_path: Path) -> None:
    pipeline = msgspec.structs.replace(alone(canary=Canary(variant="new")), tenants={"a": Tenant(share=0.5)})
    newer = [msgspec.structs.replace(entry, variant="new") for entry in TIMES.entries]
    trace = TWICE_TOO_MUCH.with_columns(tenant=pl.Series(["a", "b"] * 500))
    latency = LatencyTable(entries=[*TIMES.entries, *newer])
    finished = simulate.run(simulate.prepare(trace, pipeline, latency), journal=True)
    table = journal.requests(finished)
    assert table["tenant"].to_list() == ["a", None] * 500
    sent = int(finished.state.counters[c.C_SPLIT_SENT])
    assert sent == 50
    served = table.filter(pl.col("outcome") == "completed")["version"].value_counts()
    assert set(served["version"].to_list()) == {"stable", "canary"}


def test_a_request_that_moved_on_ends_with_the_batch_that_served_it() -> None:
    """The engine hangs for 300 ms; what ran there is tried elsewhere, and its old batch ends later."""
    pipeline = plan(timeout_ms=50, failover=Failover(to="cpu", share=0.0))
    hang = [Fault(at_s=0.1, for_s=0.3, engine="npu", kind="hang")]
    trace = pl.DataFrame({"arrival_s": np.arange(100) * 0.012})
    finished = simulate.run(simulate.prepare(trace, pipeline, TIMES, faults=hang), journal=True)
    ends = journal.stages(finished).join(journal.requests(finished), on="tag").filter(pl.col("outcome") == "completed")
    assert (ends["placed"] == "failover").any()
    assert (ends["done_ns"] == ends["end_ns"]).all()
