"""All connections of one port: makes them, bounds their number, lets go of those that bring nothing."""

import asyncio
from email.utils import formatdate

from loadslice.serve.connection import HEAD_S, Connection
from loadslice.serve.handler import Handler
from loadslice.serve.head import HeadReader
from loadslice.serve.limits import Limits

READ_BYTES = 1 << 16
"""Most that is read at once where it is not known where it belongs."""

TURNED_AWAY_MAX = 256
"""Clients beyond all limits that are given the time to read that, and those that say goodbye; with one more, the first
of them has had enough."""

SWEEPS = 16
"""How often within the keep-alive time connections are looked through for those that have passed it."""


class HttpServer:
    """Makes connections and looks after all of them; one is a protocol factory."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.heads = HeadReader(limits)
        self.scratch = memoryview(bytearray(READ_BYTES))
        """Where bytes of all connections arrive: they are taken out before the next are read."""
        self.connections: set[Connection] = set()
        self._turned_away: dict[Connection, None] = {}
        """In the order they came; none of them is a connection of ours."""
        self.is_closing = False
        self._date = b""
        self._date_s = -1
        self._empty: asyncio.Future[None] | None = None
        self._sweep_s = limits.keepalive_timeout_s / SWEEPS
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)

    def __call__(self) -> Connection:
        """Make the protocol of one new connection."""
        return Connection(self)

    def date(self) -> bytes:
        """The ``Date`` line, made once a second."""
        now_s = int(self.loop.time())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = f"Date: {formatdate(usegmt=True)}\r\n".encode("ascii")
        return self._date

    def close_idle(self, *, reserved: bool) -> bool:
        """Close the connection that has been idle longest; false: none is idle.

        Args:
            reserved: Whether of those that are reserved, or of the others: neither makes room for the other kind, or
                the first thousand clients would have what is kept for health.
        """
        idle = [one for one in self.connections if one.is_reserved is reserved and one.is_idle]
        if not idle:
            return False
        min(idle, key=lambda one: one.heard_s).close()
        return True

    def turn_away(self, connection: Connection) -> None:
        """Have a connection that is one too many, or on its way out, stay a little without being counted."""
        self.connections.discard(connection)
        if len(self._turned_away) >= TURNED_AWAY_MAX:
            first = next(iter(self._turned_away))
            del self._turned_away[first]
            first.abort()
        self._turned_away[connection] = None

    def left(self, connection: Connection) -> None:
        """A connection has gone."""
        self.connections.discard(connection)
        self._turned_away.pop(connection, None)
        if self._empty is not None and not (self.connections or self._turned_away or self._empty.done()):
            self._empty.set_result(None)

    async def shutdown(self, timeout_s: float) -> None:
        """Close every connection: those without a request now, the others after their reply, or after a while."""
        self.is_closing = True
        self._sweeper.cancel()
        for connection in list(self.connections):
            connection.close_when_done()
        if self.connections or self._turned_away:
            self._empty = self.loop.create_future()
            await asyncio.wait((self._empty,), timeout=timeout_s)
        for connection in (*self.connections, *self._turned_away):
            connection.abort()

    def _sweep(self) -> None:
        """Close those that have brought no whole head for longer than they may."""
        now_s = self.loop.time()
        for connection in list(self.connections):
            may_s = HEAD_S if connection.is_reserved else self.limits.keepalive_timeout_s
            if connection.head is None and now_s - connection.free_s > may_s:
                connection.close()
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)
