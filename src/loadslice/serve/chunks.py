"""Bodies that come in chunks, taken apart by llhttp."""

import httptools

from loadslice.serve.body import Bodies
from loadslice.serve.head import Head
from loadslice.serve.refusals import RefusalError


class ChunkedBody:
    """One body that comes in chunks.

    Args:
        bodies: Counts it.
        head: Of its request.
        room: Where its bytes arrive; they are taken out at once.
    """

    def __init__(self, bodies: Bodies, head: Head, room: memoryview) -> None:
        self.room = room
        self.held_bytes = 0
        """Counted among the held bytes on behalf of this body."""
        self.is_whole = False
        self.has_more = False
        """Whether another request has begun behind it."""
        self._bodies = bodies
        self._taken = bytearray()
        self._fault: RefusalError | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"%b / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % head.method.encode())

    def received(self, count: int) -> None:
        """Take bytes that were put into `room`.

        Raises:
            RefusalError: As `feed`.
        """
        self.feed(bytes(self.room[:count]))

    def feed(self, data: bytes) -> None:
        """Take what has come.

        Raises:
            RefusalError: 400 badly framed, 413 too large, 503 no room.
        """
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._fault is not None:
                raise self._fault from None
            if not self.is_whole:
                raise RefusalError(400, "the body is cut off or badly framed", close=True) from error
            self.has_more = True
        if self.is_whole:
            self.leave()

    def leave(self) -> None:
        """Take no more of it. Parser and body refer to each other: what has come would wait for the collector."""
        self._parser = None

    def taken(self) -> memoryview:
        """The whole body."""
        return memoryview(self._taken)

    def on_body(self, part: bytes) -> None:
        """Called with each piece."""
        if self.is_whole:
            return
        limit = self._bodies.limits.body_bytes_max
        try:
            if len(self._taken) + len(part) > limit:
                raise RefusalError(413, f"the body has more than {limit} bytes", close=True)
            self._bodies.check_room(len(part))
        except RefusalError as refusal:
            self._fault = refusal
            raise
        self._bodies.held_bytes += len(part)
        self.held_bytes += len(part)
        self._taken += part

    def on_message_complete(self) -> None:
        """Called at the end."""
        self.is_whole = True

    def on_message_begin(self) -> None:
        """Called again where another request follows."""
        self.has_more = self.is_whole
