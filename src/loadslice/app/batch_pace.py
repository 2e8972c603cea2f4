"""How fast offline work is offered: as many requests at once as the server takes without refusing any.

Additive increase, multiplicative decrease (as TCP does it, RFC 5681): each completed window raises the number of open
requests by one, a refusal halves it, once for all requests that were open when it came. Where it was refused is
remembered: up to one below that it grows at the same pace, beyond only after many windows (as CUBIC holds its plateau,
RFC 9438), for each refusal costs the server's hint. After a refusal nothing is sent before that hint has passed;
refusals with no completed request between them double the wait, so that a server that is busy with others for hours is
asked twice a minute.
"""

FIRST_WINDOW = 2.0
PROBE_WINDOWS = 200
"""Windows that must complete next to the last refusal before one more request is tried."""
WAIT_S_MAX = 30.0
WAIT_S_DEFAULT = 1.0
"""Where the server gives no hint, or nobody answers."""


class Pace:
    """Decides when the next request may be sent. Reads no clock: ``now_s`` is passed in.

    Args:
        ceiling: Most requests open at once.
    """

    def __init__(self, ceiling: int) -> None:
        self.refusals = 0
        """Refusals in a row, without a completed request between them."""
        self._ceiling = float(ceiling)
        self._window = min(FIRST_WINDOW, self._ceiling)
        self._not_before_s = 0.0
        self._refused_at = float("inf")
        """Requests that were open when one was refused last."""
        self._halved = 0
        """Answers still to come of requests that were open at the last refusal; they do not count again."""

    @property
    def window(self) -> int:
        """Requests that may be open at once."""
        return int(self._window)

    def may_send(self, open_requests: int, now_s: float) -> bool:
        """Whether one more request may be sent now."""
        return open_requests < self.window and now_s >= self._not_before_s

    def wait_s(self, now_s: float) -> float:
        """How long nothing may be sent from now on."""
        return max(0.0, self._not_before_s - now_s)

    def completed(self) -> None:
        """A request was served."""
        self.refusals = 0
        self._halved = max(0, self._halved - 1)
        step = 1 / self._window
        if self._window + step > self._refused_at - 1:
            step /= PROBE_WINDOWS
        self._window = min(self._ceiling, self._window + step)

    def refused(self, open_requests: int, now_s: float, hint_s: float | None) -> None:
        """The server refused one, or was not there.

        Args:
            open_requests: Others that are open.
            now_s: Now.
            hint_s: When to come back, as the server says.
        """
        if self._halved > 0:
            self._halved -= 1
        else:
            self.refusals += 1
            self._refused_at = open_requests + 1.0
            self._window = max(1.0, self._window / 2)
            self._halved = open_requests
        doubled_s = (hint_s or WAIT_S_DEFAULT) * 2.0 ** min(self.refusals - 1, 16)
        longest_s = max(WAIT_S_MAX, hint_s or 0.0)  # an explicit hint is kept to even where it is longer
        self._not_before_s = max(self._not_before_s, now_s + min(doubled_s, longest_s))
