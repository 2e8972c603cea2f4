"""Requests per second of a pipeline in this process, called without a pause, settings by turns."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from loadslice.profiles.chain import Step
from loadslice.spec.service import Rate
from loadslice.spec.work import Sample

WINDOW_S_MAX = 4.0
WINDOWS = 3


@dataclass
class Setting:
    """A loaded pipeline and how it is called.

    Attributes:
        steps: Loaded for ``streams`` slots.
        callers: Threads that call; with one stream all share it, which its runtime must allow.
        streams: Slots.
        threads: Of each slot.
    """

    steps: Sequence[Step]
    callers: int
    streams: int
    threads: int
    per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def requests_per_s(self) -> float:
        """Median over windows."""
        return float(np.median(self.per_s))

    @property
    def rate(self) -> Rate:
        """The figures."""
        return Rate(
            callers=self.callers,
            streams=self.streams,
            threads=self.threads,
            requests_per_s=round(self.requests_per_s, 3),
            cpu_ms_per_request=round(float(np.median(self.cpu_ms)), 3),
        )

    def against(self, base: "Setting") -> tuple[float, float]:
        """Times the requests per second of ``base``, and how many times less processor time, medians over windows."""
        wall = np.median(np.divide(self.per_s, base.per_s))
        return round(float(wall), 3), round(float(np.median(np.divide(base.cpu_ms, self.cpu_ms))), 3)

    def window(self, samples: Sequence[Sample], seconds: float) -> None:
        """Call for a while; every caller finishes the request it has begun."""
        end_ns = time.perf_counter_ns() + round(seconds * 1e9)

        def call(caller: int) -> int:
            done = 0
            while time.perf_counter_ns() < end_ns or not done:
                # A stride that meets all inputs, so that every window has the same mixture.
                sample = samples[(caller + done * self.callers) * 7 % len(samples)]
                work = sample.work()
                for step in self.steps:
                    work = step.run(work, caller % self.streams)
                done += 1
            return done

        cpu, start = time.process_time_ns(), time.perf_counter_ns()
        with ThreadPoolExecutor(self.callers) as pool:
            done = sum(pool.map(call, range(self.callers)))
        took_ns = time.perf_counter_ns() - start
        self.per_s.append(done / (took_ns / 1e9))
        self.cpu_ms.append((time.process_time_ns() - cpu) / 1e6 / done)


def measure(settings: Sequence[Setting], samples: Sequence[Sample], seconds: float) -> None:
    """Fill every setting's windows, by turns; all inputs are met once before.

    Args:
        settings: Loaded.
        samples: In an order that mixes small and large.
        seconds: For all windows together, about.
    """
    for one in settings:
        for sample in samples:
            work = sample.work()
            for step in one.steps:
                work = step.run(work)
    window_s = min(WINDOW_S_MAX, seconds / WINDOWS / len(settings))
    for number in range(WINDOWS):
        for one in settings if number % 2 == 0 else reversed(settings):
            one.window(samples, window_s)
