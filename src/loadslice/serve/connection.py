"""The HTTP connection: one client's requests, one after the other, over a compiled parser and no framework.

Rules of this file: one request at a time is with the handler, what a client sends ahead waits (`incoming`), and when
that is much the client is not read from; nothing here waits for a client without a limit; every byte held for a client
is counted. A client that leaves takes its request with it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from loadslice.serve.body import CONTINUE
from loadslice.serve.head import Head
from loadslice.serve.incoming import AHEAD_BYTES_MAX, Incoming
from loadslice.serve.outgoing import Outgoing
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import CLOSE, KEEP, Reply, render

if TYPE_CHECKING:
    from loadslice.serve.http_server import HttpServer

LINGER_S = 2.0
"""How long what a refused client still sends is read and thrown away, so that it gets to read the refusal."""

HEAD_S = 5.0
"""How long a request's head may take to arrive while there are too many connections, or on one that is reserved."""

UNSENT_BYTES_MAX = 1 << 14
"""A connection that has this much to send that the operating system has not accepted counts as one that does not read:
it is asked nothing more, and has `Limits.reply_timeout_s`."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    __slots__ = (
        "_cut_off",
        "_handler",
        "_incoming",
        "_is_paused",
        "_is_sending",
        "_outgoing",
        "_server",
        "_transport",
        "free_s",
        "head",
        "heard_s",
        "held_bytes",
        "is_blocked",
        "is_closing",
        "is_reserved",
        "job",
        "received_ns",
    )

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._handler = server.handler
        self._transport: asyncio.Transport | None = None
        self._incoming = Incoming(server, self)
        self._outgoing: Outgoing | None = None
        """What is left of a large reply."""
        self._cut_off: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_sending = False
        self.is_blocked = False
        """Whether the client does not read what it was sent."""
        self.is_closing = False
        """Whether the connection ends with the request that is being received or answered, if there is one."""
        self.head: Head | None = None
        """Of that request."""
        self.job: object = None
        """Whatever the handler keeps with that request; ``None``: it keeps nothing."""
        self.received_ns = 0
        """When its head had arrived, on the handler's clock."""
        self.held_bytes = 0
        """Counted among the held bytes on behalf of that request and its reply."""
        self.heard_s = self.free_s = server.loop.time()
        """When the client last sent something, or connected; and since when it has had no request here."""
        self.is_reserved = False
        """Whether it is beyond the limit, for health and metrics only."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost when it is closed: no request is being handled, waits, or is likely on its way.

        A head that has not become whole within `HEAD_S` is nothing: a thousand of them would shut everybody out.
        """
        if self.head is not None or self.is_blocked or self._transport is None or self._transport.is_closing():
            return False
        now_s, limits = self._server.loop.time(), self._server.limits
        if self._incoming.ahead:
            return now_s - self.free_s >= HEAD_S
        return now_s - self.heard_s >= limits.idle_s

    # Of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or tell the client that there are too many."""
        server, limits = self._server, self._server.limits
        count = len(server.connections)
        self.is_reserved = count >= limits.connections_max and not server.close_idle(reserved=False)
        self._transport = transport = cast(asyncio.Transport, transport)
        is_beyond = self.is_reserved and count >= limits.connections_max + limits.connections_reserved
        if is_beyond and not server.close_idle(reserved=True):
            self._turn_away(transport)
            return
        server.connections.add(self)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX, low=0)
        if transport.get_extra_info("sslcontext") is not None:
            cast(Any, transport).set_read_buffer_limits(high=AHEAD_BYTES_MAX)

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where the next bytes go."""
        incoming = self._incoming
        return self._server.scratch if incoming.body is None and incoming.layout is None else incoming.room()

    def buffer_updated(self, count: int) -> None:
        """The client has sent something."""
        self.heard_s = self._server.loop.time()
        try:
            self._incoming.take(count)
        except RefusalError as refusal:
            self._refuse(refusal)

    def eof_received(self) -> bool:
        """The client sends no more, which cannot be told from having left: it gets no reply but what is on its way.

        Returns:
            Whether the connection stays open for that.
        """
        self.is_closing = True
        if self._outgoing is not None:
            return True
        self._end_in_time()
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone, whoever closed it."""
        self._forget_cut_off()
        self._server.left(self)
        self._transport = None
        self.is_closing = True
        head, self.head = self.head, None
        self._incoming.end()
        del self._incoming  # it refers to us: both would wait for the garbage collector
        if self._outgoing is not None:
            self._outgoing.stop()
            self._outgoing = None
        if head is not None:
            self._handler.gone(self)
            self._release()

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        self.is_blocked = True
        self._has_to_be_taken()

    def resume_writing(self) -> None:
        """All that was written has been accepted."""
        self.is_blocked = False
        self._push()
        if self._outgoing is not None:
            return
        self._forget_cut_off()
        if self._is_sending:
            self._sent()
        elif self.head is None and self._incoming.ahead:
            self._continue()

    # What the handler answers.

    def reply(self, reply: Reply) -> None:
        """Answer the request that is being handled."""
        head = self.head
        if head is None:
            return
        close = reply.close or self.is_last
        data = render(reply, self.lines(close=close), with_body=head.method != "HEAD")
        self.send((data,), len(data), close=close)

    @property
    def is_last(self) -> bool:
        """Whether the connection is closed after this request, whatever is answered."""
        return (
            self.is_closing
            or self.head is None
            or not self.head.keeps_alive
            or self.is_reserved
            or self._server.is_closing
        )

    def lines(self, *, close: bool) -> bytes:
        """What the head of a reply sent now says of the time and the connection."""
        date = self._server.date()
        if close:
            return date + CLOSE
        return date if self.head is None or self.head.is_http11 else date + KEEP

    def send(self, parts: "tuple[bytes | memoryview, ...]", size: int, *, close: bool) -> None:
        """Send a whole reply; parts are not copied where they are large.

        Args:
            parts: Its bytes, in order; not changed any more.
            size: Of all parts together.
            close: Close the connection after it.
        """
        transport = self._transport
        if transport is None or self.head is None:
            return
        self._handler.bodies.held_bytes += size
        self.held_bytes += size
        self.is_closing = self.is_closing or close
        if size > UNSENT_BYTES_MAX:
            self._outgoing = Outgoing(self, transport, parts)
            self._push()
        else:
            transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        self.finish()

    def write(self, data: bytes) -> None:
        """Send part of a reply that is made bit by bit; see `streamed`."""
        if self._transport is not None:
            self._transport.write(data)

    def finish(self) -> None:
        """The reply has been written; it is sent when the client has taken it."""
        if not self.is_blocked and self._outgoing is None:
            self._sent()
            return
        self._is_sending = True
        self._has_to_be_taken()

    def _push(self) -> None:
        if self._outgoing is not None and self._outgoing.push():
            self._outgoing = None

    def lets_go(self) -> None:
        """A slow client's reply has been copied."""
        self._handler.copied(self)

    def _sent(self) -> None:
        """The reply has gone; whatever came next may be looked at."""
        self._is_sending = False
        self._handler.sent(self)
        self.job = None
        self.head = None
        self._release()
        self.free_s = self._server.loop.time()
        if self.is_closing:
            self._close_politely()
        elif self._incoming.ahead and not self.is_blocked:
            # Not from here: a client that sends many at once would keep all others waiting.
            self._server.loop.call_soon(self._continue)
        elif self._is_paused:
            self._resume()

    def _continue(self) -> None:
        if self.head is not None or self.is_closing or self._transport is None or self.is_blocked:
            return
        try:
            self._incoming.next()
        except RefusalError as refusal:
            self._refuse(refusal)
        if self._is_paused and len(self._incoming.ahead) <= AHEAD_BYTES_MAX:
            self._resume()

    # What comes in.

    def body_begins(self, *, waits: bool) -> None:
        """A body is received from now on, and has `Limits.body_timeout_s`.

        Args:
            waits: Whether the client wants to be told to send it.
        """
        if waits and self._transport is not None:
            self._transport.write(CONTINUE)
        self._cut_after(self._server.limits.body_timeout_s, self._body_is_late)

    def body_ends(self, held_bytes: int) -> None:
        """It has come, and what it holds is held by its request."""
        self._forget_cut_off()
        self.held_bytes += held_bytes

    def _body_is_late(self) -> None:
        self._cut_off = None
        self._refuse(RefusalError(408, "the body did not arrive in time", close=True))

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer what cannot be handled."""
        self._forget_cut_off()
        if self._incoming.drop() or refusal.close:
            self.is_closing = True
            self._incoming.ignore()
        if self.head is None:
            self.head = _NO_HEAD
        self.reply(self._handler.refused(refusal))

    def pause(self) -> None:
        """Read no more for now."""
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # The end.

    def _turn_away(self, transport: asyncio.Transport) -> None:
        """Say that there are too many, and leave the client the time to read that."""
        refusal = RefusalError(503, "too many connections", retry_after_ns=1_000_000_000, close=True)
        transport.write(render(self._handler.refused(refusal), self.lines(close=True)))
        self._server.turn_away(self)
        self._linger(transport)

    def _close_politely(self) -> None:
        """Close once the client has had time to read its reply, while it may still be sending."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._incoming.is_done and not self._is_paused:
            self.close()
        else:
            self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        # Closing over bytes that were not read resets the connection, and the reply may be lost with it.
        self.is_closing = True
        self._incoming.ignore()
        if self._is_paused:
            self._resume()
        if transport.can_write_eof():
            transport.write_eof()
        self._cut_after(LINGER_S, self.close)

    def close(self) -> None:
        """Close it now; what has been written is still sent, as long as that does not take too long."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._end_in_time()
            transport.close()

    def _end_in_time(self) -> None:
        """A transport that closes waits for the client to take the rest: for ever, if nobody ends that."""
        transport, seconds = self._transport, self._server.limits.reply_timeout_s
        if transport is None:
            return
        if transport.get_write_buffer_size() == 0:
            # What is left is a goodbye under TLS, to be answered, and before it the end of a reply if there was one.
            if transport.get_extra_info("sslcontext") is None:
                return
            seconds = max(LINGER_S, seconds - (self._server.loop.time() - self.free_s))
            self._server.turn_away(self)
        self._cut_after(seconds, self.abort)

    def abort(self) -> None:
        """Close it and forget what has been written."""
        if self._transport is not None:
            self._transport.abort()

    def close_when_done(self) -> None:
        """Close it now if no request is being answered, otherwise after the reply."""
        self.is_closing = True
        if self.head is None or self._incoming.body is not None:
            self.close()

    def _has_to_be_taken(self) -> None:
        """Something waits for the client, which has a time for all of it, not for each part."""
        if self._cut_off is None:
            self._cut_after(self._server.limits.reply_timeout_s, self.abort)

    def _cut_after(self, seconds: float, cut: Callable[[], None]) -> None:
        self._forget_cut_off()
        self._cut_off = self._server.loop.call_later(seconds, cut)

    def _forget_cut_off(self) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
            self._cut_off = None

    def _release(self) -> None:
        self._handler.bodies.held_bytes -= self.held_bytes
        self.held_bytes = 0


_NO_HEAD = Head("", "", {}, http11=True, keeps_alive=False)
