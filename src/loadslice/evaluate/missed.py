"""How far a rehearsal lay from what is predicted of it, once it has said what it can about times.

A rehearsal gives a prediction its times, its contention and how far runs differ. What it does not give is that queues
build up as the simulator has them. So the rehearsal is predicted from the table that it gave, and compared: how far off
are its figures, in standard deviations of replicas at its own speed? Of a simulator that leaves out nothing of weight
that is 1 on average (root mean square); what it is beyond makes intervals wider (`loadslice.sim.replicas.left_out`).
"""

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.sim import replicas, simulate
from loadslice.spec.latency import MISSES_MAX, LatencyTable
from loadslice.spec.pipeline import Pipeline

Float64s = npt.NDArray[np.float64]

SHARES = (0.5, 0.95, 0.99)
REPLICAS = 20
REQUESTS_MIN = 20
"""Of fewer, a 95th percentile is the slowest of all."""


def missed(
    sent: pl.DataFrame, latencies_ms: Float64s, pipeline: Pipeline, table: LatencyTable, *, skip: int = 0, seed: int = 0
) -> float | None:
    """Mean square of how many deviations P50, P95 and P99 of a rehearsal lay from their prediction.

    Args:
        sent: What was sent, inputs named.
        latencies_ms: Of requests that were completed, those skipped left out.
        pipeline: As it was served.
        table: As the rehearsal gave it.
        skip: First requests of ``sent`` whose times count for nothing.
        seed: Of the first replica.

    Returns:
        ``None`` where too few were completed, or sent, to tell.
    """
    if len(latencies_ms) < REQUESTS_MIN:
        return None
    prepared = simulate.prepare(sent, pipeline, table, seed=seed)
    runs = (
        simulate.run(replicas.unevenly_late(prepared, number), seed=number) for number in range(seed, seed + REPLICAS)
    )
    predicted = [quantiles for run in runs if (quantiles := _quantiles(run, skip)) is not None]
    if len(predicted) < 2:
        return None
    measured = np.log(np.quantile(latencies_ms, SHARES))
    off = [
        replicas.deviations(float(value), [float(one) for one in values])
        for value, values in zip(measured, np.log(predicted).T, strict=True)
    ]
    return float(np.mean(np.clip(off, -MISSES_MAX, MISSES_MAX) ** 2))


def _quantiles(run: simulate.Run, skip: int) -> Float64s | None:
    kept = simulate.answered(run)
    kept[:skip] = False
    return np.quantile(simulate.taken_ns(run)[kept] / 1e6, SHARES) if kept.any() else None
