"""The HTTP connection: aiohttp's, with our limit on their number and our words for malformed requests."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import hdrs, web

from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError, retry_headers

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

TEXT_MAX = 512
"""Characters that a client is told."""

SERVER_NAME = "loadslice"
"""``Server`` header of every reply: not which versions of what are inside."""

LINGER_S = 2.0
"""How long what a refused client still sends is read and thrown away, so that it gets to read the refusal."""


def refuse(refusal: RefusalError) -> web.Response:
    """The reply for a refusal: the protocol's error object."""
    # The text may quote the client or a stage: at any length, and with characters that are none.
    text = refusal.text[:TEXT_MAX].encode(errors="replace").decode()
    response = web.Response(
        body=msgspec.json.encode({"error": text}),
        status=refusal.status,
        content_type="application/json",
        headers=None if refusal.retry_after_ns is None else retry_headers(refusal.retry_after_ns),
    )
    response.headers[hdrs.SERVER] = SERVER_NAME
    if refusal.allow:
        response.headers[hdrs.ALLOW] = ", ".join(refusal.allow)
    if refusal.close:
        response.force_close()
    return response


class _Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_cut_off", "_limits", "heard_s", "is_reserved")

    def __init__(
        self, manager: "HttpServer", *, limits: Limits, loop: asyncio.AbstractEventLoop, **options: Any
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self._limits = limits
        self._cut_off: asyncio.TimerHandle | None = None
        self.heard_s = loop.time()
        """When the client last sent something, or connected."""
        self.is_reserved = False
        """Whether it is beyond the limit, for health and metrics only."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost when it is closed: no request is being handled, waits, or is likely on its way."""
        return (
            self._current_request is None
            and not self._messages
            and self.transport is not None
            and not self.transport.is_closing()
            and self._loop.time() - self.heard_s >= self._limits.idle_s
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or tell the client that there are too many."""
        assert isinstance(transport, asyncio.Transport)
        assert isinstance(self._manager, HttpServer)
        count = len(self._manager.connections)
        self.is_reserved = count >= self._limits.connections_max and not self._manager.close_idle()
        if self.is_reserved and count >= self._limits.connections_max + self._limits.connections_reserved:
            body = msgspec.json.encode({"error": "too many connections"})
            status = HTTPStatus.SERVICE_UNAVAILABLE
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
            )
            transport.write(head.encode() + body)
            transport.close()
            self._force_close = True
            return
        super().connection_made(transport)
        # Writing then counts as paused while even one byte has not been accepted by the operating system.
        transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        self.heard_s = self._loop.time()
        super().data_received(data)

    def pause_writing(self) -> None:
        """The client does not read as fast as we write: it has `Limits.reply_timeout_s` from here."""
        super().pause_writing()
        self._cut_off = self._loop.call_later(self._limits.reply_timeout_s, self._cut)

    def resume_writing(self) -> None:
        """All that was written has been accepted."""
        self._forget_cut_off()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone, whoever closed it."""
        self._forget_cut_off()
        super().connection_lost(exc)

    def _forget_cut_off(self) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
            self._cut_off = None

    def _cut(self) -> None:
        log.debug("a client did not read its reply in time")
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A request that is not HTTP, or a defect of ours: never the text of the exception."""
        if isinstance(exc, ConnectionError):
            log.debug("a client left before it had its reply")
            raise exc  # which aiohttp takes as the end of the connection
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("the front failed on a request", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("part of a reply has been sent already")
        text = (
            "the request is not valid HTTP" if status == HTTPStatus.BAD_REQUEST else HTTPStatus(status).phrase.lower()
        )
        return refuse(RefusalError(status, text, close=True))


def is_reserved(request: web.BaseRequest) -> bool:
    """Whether a request came on a connection that is kept for health and metrics."""
    return isinstance(request.protocol, _Connection) and request.protocol.is_reserved


class HttpServer(web.Server):
    """Makes connections."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        super().__init__(
            handler,
            # A client that leaves cancels its handler, which cancels its request in the core.
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.keepalive_timeout_s,
            lingering_time=LINGER_S,
            read_bufsize=1 << 18,
        )
        self._limits = limits

    def close_idle(self) -> bool:
        """Close the connection that has been idle longest; false: none is idle."""
        idle = [one for one in self.connections if isinstance(one, _Connection) and one.is_idle]
        if not idle:
            return False
        min(idle, key=lambda one: one.heard_s).force_close()
        return True

    def __call__(self) -> web.RequestHandler:
        """Make the protocol of one new connection."""
        return _Connection(self, limits=self._limits, loop=self._loop, **self._kwargs)
