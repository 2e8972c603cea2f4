"""An alarm on the event loop that rings within a tenth of a millisecond, and never early.

The loop's own timers count whole milliseconds: uvloop's ring 1 ms late in the middle, and sometimes so early that they
have to be set again. Linux has timers that are read like a file; elsewhere the loop's own do.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import ClassVar

TFD_TIMER_ABSTIME = 1


class _Setting(ctypes.Structure):
    """``struct itimerspec``: how often, which is never again, and when."""

    _fields_: ClassVar = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class Alarm:
    """Rings on the loop that it is made on.

    Args:
        ring: Called there.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        self._libc = ctypes.CDLL(None)
        if hasattr(self._libc, "timerfd_create"):
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._due)

    def set(self, at_ns: int) -> None:
        """Ring once, at an instant of the monotonic clock, and no more when it was to ring before."""
        if self._fd >= 0:
            setting = _Setting(0, 0, *divmod(max(1, at_ns), 1_000_000_000))
            self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(setting), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(at_ns / 1e9, self._ring)

    def close(self) -> None:
        """Ring no more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _due(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it has been set anew since
        self._ring()
