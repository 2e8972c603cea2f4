"""All gRPC connections of a port: their number bounded, and those that bring nothing, or hold up, let go."""

import asyncio
from typing import TYPE_CHECKING

from loadslice.serve.limits import Limits

if TYPE_CHECKING:
    from loadslice.serve.grpc_connection import GrpcConnection

LEAVING_MAX = 64
"""Connections beyond the limit that have been told to leave and are still reading that."""

SWEEP_S = 1.0


class GrpcConnections:
    """See the module.

    Args:
        limits: How many, and how long things may take.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all: dict[GrpcConnection, None] = {}
        """In the order they came; each until it is closed."""
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, connection: "GrpcConnection") -> bool:
        """Whether there is room for one more, which is among them from now on; any TLS handshake is over."""
        if len(self._all) >= self._limits.connections_max and not self._make_room():
            return False
        self._all[connection] = None
        return True

    def discard(self, connection: "GrpcConnection") -> None:
        """One has closed."""
        self._all.pop(connection, None)

    def _make_room(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        leaving = [one for one in self._all if one.has_left]
        if len(self._all) - len(leaving) >= self._limits.connections_max:
            idle = [one for one in self._all if one.is_idle and now_s - one.last_heard_s >= self._limits.idle_s]
            if not idle:
                return False
            leaving.append(min(idle, key=lambda one: one.last_heard_s))
            leaving[-1].let_go()
        if len(leaving) > LEAVING_MAX:
            leaving[0].abort()
            self.discard(leaving[0])
        return True

    def watch(self) -> None:
        """Look after them from now on."""
        loop = asyncio.get_running_loop()
        for connection in list(self._all):
            connection.sweep(loop.time(), self._limits)
        self._sweeping = loop.call_later(SWEEP_S, self.watch)

    async def close(self, drain_s: float) -> None:
        """Let open calls be answered, then cut off what is left."""
        loop = asyncio.get_running_loop()
        for connection in list(self._all):
            connection.leave()
        until_s = loop.time() + drain_s
        while self._all and loop.time() < until_s:
            await asyncio.wait((loop.create_future(),), timeout=0.02)
        for connection in list(self._all):
            connection.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()
