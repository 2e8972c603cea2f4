"""How much of all bodies and replies is held at once, and which bodies are taken at all."""

import numpy as np

from loadslice.serve.head import Head
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import HINT_FLOOR_NS, RefusalError

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Bodies:
    """Counts, for one server, the bytes that bodies and replies hold."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held_bytes = 0

    def check(self, head: Head) -> bool:
        """Refuse a body before any of it is read.

        Returns:
            Whether the client waits for ``100 Continue``.

        Raises:
            RefusalError: 413 too large, 415 compressed, 417 another expectation, 501 another transfer coding, 503 no
                room.
        """
        headers = head.headers
        limit = self.limits.body_bytes_max
        length = head.body_bytes
        if head.is_plain and length is not None and length <= limit:
            if self.held_bytes + length > self.limits.held_bytes_max:
                self.check_room(length)
            return False
        if head.is_chunked and headers["transfer-encoding"].strip().lower() != "chunked":
            # RFC 9112, 6.1: what is not understood; the parser has refused what does not end in chunked already.
            raise RefusalError(501, "no transfer coding but chunked is taken", close=True)
        if headers.get("content-encoding", "identity").lower() != "identity":
            # A few kilobytes can unpack to gigabytes; clients that have bandwidth to save can send raw tensors.
            raise RefusalError(415, "compressed bodies are not taken", close=True)
        if length is not None and length > limit:
            raise RefusalError(413, f"the body has {length} bytes, {limit} is the most taken", close=True)
        self.check_room(length if length is not None else limit if head.is_chunked else 0)
        expected = headers.get("expect")
        if expected is None or not head.is_http11:
            return False
        if expected.lower() != "100-continue":
            raise RefusalError(417, "the expectation is not 100-continue", close=True)
        return True

    def check_room(self, more_bytes: int) -> None:
        """Refuse what all bodies together have no room for.

        Raises:
            RefusalError: 503.
        """
        if self.held_bytes + more_bytes > self.limits.held_bytes_max:
            raise RefusalError(
                503, "the server holds as many bytes as it may", retry_after_ns=HINT_FLOOR_NS, close=True
            )


class Body:
    """One body of known length that comes in pieces, received straight into its place: no piece of it is copied.

    Args:
        bodies: Counts it.
        view: Its place, as long as it will be; see `placed`.
    """

    __slots__ = ("_bodies", "_filled", "_view", "held_bytes")

    def __init__(self, bodies: Bodies, view: memoryview) -> None:
        self._bodies = bodies
        self._filled = 0
        self.held_bytes = 0
        """Counted among the held bytes on behalf of this body."""
        self._view = view

    @property
    def room(self) -> memoryview:
        """Where the rest of it belongs."""
        return self._view[self._filled :]

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there."""
        return self._filled == len(self._view)

    def received(self, count: int) -> None:
        """Count bytes that were put into `room`.

        Raises:
            RefusalError: 503, many bodies that found room when they began are too much together.
        """
        self._bodies.check_room(count)
        self._bodies.held_bytes += count
        self.held_bytes += count
        self._filled += count

    def taken(self) -> memoryview:
        """The whole body."""
        return self._view


ALIGNMENT = 16
"""Bytes, as NumPy's own arrays have it: runtimes take those as they are. Memory from the system's allocator begins at
such an address, which need not be asked for."""


def placed(length: int, before: int) -> memoryview:
    """Untouched memory in which what follows the first ``before`` bytes is aligned.

    Args:
        length: Bytes.
        before: How many of them come before tensors.
    """
    start = -before % ALIGNMENT
    return np.empty(start + length, np.uint8)[start:].data
