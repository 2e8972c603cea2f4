"""Large replies: sent from where their tensors are, as far as that takes no time.

Rules of this file: the operating system is given what it takes at once, without a copy. A client that then takes long
has what is left copied for it (`LENT_S`), so that memory which others need, a section of an engine process's memory or
the outputs of a whole batch, is never held by whoever reads slowly. The transport is never handed a view, for it would
keep it until the client has read it.
"""

import asyncio
import os
from collections.abc import Callable, Sequence

LENT_S = 0.25
"""How long a reply may be sent from where its tensors are."""

PIECE_BYTES = 1 << 16
"""What the transport is given to say when the client reads on."""

VIEWS_MAX = 512
"""Parts given to the operating system at once; it takes no more than 1024."""


class Outgoing:
    """One large reply on its way.

    Args:
        transport: Where it goes; is not closing.
        parts: Its bytes, in order; not changed any more.
        copied: Called once when they have been copied, for whoever keeps them.
    """

    __slots__ = ("_copied", "_parts", "_timer", "_transport")

    def __init__(
        self, transport: asyncio.Transport, parts: Sequence[bytes | memoryview], copied: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._parts = [memoryview(part) for part in parts if len(part)]
        self._copied = copied
        self._timer: asyncio.TimerHandle | None = None

    def push(self) -> bool:
        """Send what is taken now; whether nothing is left. The transport, while it is full, is to be waited for."""
        transport = self._transport
        if transport.is_closing():
            return False
        if transport.get_extra_info("sslcontext") is not None:
            # Encrypting copies all of it, at once.
            transport.writelines(self._parts)
            self._parts = []
        elif transport.get_write_buffer_size() == 0:
            # With nothing before it, it may go past the transport.
            while self._parts and self._send():
                pass
        if self._parts:
            piece = bytes(self._parts[0][:PIECE_BYTES])
            self._advance(len(piece))
            transport.write(piece)
        if not self._parts:
            self.stop()
            return True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LENT_S, self._copy)
        return False

    def stop(self) -> None:
        """Send no more."""
        self._parts = []
        if self._timer is not None:
            self._timer.cancel()

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
        self._parts = [memoryview(b"".join(self._parts))]
        self._copied()
