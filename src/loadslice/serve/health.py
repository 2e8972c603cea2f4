"""Readiness as a real round trip: a front that answers for a dead engine is worse than one that does not answer."""

import asyncio

from loadslice.serve.clock import Clock
from loadslice.serve.engines import Engines

FRESH_NS = 1_000_000_000
"""An answer this old is given again, so that many probes cost the engines no more than one a second."""


class Health:
    """Asks the engines, at most once a second and never twice at a time."""

    def __init__(self, engines: Engines, clock: Clock, timeout_s: float) -> None:
        self._engines = engines
        self._timeout_s = timeout_s
        self._clock = clock
        self._silent: list[str] = []
        self._asked_ns: int | None = None
        self._lock = asyncio.Lock()

    async def silent_engines(self) -> list[str]:
        """Engines that do not answer; empty: ready."""
        async with self._lock:
            now_ns = self._clock.now_ns()
            if self._asked_ns is None or now_ns - self._asked_ns > FRESH_NS:
                self._silent = await self._engines.unanswering(self._timeout_s)
                self._asked_ns = self._clock.now_ns()
            return self._silent
