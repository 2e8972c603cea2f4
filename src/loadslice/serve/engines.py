"""The engines of a pipeline: a worker for each of their slots, what runs there now, and how they are."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadslice.backends.isolated.session import isolation
from loadslice.serve.clock import Clock
from loadslice.serve.handback import Handback
from loadslice.serve.loop import settle
from loadslice.serve.quarantine import blame
from loadslice.serve.request import Batch
from loadslice.serve.residents import residents_of
from loadslice.serve.stages import LoadedStage, processes_of
from loadslice.serve.warm import warm_models
from loadslice.serve.workers import DirectWorker, InlineWorker, Worker
from loadslice.spec.pipeline import Pipeline

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the GIL while another wants it. Python's default is 5 ms: a loop thread that wakes while a
Python stage computes would wait that long before it may read a socket or start the next batch, once per stage."""

JOIN_TIMEOUT_S = 2.0


def _ignore(_engine: int) -> None:
    """Nobody watches."""


def _ignore_batch(_batch: Batch) -> None:
    """Nobody waits for it."""


def _always(_engine: int) -> bool:
    """Nobody has said otherwise."""
    return True


class Engines:
    """All workers of a pipeline.

    Args:
        pipeline: Checked.
        stages: Loaded and warm.
        clock: Stamps times.
        on_done: Called on the loop with each batch that has been run.
        inline: Rows that a batch run on the loop's thread may have, by engine; see `inline.inline_rows`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stages: Sequence[LoadedStage],
        clock: Clock,
        on_done: Callable[[Batch], None],
        inline: Mapping[int, int],
    ) -> None:
        self._home = Handback(asyncio.get_running_loop())
        self.names = list(pipeline.engines)
        self.suspects: set[int] = set()
        """Engines on which a batch or a probe has failed since they were last looked at."""
        self._clock = clock
        self._on_done = on_done
        self.processes = processes_of(stages)
        """By engine, of those that have one of their own."""
        self.on_lost: Callable[[int], None] = _ignore
        """Called on the loop when a batch tells that its engine's process has ended, before the batch is given back."""
        self.on_failed: Callable[[int], None] = _ignore
        """Called on the loop when a batch has failed on an engine."""
        self.is_up: Callable[[int], bool] = _always
        """What the core thinks of an engine."""
        self._pipeline = pipeline
        self._stages = stages
        self._is_only = [any(stage.engine_names == [name] for stage in pipeline.stages) for name in pipeline.engines]
        self._residents = residents_of(pipeline, stages)
        self._inline_rows = inline
        self._workers: list[Worker] = []
        self._engine_of_slot: list[int] = []
        for index, (name, engine) in enumerate(pipeline.engines.items()):
            runners = {
                (number, version): loaded.versions[version].runners[index]
                for number, loaded in enumerate(stages)
                for version in range(len(loaded.versions))
                if name in loaded.stage.engine_names
            }
            residents, process = self._residents.get(index), self.processes.get(index)
            rows = self._inline_rows.get(index)
            for slot in range(engine.max_inflight):
                job = (name, slot, runners, stages, self._home, self._batch_done, clock, residents, process, self._lost)
                if rows is not None:
                    self._workers.append(InlineWorker(rows, *job))
                else:
                    is_direct = process is not None and residents is None
                    self._workers.append(DirectWorker(*job) if is_direct else Worker(*job))
                self._engine_of_slot.append(index)
        self.running: list[Batch | None] = [None] * len(self._workers)
        """By slot, numbered over all engines as in the core's tables."""
        self.ended_ns = [0] * len(self._workers)
        """When each slot's last batch ended."""
        self._questions: list[asyncio.Future[bool] | None] = [None] * len(self._workers)

    def start(self) -> None:
        """Start every worker."""
        settle()
        for worker in self._workers:
            worker.start()

    def dispatch(self, batch: Batch) -> None:
        """Hand a batch to the worker of its slot."""
        if batch.resident is not None and batch.engine in self._residents:
            self._residents[batch.engine].wanted = batch.resident
        if batch.engine in self.processes:
            batch.held = self._is_only[batch.engine] or any(request.crashes for request in batch.requests)
        self.running[batch.slot] = batch
        self._workers[batch.slot].give(batch)

    def slots(self, engine: int) -> list[int]:
        """Slots of one engine."""
        return [slot for slot, owner in enumerate(self._engine_of_slot) if owner == engine]

    def ask(self, slot: int) -> None:
        """Send a small real job through one worker."""
        self._questions[slot] = self._workers[slot].ask()

    def answer(self, slot: int) -> bool | None:
        """What came of the last `ask`: whether the runtime is well; ``None``: no answer yet."""
        question = self._questions[slot]
        return question.result() if question is not None and question.done() else None

    def _batch_done(self, batch: Batch) -> None:
        if batch.lost:
            self._lost(batch.engine)
        if self.running[batch.slot] is batch:  # not where the core gave up on it and the slot another one
            self.running[batch.slot] = None
        self.ended_ns[batch.slot] = self._clock.now_ns()
        if batch.failed:
            self.suspects.add(batch.engine)
            self.on_failed(batch.engine)
        self._on_done(batch)

    def _lost(self, engine: int) -> None:
        self.on_lost(engine)

    def holds(self, engine: int) -> bool:
        """Whether an engine's work waits for its process rather than going elsewhere.

        It does where no other engine could take it, or where it may be what ended the process.
        """
        running = [self.running[slot] for slot in self.slots(engine)]
        return self._is_only[engine] or any(batch is not None and batch.held for batch in running)

    def blame(self, engine: int) -> None:
        """Note who was inside when an engine's process ended; a batch that is held notes that itself, and better."""
        for slot in self.slots(engine):
            batch = self.running[slot]
            if batch is not None and not batch.held:
                blame(batch.requests)

    def warm(self, engine: int) -> None:
        """Run what an engine's models were warmed with at the start; blocks.

        Raises:
            InputError: A model does not run.
        """
        warm_models(self._pipeline, self._stages, engine)

    def describe(self) -> list[dict[str, Any]]:
        """Every engine: where it runs, how it is, what it takes."""
        return [self._describe(index, name) for index, name in enumerate(self.names)]

    def _describe(self, index: int, name: str) -> dict[str, Any]:
        process = self.processes.get(index)
        engine = self._pipeline.engines[name]
        is_there = process is None or process.ready.is_set()
        return {
            "name": name,
            "backend": engine.backend,
            "device": engine.device,
            "isolation": "inline" if index in self._inline_rows else isolation(engine),
            "pid": os.getpid() if process is None else process.pid,
            "state": ("up" if self.is_up(index) else "down") if is_there else "starting",
            "restarts": 0 if process is None else process.starts - 1,
            "last_end": None if process is None else process.last_end,
            "memory_bytes": None if process is None else process.memory_bytes(),
            "running": sum(self.running[slot] is not None for slot in self.slots(index)),
            "slots": len(self.slots(index)),
        }

    async def unanswering(self, timeout_s: float) -> list[str]:
        """Send a small real job through every worker.

        Returns:
            Names of engines with a worker that did not answer in time, or whose runtime failed.
        """
        asked = [worker.ask() for worker in self._workers]
        await asyncio.wait(asked, timeout=timeout_s)
        silent = set()
        for engine, answer in zip(self._engine_of_slot, asked, strict=True):
            if not answer.done():
                silent.add(self.names[engine])
            elif not answer.result():
                silent.add(self.names[engine])
                self.suspects.add(engine)
        return sorted(silent)

    def forget(self) -> None:
        """Tell nobody anything more.

        Those who were told have this object, and what was there when the first requests came is left out of garbage
        collection: none of them would ever be freed.
        """
        self._home.close()
        self._on_done = _ignore_batch
        self.on_lost = self.on_failed = _ignore
        self.is_up = _always

    def stop(self, join_timeout_s: float = JOIN_TIMEOUT_S) -> list[str]:
        """End every worker and every process; what hangs is killed, where it can be.

        Args:
            join_timeout_s: How long all workers together may take to end what they run.

        Returns:
            What did not end and was left behind: workers, and processes that the system does not end.
        """
        for worker in self._workers:
            worker.finish()
        _join(self._workers, join_timeout_s)
        # Whatever a process does, a batch of the loop's in it or one of a thread's, its end frees whoever waits for it.
        left = [f"process {pid} of {process.name}" for process in self.processes.values() if (pid := process.close())]
        _join([self._workers[slot] for engine in self.processes for slot in self.slots(engine)], JOIN_TIMEOUT_S)
        return [worker.name for worker in self._workers if worker.is_alive()] + left


def _join(workers: Sequence[Worker], timeout_s: float) -> None:
    """Wait for threads to end, no longer than a time in all."""
    until_s = time.monotonic() + timeout_s
    for worker in workers:
        worker.join(max(0.0, until_s - time.monotonic()))
