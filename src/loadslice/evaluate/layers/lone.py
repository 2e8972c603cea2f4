"""Layer 2: how long does a request take that has the server to itself?

Repeats go on until the 95 % interval of the median is within `SMALL` of it, or the repeats are used up, which is said.
"""

import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadslice.evaluate import compare
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Heard, Line
from loadslice.spec.report import Interval

SMALL = 0.02
"""Half the interval over the median."""
WARM = 5
"""Requests before the first that counts."""
REST_MS_MAX = 50.0
TRANSPORT_EVERY = 4
"""For so many requests one round trip that asks for nothing: what client, socket and front take of themselves.

They come before the requests of their repeat and not between them: a request after a rest finds a processor that has
cooled down, as none of a client that goes on asking does.
"""


@dataclass(slots=True)
class Lone:
    """Single requests of one placement."""

    heards: list[Heard] = field(default_factory=list)
    cold_ms: float | None = None
    """The very first request."""
    transport_ms: float | None = None
    """Mean, as attribution adds up means."""
    repeats: int = 0
    small: bool = False
    interval: Interval | None = None
    cpu_s: float = 0.0
    """Processor time of server and client together over these requests."""

    def times_ms(self) -> compare.Float64s:
        """Of completed requests."""
        return np.array([heard.whole_ms for heard in self.heards if heard.completed], np.float64)

    @property
    def median_ms(self) -> float | None:
        """Of whole answers."""
        times_ms = self.times_ms()
        return float(np.median(times_ms)) if times_ms.size else None


def measure(subject: Subject, *, requests: int, repeats: int, for_s: float, seed: int) -> Lone:
    """Send one request at a time.

    Args:
        subject: Whom to ask.
        requests: Per repeat.
        repeats: At most.
        for_s: Seconds of the world for a repeat, at most; it ends early then.
        seed: Of the bootstrap.
    """
    found = Lone()
    letters = subject.numbered("lone")
    with subject.line() as line:
        warm = [line.post(letter) for letter in itertools.islice(letters, WARM)]
        found.cold_ms = warm[0].whole_ms
        rest_s = min((warm[-1].whole_ms or 0.0) * line.dilate, REST_MS_MAX) / 1000
        trips_ms: list[float] = []
        for _ in range(repeats):
            for _ in range(max(1, requests // TRANSPORT_EVERY)):
                trips_ms += _round_trip_ms(line, rest_s)
            line.post(next(letters))  # wakes everybody up again
            until, used_s = time.monotonic() + for_s, _used_s(subject)
            for letter in itertools.islice(letters, requests):
                found.heards.append(line.post(letter))
                if time.monotonic() > until or found.heards[-1].error == "refused":
                    break
            found.repeats += 1
            found.cpu_s += _used_s(subject) - used_s
            times_ms = found.times_ms()
            found.interval = compare.bootstrap(times_ms, [0.5], seed)[0]
            if found.interval is not None and found.repeats >= min(2, repeats):
                half = (found.interval.high - found.interval.low) / 2
                found.small = half <= SMALL * float(np.median(times_ms))
            if found.small or not subject.alive():
                break
    found.transport_ms = float(np.mean(trips_ms)) if trips_ms else None
    return found


def _round_trip_ms(line: Line, rest_s: float) -> list[float]:
    """A request that asks for nothing, after a rest; empty where none came back.

    Without the rest both processes would still be awake, and a round trip take half as long as beside real work.

    Args:
        line: To the server.
        rest_s: As long as a lone request takes, in the world's time.
    """
    threading.Event().wait(rest_s)
    trip = line.get("/v2/health/live")
    return [trip.whole_ms] if trip.status == 200 and trip.whole_ms is not None else []


def _used_s(subject: Subject) -> float:
    """Processor time of the server and of ourselves so far."""
    server_s = subject.cpu_s() if subject.cpu_s is not None and subject.alive() else 0.0
    return server_s + time.process_time()


def figures(found: Lone) -> dict[str, Any]:
    """For the document; all times are of whole answers unless ``first`` says otherwise."""
    times_ms = found.times_ms()
    first_ms = np.array([heard.first_ms for heard in found.heards if heard.completed], np.float64)
    return {
        "requests": len(found.heards),
        "completed": int(times_ms.size),
        "repeats": found.repeats,
        "interval_small": found.small,
        "cold_ms": found.cold_ms,
        "first_ms_p50": _quantile(first_ms, 0.5),
        "first_ms_p95": _quantile(first_ms, 0.95),
        "whole_ms_p50": _quantile(times_ms, 0.5),
        "whole_ms_p50_95": None if found.interval is None else [found.interval.low, found.interval.high],
        "whole_ms_p95": _quantile(times_ms, 0.95),
        "whole_ms_p99": _quantile(times_ms, 0.99),
        "transport_ms_mean": found.transport_ms,
    }


def _quantile(values: compare.Float64s, share: float) -> float | None:
    return float(np.quantile(values, share)) if values.size else None
