"""The HTTP connection: one client's requests, one after the other, over a compiled parser and no framework.

Rules of this file: one request at a time is with the handler, what a client sends ahead waits here, and when that is
much the client is not read from; nothing here waits for a client without a limit; every byte held for a client is
counted. A client that leaves takes its request with it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from loadslice.serve.body import CONTINUE, Body
from loadslice.serve.chunks import Chunks
from loadslice.serve.head import END, Head, not_http
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import CLOSE, KEEP, Reply, refuse, render

if TYPE_CHECKING:
    from loadslice.serve.http_server import HttpServer

log = logging.getLogger(__name__)

LINGER_S = 2.0
"""How long what a refused client still sends is read and thrown away, so that it gets to read the refusal."""

AHEAD_BYTES_MAX = 1 << 16
"""What a client may send of its next requests while one is being answered; with more, it is not read from."""

UNSENT_BYTES_MAX = 1 << 14
"""A connection that has this much to send that the operating system has not accepted counts as one that does not read:
it is asked nothing more, and has `Limits.reply_timeout_s`."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    __slots__ = (
        "_ahead",
        "_body",
        "_chunks",
        "_cut_off",
        "_discarded",
        "_handler",
        "_is_blocked",
        "_is_closing",
        "_is_paused",
        "_is_sending",
        "_server",
        "_transport",
        "free_s",
        "head",
        "heard_s",
        "held_bytes",
        "is_reserved",
        "job",
        "received_ns",
    )

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._handler = server.handler
        self._transport: asyncio.Transport | None = None
        self._ahead = b""
        """Received and not looked at yet."""
        self._body: Body | None = None
        """The body that is being received."""
        self._chunks: Chunks | None = None
        """Its parser, where it comes in chunks."""
        self._discarded = 0
        """Bytes of a body that nobody wants, still to come; -1: all that comes."""
        self._cut_off: asyncio.TimerHandle | None = None
        self._is_blocked = False
        self._is_closing = False
        self._is_paused = False
        self._is_sending = False
        self.head: Head | None = None
        """Of the request that is being received or answered."""
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
        """Whether nothing is lost when it is closed: no request is being handled, waits, or is likely on its way."""
        return (
            self.head is None
            and not self._ahead
            and not self._is_blocked
            and self._transport is not None
            and not self._transport.is_closing()
            and self._server.loop.time() - self.heard_s >= self._server.limits.idle_s
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or tell the client that there are too many."""
        server, limits = self._server, self._server.limits
        count = len(server.connections)
        self.is_reserved = count >= limits.connections_max and not server.close_idle()
        self._transport = transport = cast(asyncio.Transport, transport)
        if self.is_reserved and count >= limits.connections_max + limits.connections_reserved:
            refusal = RefusalError(503, "too many connections", retry_after_ns=1_000_000_000, close=True)
            transport.write(render(refuse(refusal), server.date(), CLOSE))
            self._is_closing = True
            transport.close()
            return
        server.connections.add(self)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX, low=0)

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Where the next bytes go: straight into the body they belong to, where that is known."""
        body = self._body
        if body is not None and self._chunks is None:
            return body.room
        return self._server.scratch

    def buffer_updated(self, count: int) -> None:
        """The client has sent something."""
        self.heard_s = self._server.loop.time()
        body = self._body
        try:
            if body is not None and self._chunks is None:
                body.received(count)
                if body.is_whole:
                    self._body_is_whole(body)
                return
            data = bytes(self._server.scratch[:count])
            if self._discarded:
                data = self._discard(data)
            if self._chunks is not None:
                self._feed_chunks(data)
            elif data:
                self._ahead = self._ahead + data if self._ahead else data
                if self.head is None and not self._is_blocked:
                    self._next()
                elif len(self._ahead) > AHEAD_BYTES_MAX:
                    self._pause()
        except RefusalError as refusal:
            self._refuse(refusal)

    def eof_received(self) -> bool:
        """The client sends no more, which cannot be told from having left: it gets no reply either."""
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone, whoever closed it."""
        self._forget_cut_off()
        self._server.connections.discard(self)
        self._transport = None
        self._is_closing = True
        head, self.head = self.head, None
        self._drop_body()
        if head is not None:
            self._handler.gone(self)
            self._release()
        self._server.left()

    def pause_writing(self) -> None:
        """The client does not read as fast as we write: it has `Limits.reply_timeout_s` from here."""
        self._is_blocked = True
        self._forget_cut_off()
        self._cut_off = self._server.loop.call_later(self._server.limits.reply_timeout_s, self._cut)

    def resume_writing(self) -> None:
        """All that was written has been accepted."""
        self._is_blocked = False
        self._forget_cut_off()
        if self._is_sending:
            self._sent()
        elif self.head is None and self._ahead:
            self._continue()

    def reply(self, reply: Reply) -> None:
        """Answer the request that is being handled."""
        head = self.head
        if head is None:
            return
        close = reply.close or self.is_last
        data = render(reply, self._server.date(), self.connection_line(close=close), with_body=head.method != "HEAD")
        self.send((data,), len(data), close=close)

    @property
    def is_last(self) -> bool:
        """Whether the connection is closed after this request, whatever is answered."""
        return (
            self._is_closing
            or self.head is None
            or not self.head.keeps_alive
            or self.is_reserved
            or self._server.is_closing
        )

    def connection_line(self, *, close: bool) -> bytes:
        """What a reply says about the connection."""
        if close:
            return CLOSE
        return b"" if self.head is None or self.head.is_http11 else KEEP

    @property
    def date(self) -> bytes:
        """The whole ``Date`` line of a reply sent now."""
        return self._server.date()

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
        self._is_closing = self._is_closing or close
        if size > UNSENT_BYTES_MAX:
            transport.writelines(parts)
        else:
            transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._is_blocked:
            self._is_sending = True
        else:
            self._sent()

    def begin_stream(self, head: bytes) -> None:
        """Send the head of a reply whose body comes bit by bit: in chunks, or until the connection closes.

        Args:
            head: Status line and headers, each line ended, without those about length, connection and date.
        """
        if self._transport is None or self.head is None:
            return
        framing = b"Transfer-Encoding: chunked\r\n" if self.head.is_http11 else b""
        close = self.is_last or not self.head.is_http11
        self._is_closing = self._is_closing or close
        self._transport.write(b"".join((head, self.date, self.connection_line(close=close), framing, b"\r\n")))

    def stream(self, data: bytes) -> None:
        """Send a bit of such a body. A client that does not read is cut off like any other."""
        if self._transport is None or self.head is None or not data:
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.head.is_http11 else data)

    def end_stream(self) -> None:
        """Say that such a body is whole."""
        if self._transport is None or self.head is None:
            return
        if self.head.is_http11:
            self._transport.write(b"0\r\n\r\n")
        if self._is_blocked:
            self._is_sending = True
        else:
            self._sent()

    def _sent(self) -> None:
        """The reply has gone; whatever came next may be looked at."""
        self._is_sending = False
        self._handler.sent(self)
        self.job = None
        self.head = None
        self._release()
        self.free_s = self._server.loop.time()
        if self._is_closing:
            self._linger()
        elif self._ahead and not self._is_blocked:
            # Not from here: a client that sends many at once would keep all others waiting.
            self._server.loop.call_soon(self._continue)
        elif self._is_paused:
            self._resume()

    def _continue(self) -> None:
        if self.head is not None or self._is_closing or self._transport is None or self._is_blocked:
            return
        try:
            self._next()
        except RefusalError as refusal:
            self._refuse(refusal)
        if self._is_paused and len(self._ahead) <= AHEAD_BYTES_MAX:
            self._resume()

    def _next(self) -> None:
        """Look at what has come where a message begins.

        Raises:
            RefusalError: It is no request, or is refused at sight.
        """
        data = self._ahead
        end = data.find(END)
        if end == 0 or data.startswith(b"\r\n"):
            # RFC 9112, 2.2: empty lines before a request are skipped.
            self._ahead = data = data.lstrip(b"\r\n")
            end = data.find(END)
        if end < 0:
            if len(data) > self._server.limits.head_bytes_max:
                raise not_http()
            return
        end += len(END)
        if end > self._server.limits.head_bytes_max:
            raise not_http()
        self._ahead = b""
        head = self.head = self._server.heads.read(data[:end])
        try:
            wanted = self._handler.begin(head, self)
            waits = self._handler.bodies.check(head) if wanted and head.has_body else False
        except RefusalError:
            self._skip(head, data[end:])
            raise
        length = head.body_bytes
        if not head.has_body:
            self._ahead = data[end:]
            self._handler.handle(head, b"", self)
        elif not wanted:
            self._skip(head, data[end:])
            self._handler.handle(head, b"", self)
        elif length is not None and len(data) - end >= length and not waits:
            self._ahead = data[end + length :]
            self.held_bytes += length
            self._handler.bodies.held_bytes += length
            self._handler.handle(head, data[end : end + length], self)
        else:
            self._receive(head, data[end:], waits=waits)

    def _receive(self, head: Head, begun: bytes, *, waits: bool) -> None:
        """Go on receiving a body.

        Raises:
            RefusalError: What has come of it is wrong already.
        """
        self._body = Body(self._handler.bodies, head.body_bytes, _json_bytes(head))
        if waits and self._transport is not None:
            self._transport.write(CONTINUE)
        self._forget_cut_off()
        self._cut_off = self._server.loop.call_later(self._server.limits.body_timeout_s, self._body_is_late)
        if head.is_chunked:
            self._chunks = Chunks(head, self._body)
            self._feed_chunks(begun)
            return
        if not begun:
            return
        count = min(len(begun), len(self._body.room))
        self._body.room[:count] = begun[:count]
        self._body.received(count)
        self._ahead = begun[count:]
        if self._body.is_whole:
            self._body_is_whole(self._body)

    def _feed_chunks(self, data: bytes) -> None:
        assert self._chunks is not None
        assert self._body is not None
        if not data:
            return
        self._chunks.feed(data)
        if self._chunks.is_whole:
            # Bytes of a next request have gone into the parser: the client sends them again elsewhere.
            self._is_closing = self._is_closing or self._chunks.has_more
            self._body_is_whole(self._body)

    def _body_is_whole(self, body: Body) -> None:
        self._forget_cut_off()
        self.held_bytes += body.held_bytes
        self._body = self._chunks = None
        assert self.head is not None
        self._handler.handle(self.head, body.taken(), self)

    def _drop_body(self) -> None:
        if self._body is not None:
            self._handler.bodies.held_bytes -= self._body.held_bytes
            self._body = None
        self._chunks = None

    def _body_is_late(self) -> None:
        self._cut_off = None
        self._refuse(RefusalError(408, "the body did not arrive in time", close=True))

    def _skip(self, head: Head, begun: bytes) -> None:
        """A body that nobody wants: what has come of it is dropped, what is to come will be."""
        if head.is_chunked:
            self._is_closing = True
            self._discarded = -1
            return
        length = head.body_bytes or 0
        self._ahead = begun[length:]
        self._discarded = max(0, length - len(begun))
        if self._discarded > self._server.limits.body_bytes_max:
            self._is_closing = True

    def _discard(self, data: bytes) -> bytes:
        if self._discarded < 0:
            return b""
        count = min(self._discarded, len(data))
        self._discarded -= count
        return data[count:]

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer what cannot be handled."""
        self._forget_cut_off()
        unread = self._body is not None
        self._drop_body()
        if self.head is None:
            self.head = _NO_HEAD
        if unread or refusal.close:
            self._is_closing = True
            self._discarded = -1
        self._handler.refused(refusal)
        self.reply(refuse(refusal))

    def _linger(self) -> None:
        """Close once the client has had time to read its reply, while it may still be sending."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._discarded == 0 and not self._ahead and not self._is_paused:
            transport.close()
            return
        self._discarded = -1
        self._ahead = b""
        if self._is_paused:
            self._resume()
        if transport.can_write_eof():
            transport.write_eof()
        self._forget_cut_off()
        self._cut_off = self._server.loop.call_later(LINGER_S, self.close)

    def close(self) -> None:
        """Close it now; what has been written is still sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it and forget what has been written."""
        if self._transport is not None:
            self._transport.abort()

    def close_when_done(self) -> None:
        """Close it now if no request is being answered, otherwise after the reply."""
        self._is_closing = True
        if self.head is None or self._body is not None:
            self.close()

    def _cut(self) -> None:
        log.debug("a client did not read its reply in time")
        self.abort()

    def _release(self) -> None:
        self._handler.bodies.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _forget_cut_off(self) -> None:
        if self._cut_off is not None:
            self._cut_off.cancel()
            self._cut_off = None


_NO_HEAD = Head("", "", {}, http11=True, keeps_alive=False)


def _json_bytes(head: Head) -> int:
    """Where binary tensors begin, as far as the client says; a lie is found when the body is decoded."""
    text = head.headers.get("inference-header-content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
