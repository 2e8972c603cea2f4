"""The breaker of the naive twin: one state, one list of remembered calls, and the probes that are out."""

from typing import Literal

from loadslice.spec.pipeline import Breaker

FOREVER = 2**62
PPM = 1_000_000
MS = 1_000_000


class NaiveBreaker:
    """One engine at one stage. Without settings it is closed for ever and remembers nothing."""

    def __init__(self, settings: Breaker | None) -> None:
        self.settings = settings
        self.state: Literal["closed", "open", "half-open"] = "closed"
        self.epoch = 0
        self.until_ns = FOREVER
        self.changed_ns = 0
        self.times_opened = 0
        self.calls: list[tuple[bool, bool]] = []
        """(failed, slow) of the last calls, oldest first."""
        self.probes_out = 0
        self.probes_ended: list[bool] = []
        """Whether each was bad."""

    def admits(self) -> bool:
        """Whether one more request may go there."""
        if self.state == "half-open":
            assert self.settings is not None
            return self.probes_out + len(self.probes_ended) < self.settings.permits
        return self.state == "closed"

    def enter(self, now_ns: int) -> tuple[int, bool]:
        """A request goes there: the epoch its call belongs to, and whether it holds a permit."""
        if self.state != "half-open":
            return (self.epoch, False)
        assert self.settings is not None
        if self.until_ns == FOREVER:
            self.until_ns = now_ns + round(self.settings.half_open_ms * MS)
        self.probes_out += 1
        return (self.epoch, True)

    def give_back(self, call: tuple[int, bool]) -> None:
        """A call ends without a verdict."""
        if call == (self.epoch, True):
            self.probes_out -= 1

    def is_slow(self, took_ns: int) -> bool:
        """Whether a call of this length is a slow one."""
        if self.settings is None or self.settings.slow_ms is None:
            return False
        return took_ns > round(self.settings.slow_ms * MS)

    def record(self, now_ns: int, call: tuple[int, bool], *, failed: bool, slow: bool, is_last: bool) -> bool:
        """A call has ended with a verdict; whether the state changed."""
        settings = self.settings
        if settings is None or call[0] != self.epoch:
            return False
        if self.state == "half-open":
            assert call[1], "whoever goes there while it is half-open holds a permit"
            self.probes_out -= 1
            self.probes_ended.append(failed or slow)
            return len(self.probes_ended) >= settings.permits and self._decide(now_ns)
        self.calls = [*self.calls, (failed, slow)][-settings.window :]
        failures, slows = sum(f for f, _ in self.calls), sum(s for _, s in self.calls)
        if len(self.calls) < settings.min_calls:
            return False
        is_bad = failures * PPM >= round(settings.failure_rate * PPM) * len(self.calls)
        is_slow = slows > 0 and slows * PPM >= round(settings.slow_rate * PPM) * len(self.calls)
        if not is_bad and not is_slow:
            return False
        if is_last:
            self.calls = []
            return False
        if now_ns - self.changed_ns > 2 * self._open_ns():
            self.times_opened = 0
        return self._open(now_ns)

    def on_time(self, now_ns: int, probes_end_ns: int) -> bool:
        """Time has passed; whether the state changed. A probe that runs is waited for until it should have ended."""
        if self.until_ns > now_ns:
            return False
        if self.state == "open":
            return self._change(now_ns, "half-open", FOREVER)
        if not self.probes_ended and self.probes_out > 0 and probes_end_ns > now_ns:
            self.until_ns = probes_end_ns
            return False
        return self._decide(now_ns)

    def _decide(self, now_ns: int) -> bool:
        """End half-open by what its probes showed; none that ended shows nothing good."""
        assert self.settings is not None
        bad, ended = sum(self.probes_ended), len(self.probes_ended)
        if ended > 0 and bad * PPM < round(self.settings.failure_rate * PPM) * ended:
            return self._change(now_ns, "closed", FOREVER)
        return self._open(now_ns)

    def _open(self, now_ns: int) -> bool:
        until_ns = now_ns + self._open_ns()
        self.times_opened += 1
        return self._change(now_ns, "open", until_ns)

    def _open_ns(self) -> int:
        """How long it would stay open now: doubled each time it opens again soon after, bounded."""
        assert self.settings is not None
        doubled_ns = round(self.settings.open_ms * MS) << min(self.times_opened, 20)
        return min(doubled_ns, round(self.settings.open_ms_max * MS))

    def _change(self, now_ns: int, state: Literal["closed", "open", "half-open"], until_ns: int) -> bool:
        self.state, self.until_ns, self.changed_ns = state, until_ns, now_ns
        self.epoch += 1
        self.calls, self.probes_ended, self.probes_out = [], [], 0
        return True
