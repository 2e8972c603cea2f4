"""Who is dead and who is back: tells the core of engines that hang or whose runtime has failed, and of their return.

An engine is asked only when something speaks against it: a batch failed on it, a probe did, or a batch has run past its
stage's timeout. Probing those that are well would cost them a batch's time each time and find nothing that the next
batch does not. Each question is a small real job through each of its workers.

Rules of this file: one slot that hangs makes an engine smaller, and its requests' timeouts move them; it is down when
none of its workers answers, or its runtime says that it failed, and up again when all of them do. A stage without a
timeout states no time that it could have hung past. An engine with a process of its own that is down for longer than a
probe may take is given a new process.
"""

import asyncio
import logging

from loadslice.policy import columns as c
from loadslice.policy.layout import Tables
from loadslice.serve.clock import Clock
from loadslice.serve.engines import Engines
from loadslice.serve.limits import Limits
from loadslice.serve.process_watch import ProcessWatch
from loadslice.serve.refusals import NS_PER_S
from loadslice.serve.shell import Shell

log = logging.getLogger(__name__)

SOON_S = 0.02
"""When the answer of an engine on which a batch has failed is first looked at."""


class EngineWatch:
    """Looks at the engines once per probe interval; everything runs on the loop's thread.

    Args:
        tables: Say how long a batch of a stage may take.
        engines: Are looked at.
        shell: Is told.
        clock: The server's.
        limits: How often to look, and how long a probe may take.
    """

    def __init__(self, tables: Tables, engines: Engines, shell: Shell, clock: Clock, limits: Limits) -> None:
        self._timeouts_ns: list[int] = tables.stages[:, c.S_TIMEOUT_NS].tolist()
        self._engines = engines
        self._shell = shell
        self._clock = clock
        self._interval_s = limits.probe_interval_s
        self._round_trip_ns = round(limits.round_trip_timeout_s * NS_PER_S)
        self._asked_ns: dict[int, int] = {}
        """When each engine under suspicion was first asked."""
        self._suspected_s: dict[int, float] = {}
        """When each engine was last asked because a batch had failed, on the loop's clock."""
        self._starts: dict[int, int] = {}
        """Of each engine with a process of its own."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()
        """When the next look was to be taken."""
        self._is_late_itself = False
        """Whether a look was left out just now."""
        self._processes = ProcessWatch(engines, shell, limits)
        self._round_trip_s = limits.round_trip_timeout_s
        engines.is_up = self._is_up
        engines.on_failed = self._suspect

    def start(self) -> None:
        """Look now, and once per interval from now on."""
        self._processes.start()
        self._due_s = self._loop.time()
        self._go_on()

    def _go_on(self) -> None:
        now_s = self._loop.time()
        # After a stand-still of the machine, or of ours, whoever was asked before gets one interval to answer.
        self._is_late_itself = now_s - self._due_s > self._interval_s and not self._is_late_itself
        if not self._is_late_itself:
            self._look()
        self._due_s = now_s + self._interval_s
        self._timer = self._loop.call_later(self._interval_s, self._go_on)

    def stop(self) -> None:
        """Look no more."""
        self._processes.stop()
        self._asked_ns.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _is_up(self, engine: int) -> bool:
        return bool(self._shell.state.engines[engine, c.N_UP] == 1)

    def _suspect(self, engine: int) -> None:
        """A batch has failed: ask at once, for until the core knows, every batch there spends from the retry budget."""
        now_s = self._loop.time()
        if engine in self._asked_ns or now_s - self._suspected_s.get(engine, -self._interval_s) < self._interval_s:
            return
        self._suspected_s[engine] = now_s
        if not self._has_changed(engine):
            self._ask(engine, self._clock.now_ns())
            self._loop.call_later(SOON_S, self._judge_soon, engine)

    def _judge_soon(self, engine: int) -> None:
        if engine in self._asked_ns and not self._has_changed(engine):
            self._judge(engine, self._clock.now_ns())

    def _look(self) -> None:
        now_ns = self._clock.now_ns()
        for engine in range(len(self._engines.names)):
            if self._has_changed(engine):
                # Answers of another process say nothing, and while there is none `ProcessWatch` has the say.
                self._asked_ns.pop(engine, None)
                self._engines.suspects.discard(engine)
            elif engine in self._asked_ns:
                self._judge(engine, now_ns)
            elif engine in self._engines.suspects or self._is_late(engine, now_ns):
                self._engines.suspects.discard(engine)
                self._ask(engine, now_ns)

    def _has_changed(self, engine: int) -> bool:
        """Whether an engine has another process than when this was last asked, or none."""
        process = self._engines.processes.get(engine)
        if process is None:
            return False
        before, self._starts[engine] = self._starts.get(engine, process.starts), process.starts
        return before != process.starts or not process.ready.is_set()

    def _ask(self, engine: int, now_ns: int) -> None:
        self._asked_ns[engine] = now_ns
        for slot in self._engines.slots(engine):
            self._engines.ask(slot)

    def _judge(self, engine: int, now_ns: int) -> None:
        """Take the answers that are there; a question that is still out is not asked anew."""
        slots = self._engines.slots(engine)
        answers = [self._engines.answer(slot) for slot in slots]
        if any(answer is False for answer in answers):
            self._down(engine, "its runtime fails")
        elif all(answers):
            del self._asked_ns[engine]
            self._engines.suspects.discard(engine)
            if self._shell.engine_up(engine):
                log.warning("engine %s answers again", self._engines.names[engine])
            return
        elif all(
            answer is None and self._is_silent(engine, slot, now_ns)
            for slot, answer in zip(slots, answers, strict=True)
        ):
            self._down(engine, "it does not answer")
        for slot, answer in zip(slots, answers, strict=True):
            if answer is not None:
                self._engines.ask(slot)

    def _down(self, engine: int, why: str) -> None:
        if self._shell.engine_down(engine):
            log.error("engine %s is down: %s", self._engines.names[engine], why)
            if engine in self._engines.processes:
                pid = self._engines.processes[engine].pid
                self._loop.call_later(self._round_trip_s, self._replace, engine, pid)

    def _replace(self, engine: int, pid: int | None) -> None:
        """Give an engine that is still down a new process: what hangs or has lost its device stays so."""
        process = self._engines.processes[engine]
        if not self._is_up(engine) and process.pid == pid and process.ready.is_set():
            log.error("engine %s: its process is ended and started anew", process.name)
            self._processes.replace(engine)

    def _is_late(self, engine: int, now_ns: int) -> bool:
        return any(self._is_past_timeout(slot, now_ns) for slot in self._engines.slots(engine))

    def _is_past_timeout(self, slot: int, now_ns: int) -> bool:
        batch = self._engines.running[slot]
        return batch is not None and now_ns - batch.dispatched_ns > self._timeouts_ns[batch.stage]

    def _is_silent(self, engine: int, slot: int, now_ns: int) -> bool:
        """Whether a worker should have answered by now: its batch is late, or the probe itself takes too long."""
        if self._engines.running[slot] is not None:
            return self._is_past_timeout(slot, now_ns)
        return now_ns - max(self._asked_ns[engine], self._engines.ended_ns[slot]) > self._round_trip_ns
