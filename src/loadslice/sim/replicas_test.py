import numpy as np
import polars as pl

from loadslice.sim import replicas, simulate
from loadslice.sim.course import Prepared
from loadslice.sim.faults_test import TIMES, plan
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds

NOISY = LatencyTable(
    entries=[
        Entry(
            variant="v",
            engine=engine,
            batch=1,
            latency_ms=Milliseconds(mean=10.0, family="exponential"),
            basis="modelled",
        )
        for engine in ("npu", "cpu")
    ]
)


def prepared(latency: LatencyTable) -> Prepared:
    return simulate.prepare(pl.DataFrame({"arrival_s": np.arange(300) * 0.012}), plan(), latency)


def test_intervals_of_a_deterministic_model_are_points() -> None:
    _, intervals = replicas.run(prepared(TIMES), seed=0, replicas=5)
    low, high = intervals["latency_ms.p50"]
    assert low == high == 10.0


def test_the_interval_holds_one_more_run_about_nineteen_times_of_twenty() -> None:
    inside = 0
    for trial in range(40):
        _, intervals = replicas.run(prepared(NOISY), seed=1000 * trial, replicas=8)
        low, high = intervals["latency_ms.p95"]
        p95 = simulate.summarise(simulate.run(prepared(NOISY), seed=1000 * trial + 500)).latency_ms.p95
        assert p95 is not None
        inside += low <= p95 <= high
    # 40 trials at 95 %: fewer than 34 has a chance below 1 %.
    assert inside >= 34
