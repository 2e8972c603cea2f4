"""Predictions for a comparison: one run to show, and replicas that say how much of a figure is luck of the draw."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.sim import journal as sim_journal
from loadslice.sim import replicas as sim_replicas
from loadslice.sim import simulate
from loadslice.spec.files import Stamp
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.report import Interval
from loadslice.spec.simulation import Simulation

REPLICAS = 20


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says about one plan on one stretch."""

    simulation: Simulation
    """The run of the first seed."""
    figures: dict[str, float]
    """Figure -> mean over replicas; percentiles in ms, ``throughput`` per second, ``error rate`` as a share."""
    intervals: dict[str, Interval]
    """Figure -> where one more run falls 95 times in 100, by replicas; each on a machine as fast as it happens to be,
    where the profile knows how far runs differ, and wider by as much as rehearsals missed their predictions."""
    latencies_ms: npt.NDArray[np.float64]
    """Completed requests of all replicas together."""
    requests: pl.DataFrame
    """The first run's journal rows."""
    stages: pl.DataFrame


def predict(
    stretch: pl.DataFrame,
    pipeline: Pipeline,
    latency: LatencyTable,
    *,
    seed: int,
    replicas: int = REPLICAS,
    made: Stamp | None = None,
    journal: tuple[Path, str] | None = None,
) -> Prediction:
    """Simulate a stretch with seeds ``seed`` .. ``seed + replicas - 1``.

    Args:
        stretch: Requests to serve, inputs named.
        pipeline: The plan.
        latency: Its profile.
        seed: First seed.
        replicas: At least 1.
        made: For the documents.
        journal: Folder for the first run's journal, and the pipeline file's text.
    """
    prepared = simulate.prepare(stretch, pipeline, latency, seed=seed)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    first = simulate.run(prepared, seed=seed, journal=True)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    if journal is not None:
        sim_journal.write(first, journal[0], journal[1], made)
    later = range(seed + 1, seed + replicas)
    runs = [first]
    runs += [simulate.run(sim_replicas.unevenly_late(prepared, number), seed=number) for number in later]
    pooled = [simulate.latency_ms(run) for run in runs]
    samples = _samples(runs)
    spread = samples
    if sim_replicas.differ(prepared):
        seeds = range(seed, seed + replicas)
        spread = _samples([simulate.run(sim_replicas.in_run(prepared, number), seed=number) for number in seeds])
    return Prediction(
        simulation=simulate.summarise(first, wall_s=wall_s, cpu_s=cpu_s, stamp=made),
        figures={name: float(np.mean(values)) for name, values in samples.items()},
        intervals={
            name: _interval(values, sim_replicas.left_out(samples[name], latency.drift))
            for name, values in spread.items()
        },
        latencies_ms=np.concatenate(pooled),
        requests=sim_journal.requests(first),
        stages=sim_journal.stages(first),
    )


def _interval(values: list[float], left_out: float) -> Interval:
    low, high = sim_replicas.interval(values, left_out) if len(values) > 1 else (values[0], values[0])
    return Interval(low=low, high=high)


def once(frame: pl.DataFrame, pipeline: Pipeline, latency: LatencyTable, *, seed: int) -> Simulation:
    """One simulated run, timed.

    Args:
        frame: Requests to serve, inputs named.
        pipeline: The plan.
        latency: Its profile.
        seed: Start of every draw.
    """
    prepared = simulate.prepare(frame, pipeline, latency, seed=seed)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    finished = simulate.run(prepared, seed=seed)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return simulate.summarise(finished, wall_s=wall_s, cpu_s=cpu_s)


def _samples(runs: Sequence[simulate.Run]) -> dict[str, list[float]]:
    """Each figure of each run."""
    samples: dict[str, list[float]] = {}
    for run in runs:
        for name, value in _figures(simulate.summarise(run)).items():
            samples.setdefault(name, []).append(value)
    return samples


def _figures(simulation: Simulation) -> dict[str, float]:
    times = simulation.latency_ms
    known = {"p50": times.p50, "p95": times.p95, "p99": times.p99, "mean": times.mean}
    total = sum(simulation.outcomes.values())
    return {name: value for name, value in known.items() if value is not None} | {
        "throughput": simulation.throughput_per_s,
        "error rate": 1 - simulation.outcomes["completed"] / total,
    }
