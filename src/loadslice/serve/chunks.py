"""Bodies that come in chunks, taken apart by llhttp."""

import httptools

from loadslice.serve.body import Body
from loadslice.serve.head import Head
from loadslice.serve.refusals import RefusalError


class Chunks:
    """One body that comes in chunks.

    Args:
        head: Of its request.
        body: Takes the pieces.
    """

    def __init__(self, head: Head, body: Body) -> None:
        self._body = body
        self._fault: RefusalError | None = None
        self.is_whole = False
        self.has_more = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"%b / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % head.method.encode())

    def feed(self, data: bytes) -> None:
        """Take what has come.

        Raises:
            RefusalError: 400 badly framed, 413, 503.
        """
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._fault is not None:
                raise self._fault from None
            if not self.is_whole:
                raise RefusalError(400, "the body is cut off or badly framed", close=True) from error
            self.has_more = True

    def on_body(self, part: bytes) -> None:
        """Called with each piece."""
        try:
            if not self.is_whole:
                self._body.add(part)
        except RefusalError as refusal:
            self._fault = refusal
            raise

    def on_message_complete(self) -> None:
        """Called at the end."""
        self.is_whole = True

    def on_message_begin(self) -> None:
        """Called again where another request follows."""
        self.has_more = self.is_whole
