"""Engines with a process of their own: their ends noticed, their pulse taken, their returns arranged.

Rules of this file: everything runs on the loop's thread except starting and warming up; an end is told to the core at
once, unless its work is held for its return (`Engines.holds`); a process that does not answer its pulse for one timeout
is told to the core, after two it is killed; a process is started again with a delay that doubles, and its engine is up
only when its models are loaded and warm.
"""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from loadslice.backends.base import EngineError
from loadslice.backends.isolated.host import LOAD_TIMEOUT_S, EngineProcess
from loadslice.serve.engines import Engines
from loadslice.serve.limits import Limits
from loadslice.serve.quarantine import HOLD_S
from loadslice.serve.shell import Shell
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason
from loadslice.spec.work import StageError

log = logging.getLogger(__name__)

DELAY_S = 0.05
"""Before the first start after an end; doubles with each that follows soon."""

DELAY_S_MAX = 30.0

WELL_S = 30.0
"""A process that has been up this long starts the doubling anew."""


@dataclass(slots=True, eq=False)
class _Care:
    """What is known of one process."""

    engine: int
    process: EngineProcess
    pidfd: int | None = None
    """Readable when it has ended; ``None``: it has, or is being started."""
    up_since_s: float = 0.0
    asked_s: float | None = None
    """When its pulse was last asked for without an answer since."""
    is_silent: bool = False
    """Whether the core was told that it is down because it did not answer."""
    failures: int = 0
    """Ends and failed starts in a row."""
    timer: asyncio.TimerHandle | None = None
    """For its next start, or for the end of a start that takes too long."""


class ProcessWatch:
    """Looks after the processes of a server's engines.

    Args:
        engines: Have the processes.
        shell: Is told.
        limits: How often a pulse is taken, and how long an answer may take.
    """

    def __init__(self, engines: Engines, shell: Shell, limits: Limits) -> None:
        self._engines = engines
        self._shell = shell
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._cares = {engine: _Care(engine, process) for engine, process in engines.processes.items()}
        self._starters = ThreadPoolExecutor(max(1, len(self._cares)), "starter") if self._cares else None
        self._tick: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        """When the next pulses were to be taken."""
        self._is_stopped = False
        engines.on_lost = self._lost

    def start(self) -> None:
        """Watch from now on."""
        for care in self._cares.values():
            self._attend(care)
        self._due_s = self._loop.time()
        if self._cares:
            self._take_pulses()

    def stop(self) -> None:
        """Watch no more; nothing is started after this."""
        self._is_stopped = True
        if self._tick is not None:
            self._tick.cancel()
        for care in self._cares.values():
            self._forget(care)
            if care.timer is not None:
                care.timer.cancel()
        if self._starters is not None:
            self._starters.shutdown(wait=False)

    def replace(self, engine: int) -> bool:
        """End an engine's process, whose end then has it started anew; False: the engine has no process."""
        if engine not in self._cares:
            return False
        self._cares[engine].process.kill()
        return True

    def _attend(self, care: _Care) -> bool:
        """Whether it is there."""
        care.up_since_s = self._loop.time()
        care.asked_s, care.is_silent = None, False
        try:
            assert care.process.pid is not None
            care.pidfd = os.pidfd_open(care.process.pid)
        except OSError as error:
            if not isinstance(error, ProcessLookupError):  # no file descriptor is left: nobody would notice its end
                log.error("engine %s: its process cannot be watched: %s", care.process.name, reason(error))
                care.process.kill()
            self._ended(care)
            return False
        self._loop.add_reader(care.pidfd, self._ended, care)
        return True

    def _forget(self, care: _Care) -> None:
        if care.pidfd is not None:
            self._loop.remove_reader(care.pidfd)
            os.close(care.pidfd)
            care.pidfd = None

    def _lost(self, engine: int) -> None:
        """A batch says that a process has ended, before the system does."""
        care = self._cares[engine]
        if care.pidfd is not None and not self._is_stopped:
            care.process.kill()
            self._ended(care)

    def _ended(self, care: _Care) -> None:
        self._forget(care)
        care.process.ready.clear()
        if self._loop.time() - care.up_since_s > WELL_S:
            care.failures = 0
        log.error("engine %s: its process has ended", care.process.name)
        self._engines.blame(care.engine)
        if self._engines.holds(care.engine):
            self._loop.call_later(HOLD_S, self._tell_unless_back, care, care.process.starts)
        else:
            self._tell(care)
        self._start_later(care)

    def _tell(self, care: _Care) -> None:
        if self._shell.engine_down(care.engine):
            log.error("engine %s is down: its process is not there", care.process.name)

    def _tell_unless_back(self, care: _Care, starts: int) -> None:
        """Hold no longer; an end of a process that has come since is another matter."""
        if care.process.starts <= starts + 1 and not care.process.ready.is_set() and not self._is_stopped:
            self._tell(care)

    def _start_later(self, care: _Care) -> None:
        delay_s = min(DELAY_S_MAX, DELAY_S * 2**care.failures)
        care.failures += 1
        care.timer = self._loop.call_later(delay_s, self._start, care)

    def _start(self, care: _Care) -> None:
        assert self._starters is not None
        started = self._loop.run_in_executor(self._starters, self._start_and_warm, care)
        care.timer = self._loop.call_later(LOAD_TIMEOUT_S, care.process.kill)
        started.add_done_callback(lambda done: self._started(care, done))

    def _start_and_warm(self, care: _Care) -> None:
        """On a thread of its own: blocks as long as a runtime takes."""
        care.process.start()
        self._engines.warm(care.engine)

    def _started(self, care: _Care, done: asyncio.Future[None]) -> None:
        if care.timer is not None:
            care.timer.cancel()
        error = None if done.cancelled() else done.exception()  # looked at in any case, or it would be said aloud
        if self._is_stopped:
            return
        if error is None:
            care.process.ready.set()
            if self._attend(care):
                self._shell.engine_up(care.engine)
                log.warning("engine %s: its process is back", care.process.name)
            return
        if not isinstance(error, InputError | EngineError | StageError | OSError):
            log.error("engine %s: starting its process", care.process.name, exc_info=error)
        why = reason(error) if isinstance(error, OSError) else error
        log.error("engine %s: its process does not start: %s", care.process.name, why)
        self._tell(care)
        self._start_later(care)

    def _take_pulses(self) -> None:
        now_s, interval_s = self._loop.time(), self._limits.probe_interval_s
        late_s, self._due_s = max(0.0, now_s - self._due_s), now_s + interval_s
        self._tick = self._loop.call_later(interval_s, self._take_pulses)
        for care in self._cares.values():
            if care.pidfd is not None:
                if care.asked_s is not None:
                    care.asked_s += late_s  # a machine that stood still, or was too busy for us, was so for others too
                self._take_pulse(care, now_s)

    def _take_pulse(self, care: _Care, now_s: float) -> None:
        if care.process.has_answered():
            care.asked_s = None
            if care.is_silent:
                care.is_silent = False
                self._shell.engine_up(care.engine)
                log.warning("engine %s: its process answers again", care.process.name)
        if care.asked_s is None:
            care.asked_s = now_s
            care.process.ping()
            return
        silent_s = now_s - care.asked_s
        if silent_s > 2 * self._limits.round_trip_timeout_s:
            log.error("engine %s: its process hangs and is ended", care.process.name)
            care.process.kill()
        elif silent_s > self._limits.round_trip_timeout_s and not care.is_silent:
            care.is_silent = True
            if self._shell.engine_down(care.engine):
                log.error("engine %s is down: its process does not answer", care.process.name)
