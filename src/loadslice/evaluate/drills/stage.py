"""What simulated drills share: a pipeline, its times, its capacity, and traffic made for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.sim import simulate
from loadslice.spec.drill import BY_NAME, DrillResult
from loadslice.spec.faults import Clients, Fault
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline

REQUESTS_MAX = 20_000
"""A drill of a fast pipeline is shorter, so that it stays one of seconds."""
ROOM = 200_000

Floats = npt.NDArray[np.float64]


class NotApplicableError(Exception):
    """The pipeline has nothing this drill could break; the text says what."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A pipeline in virtual time."""

    pipeline: Pipeline
    latency: LatencyTable
    capacity_per_s: float
    lone_ms: float
    busiest: str
    """Engine with the highest utilisation at capacity."""
    seed: int

    def span_s(self, rate_per_s: float, wanted_s: float) -> float:
        """As long as wanted, or as `REQUESTS_MAX` last."""
        return min(wanted_s, REQUESTS_MAX / rate_per_s)


def ground(pipeline: Pipeline, latency: LatencyTable, seed: int) -> Ground:
    """Learn a pipeline's capacity by loading it ever more until it completes no more.

    Raises:
        InputError: The table lacks times of it.
    """
    lone = run(pipeline, latency, even(10, 1.0), seed)
    lone_ms = max(float(np.median(simulate.latency_ms(lone))), 1e-3) if simulate.latency_ms(lone).size else 1.0
    rate, best, busiest = 1000 / lone_ms, 0.0, next(iter(pipeline.engines))
    for _ in range(16):
        requests = int(np.clip(20 * rate * lone_ms / 1000, 400, 20_000))
        found = simulate.summarise(run(endless(pipeline), latency, even(requests, rate), seed))
        if found.throughput_per_s < 1.05 * best:
            break
        best = found.throughput_per_s
        busiest = max(found.engines, key=lambda name: found.engines[name].utilisation)
        rate *= 2
    return Ground(pipeline, latency, best, lone_ms, busiest, seed)


def endless(pipeline: Pipeline) -> Pipeline:
    """Without deadlines, timeouts and small queues, so that a rate is all that limits it."""
    engines = {
        name: msgspec.structs.replace(
            engine, queue=msgspec.structs.replace(engine.queue, limit=ROOM, overflow_at=None, wait_limit_ms=None)
        )
        for name, engine in pipeline.engines.items()
    }
    stages = [msgspec.structs.replace(stage, timeout_ms=None, breaker=None) for stage in pipeline.stages]
    return msgspec.structs.replace(
        pipeline, engines=engines, stages=stages, deadline_ms=None, classes={}, max_requests=ROOM
    )


def run(
    pipeline: Pipeline,
    latency: LatencyTable,
    trace: pl.DataFrame,
    seed: int,
    *,
    faults: Sequence[Fault] = (),
    clients: Clients | None = None,
    journal: bool = False,
) -> simulate.Run:
    """One run in virtual time."""
    prepared = simulate.prepare(trace, pipeline, latency, seed=seed, faults=list(faults), clients=clients)
    return simulate.run(prepared, seed=seed, journal=journal)


def even(requests: int, rate_per_s: float) -> pl.DataFrame:
    """Arrivals at equal distances."""
    return pl.DataFrame({"arrival_s": np.arange(requests) / rate_per_s})


def poisson(rate_per_s: float, span_s: float, seed: int) -> Floats:
    """Arrival times without memory, seconds."""
    draws = np.random.default_rng(seed)
    gaps_s = draws.exponential(1 / rate_per_s, max(2, int(1.2 * rate_per_s * span_s) + 20))
    times_s: Floats = np.cumsum(gaps_s)
    return times_s[times_s < span_s]


def result(name: str, figure: str, held: bool | None, seed: int, **figures: float | str | None) -> DrillResult:
    """A result in virtual time."""
    return DrillResult(
        name=name, promise=BY_NAME[name].promise, figure=figure, held=held, basis="simulated", figures=figures,
        seed=seed,
    )  # fmt: skip
