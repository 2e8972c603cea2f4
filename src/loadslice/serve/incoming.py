"""What a client sends, taken apart into requests: heads, bodies, what nobody wants, and what was sent ahead.

It reads from no transport and writes to none: the connection gives it bytes, and says when the next request may come.
"""

from typing import TYPE_CHECKING

from loadslice.serve.body import Body
from loadslice.serve.chunks import ChunkedBody
from loadslice.serve.head import END, Head, not_http
from loadslice.serve.refusals import RefusalError

if TYPE_CHECKING:
    from loadslice.serve.connection import Connection
    from loadslice.serve.http_server import HttpServer

AHEAD_BYTES_MAX = 1 << 16
"""What a client may send of its next requests while one is being answered; with more, it is not read from. All of it is
counted, and where the server holds as much as it may, nobody is read from ahead of their turn."""


class Incoming:
    """One client's requests, one after the other.

    Args:
        server: Its scratch memory is where bytes arrive; it reads heads.
        connection: Told of each request; the next is looked at when it has none and its client reads.
    """

    __slots__ = ("_connection", "_counted", "_discarded", "_server", "ahead", "body")

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
        data = bytes(self._server.scratch[:count])
        if self._discarded:
            data = self._discard(data)
        if data:
            self.ahead = self.ahead + data if self.ahead else data
            connection = self._connection
            if connection.head is None and not connection.is_blocked:
                self.next()
                return
            self._count()
            bodies = self._server.handler.bodies
            if len(self.ahead) > AHEAD_BYTES_MAX or bodies.held_bytes > bodies.limits.held_bytes_max:
                connection.pause()

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
        server, connection = self._server, self._connection
        if end < 0:
            if len(data) > server.limits.head_bytes_max:
                raise not_http()
            return
        end += len(END)
        if end > server.limits.head_bytes_max:
            raise not_http()
        self.ahead = b""
        head = connection.head = server.heads.read(data[:end])
        handler = server.handler
        try:
            wanted = handler.begin(head, connection)
            waits = handler.bodies.check(head) if wanted and head.has_body else False
        except RefusalError:
            self._skip(head, data[end:])
            raise
        length = head.body_bytes
        if not head.has_body:
            self.ahead = data[end:]
            handler.handle(head, b"", connection)
        elif not wanted:
            self._skip(head, data[end:])
            handler.handle(head, b"", connection)
        elif length is not None and len(data) - end >= length and not waits:
            self.ahead = data[end + length :]
            connection.held_bytes += length
            handler.bodies.held_bytes += length
            handler.handle(head, data[end : end + length], connection)
        else:
            self._receive(head, data[end:], waits=waits)

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

    def _receive(self, head: Head, begun: bytes, *, waits: bool) -> None:
        """Go on receiving a body.

        Raises:
            RefusalError: What has come of it is wrong already.
        """
        bodies = self._server.handler.bodies
        self._connection.body_begins(waits=waits)
        if head.is_chunked:
            chunks = self.body = ChunkedBody(bodies, head, self._server.scratch)
            if begun:
                chunks.feed(begun)
            if chunks.is_whole:
                self._body_is_whole(chunks)
            return
        body = self.body = Body(bodies, head.body_bytes or 0, _json_bytes(head))
        if begun:
            count = min(len(begun), len(body.room))
            body.room[:count] = begun[:count]
            body.received(count)
            self.ahead = begun[count:]
            if body.is_whole:
                self._body_is_whole(body)

    def _body_is_whole(self, body: Body | ChunkedBody) -> None:
        self.body = None
        connection = self._connection
        connection.body_ends(body.held_bytes)
        if isinstance(body, ChunkedBody) and body.has_more:
            # Bytes of a next request have gone into its parser: the client sends them again elsewhere.
            connection.is_closing = True
        assert connection.head is not None
        self._server.handler.handle(connection.head, body.taken(), connection)

    def _skip(self, head: Head, begun: bytes) -> None:
        """A body that nobody wants: what has come of it is dropped, what is to come will be."""
        if head.is_chunked or ("expect" in head.headers and not begun):
            # Where it ends is not known; nor whether it comes at all, where the client has waited for leave.
            self._connection.is_closing = True
            self._discarded = -1
            return
        length = head.body_bytes or 0
        self.ahead = begun[length:]
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
