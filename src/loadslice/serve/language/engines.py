"""The processes of a language server's engines: started one by one, their ends noticed, their returns arranged.

Rules of this file: everything runs on the loop's thread; an end is told to the token desk at once, also while the
server drains; a process is started again when what was left of it is gone, after a delay that doubles with each end
that follows soon.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Protocol

from loadslice.backends.language import messages as m
from loadslice.backends.language.host import LanguageProcess, SharedSlots
from loadslice.serve.language.starting import SILENT_S, Starting
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason

log = logging.getLogger(__name__)

RESTART_S, RESTART_S_MAX, WELL_S = 0.5, 30.0, 60.0
"""Wait before an engine is started again, doubled each time it ends within a minute."""


class Desk(Protocol):
    """Who is told of engines, by their number (`LanguageShell`)."""

    def hear(self, engine: int, message: m.FromEngine) -> None:
        """An engine has said something."""

    def engine_down(self, engine: int) -> None:
        """An engine is lost, with all KV on it."""

    def engine_up(self, engine: int) -> None:
        """An engine is back, with nothing on it."""


class LanguageEngines:
    """All of one server's.

    Args:
        loads: What each loads, by name.
        slots: Memory for hand-overs.
        starting: Is told how far a start is.
        on_start: Is told the number of an engine whose process has started, and how often it has.
    """

    def __init__(
        self,
        loads: Mapping[str, m.Load],
        slots: SharedSlots,
        starting: Starting,
        on_start: Callable[[int, int], None],
    ) -> None:
        self.names = list(loads)
        self.is_up = [False] * len(loads)
        self.processes = [
            LanguageProcess(
                name,
                load,
                slots,
                lambda message, index=index: self._hear(index, message),  # type: ignore[misc]
                lambda index=index: self._lost(index),  # type: ignore[misc]
            )
            for index, (name, load) in enumerate(loads.items())
        ]
        self._starting, self._on_start = starting, on_start
        self._desk: Desk | None = None
        self._loaded: list[asyncio.Future[m.Ready]] = []
        self._returns: set[asyncio.Task[None]] = set()
        """Of engines that were lost."""
        self._wait_s = [RESTART_S] * len(loads)
        self._started_s = [0.0] * len(loads)
        self._is_closed = False

    async def start(self) -> dict[str, m.Ready]:
        """Start one after the other: each measures itself on a machine that the others leave alone.

        Returns:
            What they said when they had loaded, by name.

        Raises:
            InputError: One does not load.
        """
        loop = asyncio.get_running_loop()
        self._loaded = [loop.create_future() for _ in self.names]
        ready = {}
        for index, name in enumerate(self.names):
            try:
                async with self._starting.loading(index):
                    self._start(index)
                    ready[name] = await self._loaded[index]
            except TimeoutError:
                raise InputError(f"engine '{name}': said nothing of its loading for {SILENT_S:.0f} s.") from None
            except OSError as error:
                raise InputError(f"engine '{name}': its process does not start, {reason(error)}.") from error
        return ready

    def serve(self, desk: Desk) -> None:
        """Have a desk told from now on; first of those that were lost since they had loaded."""
        self._desk = desk
        for index, is_up in enumerate(self.is_up):
            if not is_up:
                desk.engine_down(index)

    def end(self, index: int, why: str) -> None:
        """End one that is not to be waited for; everything else follows from its end."""
        log.error("engine '%s' %s and is ended", self.names[index], why)
        self.processes[index].kill()

    def close(self) -> None:
        """End all, and wait until they are gone."""
        self._is_closed = True
        for task in self._returns:
            task.cancel()
        for process in self.processes:
            process.kill()  # all of them, before any is waited for
        for process in self.processes:
            process.close()

    def _start(self, index: int) -> None:
        self._started_s[index] = asyncio.get_running_loop().time()
        self.processes[index].start()
        self._on_start(index, self.processes[index].starts)

    def _hear(self, index: int, message: m.FromEngine) -> None:
        waiting = self._loaded[index]
        if isinstance(message, m.Ready):
            if not waiting.done():
                waiting.set_result(message)
                self.is_up[index] = True
            else:
                self._back(index, message, waiting.result())
        elif isinstance(message, m.Measuring):
            self._starting.measuring(index, message)
        elif isinstance(message, m.Failed):
            if not waiting.done():
                waiting.set_exception(InputError(f"engine '{self.names[index]}': {message.reason}"))
            else:
                log.error("engine '%s': %s", self.names[index], message.reason)
        elif self._desk is not None:
            self._desk.hear(index, message)

    def _back(self, index: int, ready: m.Ready, before: m.Ready) -> None:
        """An engine that was lost has loaded again."""
        if (ready.layout, ready.vocabulary) != (before.layout, before.vocabulary):
            # Its tokens would be another model's, and KV of the others would mean something else to it.
            self.end(index, "has loaded another model, or with another runtime, than when the server started")
            return
        self.is_up[index] = True
        log.warning("engine '%s' is back", self.names[index])
        if self._desk is not None:
            self._desk.engine_up(index)

    def _lost(self, index: int) -> None:
        """A process ends by itself."""
        if self.is_up[index]:
            self.is_up[index] = False
            log.error("engine '%s' is lost", self.names[index])
            if self._desk is not None:
                self._desk.engine_down(index)
        task = asyncio.get_running_loop().create_task(self._return(index))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _return(self, index: int) -> None:
        """Have an engine that was lost back."""
        try:
            how = await self.processes[index].gone()
        except TimeoutError:
            how = "killed, and not gone"
        waiting = self._loaded[index]
        if not waiting.done():
            waiting.set_exception(InputError(f"engine '{self.names[index]}': its process ended ({how})."))
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._started_s[index] > WELL_S:
            self._wait_s[index] = RESTART_S
        while not self._is_closed:
            wait_s = self._wait_s[index] * (1 + random.random() / 4)  # noqa: S311 - spreads restarts, decides nothing
            self._wait_s[index] = min(RESTART_S_MAX, 2 * self._wait_s[index])
            log.error("engine '%s' had ended (%s) and is started again in %.1f s", self.names[index], how, wait_s)
            await asyncio.wait((loop.create_future(),), timeout=wait_s)
            try:
                self._start(index)
                return
            except OSError as error:
                how = f"its process did not start, {reason(error)}"
