"""Frames and header blocks of HTTP/2, as far as a gRPC server needs them.

Why not a library: the C core behind ``grpcio`` costs several times what this whole server spends on a request over
HTTP/1.1 (`benchmarks/grpc_bench.py` measures it). A unary call is two frames in and three out, so a small reader is
enough; HPACK itself comes from ``hpack``.

References:
    RFC 9113 (HTTP/2), RFC 7541 (HPACK), "gRPC over HTTP2" (grpc/doc/PROTOCOL-HTTP2.md).
"""

import struct
from collections.abc import Iterable
from typing import Any

from loadslice.serve.head import ONCE
from loadslice.spec.errors import MissingExtraError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
ENHANCE_YOUR_CALM = 11

WINDOW_MAX = 2**31 - 1
WINDOW_DEFAULT = 65_535
FRAME_BYTES_DEFAULT = 16_384

S_TABLE_SIZE, S_PUSH, S_STREAMS, S_WINDOW, S_FRAME_BYTES, S_LIST_BYTES = 1, 2, 3, 4, 5, 6

HEADER_BYTES_MAX = 16_384
"""Of one block, compressed and uncompressed."""

CACHED_BLOCKS = 64
CACHED_BLOCK_BYTES = 1024
CACHED_BYTES = 1 << 15
"""Of all that one connection's blocks mean: a few bytes may mean many kilobytes, and no budget counts them."""
FIELD_BYTES = 128
"""Added for each field, whose strings and place in a table take more memory than their letters."""


class ProtocolError(Exception):
    """The peer broke the protocol; the connection ends.

    Args:
        code: For GOAWAY.
        text: For GOAWAY and the log.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    size = len(payload)
    return struct.pack(">HBBBI", size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values))


def window_update(stream: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + text.encode()[:128])


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def field(name: bytes, value: bytes) -> bytes:
    """A header field as a literal that enters no table: the peer's decoder stays as it is."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    """An integer of HPACK with a prefix of seven bits; strings are sent plain, not in Huffman code."""
    if size < 127:
        return bytes((size,))
    parts = bytearray((127,))
    size -= 127
    while size >= 128:
        parts.append(size & 0x7F | 0x80)
        size >>= 7
    parts.append(size)
    return bytes(parts)


STATUS_200 = b"\x88"
CONTENT_TYPE = b"\x0f\x10\x10application/grpc"
"""Entry 31 of the static table is the name ``content-type``."""


class Headers(dict[str, str]):
    """Decoded headers, which come again as the same object while a client repeats itself."""

    __slots__ = ("is_ambiguous", "notes")

    def __init__(self) -> None:
        super().__init__()
        self.is_ambiguous = False
        """Whether a header that decides something is given twice: somebody in front of us may have read the other."""
        self.notes: Any = None
        """What somebody made of them."""


class HeaderReader:
    """Decodes the header blocks of one connection.

    Clients that repeat themselves send the same few bytes again and again, all of them references into the table. What
    a block means depends on the table alone, so while that does not change a block is looked up, not decoded.
    """

    def __init__(self) -> None:
        try:
            from hpack import Decoder
        except ImportError as error:
            raise MissingExtraError("grpc", "--grpc") from error
        self._decoder: Any = Decoder(max_header_list_size=HEADER_BYTES_MAX)
        self._known: dict[bytes, Headers] = {}
        self._known_bytes = 0
        self._entries = 0
        self._front: Any = None
        """The newest entry of the table itself, not its address: what is held cannot be made anew elsewhere."""

    def read(self, block: bytes) -> Headers:
        """Decode one block. The result is shared: it must not be changed.

        Raises:
            ProtocolError: Not a header block, or too large.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        from hpack.exceptions import HPACKError, OversizedHeaderListError

        try:
            pairs = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ProtocolError(ENHANCE_YOUR_CALM, "the headers are too large") from error
        except (HPACKError, IndexError, ValueError, OverflowError) as error:
            raise ProtocolError(COMPRESSION_ERROR, "not a header block") from error
        # Of a name that stands twice the first counts, as everywhere in this server. Bytes that are not UTF-8 become
        # lone surrogates, which whoever reads the value refuses.
        headers = Headers()
        for raw_name, value in pairs:
            name = raw_name.decode("utf-8", "surrogateescape")
            headers.is_ambiguous |= name in headers and name.startswith(ONCE)
            headers.setdefault(name, value.decode("utf-8", "surrogateescape"))
        if self._has_changed():
            self._forget()
        elif len(block) <= CACHED_BLOCK_BYTES and block[:1] and not 0x20 <= block[0] < 0x40:  # sets the table's size
            self._keep(block, headers)
        return headers

    def _keep(self, block: bytes, headers: Headers) -> None:
        size = len(block) + sum([len(name) + len(value) + FIELD_BYTES for name, value in headers.items()])
        if len(self._known) >= CACHED_BLOCKS or self._known_bytes + size > CACHED_BYTES:
            self._forget()
        if size <= CACHED_BYTES:
            self._known[block] = headers
            self._known_bytes += size

    def _forget(self) -> None:
        self._known.clear()
        self._known_bytes = 0

    def _has_changed(self) -> bool:
        """Whether the last block changed the table: what is added stands in front, what is evicted is missing."""
        entries = self._decoder.header_table.dynamic_entries
        front = entries[0] if entries else None
        if len(entries) == self._entries and front is self._front:
            return False
        self._entries, self._front = len(entries), front
        return True
