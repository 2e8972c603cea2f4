"""What a client sends, taken apart into requests: heads, bodies, what nobody wants, and what was sent ahead.

It reads from no transport and writes to none: the connection gives it bytes, and says when the next request may come.
"""

from typing import TYPE_CHECKING, NamedTuple

from loadslice.serve.body import Body, placed
from loadslice.serve.chunks import ChunkedBody
from loadslice.serve.head import END, Head, not_http
from loadslice.serve.refusals import RefusalError

if TYPE_CHECKING:
    from loadslice.serve.connection import Connection
    from loadslice.serve.http_server import HttpServer

AHEAD_BYTES_MAX = 1 << 16
"""What a client may send of its next requests while one is being answered; with more, it is not read from. All of it is
counted, and where the server holds as much as it may, nobody is read from ahead of their turn."""

SMALL_BYTES = 1 << 14
"""What comes at once is copied as a whole up to this size; of more, the body goes straight to its own place."""

SHORT_HEAD_BYTES = 1 << 11
"""Where a head's end is looked for first, where much has come at once."""

LIKE_BYTES_MAX = 1 << 20
"""Largest body that memory is got ready for before its head is known."""

ROOM_BEHIND_BYTES = 64
"""Room for more than is expected: a read that fills all its room is followed by another, which finds nothing."""


class _Layout(NamedTuple):
    """How one request lies in what is received, bytes."""

    head_bytes: int
    body_bytes: int
    json_bytes: int
    """Of the body, before its binary tensors."""

    def place(self) -> memoryview:
        """Memory for a request that lies like this, its tensors aligned."""
        return placed(self.head_bytes + self.body_bytes + ROOM_BEHIND_BYTES, self.head_bytes + self.json_bytes)


