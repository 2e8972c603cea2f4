"""Which stretch of a trace to replay, and how fast, so that the run says something and still ends."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.sim import simulate
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline

BUSY_LOW, BUSY_GOAL, BUSY_HIGH = 0.35, 0.50, 0.60
"""Utilisation of the slowest plan: below the first nothing ever waits, above the last queues
decide everything; between them the recorded pace is kept, else the pace is scaled to the middle one."""
SPEED_MIN, SPEED_MAX = 1e-3, 1e3
HALVINGS = 24


@dataclass(frozen=True, slots=True)
class Pace:
    """A chosen pace and why."""

    speed: float
    busy: dict[str, float]
    """Plan -> predicted utilisation of its busiest engine, or of all processors together if that is more, over the
    whole trace at that pace."""
    why: str


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a trace, in recorded seconds."""

    from_s: float
    for_s: float
    requests: int
    why: str


Plans = Mapping[str, tuple[Pipeline, LatencyTable]]


def choose_pace(frame: pl.DataFrame, plans: Plans, *, cores: int, seed: int, given: float | None) -> Pace:
    """Keep the recorded pace where it loads the slowest plan sensibly, otherwise scale it.

    Args:
        frame: The whole trace, inputs named.
        plans: At least one, all engines on this machine's processors.
        cores: Processors they share.
        seed: Start of the simulator's draws.
        given: The user's own choice; taken as it is.
    """
    if given is not None:
        return Pace(
            given, _busy(frame, plans, given, cores, seed), f"The pace of {given:g} times the recording was asked for."
        )
    recorded = _busy(frame, plans, 1.0, cores, seed)
    slowest = max(recorded, key=lambda name: recorded[name])
    if BUSY_LOW <= recorded[slowest] <= BUSY_HIGH:
        why = f"Recorded pace: it is predicted to keep the slowest plan ({slowest}) {recorded[slowest]:.0%} busy."
        return Pace(1.0, recorded, why)
    speed = _speed_for(frame, {slowest: plans[slowest]}, cores, seed)
    busy = _busy(frame, plans, speed, cores, seed)
    why = (
        f"The recorded pace would keep the slowest plan ({slowest}) {recorded[slowest]:.0%} busy by prediction; "
        f"traffic was played {speed:.3g} times as fast, for {busy[slowest]:.0%}."
    )
    return Pace(speed, busy, why)


def _busy(frame: pl.DataFrame, plans: Plans, speed: float, cores: int, seed: int) -> dict[str, float]:
    at_speed = simulate.at_speed(frame, speed)
    found = {}
    for name, (pipeline, latency) in plans.items():
        figures = simulate.summarise(simulate.run(simulate.prepare(at_speed, pipeline, latency, seed=seed), seed=seed))
        engines = [(figures.engines[key].utilisation, engine) for key, engine in pipeline.engines.items()]
        processors = sum(busy * engine.max_inflight * engine.threads for busy, engine in engines) / cores
        found[name] = max(processors, *(busy for busy, _ in engines))
    return found


def _speed_for(frame: pl.DataFrame, plan: Plans, cores: int, seed: int) -> float:
    """Bisect for the speed at which the plan is `BUSY_GOAL` busy; three digits are plenty."""
    low, high = np.log10(SPEED_MIN), np.log10(SPEED_MAX)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if max(_busy(frame, plan, 10**middle, cores, seed).values()) < BUSY_GOAL:
            low = middle
        else:
            high = middle
    return float(f"{10**low:.2g}")


def choose_window(frame: pl.DataFrame, *, real_s: float, speed: float) -> Window:
    """The most ordinary stretch of the trace's second half: the one with the median number of requests.

    The second half, so that whoever tuned a plan on the first has not seen it.

    Args:
        frame: The whole trace.
        real_s: How long the replay shall last.
        speed: Pace against the recording.
    """
    times_s = frame["arrival_s"].to_numpy()
    first_s, last_s = float(times_s[0]), float(times_s[-1])
    wanted_s = real_s * speed
    if last_s - first_s <= wanted_s:
        return Window(first_s, np.nextafter(last_s, np.inf) - first_s, len(times_s), "The whole trace was replayed.")
    half_s = min(first_s + (last_s - first_s) / 2, last_s - wanted_s)
    begin_s, counts = _ordinary(times_s, wanted_s, half_s, last_s)
    held = int(np.searchsorted(times_s, begin_s + wanted_s) - np.searchsorted(times_s, begin_s))
    why = (
        f"Replayed: {held} requests from second {begin_s:.0f} to {begin_s + wanted_s:.0f} of the trace, the most "
        f"ordinary stretch of its second half (stretches of that length there hold {counts.min()} to {counts.max()} "
        "requests)."
    )
    return Window(begin_s, wanted_s, held, why)


def rehearsal_window(frame: pl.DataFrame, *, real_s: float, speed: float) -> tuple[float, float]:
    """Where the most ordinary stretch of a trace's first half begins, and how long it is, in recorded seconds.

    Args:
        frame: The whole trace.
        real_s: How long the rehearsal shall last; as much of the half as there is, where that is less.
        speed: Pace against the recording.
    """
    times_s = frame["arrival_s"].to_numpy()
    first_s, half_s = float(times_s[0]), float(times_s[0] + times_s[-1]) / 2
    wanted_s = min(real_s * speed, half_s - first_s)
    return (_ordinary(times_s, wanted_s, first_s, half_s)[0], wanted_s) if wanted_s > 0 else (first_s, 0.0)


def _ordinary(
    times_s: npt.NDArray[np.float64], wanted_s: float, from_s: float, to_s: float
) -> tuple[float, npt.NDArray[np.int64]]:
    """The stretch whose number of requests is the median of all that long; where it begins, and all numbers."""
    step_s = wanted_s / 8
    # Counted, not compared: seconds since 1970 leave no digits for a stretch that just fits.
    starts = from_s + step_s * np.arange(1 + max(0, int((to_s - from_s - wanted_s) / step_s + 1e-9)))
    counts = np.searchsorted(times_s, starts + wanted_s) - np.searchsorted(times_s, starts)
    return float(starts[np.argmin(np.abs(counts - np.median(counts)))]), counts
