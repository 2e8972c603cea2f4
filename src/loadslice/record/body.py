"""What was read of a request's body, for payload sampling; bounded."""

PAYLOAD_BYTES_MAX = 1 << 20
"""Longer bodies are not sampled: they would hold memory for as long as the disk is slow."""


class Body:
    """Chunks of a body, until they are too many."""

    __slots__ = ("_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> bytes:
        """Remember a chunk and pass it on."""
        self._size += len(chunk)
        if self._size <= PAYLOAD_BYTES_MAX:
            self._chunks.append(chunk)
        return chunk

    def whole(self) -> bytes | None:
        """The body, or ``None`` when it was empty or too long."""
        return b"".join(self._chunks) if 0 < self._size <= PAYLOAD_BYTES_MAX else None
