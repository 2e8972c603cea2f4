"""The console of a pipeline's server: its paths on a front, and what it looks at."""

import asyncio

from loadslice.serve.access import Access
from loadslice.serve.clock import Clock
from loadslice.serve.console.desk import PATHS, ConsoleDesk
from loadslice.serve.console.pipeline_view import PipelineView
from loadslice.serve.console.recent import LOOKED_AT, REFILL_S, Recent
from loadslice.serve.front import Call, Front
from loadslice.serve.operated import Operated
from loadslice.serve.reply import Reply


class PipelineConsole:
    """Shows one server.

    Args:
        front: Not started yet; gets the paths.
        access: Who may ask.
    """

    def __init__(self, front: Front, access: Access) -> None:
        self.recent = Recent()
        """Is to be told of each request that has ended."""
        self.desk = ConsoleDesk(access)
        self._refill: asyncio.TimerHandle | None = None
        for path in PATHS:
            front.routes[path] = {"GET": self._answer}

    def start(self, server: Operated, clock: Clock) -> None:
        """Look at it from now on, once per second; on the loop."""
        self.desk.start(PipelineView(server, clock, self.recent))
        self._make_room()

    def stop(self) -> None:
        """Look no more."""
        self.desk.stop()
        if self._refill is not None:
            self._refill.cancel()

    def _make_room(self) -> None:
        self.recent.room = LOOKED_AT
        self._refill = asyncio.get_running_loop().call_later(REFILL_S, self._make_room)

    async def _answer(self, call: Call) -> Reply:
        return self.desk.answer(call.head)
