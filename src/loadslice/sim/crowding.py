"""Who shares the processor that times were measured on: its cores, the threads engines take of them, their company."""

import math

import numpy as np
from numpy.typing import NDArray

from loadslice.sim.gaps import ON_HOST
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline


def shared_threads(pipeline: Pipeline, engine: str) -> int:
    """Processor threads a busy slot takes from the others: those of engines that run on this processor."""
    settings = pipeline.engines[engine]
    on_host = settings.device is None or settings.device.upper().startswith("CPU")
    return settings.threads if on_host and settings.backend in ON_HOST else 0


def shared_cores(latency: LatencyTable) -> float:
    """Cores of the machine the table was measured on; inf: a table of no machine has nothing to share."""
    if latency.stamp is None or not any(entry.contended_ms is not None for entry in latency.entries):
        return math.inf
    return float(latency.stamp.machine.get("cpus", math.inf))


def company(pipeline: Pipeline, cores: float) -> NDArray[np.int64]:
    """[S, E] how many threads beside its own a stage contended with when its contended times were taken.

    Threads beyond the cores are not company but crowding. Half of the company is taken to slow half as much.
    """
    found = np.ones((len(pipeline.stages), len(pipeline.engines)), np.int64)
    for e, name in enumerate(pipeline.engines):
        own = shared_threads(pipeline, name)
        if own > 0 and cores < math.inf:
            found[:, e] = max(1, min(_contending_threads(pipeline, name), int(cores)) - own)
    return found


def measured_crowding(pipeline: Pipeline, engine: str, cores: float) -> float:
    """How far busy threads outnumbered the cores while an engine's contended times were taken, at least 1.

    What those contain of crowding must come out again, because the loop puts it in by the company of the moment.
    """
    return max(1.0, _contending_threads(pipeline, engine) / cores)


def _contending_threads(pipeline: Pipeline, engine: str) -> int:
    """Threads that were busy while an engine's contended times were taken, its own included.

    Every slot is busy that runs models; Python stages are timed beside all of them.
    """
    threads = sum(
        shared_threads(pipeline, name) * settings.max_inflight
        for name, settings in pipeline.engines.items()
        if settings.backend != "python"
    )
    if pipeline.engines[engine].backend == "python":
        threads += shared_threads(pipeline, engine)
    return threads
