"""How much of the machine's processor time went to others while we measured."""

import os
import time
from types import TracebackType
from typing import Self

import psutil

from loadslice.spec.latency import NOTICEABLE_PCT


class Neighbours:
    """Watches the processor from entry to exit."""

    share: float = 0.0
    """0 to 1, after the block has ended."""

    def __enter__(self) -> Self:
        self._wall_s, self._busy_s, self._own_s = time.perf_counter(), _busy_s(), _own_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall_s = time.perf_counter() - self._wall_s
        self.share = others_share(wall_s, _busy_s() - self._busy_s, _own_s() - self._own_s, os.cpu_count() or 1)

    @property
    def warning(self) -> str | None:
        """One line for the user when the times cannot be trusted."""
        percent = round(100 * self.share)
        if percent < NOTICEABLE_PCT:
            return None
        return f"warning: other processes took {percent} % of this machine while it was measured; times are too long."


def others_share(wall_s: float, busy_s: float, own_s: float, cpus: int) -> float:
    """Share of all processor time that others took, 0 to 1, whether or not we were waiting for it.

    Args:
        wall_s: Time that passed, > 0.
        busy_s: Busy time of all processors, from counters that tick every 10 ms.
        own_s: Processor time of this process.
        cpus: Processors of the machine.
    """
    return min(1.0, max(0.0, (busy_s - own_s) / (wall_s * cpus)))


def _busy_s() -> float:
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # Guest time is already counted in user time.
    counted_twice_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle_s - counted_twice_s)


def _own_s() -> float:
    return time.process_time()