class Incoming:
    """One client's requests, one after the other.

    Args:
        server: Its scratch memory is where bytes arrive; it reads heads.
        connection: Told of each request; the next is looked at when it has none and its client reads.
    """

    __slots__ = ("_connection", "_counted", "_discarded", "_place", "_server", "ahead", "body", "layout")

    def __init__(self, server: "HttpServer", connection: "Connection") -> None:
        self._server = server
        self._connection = connection
        self.ahead = b""
        """Received and not looked at yet."""
        self._counted = 0
        """Bytes of it, counted among the held bytes."""
        self.body: Body | ChunkedBody | None = None
        """The body that is being received."""
        self._discarded = 0
        """Bytes of a body that nobody wants, still to come; -1: all that comes."""
        self.layout: _Layout | None = None
        """Of the last request, where its body was large and came fast: the next one is likely to lie the same way."""
        self._place: memoryview | None = None
        """Memory that was got ready for it."""

    def room(self) -> memoryview:
        """Where the next bytes go: straight into the body they belong to, where that is known or likely."""
        if self.body is not None:
            return self.body.room
        layout, connection = self.layout, self._connection
        if layout is None or connection.head is not None or connection.is_blocked or not self.is_done:
            return self._server.scratch
        self._place = layout.place()
        return self._place

    @property
    def is_done(self) -> bool:
        """Whether nothing is waiting and nothing more is expected of the request that was answered."""
        return self._discarded == 0 and not self.ahead

    def take(self, count: int) -> None:
        """The client has sent so many bytes, which are where they were wanted.

        Raises:
            RefusalError: They are no request, or part of one that is refused.
        """
        body = self.body
        if body is not None:
            body.received(count)
            if body.is_whole:
                self._body_is_whole(body)
            return
        connection = self._connection
        may_begin = connection.head is None and not connection.is_blocked
        place, self._place = self._place, None
        received = (self._server.scratch if place is None else place)[:count]
        if count > SMALL_BYTES and may_begin and self.is_done and self._begin_large(received, place):
            return
        self.layout = None
        data = bytes(received)
        if self._discarded:
            data = self._discard(data)
        if data:
            self.ahead = self.ahead + data if self.ahead else data
            if may_begin:
                self.next()
                return
            self._count()
            bodies = self._server.handler.bodies
            if len(self.ahead) > AHEAD_BYTES_MAX or bodies.held_bytes > bodies.limits.held_bytes_max:
                connection.pause()

    def _begin_large(self, received: memoryview, place: memoryview | None) -> bool:
        """Begin a request of which much has come at once; false: its head is not one that is found at sight.

        Args:
            received: What has come.
            place: Begins with it, where memory had been got ready for it.

        Raises:
            RefusalError: As `next`.
        """
        start = bytes(received[:SHORT_HEAD_BYTES])
        end = start.find(END)
        if end <= 0 or start.startswith(b"\r\n"):
            return False
        end += len(END)
        try:
            self._begin(start[:end], received[end:], place)
        finally:
            if self.ahead:
                self._count()
        return True

    def next(self) -> None:
        """Look at what has come where a message begins.

        Raises:
            RefusalError: It is no request, or is refused at sight.
        """
        if self._counted:
            self._uncount()  # a body among it is counted by whoever takes it
        try:
            self._next()
        finally:
            if self.ahead:
                self._count()

    def _count(self) -> None:
        """Have what waits counted as it is now."""
        self._server.handler.bodies.held_bytes += len(self.ahead) - self._counted
        self._counted = len(self.ahead)

    def _uncount(self) -> None:
        self._server.handler.bodies.held_bytes -= self._counted
        self._counted = 0

    def _next(self) -> None:
        data = self.ahead
        end = data.find(END)
        if end == 0 or data.startswith(b"\r\n"):
            # RFC 9112, 2.2: empty lines before a request are skipped.
            self.ahead = data = data.lstrip(b"\r\n")
            end = data.find(END)
        if end < 0:
            if len(data) > self._server.limits.head_bytes_max:
                raise not_http()
            return
        end += len(END)
        self._begin(data[:end], data[end:])

    def _begin(self, raw: bytes, begun: bytes | memoryview, place: memoryview | None = None) -> None:
        """Begin a request.

        Args:
            raw: Its head.
            begun: What has come behind it; a view is good until more is received.
            place: Memory that both lie in, where it had been got ready for them.

        Raises:
            RefusalError: It is no request, or is refused at sight.
        """
        server, connection = self._server, self._connection
        if len(raw) > server.limits.head_bytes_max:
            raise not_http()
        self.ahead = b""
        head = connection.head = server.heads.read(raw)
        handler = server.handler
        try:
            wanted = handler.begin(head, connection)
            waits = handler.bodies.check(head) if wanted and head.has_body else False
        except RefusalError:
            self._skip(head, begun)
            raise
        length = head.body_bytes
        if not head.has_body:
            self.ahead = bytes(begun)
            handler.handle(head, b"", connection)
        elif not wanted:
            self._skip(head, begun)
            handler.handle(head, b"", connection)
        elif head.is_chunked or length is None:
            self._receive_chunks(head, bytes(begun), waits=waits)
        elif isinstance(begun, bytes) and len(begun) >= length and not waits:
            self._hand_on(head, begun[:length], begun[length:])
        else:
            self._receive(len(raw), head, length, begun, place, waits=waits)

    def drop(self) -> bool:
        """Forget the body that is being received; whether there was one."""
        body, self.body = self.body, None
        if body is None:
            return False
        if isinstance(body, ChunkedBody):
            body.leave()
        self._server.handler.bodies.held_bytes -= body.held_bytes
        return True

    def ignore(self) -> None:
        """Throw away whatever is there and comes."""
        self.ahead = b""
        self._uncount()
        self._discarded = -1

    def end(self) -> None:
        """Forget all that is there; nothing more comes."""
        self.drop()
        self.ignore()

    def _receive_chunks(self, head: Head, begun: bytes, *, waits: bool) -> None:
        """Go on receiving a body that comes in chunks.

        Raises:
            RefusalError: What has come of it is wrong already.
        """
        self._connection.body_begins(waits=waits)
        body = self.body = ChunkedBody(self._server.handler.bodies, head, self._server.scratch)
        if begun:
            body.feed(begun)
        if body.is_whole:
            self._body_is_whole(body)

    def _receive(
        self,
        head_bytes: int,
        head: Head,
        length: int,
        begun: bytes | memoryview,
        place: memoryview | None,
        *,
        waits: bool,
    ) -> None:
        """Go on receiving a body of known length; arguments as `_begin`.

        Raises:
            RefusalError: 503, all bodies together are too much.
        """
        layout = _Layout(head_bytes, length, _json_bytes(head))
        is_there = place is not None and layout == self.layout
        if place is not None and is_there:
            view = place[head_bytes : head_bytes + length]
        else:
            view = placed(length, layout.json_bytes)
            self.layout = layout if isinstance(begun, memoryview) and length <= LIKE_BYTES_MAX else None
        count = min(len(begun), length)
        if not is_there:
            view[:count] = begun[:count]
        if count == length and not waits:
            self._hand_on(head, view, bytes(begun[count:]))
            return
        self._connection.body_begins(waits=waits)
        body = self.body = Body(self._server.handler.bodies, view)
        body.received(count)
        self.ahead = bytes(begun[count:])
        if body.is_whole:
            self._body_is_whole(body)

    def _hand_on(self, head: Head, body: bytes | memoryview, ahead: bytes) -> None:
        """A body is there as a whole, and what follows it."""
        handler, connection = self._server.handler, self._connection
        self.ahead = ahead
        connection.held_bytes += len(body)
        handler.bodies.held_bytes += len(body)
        handler.handle(head, body, connection)

    def _body_is_whole(self, body: Body | ChunkedBody) -> None:
        self.body = None
        connection = self._connection
        connection.body_ends(body.held_bytes)
        if isinstance(body, ChunkedBody) and body.has_more:
            # Bytes of a next request have gone into its parser: the client sends them again elsewhere.
            connection.is_closing = True
        assert connection.head is not None
        self._server.handler.handle(connection.head, body.taken(), connection)

    def _skip(self, head: Head, begun: bytes | memoryview) -> None:
        """A body that nobody wants: what has come of it is dropped, what is to come will be."""
        if head.is_chunked or ("expect" in head.headers and not begun):
            # Where it ends is not known; nor whether it comes at all, where the client has waited for leave.
            self._connection.is_closing = True
            self._discarded = -1
            return
        length = head.body_bytes or 0
        self.ahead = bytes(begun[length:])
        self._discarded = max(0, length - len(begun))
        if self._discarded > self._server.limits.body_bytes_max:
            self._connection.is_closing = True

    def _discard(self, data: bytes) -> bytes:
        if self._discarded < 0:
            return b""
        count = min(self._discarded, len(data))
        self._discarded -= count
        return data[count:]


def _json_bytes(head: Head) -> int:
    """Where binary tensors begin, as far as the client says; a lie is found when the body is decoded."""
    text = head.headers.get("inference-header-content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
