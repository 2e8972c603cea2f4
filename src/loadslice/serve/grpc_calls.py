"""Messages of gRPC calls: taken apart and given to methods; who may call what, and how much all calls may hold."""

import asyncio
import zlib
from collections.abc import Callable, Mapping

from loadslice.serve import extensions
from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_call import (
    DEADLINE_EXCEEDED,
    INVALID_ARGUMENT,
    PREFIX_BYTES,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    UNKNOWN,
    BadCallError,
    Call,
    Method,
)
from loadslice.serve.turns import Turns, Work

INFLATE = {"gzip": 31, "deflate": 15}
"""Window bits of zlib by name of a coding."""

INFLATED_BYTES = 1 << 18
"""Unpacked in one turn of the loop, which takes half a millisecond to one."""


class Calls:
    """Takes calls apart and gives them to methods; one for all connections of a server.

    Args:
        methods: By path.
        message_bytes_max: Largest message.
        hold: Told of bytes that are kept; raises `BadCallError` where that is too much for the server.
        release: Told that they are not kept any more.
        keep: Told of bytes that are kept whatever there is: of an answer that has been made.
        turns: Has compressed messages unpacked.
        now_ns: The server's clock.
        message_timeout_s: Longest time a whole message may take to arrive.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        message_bytes_max: int,
        hold: Callable[[int], None],
        release: Callable[[int], None],
        keep: Callable[[int], None],
        turns: Turns,
        now_ns: Callable[[], int],
        message_timeout_s: float,
    ) -> None:
        self.stream_window = min(h2.WINDOW_MAX, max(message_bytes_max, h2.WINDOW_DEFAULT) + h2.FRAME_BYTES_DEFAULT)
        """As large as a message may be: a unary call never waits for a refill."""
        self._methods = methods
        self._message_bytes_max = message_bytes_max
        self.hold_part = hold
        self.release_part = release
        self._keep = keep
        self._turns = turns
        self._now_ns = now_ns
        self._message_timeout_s = message_timeout_s

    def begin(self, call: Call) -> None:
        """A call's headers have arrived.

        Raises:
            BadCallError: It is not one of ours.
        """
        call.received_ns = self._now_ns()
        headers = call.headers
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            raise BadCallError(UNKNOWN, "this port speaks gRPC only")
        if headers.is_ambiguous:
            raise BadCallError(INVALID_ARGUMENT, "a header that decides is given twice")
        method = self._methods.get(headers.get(":path", ""))
        if method is None:
            path = headers.get(":path", "")
            raise BadCallError(UNIMPLEMENTED, extensions.of_method(path) or "no such method")
        call.method = method
        if not method.streams:
            self._expect_rest(call)

    def _expect_rest(self, call: Call) -> None:
        call.deadline = asyncio.get_running_loop().call_later(self._message_timeout_s, self._too_slow, call)

    def _too_slow(self, call: Call) -> None:
        call.refuse(BadCallError(DEADLINE_EXCEEDED, "the message did not arrive in time"))

    def feed(self, call: Call, part: bytes, *, ends: int) -> None:
        """Part of a call's messages has arrived.

        Args:
            call: Whose.
            part: As it came.
            ends: Not 0: `end` follows at once, and what is there need not be counted before.

        Raises:
            BadCallError: Too much of it.
        """
        assert call.method is not None
        buffer = call.buffer
        buffer += part
        if call.method.streams:
            self._take_streamed(call)
        elif len(buffer) >= PREFIX_BYTES:
            length = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
            if length > self._message_bytes_max:
                raise self._too_long(length)
            if len(buffer) > PREFIX_BYTES + length:
                raise BadCallError(INVALID_ARGUMENT, "more than one message in a unary call")
        if not ends:
            self._count_buffer(call)

    def _too_long(self, length: int) -> BadCallError:
        return BadCallError(
            RESOURCE_EXHAUSTED, f"the message has {length} bytes, {self._message_bytes_max} is the most taken"
        )

    def _count_buffer(self, call: Call) -> None:
        more_bytes = len(call.buffer) - call.buffered_bytes
        self.hold(call, more_bytes)
        call.buffered_bytes += more_bytes

    def _take_streamed(self, call: Call) -> None:
        buffer = call.buffer
        while len(buffer) >= PREFIX_BYTES:
            length = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
            if length > self._message_bytes_max:
                raise self._too_long(length)
            whole_bytes = PREFIX_BYTES + length
            if len(buffer) < whole_bytes:
                break
            self._forget_deadline(call)
            framed = bytes(buffer[:whole_bytes])
            del buffer[:whole_bytes]
            self._count_buffer(call)
            if call.is_full:
                raise BadCallError(RESOURCE_EXHAUSTED, "too many messages of this stream are inside or unread")
            if framed[0]:
                self._take_packed(call, framed)
            else:
                self._hand_on(call, framed[PREFIX_BYTES:])
            if call.unrefilled > self.stream_window // 2:
                call.connection.write(h2.window_update(call.stream, call.unrefilled))
                call.unrefilled = 0
        if buffer and call.deadline is None:
            self._expect_rest(call)  # of each message by itself: between two there may be any time

    def _forget_deadline(self, call: Call) -> None:
        if call.deadline is not None:
            call.deadline.cancel()
            call.deadline = None

    def end(self, call: Call) -> None:
        """The client has said everything.

        Raises:
            BadCallError: Not a whole message.
        """
        assert call.method is not None
        self._forget_deadline(call)
        buffer = call.buffer
        if call.method.streams:
            if buffer:
                raise BadCallError(INVALID_ARGUMENT, "the last message is cut off")
            call.end_if_done()
            return
        if len(buffer) < PREFIX_BYTES or len(buffer) != PREFIX_BYTES + int.from_bytes(buffer[1:PREFIX_BYTES], "big"):
            raise BadCallError(INVALID_ARGUMENT, "the message is cut off")
        framed = bytes(buffer)
        call.buffer = bytearray()
        if call.buffered_bytes:
            self._count_buffer(call)
        if framed[0]:
            self._take_packed(call, framed)
        else:
            self._hand_on(call, framed[PREFIX_BYTES:])

    def _take_packed(self, call: Call, framed: bytes) -> None:
        """A whole message has come, and is compressed."""
        coding = call.headers.get("grpc-encoding", "identity")
        if framed[0] != 1 or coding not in INFLATE:
            raise BadCallError(
                UNIMPLEMENTED, f"coding '{coding[:32]}' is not taken", {"grpc-accept-encoding": "identity,deflate,gzip"}
            )
        self.hold(call, len(framed))
        call.have(self._unpack, call, framed, coding)

    async def _unpack(self, call: Call, framed: bytes, coding: str) -> None:
        try:
            message = await self._turns.take(self._unpacking(framed, coding))
        finally:
            self.release(call, len(framed))
        self._hand_on(call, message)

    def _hand_on(self, call: Call, message: bytes) -> None:
        assert call.method is not None
        self.hold(call, len(message))
        if call.method.begin is not None:
            call.method.begin(call, message)
        else:
            call.start(message)

    def _unpacking(self, framed: bytes, coding: str) -> Work[bytes]:
        """Unpack a message. A few kilobytes can unpack to gigabytes: what goes beyond the limit is never unpacked."""
        inflater = zlib.decompressobj(INFLATE[coding])
        message = bytearray()
        try:
            for at in range(PREFIX_BYTES, len(framed), INFLATED_BYTES):
                packed = framed[at : at + INFLATED_BYTES]
                while packed and not inflater.eof:
                    message += inflater.decompress(packed, INFLATED_BYTES)
                    packed = inflater.unconsumed_tail
                    if len(message) > self._message_bytes_max:
                        text = f"the message unpacks to more than {self._message_bytes_max} bytes"
                        raise BadCallError(RESOURCE_EXHAUSTED, text)
                    yield
        except zlib.error as error:
            raise BadCallError(INVALID_ARGUMENT, f"the message is not {coding}") from error
        if not inflater.eof:
            raise BadCallError(INVALID_ARGUMENT, f"the message is not {coding}")
        return bytes(message)

    def hold(self, call: Call, more_bytes: int) -> None:
        """Count bytes that a call keeps; negative: it keeps that many fewer.

        Raises:
            BadCallError: They are more than the server may hold.
        """
        if more_bytes > 0:
            self.hold_part(more_bytes)
            call.held_bytes += more_bytes
        elif more_bytes < 0:
            self.release(call, -more_bytes)

    def keep(self, call: Call, more_bytes: int) -> None:
        """Count bytes that a call keeps, however many there are: an answer that has been made goes out."""
        self._keep(more_bytes)
        call.held_bytes += more_bytes

    def release(self, call: Call, fewer_bytes: int) -> None:
        """A call keeps fewer bytes; one that has been closed keeps none."""
        fewer_bytes = min(fewer_bytes, call.held_bytes)
        if fewer_bytes:
            self.release_part(fewer_bytes)
            call.held_bytes -= fewer_bytes

    def closed(self, call: Call) -> None:
        """A call has ended, however it did."""
        self.release(call, call.held_bytes)
        call.buffer = bytearray()
        call.buffered_bytes = 0
        if call.deadline is not None:
            self._forget_deadline(call)
