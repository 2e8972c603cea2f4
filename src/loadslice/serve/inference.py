"""One inference request over HTTP, from the core's door to its reply; by callbacks on the loop's thread."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from loadslice.serve import oip, oip_reply
from loadslice.serve.connection import Connection
from loadslice.serve.envelope import Envelope
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import refuse
from loadslice.serve.request import Request
from loadslice.serve.service import Service
from loadslice.serve.turns import Turns
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import Tensor, Work

log = logging.getLogger(__name__)


class Inference:
    """One inference request of one connection, from the core's door to its reply."""

    __slots__ = ("_turns", "connection", "reply_id", "request", "service", "task", "wanted")

    request: Request

    def __init__(
        self, turns: Turns, service: Service, connection: Connection, reply_id: str | None, wanted: oip.Wanted
    ) -> None:
        self._turns = turns
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
            self._have(self._degrade)
        else:
            try:
                self._write()
            except Exception as error:  # noqa: BLE001 - logged there
                # One reply of many that are made in a row: the others must not suffer from a defect of ours.
                self._fail(error)

    def _have(self, make: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self.task = asyncio.get_running_loop().create_task(self._made(make, *arguments))

    async def _made(self, make: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await make(*arguments)
        except RefusalError as refusal:
            if self.connection is not None:
                self.connection.reply(refuse(refusal))
        except Exception as error:  # noqa: BLE001 - logged there
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        log.error("the front failed on a reply", exc_info=error)
        if self.connection is not None:
            self.connection.abort()

    def _write(self) -> None:
        """Reply, bit by bit where that is much JSON."""
        work = self.request.work
        if work is not None and oip_reply.is_long(work.tensors, self.wanted):
            self._have(self._write_bit_by_bit, work.tensors)
        else:
            self.answer()

    async def _write_bit_by_bit(self, tensors: Mapping[str, Tensor]) -> None:
        self.answer(await self._turns.take(oip_reply.long_json(tensors, self.wanted)))

    async def _degrade(self) -> None:
        """Make a stage's degraded reply and send it."""
        request = self.request
        assert request.work is not None
        request.work = await self.service.degraded.reply(request.stage, request.work, request.tag)
        self._write()

    def answer(self, written: oip_reply.Written = oip_reply.NOTHING) -> None:
        """Reply.

        Args:
            written: Outputs whose JSON is there already.
        """
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
            parts, size = answer.parts(self.request, self.reply_id, self.wanted, lines, written)
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
