"""How fast the simulator decides, with every policy on, and what one live decision costs.

Figures per request hold the run alone: no trace that is drawn, no summing up. Those of the day, which comes part by
part, hold everything but drawing the trace.
"""

import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.tables import fresh, lower
from loadslice.policy.versions import NO_KEY
from loadslice.sim import simulate
from loadslice.sim.room import RecordRoom
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
DAY_RATE_PER_S = 1000
DAY = 24 * 3600 * DAY_RATE_PER_S
PART = 1 << 18


def fleet(engines: int, *, slower: float = 1.0) -> tuple[Pipeline, LatencyTable]:
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
            latency_ms=Milliseconds(
                p50=slower * (1 + 0.2 * rows) * (1 + number % 3), p90=slower * (1.2 + 0.2 * rows) * (1 + number % 3)
            ),
            basis="modelled",
        )
        for number, name in enumerate(names)
        for rows in (1, BATCH)
    ]
    return check(pipeline, "bench"), LatencyTable(entries=entries)


def capacity_per_s(engines: int) -> float:
    """What a `fleet` serves in full batches."""
    return sum(1000 * BATCH / (2.6 * (1 + number % 3)) for number in range(engines))


def requests_per_cpu_s(engines: int, *, stages: bool) -> float:
    """Simulated requests per second of processor time, kernels warm.

    Args:
        engines: Of the fleet.
        stages: Keep each request's times at each stage, as `loadslice simulate` does; searches over plans do not.
    """
    pipeline, latency = fleet(engines)
    draws = np.random.default_rng(1)
    trace = pl.DataFrame(
        {
            "arrival_s": np.cumsum(draws.exponential(1 / (LOAD * capacity_per_s(engines)), REQUESTS)),
            "class": np.array(CLASSES)[draws.integers(0, len(CLASSES), REQUESTS)],
        }
    )
    prepared = simulate.prepare(trace, pipeline, latency)
    # The first run also fetches the memory of its record; searches over plans and replicas run many in one room.
    room = RecordRoom()
    simulate.run(prepared, stages=stages, room=room)
    started = time.process_time()
    simulate.run(prepared, stages=stages, room=room)
    return REQUESTS / (time.process_time() - started)


def day_at_1000_per_s(*, slower: float) -> tuple[float, float]:
    """24 hours at 1,000 requests per second through four engines, part by part, none of which is kept.

    Returns:
        Processor time, seconds, and the most memory the process has had, MB.
    """
    pipeline, latency = fleet(4, slower=slower)
    draws = np.random.default_rng(1)
    drawing_s = 0.0

    def parts() -> Iterator[pl.DataFrame]:
        nonlocal drawing_s
        arrival_s = 0.0
        for rows in [PART] * (DAY // PART) + [DAY % PART]:
            started = time.process_time()
            frame = pl.DataFrame(
                {
                    "arrival_s": arrival_s + np.cumsum(draws.exponential(1 / DAY_RATE_PER_S, rows)),
                    "class": pl.Series(draws.integers(0, len(CLASSES), rows)).replace_strict(
                        dict(enumerate(CLASSES)), return_dtype=pl.String
                    ),
                }
            )
            arrival_s = float(frame["arrival_s"][-1])
            drawing_s += time.process_time() - started
            yield frame

    started = time.process_time()
    finished = simulate.run_parts(parts(), pipeline, latency, rate_per_s=DAY_RATE_PER_S)
    took_s = time.process_time() - started - drawing_s
    assert simulate.summarise(finished).requests == DAY
    return took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
    kernel_load_cpu_s = time.process_time() - started
    # First, so that peak memory is its own. On the fleet as it is nearly every request is a batch of its own; on one of
    # the size that 1,000 requests a second need there is as much company as in the other figures.
    idle_s, memory_mb = day_at_1000_per_s(slower=1.0)
    busy_s, _ = day_at_1000_per_s(slower=LOAD * capacity_per_s(4) / DAY_RATE_PER_S)
    return {
        "kernel_load_cpu_s": kernel_load_cpu_s,
        "requests_per_cpu_s_4_engines": requests_per_cpu_s(4, stages=True),
        "requests_per_cpu_s_64_engines": requests_per_cpu_s(64, stages=True),
        "totals_per_cpu_s_4_engines": requests_per_cpu_s(4, stages=False),
        "totals_per_cpu_s_64_engines": requests_per_cpu_s(64, stages=False),
        "day_at_1000_per_s_cpu_s": idle_s,
        "day_requests_per_cpu_s": DAY / idle_s,
        "day_on_a_busy_fleet_cpu_s": busy_s,
        "day_peak_memory_mb": memory_mb,
        "live_decision_us_8_engines": live_decision_us(8),
    }
