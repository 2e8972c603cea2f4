"""Several runs of one simulation, and the interval in which one more run, or the real one, would lie."""

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadslice.sim import simulate
from loadslice.sim.course import Prepared
from loadslice.sim.draws import t_95
from loadslice.sim.model_error import of_draw
from loadslice.sim.room import RecordRoom
from loadslice.sim.service import of_run, quantile_function
from loadslice.spec.latency import LatencyTable, Milliseconds
from loadslice.spec.simulation import Simulation

_NS_PER_MS = 1_000_000

Interval = tuple[float, float]


def run(
    prepared: Prepared, *, seed: int, replicas: int, latency: LatencyTable | None = None
) -> tuple[simulate.Run, dict[str, Interval]]:
    """Run ``replicas`` times with seeds ``seed``, ``seed + 1``, ...

    Args:
        prepared: From `simulate.prepare`.
        seed: Of the first run.
        replicas: At least 2.
        latency: That it was prepared with: each run is on another draw of the errors that its modelled times state.

    Returns:
        A run at the machine's typical speed, and for each figure (``latency_ms.p50``, ...) the interval that holds one
        more run 19 times of 20: mean +- t * s * sqrt(1 + 1/n). It knows what the model draws, the machine's drift from
        run to run among it where the profile holds that; not what the model leaves out. Where modelled times may be
        off by factors, so may times and energy, and their interval is that of their logarithms.
    """
    first = simulate.run(prepared, seed=seed)
    by_factors = latency is not None and any(entry.error is not None for entry in latency.entries)
    figures, room = [], RecordRoom()
    for number in range(seed, seed + replicas):
        machine = prepared if latency is None else of_draw(prepared, latency, number)
        again = simulate.run(in_run(machine, number), seed=number, room=room)
        figures.append(dict(_figures(simulate.summarise(again))))
    known = [name for name in figures[0] if all(name in other for other in figures)]
    return first, {name: _interval(name, [other[name] for other in figures], by_factors) for name in known}


def _interval(name: str, values: list[float], by_factors: bool) -> Interval:
    if by_factors and name.startswith(("latency_ms", "energy_j")) and min(values) > 0:
        low, high = _around(np.log(values))
        return math.exp(low), math.exp(high)
    return interval(values)


def in_run(prepared: Prepared, seed: int) -> Prepared:
    """The same machine in one of its runs, where the profile knows how far they differ."""
    service, longer = of_run(prepared.service, seed)
    return prepared._replace(service=service, overhead=_scaled(prepared.overhead, longer))


def _scaled(times: Milliseconds | None, factor: float) -> Milliseconds | None:
    if times is None or factor == 1.0:
        return times
    grid_ms = quantile_function(times) * factor / _NS_PER_MS
    return Milliseconds(samples=grid_ms.tolist())


def interval(values: list[float]) -> Interval:
    """95 % prediction interval of one more value; never below 0."""
    low, high = _around(np.array(values))
    return max(0.0, low), high


def _around(values: NDArray[np.float64]) -> Interval:
    half = t_95(len(values) - 1) * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def _figures(result: Simulation) -> Iterator[tuple[str, float]]:
    for name, value in msgspec.structs.asdict(result.latency_ms).items():
        if value is not None:
            yield f"latency_ms.{name}", value
    yield "throughput_per_s", result.throughput_per_s
    yield "goodput_per_s", result.goodput_per_s
    if result.energy_j is not None:
        yield "energy_j", result.energy_j
    for name, count in result.outcomes.items():
        yield f"outcomes.{name}", float(count)
    for name, engine in result.engines.items():
        yield f"engines.{name}.utilisation", engine.utilisation
