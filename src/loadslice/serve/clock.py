"""The only clock of the live server."""

import time


class Clock:
    """Nanoseconds since the run began, never going back; what the policy core and the journal call ``now_ns``."""

    __slots__ = ("_began_ns",)

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since this clock was made."""
        return time.monotonic_ns() - self._began_ns

    def loop_time(self, at_ns: int) -> float:
        """The same instant on an asyncio loop's clock, which is the monotonic clock in seconds."""
        return (self._began_ns + at_ns) / 1e9
