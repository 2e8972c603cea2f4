"""One inference request over HTTP, from the core's door to its reply; by callbacks on the loop's thread."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from loadslice.serve import oip
from loadslice.serve.connection import Connection
from loadslice.serve.envelope import Envelope
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import refuse
from loadslice.serve.request import Request
from loadslice.serve.service import Service
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import Work

if TYPE_CHECKING:
    from loadslice.serve.front import Front

log = logging.getLogger(__name__)


class Inference:
    """One inference request of one connection, from the core's door to its reply."""

    __slots__ = ("_front", "connection", "reply_id", "request", "service", "task", "wanted")

    request: Request

    def __init__(
        self, front: "Front", service: Service, connection: Connection, reply_id: str | None, wanted: oip.Wanted
    ) -> None:
        self._front = front
        self.service = service
        self.connection: Connection | None = connection
        """``None``: the client has gone."""
        self.reply_id = reply_id
        self.wanted = wanted
        self.task: asyncio.Task[None] | None = None

    def ended(self, request: Request) -> None:
        """The core has come to an outcome."""
        if self.connection is None:
            self.service.record(request)
        elif request.reason is Reason.DEGRADED:
            self.task = asyncio.get_running_loop().create_task(self._front.degrade(self))
        else:
            try:
                self.answer()
            except Exception:
                # One reply of many that are made in a row: the others must not suffer from a defect of ours.
                log.exception("the front failed on a reply")
                self.connection.abort()

    def answer(self) -> None:
        """Reply."""
        connection = self.connection
        if connection is None:
            return
        answer = self.service.answer
        try:
            if self.request.outcome is not Outcome.COMPLETED:
                connection.reply(answer.refusal(self.request))
                return
            close = connection.is_last
            lines = connection.lines(close=close)
            parts, size = answer.parts(self.request, self.reply_id, self.wanted, lines)
        except RefusalError as refusal:
            connection.reply(refuse(refusal))
            return
        connection.send(parts, size, close=close)


def enter(
    envelope: Envelope,
    identity: str | None,
    work: Work,
    bucket: int,
    received_ns: int,
    done: Callable[[Request], None],
) -> Request:
    """A request as the core takes it; ``done`` is called once, with it, when it has ended."""
    return Request(
        work,
        bucket,
        envelope.priority,
        envelope.deadline_ns,
        envelope.source,
        envelope.source_index,
        envelope.precision,
        identity,
        envelope.input,
        received_ns,
        done,
        envelope.attempt,
        envelope.tenant,
        envelope.tenant_index,
        envelope.key,
        envelope.tokens,
        traceparent=envelope.traceparent,
    )


def resolve(done: "asyncio.Future[None]", _request: Request) -> None:
    """Wake whoever waits for a request that has ended."""
    if not done.done():
        done.set_result(None)
