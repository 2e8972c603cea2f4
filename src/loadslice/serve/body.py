"""Reading a request's body without ever holding more of it than is allowed."""

import asyncio

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11

from loadslice.serve.limits import Limits
from loadslice.serve.refusals import HINT_FLOOR_NS, RefusalError


class BodyReader:
    """Reads bodies for one server and counts the bytes that all of them hold."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held_bytes = 0

    async def read(self, request: web.BaseRequest) -> bytes:
        """Read a whole body. The caller gives it back with `release` when the request has ended.

        Raises:
            RefusalError: 413 too large, 408 too slow, 400 empty, 415 compressed, 417 another expectation, 501 another
                transfer coding, 503 no room.
        """
        limit = self._limits.body_bytes_max
        if request.headers.get(hdrs.TRANSFER_ENCODING, "chunked").strip().lower() != "chunked":
            # RFC 9112, 6.1: what is not understood; the parser has refused what does not end in chunked already.
            raise RefusalError(501, "no transfer coding but chunked is taken", close=True)
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            # A few kilobytes can unpack to gigabytes; clients that have bandwidth to save can send raw tensors.
            raise RefusalError(415, "compressed bodies are not taken", close=True)
        length = request.content_length
        if length is not None and length > limit:
            raise RefusalError(413, f"the body has {length} bytes, {limit} is the most taken", close=True)
        self._check_room(length if length is not None else limit)
        await _answer_expectation(request)
        body = request.content.read_nowait()
        if not request.content.at_eof():
            body = await self._read_rest(request, body)
        if len(body) > limit:
            raise RefusalError(413, f"the body has more than {limit} bytes", close=True)
        if not body:
            raise RefusalError(400, "the body is empty")
        self.held_bytes += len(body)
        return body

    def hold(self, reply_bytes: int) -> None:
        """Count a reply that is being sent. The caller gives it back with `release` when it has gone."""
        self.held_bytes += reply_bytes

    def release(self, held_bytes: int) -> None:
        """A body, or a reply, is not needed any more."""
        self.held_bytes -= held_bytes

    def _check_room(self, more_bytes: int) -> None:
        if self.held_bytes + more_bytes > self._limits.held_bytes_max:
            raise RefusalError(
                503, "the server holds as many bytes as it may", retry_after_ns=HINT_FLOOR_NS, close=True
            )

    async def _read_rest(self, request: web.BaseRequest, begun: bytes) -> bytes:
        parts = [begun]
        size = reserved = len(begun)
        self.held_bytes += reserved
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                while part := await request.content.readany():
                    size += len(part)
                    if size > self._limits.body_bytes_max:
                        raise RefusalError(
                            413, f"the body has more than {self._limits.body_bytes_max} bytes", close=True
                        )
                    # Many bodies that found room when they began can be too much together.
                    self._check_room(len(part))
                    self.held_bytes += len(part)
                    reserved += len(part)
                    parts.append(part)
        except TimeoutError as error:
            raise RefusalError(408, "the body did not arrive in time", close=True) from error
        except web.RequestPayloadError as error:
            raise RefusalError(400, "the body is cut off or badly framed", close=True) from error
        finally:
            self.held_bytes -= reserved
        return b"".join(parts)


async def _answer_expectation(request: web.BaseRequest) -> None:
    """Tell a client that waits for ``100 Continue`` to go on, now that its head has been found good."""
    expected = request.headers.get(hdrs.EXPECT)
    if expected is None or request.version < HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise RefusalError(417, "the expectation is not 100-continue", close=True)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # What was written is not part of the reply's own size.
    request.writer.output_size = 0
