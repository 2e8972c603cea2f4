"""The last requests, each with its way through the stages, in bounded rings.

Looking at one costs half a microsecond and keeping it another, which a server of tiny models would feel if it did so
with all of them. So of requests that completed and carry no id that anybody could ask for, the first `LOOKED_AT` of
each tenth of a second are looked at, and some of those are kept; whoever hands them in looks at `Recent.room` first.
Those that did not complete, took longer than all but a hundredth of the last minute's, or have an id, are kept in rings
of their own, where the ordinary ones cannot push them out. What is kept has no tensors.
"""

from array import array
from collections import deque
from typing import Any, NamedTuple

from loadslice.serve.logs import story
from loadslice.serve.request import Passage, Request
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline

NOTABLE_MAX, NAMED_MAX, ORDINARY_MAX = 256, 512, 128
"""Requests kept: those that call for a look, those with an id, the others."""

ORDINARY_PER_TURN = 16
"""Of the others, between two calls of `Recent.turn`."""

LOOKED_AT, REFILL_S = 200, 0.1
"""Completed requests without an id that are looked at in each such time: up to 2,000 a second, all are."""

LISTED_MAX = 40
NEVER_NS = 2**62

_COMPLETED = Outcome.COMPLETED


class Kept(NamedTuple):
    """A request that has ended, without what it carried."""

    pipeline: Pipeline
    tag: int
    id: str | None
    outcome: Outcome
    reason: Reason
    priority: int
    tenant: str | None
    source: str | None
    version: int | None
    attempt: int
    stage: int
    received_ns: int
    arrival_ns: int
    end_ns: int | None
    reply_ns: int | None
    hint_ns: int
    passages: list[Passage]


class Recent:
    """Told of each request that has ended and been replied to."""

    __slots__ = ("_named", "_notable", "_ordinary", "_ordinary_room", "_took_ns", "room", "slow_ns")

    def __init__(self) -> None:
        self.slow_ns = NEVER_NS
        """From here on a completed request calls for a look."""
        self.room = LOOKED_AT
        """Completed requests without an id that are still wanted; set anew every `REFILL_S`."""
        self._took_ns = array("q")
        self._ordinary_room = ORDINARY_PER_TURN
        self._notable: deque[Kept] = deque(maxlen=NOTABLE_MAX)
        self._named: deque[Kept] = deque(maxlen=NAMED_MAX)
        self._ordinary: deque[Kept] = deque(maxlen=ORDINARY_MAX)

    def ended(self, pipeline: Pipeline, request: Request) -> None:
        """A request has ended: of those that completed and have no id, only as many as there is room for.

        Args:
            pipeline: That served it.
            request: With its passages.
        """
        end_ns = request.end_ns
        if request.outcome is not _COMPLETED or end_ns is None:
            self._notable.append(_kept(pipeline, request))
            return
        took_ns = end_ns - request.received_ns
        if self.room:
            self.room -= 1
            self._took_ns.append(took_ns)
        if took_ns >= self.slow_ns:
            self._notable.append(_kept(pipeline, request))
        elif request.id is not None:
            self._named.append(_kept(pipeline, request))
        elif self._ordinary_room:
            self._ordinary_room -= 1
            self._ordinary.append(_kept(pipeline, request))

    def turn(self) -> "array[int]":
        """Begin another second.

        Returns:
            How long those took that completed in the last one and were looked at, ns.
        """
        self._ordinary_room = ORDINARY_PER_TURN
        took_ns, self._took_ns = self._took_ns, array("q")
        return took_ns

    def find(self, name: str) -> Kept | None:
        """The last request kept that has this id, or this number."""
        tag = int(name) if name.isascii() and name.isdigit() and len(name) < 19 else -1
        found = [one for one in self._all() if name == one.id or one.tag == tag]
        return max(found, key=_end, default=None)

    def last(self, *, notable: bool) -> list[Kept]:
        """The last requests kept, newest first, at most `LISTED_MAX`.

        Args:
            notable: Only those that did not complete, or took long.
        """
        kept = list(self._notable) if notable else self._all()
        return sorted(kept, key=_end, reverse=True)[:LISTED_MAX]

    def _all(self) -> list[Kept]:
        return [*self._notable, *self._named, *self._ordinary]


def told(kept: Kept) -> dict[str, Any]:
    """A kept request as `loadslice.serve.logs.story` tells it."""
    request = Request(
        None,
        bucket=0,
        priority=kept.priority,
        deadline_ns=0,
        source=kept.source,
        source_index=0,
        precision=0,
        id=kept.id,
        input=None,
        received_ns=kept.received_ns,
        done=lambda _: None,
        attempt=kept.attempt,
        tenant=kept.tenant,
        version=kept.version,
        tag=kept.tag,
        arrival_ns=kept.arrival_ns,
        outcome=kept.outcome,
        reason=kept.reason,
        hint_ns=kept.hint_ns,
        stage=kept.stage,
        end_ns=kept.end_ns,
        reply_ns=kept.reply_ns,
        passages=kept.passages,
    )
    return story(kept.pipeline, request)


def _kept(pipeline: Pipeline, request: Request) -> Kept:
    return Kept(
        pipeline,
        request.tag,
        request.id,
        request.outcome,
        request.reason,
        request.priority,
        request.tenant,
        request.source,
        request.version,
        request.attempt,
        request.stage,
        request.received_ns,
        request.arrival_ns,
        request.end_ns,
        request.reply_ns,
        request.hint_ns,
        request.passages,
    )


def _end(kept: Kept) -> int:
    return kept.end_ns or 0
