"""The only clock of the live server."""

import time


class Clock:
    """Nanoseconds since the run began, never going back; what the policy core and the journal call ``now_ns``.

    A dilated clock runs slower than the world, so that emulated devices faster than this processor still compute real
    numerics: every deadline, window and time that is reported is in the devices' time. What is real must be slowed by
    as much, or it would look faster than it is; see `stretch`.

    Args:
        dilate: Nanoseconds of the world for one of this clock, 1 or more.
    """

    __slots__ = ("_began_ns", "_dilate")

    def __init__(self, dilate: float = 1.0) -> None:
        self._began_ns = time.monotonic_ns()
        self._dilate = dilate

    @property
    def is_dilated(self) -> bool:
        """Whether it runs slower than the world."""
        return self._dilate != 1

    def now_ns(self) -> int:
        """Nanoseconds since this clock was made."""
        passed_ns = time.monotonic_ns() - self._began_ns
        return passed_ns if self._dilate == 1 else int(passed_ns / self._dilate)

    def loop_time(self, at_ns: int) -> float:
        """The same instant on an asyncio loop's clock, which is the monotonic clock in seconds."""
        passed_ns = at_ns if self._dilate == 1 else at_ns * self._dilate
        return (self._began_ns + passed_ns) / 1e9

    def stretch(self, since_ns: int) -> None:
        """Wait until what took real time since an instant has taken as long on this clock; blocks a worker's thread."""
        if self._dilate != 1:
            took_ns = (self.now_ns() - since_ns) * self._dilate
            time.sleep(took_ns * (self._dilate - 1) / 1e9)
