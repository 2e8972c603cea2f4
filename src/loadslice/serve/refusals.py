"""What a client is told when it does not get an answer. Never a path, an address or the name of an exception."""

from collections.abc import Sequence
from typing import NamedTuple

from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import StageError, StageInputError

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

HINT_FLOOR_NS = 50 * NS_PER_MS
"""Where the core knows no better: coming back sooner than this costs more than waiting."""


class RefusalError(Exception):
    """A reply that is not an answer.

    Args:
        status: HTTP status.
        text: One line for the client.
        retry_after_ns: When to come back, where that helps.
        close: Close the connection after it; what the client still sends would not be read.
        allow: Methods that this path takes, where another was used.
    """

    def __init__(
        self,
        status: int,
        text: str,
        *,
        retry_after_ns: int | None = None,
        close: bool = False,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after_ns = retry_after_ns
        self.close = close
        self.allow = allow


class _Answer(NamedTuple):
    status: int
    text: str
    hinted: bool = False
    close: bool = False


_BY_REASON = {
    Reason.QUEUE_FULL: _Answer(429, "the queue is full", hinted=True),
    Reason.TABLE_FULL: _Answer(429, "too many requests are inside", hinted=True),
    Reason.RETRY_BUDGET: _Answer(429, "this repeated attempt is not covered by the retry budget", hinted=True),
    Reason.DISPLACED: _Answer(503, "displaced by a request of a higher class", hinted=True),
    Reason.HOPELESS: _Answer(503, "the deadline cannot be met", hinted=True),
    Reason.DEADLINE: _Answer(504, "the deadline has passed"),
    Reason.STAGE_TIMEOUT: _Answer(504, "a stage took longer than its time limit"),
    Reason.INELIGIBLE: _Answer(422, "no engine of this pipeline takes such a request"),
    Reason.ENGINE_FAILED: _Answer(502, "the engine failed on this request"),
    Reason.ENGINE_DOWN: _Answer(502, "every engine that takes this request is down"),
    Reason.STAGE_FAILED: _Answer(500, "a stage failed on this request"),
    Reason.DRAINING: _Answer(503, "the server is stopping", hinted=True, close=True),
    Reason.CLIENT_GONE: _Answer(503, "the server stopped before this request ended", hinted=True, close=True),
}


def of_outcome(outcome: Outcome, reason: Reason, hint_ns: int, fault: StageError | None) -> RefusalError:
    """The reply to a request that ended in anything but `Outcome.COMPLETED`.

    Args:
        outcome: How it ended.
        reason: Why.
        hint_ns: The core's estimate of when to come back; 0: none.
        fault: What the stage said, if a stage refused the request.
    """
    assert outcome is not Outcome.COMPLETED
    if reason is Reason.QUEUE_FULL and outcome is Outcome.SHED:
        # Admitted, then dropped before a later stage: a capacity problem of ours, not the client's rate.
        return RefusalError(
            503, "dropped before a stage whose queue is full", retry_after_ns=max(hint_ns, HINT_FLOOR_NS)
        )
    if isinstance(fault, StageInputError):
        return RefusalError(415 if fault.unsupported_type else 400, str(fault))
    answer = _BY_REASON[reason]
    hint = max(hint_ns, HINT_FLOOR_NS) if answer.hinted else None
    return RefusalError(answer.status, answer.text, retry_after_ns=hint, close=answer.close)


def retry_headers(retry_after_ns: int) -> dict[str, str]:
    """``Retry-After`` in whole seconds, rounded up, and the finer hint beside it."""
    return {
        "Retry-After": str(-(-retry_after_ns // NS_PER_S)),
        "x-loadslice-retry-after-ms": str(-(-retry_after_ns // NS_PER_MS)),
    }
