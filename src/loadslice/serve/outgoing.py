"""Large replies: sent from where their tensors are, as far as that takes no time.

Rules of this file: the operating system is given what it takes at once, without a copy. A client that then takes long
has what is left copied for it (`LENT_S`), so that memory which others need, a section of an engine process's memory or
the outputs of a whole batch, is never held by whoever reads slowly. The transport is never handed a view, for it would
keep it until the client has read it; nor, where it encrypts, more than it says it has room for: what it has encrypted
it counts no more. Nothing here takes the loop for longer than a millisecond at a time.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Protocol

LENT_S = 0.25
"""How long a reply may be sent from where its tensors are."""

PIECE_BYTES = 1 << 16
"""What the transport is given to say when the client reads on."""

PIECES = 16
"""Given to the transport before it is others' turn."""

COPIED_BYTES = 1 << 20
"""Most that is copied in one turn of the loop, which takes a tenth of a millisecond."""

VIEWS_MAX = 512
"""Parts given to the operating system at once; it takes no more than 1024."""


class Reader(Protocol):
    """Who reads it: a client's connection."""

    is_blocked: bool
    """Whether it does not read what it was sent."""

    def resume_writing(self) -> None:
        """More may be sent."""

    def lets_go(self) -> None:
        """What is left of the reply has been copied."""


class Outgoing:
    """One large reply on its way.

    Args:
        connection: Of the client; is told once when its reply has been copied, for whoever keeps it.
        transport: Where it goes; is not closing.
        parts: Its bytes, in order; not changed any more.
    """

    __slots__ = ("_connection", "_lent", "_next", "_parts", "_timer", "_transport")

    def __init__(self, connection: Reader, transport: asyncio.Transport, parts: Sequence[bytes | memoryview]) -> None:
        self._connection = connection
        self._transport = transport
        self._parts = [memoryview(part) for part in parts if len(part)]
        self._lent = len(self._parts)
        """So many of them, the last ones, are not copied; more than there are: all."""
        self._timer: asyncio.Handle | None = None
        self._next: asyncio.Handle | None = None
        """Goes on when the others have had their turn."""

    def push(self) -> bool:
        """Send what is taken now; whether nothing is left. The transport, while it is full, is to be waited for."""
        for _ in range(PIECES):
            if self._connection.is_blocked or self._transport.is_closing():
                return False
            self._push()
            if not self._parts:
                self.stop()
                return True
        self._next = asyncio.get_running_loop().call_soon(self._go_on)
        return False

    def _push(self) -> None:
        transport = self._transport
        if transport.get_write_buffer_size() == 0 and transport.get_extra_info("sslcontext") is None:
            # With nothing before it, it may go past the transport.
            while self._parts and self._send():
                pass
        if self._parts:
            piece = bytes(self._parts[0][:PIECE_BYTES])
            self._advance(len(piece))
            transport.write(piece)
        if self._parts and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LENT_S, self._copy)

    def _go_on(self) -> None:
        if not self._connection.is_blocked:
            self._connection.resume_writing()

    def stop(self) -> None:
        """Send no more."""
        self._parts = []
        for handle in (self._timer, self._next):
            if handle is not None:
                handle.cancel()

    def _send(self) -> bool:
        """Whether all that was given was taken, and there may be room for more."""
        given = self._parts[:VIEWS_MAX]
        try:
            sent = os.writev(self._transport.get_extra_info("socket").fileno(), given)
        except OSError:
            return False  # full, or gone, which the transport will find out
        self._advance(sent)
        return sent == sum([len(part) for part in given])

    def _advance(self, count: int) -> None:
        parts = self._parts
        for whole, part in enumerate(parts):
            if count < len(part):
                parts[whole] = part[count:]
                del parts[:whole]
                return
            count -= len(part)
        parts.clear()

    def _copy(self) -> None:
        """Copy some of what is still lent, and the rest in the next turns of the loop."""
        parts, room = self._parts, COPIED_BYTES
        self._lent = min(self._lent, len(parts))
        while self._lent and room:
            first = len(parts) - self._lent
            part = parts[first]
            copied = memoryview(bytes(part[:room]))
            room -= len(copied)
            if len(copied) == len(part):
                parts[first] = copied
                self._lent -= 1
            else:
                parts[first : first + 1] = copied, part[len(copied) :]
        if self._lent:
            self._timer = asyncio.get_running_loop().call_soon(self._copy)
        else:
            self._connection.lets_go()
