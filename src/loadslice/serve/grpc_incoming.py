"""What a gRPC peer sends, taken apart into whole frames; headers that go on in further frames are put together.

It reads from no transport: the connection gives it bytes. Part of a frame is counted with the server until the rest has
come, and since when it is there is known, for whoever looks whether it ever will.
"""

import struct
from collections.abc import Callable

from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_call import BadCallError
from loadslice.serve.grpc_calls import Calls
from loadslice.serve.grpc_frames import ProtocolError

FRAME_BYTES_MAX = 1 << 20
"""Frames we take; larger ones make large tensors cheaper, and hold more memory for a peer that sends slowly."""

CONTINUATION_COST = 10

_HEAD = struct.Struct(">I")


class FrameReader:
    """See the module.

    Args:
        calls: Counts parts of frames.
        take: Given kind, flags, stream and payload of each frame; says whether more are wanted. Headers come as one
            block without padding and priority. Raises `ProtocolError`.
        spend: Takes the price of frames that ask for nothing from the peer's credit; raises `ProtocolError`.
        now_s: The loop's time.
    """

    def __init__(
        self, calls: Calls, take: Callable[[int, int, int, bytes], bool], spend: Callable[[int], None], now_s: float
    ) -> None:
        self.has_greeted = False
        """Whether the peer has said that it speaks HTTP/2."""
        self.part_since_s = now_s
        """Since when what is there has been no whole frame, if there is anything."""
        self._calls = calls
        self._take = take
        self._spend = spend
        self._buffer = bytearray()
        self._wanted = len(h2.PREFACE)
        self._counted_bytes = 0
        """Of the buffer, counted with the server."""
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that go on in CONTINUATION frames."""

    @property
    def has_part(self) -> bool:
        """Whether part of a frame is there."""
        return bool(self._buffer)

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what arrived, frame by frame.

        Raises:
            ProtocolError: The peer broke the protocol, or the server may hold no more.
        """
        buffer = self._buffer
        buffer += data
        if len(buffer) >= self._wanted:
            if self._counted_bytes:
                self._uncount()
            self._take_frames(buffer)
            self.part_since_s = now_s
        if buffer:
            self._count(len(buffer) - self._counted_bytes)

    def stop(self) -> None:
        """Forget what is there; nothing more comes."""
        self._buffer.clear()
        self._uncount()

    def _count(self, more_bytes: int) -> None:
        try:
            self._calls.hold_part(more_bytes)
        except BadCallError as error:
            raise ProtocolError(h2.ENHANCE_YOUR_CALM, error.text) from error
        self._counted_bytes += more_bytes

    def _uncount(self) -> None:
        self._calls.release_part(self._counted_bytes)
        self._counted_bytes = 0

    def _take_frames(self, buffer: bytearray) -> None:
        at = 0
        if not self.has_greeted:
            if not buffer.startswith(h2.PREFACE):
                raise ProtocolError(h2.PROTOCOL_ERROR, "not HTTP/2 with prior knowledge")
            self.has_greeted = True
            at = len(h2.PREFACE)
        size = len(buffer)
        while size - at >= h2.HEAD_BYTES:
            (head,) = _HEAD.unpack_from(buffer, at)
            length, kind = head >> 8, head & 0xFF
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(h2.FRAME_SIZE_ERROR, "a frame is too large")
            end = at + h2.HEAD_BYTES + length
            if end > size:
                break
            flags = buffer[at + 4]
            stream = _HEAD.unpack_from(buffer, at + 5)[0] & 0x7FFFFFFF
            payload = bytes(buffer[at + h2.HEAD_BYTES : end])
            if kind == h2.HEADERS or kind == h2.CONTINUATION or self._block is not None:
                goes_on = self._on_headers(kind, flags, stream, payload)
            else:
                goes_on = self._take(kind, flags, stream, payload)
            if not goes_on:
                buffer.clear()
                return
            at = end
        self._wanted = h2.HEAD_BYTES
        if size - at >= h2.HEAD_BYTES:
            self._wanted = h2.HEAD_BYTES + (_HEAD.unpack_from(buffer, at)[0] >> 8)
        if at:
            del buffer[:at]

    def _on_headers(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        if self._block is not None and kind != h2.CONTINUATION:
            raise ProtocolError(h2.PROTOCOL_ERROR, "headers were not continued")
        if kind == h2.CONTINUATION:
            return self._on_continuation(flags, stream, payload)
        block = unpadded(payload) if flags & h2.PADDED else payload
        if flags & h2.WITH_PRIORITY:
            if len(block) < 5:
                raise ProtocolError(h2.FRAME_SIZE_ERROR, "headers are cut off")
            block = block[5:]
        if len(block) > h2.HEADER_BYTES_MAX:
            raise _too_large()
        if flags & h2.END_HEADERS:
            return self._take(h2.HEADERS, flags, stream, block)
        self._block = (stream, flags, bytearray(block))
        return True

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> bool:
        if self._block is None or self._block[0] != stream:
            raise ProtocolError(h2.PROTOCOL_ERROR, "nothing to continue")
        self._spend(CONTINUATION_COST)
        _, first_flags, block = self._block
        block += payload
        if len(block) > h2.HEADER_BYTES_MAX:
            raise _too_large()
        if not flags & h2.END_HEADERS:
            return True
        self._block = None
        return self._take(h2.HEADERS, first_flags, stream, bytes(block))


def unpadded(payload: bytes) -> bytes:
    """A padded payload without its padding.

    Raises:
        ProtocolError: There is more padding than frame.
    """
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(h2.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _too_large() -> ProtocolError:
    return ProtocolError(h2.ENHANCE_YOUR_CALM, "the headers are too large")
