"""What a server's counters said, second by second: the last minutes as points, the last minute in full.

Integers are read from the core's state and the metrics once per second, whoever looks on, so that a console that is
opened after something has happened still shows it; everything else is made from differences when somebody asks.
"""

from array import array
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.policy import columns as c
from loadslice.policy.tables import State
from loadslice.serve.console import percentiles
from loadslice.serve.metrics import Metrics
from loadslice.spec.outcome import Outcome

POINTS_MAX = 300
"""Seconds that are shown."""

SHORT, LONG = 10, 60
"""Seconds over which rates and shares, and over which times are given."""

UTILISATION_MIN = 0.05
"""Below, the busiest engine says too little about what the server could do."""

NS_PER_S = 1_000_000_000

Ints = NDArray[np.int64]


class Reading(NamedTuple):
    """All counters at one instant; times and counts since the generation began."""

    at_ns: int
    outcomes: list[int]
    submitted: int
    refused: int
    busy_ns: Ints
    """[E]"""
    engines: Ints
    """[E, ENGINE_COLUMNS]"""
    stages: Ints
    """[S, STAGE_COLUMNS]"""
    placed: Ints
    """[S, E]"""
    passages: Ints
    """[pairs, 4] requests, queue, copy, compute"""
    failed_batches: list[int]
    tenants: dict[str, list[int]]


def read(state: State, metrics: Metrics, now_ns: int) -> Reading:
    """Read everything; on the loop's thread, between two decisions."""
    first = c.C_OUTCOMES
    return Reading(
        now_ns,
        state.counters[first : first + len(Outcome)].tolist(),
        int(state.counters[c.C_SUBMITTED]),
        metrics.refusals,
        np.array(metrics.busy_ns(), np.int64),
        state.engines.copy(),
        state.stages.copy(),
        state.placed.sum(axis=2),
        np.array([passed[2:] for passed in metrics.passages()], np.int64).reshape(-1, 4),
        list(metrics.failed_batches),
        metrics.tenants(),
    )


class Point(NamedTuple):
    """One second, as charts show it."""

    at_s: float
    """Since 1970."""
    span_s: float
    """How long it was on the server's clock, which dilated devices slow down."""
    arrived: int
    completed: int
    not_completed: int
    latency_ms: list[float | None]
    inside: int
    queued: int
    capacity_per_s: float | None


class History:
    """The last minutes of one server.

    Args:
        slots: Of each engine.
    """

    def __init__(self, slots: list[int]) -> None:
        self.seconds = 0
        """Points made so far; the number of the last one."""
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._slots = np.array(slots, np.int64)
        self._readings: deque[Reading] = deque(maxlen=LONG + 1)
        self._took: deque[percentiles.Counts] = deque(maxlen=LONG)

    def restart(self, slots: list[int]) -> None:
        """Another generation serves from now on: its counters begin anew, what charts show goes on."""
        self._slots = np.array(slots, np.int64)
        self._readings.clear()

    def add(self, reading: Reading, took_ns: "array[int]", wall_s: float) -> None:
        """Take in a second.

        Args:
            reading: At its end.
            took_ns: How long each request took that completed in it.
            wall_s: Now, since 1970.
        """
        before = self._readings[-1] if self._readings else None
        self._readings.append(reading)
        found = percentiles.counts(took_ns)
        self._took.append(found)
        if before is None:
            return
        self.seconds += 1
        ended = [now - then for now, then in zip(reading.outcomes, before.outcomes, strict=True)]
        self.points.append(
            Point(
                wall_s,
                max(1, reading.at_ns - before.at_ns) / NS_PER_S,
                reading.submitted - before.submitted,
                ended[Outcome.COMPLETED],
                sum(ended) - ended[Outcome.COMPLETED],
                percentiles.percentiles_ms(found),
                reading.submitted - sum(reading.outcomes),
                int(reading.engines[:, c.N_QUEUED].sum()),
                self.capacity_per_s()[0],
            )
        )

    def window(self, seconds: int) -> tuple[Reading, Reading, float] | None:
        """The readings at both ends of a window, and how long it is on the server's clock, seconds; ``None``: none."""
        if len(self._readings) < 2:
            return None
        last = self._readings[-1]
        first = self._readings[max(0, len(self._readings) - 1 - seconds)]
        return first, last, max(1, last.at_ns - first.at_ns) / NS_PER_S

    def latency_ms(self) -> dict[str, float | None]:
        """Percentiles over the last minute, all completed requests."""
        found = sum(self._took, start=percentiles.counts([]))
        return dict(zip(("p50", "p95", "p99"), percentiles.percentiles_ms(found), strict=True))

    def utilisation(self) -> list[float | None]:
        """Busy slot time over slot time of each engine, last ten seconds."""
        window = self.window(SHORT)
        if window is None:
            return [None] * len(self._slots)
        first, last, span_s = window
        shares = (last.busy_ns - first.busy_ns) / (self._slots * span_s * NS_PER_S)
        return [round(share, 4) for share in shares.tolist()]

    def capacity_per_s(self) -> tuple[float | None, int | None, float | None]:
        """How many requests per second the engines could complete, from what each took of them lately.

        By the utilisation law the engine that is busiest, at U while X requests a second complete, is full at X / U
        (Denning and Buzen, "The operational analysis of queueing network models", 1978). It takes the present split
        between engines, and the present filling of batches, for granted: policy may do better.

        Returns:
            That rate; the engine that limits it; and the rate if work were spread over all slots evenly, which no
            split exceeds. ``None``: too little load to tell.
        """
        window = self.window(SHORT)
        if window is None:
            return None, None, None
        first, last, span_s = window
        shares = (last.busy_ns - first.busy_ns) / (self._slots * span_s * NS_PER_S)
        completed = last.outcomes[Outcome.COMPLETED] - first.outcomes[Outcome.COMPLETED]
        busiest = int(shares.argmax())
        if shares[busiest] < UTILISATION_MIN or not completed:
            return None, None, None
        whole = float((last.busy_ns - first.busy_ns).sum() / (self._slots.sum() * span_s * NS_PER_S))
        rate_per_s = completed / span_s
        return _three(rate_per_s / float(shares[busiest])), busiest, _three(rate_per_s / whole)

    def since(self, number: int) -> dict[str, list[Any]]:
        """Points after one, by column."""
        count = min(max(0, self.seconds - number), len(self.points))
        points = list(self.points)[len(self.points) - count :]
        return {
            "at_s": [round(point.at_s, 1) for point in points],
            "span_s": [round(point.span_s, 3) for point in points],
            "arrived": [point.arrived for point in points],
            "completed": [point.completed for point in points],
            "not_completed": [point.not_completed for point in points],
            "p50_ms": [point.latency_ms[0] for point in points],
            "p95_ms": [point.latency_ms[1] for point in points],
            "p99_ms": [point.latency_ms[2] for point in points],
            "inside": [point.inside for point in points],
            "queued": [point.queued for point in points],
            "capacity_per_s": [point.capacity_per_s for point in points],
        }


def _three(value: float) -> float:
    """To three digits."""
    return float(f"{value:.3g}")
