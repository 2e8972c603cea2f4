"""Several runs of one simulation, and the interval in which one more run, or the real one, would lie."""

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadslice.sim import simulate
from loadslice.sim.course import Prepared
from loadslice.sim.draws import NORMAL_95, t_95
from loadslice.sim.model_error import of_draw
from loadslice.sim.room import RecordRoom
from loadslice.sim.service import of_run, quantile_function
from loadslice.spec.latency import Drift, LatencyTable, Milliseconds
from loadslice.spec.simulation import Simulation

_NS_PER_MS = 1_000_000

_ARRIVALS = 0xA441
"""Keeps the draws of how late requests reach the core apart from every other draw of the same seed."""

BELIEVED = 4
"""As many figures of rehearsals the simulator's own draws count for, before any rehearsal was predicted."""
FIGURES_PER_RUN = 2
"""P50, P95 and P99 of one run go up and down together: three of them say as much as two that do not."""

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
        run to run among it where the profile holds that; and what the model leaves out, as far as rehearsals missed
        their predictions (`left_out`). Where modelled times may be off by factors, so may times and energy, and their
        interval is that of their logarithms.
    """
    first = simulate.run(prepared, seed=seed)
    drift = latency.drift if latency is not None else None
    by_factors = latency is not None and any(entry.error is not None for entry in latency.entries)
    figures, typical, room = [], [], RecordRoom()
    for number in range(seed, seed + replicas):
        machine = prepared if latency is None else of_draw(prepared, latency, number)
        figures.append(_figures(simulate.run(in_run(machine, number), seed=number, room=room)))
        if drift is not None and drift.misses is not None:
            typical.append(_figures(simulate.run(unevenly_late(machine, number), seed=number, room=room)))
    known = [name for name in figures[0] if all(name in other for other in [*figures, *typical])]
    return first, {
        name: _interval(
            name, [one[name] for one in figures], left_out([one[name] for one in typical], drift), by_factors
        )
        for name in known
    }


def _interval(name: str, values: list[float], left_out: float, by_factors: bool) -> Interval:
    if by_factors and name.startswith(("latency_ms", "energy_j")) and min(values) > 0:
        low, high = _around(np.log(values), left_out / float(np.mean(values)) ** 2)
        return math.exp(low), math.exp(high)
    return interval(values, left_out)


def in_run(prepared: Prepared, seed: int) -> Prepared:
    """The same machine in one of its runs, its requests unevenly late, where the profile knows how far runs differ."""
    service, longer = of_run(prepared.service, seed)
    return unevenly_late(prepared._replace(service=service, overhead=_scaled(prepared.overhead, longer)), seed)


def differ(prepared: Prepared) -> bool:
    """Whether runs of this machine differ in more than what is drawn in each."""
    return bool(prepared.service.between_runs.any()) or prepared.late is not None


def unevenly_late(prepared: Prepared, seed: int) -> Prepared:
    """The same requests, as late as they happen to be by the seed: in the order in which they were sent.

    What that costs a request is in ``overhead`` already: latency counts from when it is seen.
    """
    if prepared.late is None:
        return prepared
    arrival_ns = prepared.traffic.arrival_ns
    drawn = np.random.default_rng([seed, _ARRIVALS]).random(len(arrival_ns))
    grid_ns = quantile_function(prepared.late)
    late_ns = np.interp(drawn, np.linspace(0.0, 1.0, len(grid_ns)), grid_ns).astype(np.int64)
    return prepared._replace(traffic=prepared.traffic._replace(arrival_ns=np.maximum.accumulate(arrival_ns + late_ns)))


def _scaled(times: Milliseconds | None, factor: float) -> Milliseconds | None:
    if times is None or factor == 1.0:
        return times
    grid_ms = quantile_function(times) * factor / _NS_PER_MS
    return Milliseconds(samples=grid_ms.tolist())


def left_out(typical: Sequence[float], drift: Drift | None) -> float:
    """Variance of a figure that the simulator leaves out, by how far off rehearsals were predicted.

    Around its prediction on a machine of known speed, a run has a multiple of the variance that the simulator draws.
    Before any rehearsal the multiple is believed to be 1, with the weight of `BELIEVED` figures (a scaled inverse
    chi-square); after them one more run is Student's t with ``BELIEVED + FIGURES_PER_RUN * runs`` degrees of freedom
    (Gelman et al., Bayesian Data Analysis, sec. 2.6). What that is beyond the variance drawn is left out; never below
    0, for rehearsals are predicted from what they have told themselves.

    Args:
        typical: The figure of several runs at the machine's typical speed.
        drift: Of the latency table; where it knows of no rehearsal that was predicted, nothing is left out.
    """
    if drift is None or drift.misses is None or drift.missed_runs is None or len(typical) < 2:
        return 0.0
    seen = FIGURES_PER_RUN * drift.missed_runs
    multiple = (BELIEVED + seen * drift.misses**2) / (BELIEVED + seen)
    wider = t_95(BELIEVED + seen) / NORMAL_95
    return max(0.0, wider**2 * multiple - 1.0) * float(np.var(typical, ddof=1))


def interval(values: Sequence[float], left_out: float = 0.0) -> Interval:
    """95 % prediction interval of one more value; never below 0.

    Args:
        values: Of several runs that differ as runs do, at least 2.
        left_out: Variance beside theirs, from `left_out`.
    """
    low, high = _around(np.array(values), left_out)
    return max(0.0, low), high


def deviations(value: float, values: list[float]) -> float:
    """How many of their standard deviations ``value`` is from the mean of the runs, as a prediction of one more.

    Args:
        value: Any.
        values: Of several runs, at least 2; all alike: 0 where it was met and infinity else.
    """
    off, spread = value - float(np.mean(values)), float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))
    return off / spread if spread > 0 else math.copysign(math.inf, off) if off else 0.0


def _around(values: NDArray[np.float64], left_out: float) -> Interval:
    deviation = math.sqrt(float(np.var(values, ddof=1)) + left_out)
    half = t_95(len(values) - 1) * deviation * math.sqrt(1 + 1 / len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def _figures(run: simulate.Run) -> dict[str, float]:
    return dict(_named(simulate.summarise(run)))


def _named(result: Simulation) -> Iterator[tuple[str, float]]:
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
