"""How fast the simulator decides, with every policy on, and what one live decision costs."""

import time
from typing import Any

import numpy as np
import polars as pl

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.tables import fresh, lower
from loadslice.policy.versions import NO_KEY
from loadslice.sim import simulate
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import (
    CLASSES,
    Batch,
    Breaker,
    ClassLimits,
    Engine,
    Failover,
    Pipeline,
    Queue,
    Stage,
    check,
)

REQUESTS = 1_000_000
DECISIONS = 20_000
LOAD = 0.8
BATCH = 8


def fleet(engines: int) -> tuple[Pipeline, LatencyTable]:
    """Four classes, batching, quotas, failover, breakers, retries and a floor, on engines of different speed."""
    names = [f"e{number}" for number in range(engines)]
    stage = Stage(
        name="s",
        variant="v",
        engines=names,
        prefer="fastest",
        batch={name: Batch(size=BATCH) for name in names},
        failover=Failover(to=names[-1], share=0.3),
        breaker=Breaker(),
        timeout_ms=1000,
    )
    pipeline = Pipeline(
        version=1,
        pipeline="bench",
        engines={name: Engine(backend="twin", queue=Queue(limit=512, overflow_at=20)) for name in names},
        stages=[stage],
        classes={"sheddable": ClassLimits(floor=0.05)},
        max_requests=8192,
    )
    entries = [
        Entry(
            variant="v",
            engine=name,
            batch=rows,
            latency_ms=Milliseconds(p50=(1 + 0.2 * rows) * (1 + number % 3), p90=(1.2 + 0.2 * rows) * (1 + number % 3)),
            basis="modelled",
        )
        for number, name in enumerate(names)
        for rows in (1, BATCH)
    ]
    return check(pipeline, "bench"), LatencyTable(entries=entries)


def requests_per_cpu_s(engines: int) -> float:
    """Simulated requests per second of processor time, kernels warm."""
    pipeline, latency = fleet(engines)
    draws = np.random.default_rng(1)
    capacity_per_s = sum(1000 * BATCH / (2.6 * (1 + number % 3)) for number in range(engines))
    trace = pl.DataFrame(
        {
            "arrival_s": np.cumsum(draws.exponential(1 / (LOAD * capacity_per_s), REQUESTS)),
            "class": np.array(CLASSES)[draws.integers(0, len(CLASSES), REQUESTS)],
        }
    )
    prepared = simulate.prepare(trace, pipeline, latency)
    started = time.process_time()
    simulate.run(prepared)
    return REQUESTS / (time.process_time() - started)


def live_decision_us(engines: int) -> float:
    """Wall time of one `on_arrival` called from Python, microseconds."""
    pipeline, latency = fleet(engines)
    tables = lower(pipeline, latency)
    state = fresh(tables, DECISIONS)
    desk.on_arrival(0, tables, state, 0, 1, c.FOREVER, 1, 0, -1, -1, 0, 1, 0, NO_KEY)
    started = time.perf_counter()
    for tag in range(1, DECISIONS):
        desk.on_arrival(tag * 1000, tables, state, tag, 1, c.FOREVER, 1, 0, -1, -1, 0, 1, 0, NO_KEY)
    return 1e6 * (time.perf_counter() - started) / DECISIONS


def run() -> dict[str, Any]:
    """Measure once."""
    started = time.process_time()
    simulate.warm()
    return {
        "kernel_load_cpu_s": time.process_time() - started,
        "requests_per_cpu_s_4_engines": requests_per_cpu_s(4),
        "requests_per_cpu_s_64_engines": requests_per_cpu_s(64),
        "live_decision_us_8_engines": live_decision_us(8),
    }
