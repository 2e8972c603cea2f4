"""Worker threads: one per engine slot, each running one batch at a time.

Runtimes release the GIL while they compute, so threads do for a runtime that is trusted, and its payloads need no copy.
An engine that has a process of its own is driven by the same threads: each waits for its slot of the process.
"""

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from loadslice.backends.isolated.host import EngineLostError, EngineProcess
from loadslice.backends.isolated.session import isolation
from loadslice.policy.columns import STABLE
from loadslice.serve.clock import Clock
from loadslice.serve.loop import settle
from loadslice.serve.oip_reply import check_outputs
from loadslice.serve.quarantine import blame, run_guarded
from loadslice.serve.request import Batch
from loadslice.serve.residents import Residents, residents_of
from loadslice.serve.runners import Runner
from loadslice.serve.stages import LoadedStage, processes_of
from loadslice.serve.warm import warm_models
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.work import StageError, StageInputError

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the GIL while another wants it. Python's default is 5 ms: a loop thread that wakes while a
Python stage computes would wait that long before it may read a socket or start the next batch, once per stage."""

JOIN_TIMEOUT_S = 2.0


def _ignore(_engine: int) -> None:
    """Nobody watches."""


def _always(_engine: int) -> bool:
    """Nobody has said otherwise."""
    return True


class _Probe:
    """A question to one worker: do you answer, and do your models run?"""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answered: asyncio.Future[bool] = loop.create_future()

    def answer(self, well: bool) -> None:
        """Called on the loop."""
        if not self.answered.done():
            self.answered.set_result(well)


class Worker(threading.Thread):
    """Runs what it is given, in order, on one slot of one engine.

    Args:
        name: Of the engine; for logs.
        slot: Which of the engine's slots, from 0.
        runners: This engine's runners by stage index and version.
        stages: All stages; the next one says which bucket a result falls into.
        loop: Where answers go.
        on_done: Called there with each batch that has been run.
        clock: Stamps when a batch is taken up.
        residents: Of its engine, where that does not hold all its models.
        process: Of its engine, where that has one of its own.
        on_lost: Called on the loop with the engine when a batch waits for its next process.
    """

    def __init__(
        self,
        name: str,
        slot: int,
        runners: dict[tuple[int, int], Runner],
        stages: Sequence[LoadedStage],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Batch], None],
        clock: Clock,
        residents: Residents | None = None,
        process: EngineProcess | None = None,
        on_lost: Callable[[int], None] | None = None,
    ) -> None:
        # A hung runtime must not keep the process from ending.
        super().__init__(name=f"{name}.{slot}", daemon=True)
        self._slot = slot
        self._runners = runners
        self._stages = stages
        self._loop = loop
        self._on_done = on_done
        self._clock = clock
        self._residents = residents
        self._process = process
        self._on_lost = on_lost or _ignore
        self._jobs: queue.SimpleQueue[Batch | _Probe | None] = queue.SimpleQueue()
        self._probe: _Probe | None = None
        self._is_ill = False

    def give(self, batch: Batch) -> None:
        """Hand over a batch; the core never gives a slot two."""
        self._jobs.put(batch)

    def ask(self) -> asyncio.Future[bool]:
        """Send a probe through; one that is still out is asked no second time, so a hung worker's queue stays short."""
        if self._probe is None or self._probe.answered.done():
            self._probe = _Probe(self._loop)
            self._jobs.put(self._probe)
        return self._probe.answered

    def finish(self) -> None:
        """End after what is queued."""
        self._jobs.put(None)

    def run(self) -> None:
        """The thread's life."""
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, Batch):
                    self._run_batch(job)
                    self._loop.call_soon_threadsafe(self._on_done, job)
                else:
                    self._loop.call_soon_threadsafe(job.answer, self._run_probe())
            except RuntimeError:
                log.debug("worker %s: the loop has closed", self.name)
                return

    def _run_batch(self, batch: Batch) -> None:
        batch.started_ns = self._clock.now_ns()
        try:
            if self._residents is not None:
                self._residents.make_room_for(batch.stage)
                batch.load_ns = self._clock.now_ns() - batch.started_ns
            runner = self._runners[batch.stage, batch.version]
            if self._process is None:
                runner.run(batch, self._slot)
            else:
                run_guarded(runner, batch, self._slot, self._process, partial(self._tell_lost, batch.engine))
            self._look_ahead(batch)
        except EngineLostError as lost:
            log.warning("worker %s: batch of requests %s: %s", self.name, [r.tag for r in batch.requests], lost)
            batch.failed = batch.lost = True
        except BaseException:
            # Whatever it is, even a stage that calls sys.exit: the worker lives and the batch has an end.
            log.exception("worker %s: batch of requests %s failed", self.name, [r.tag for r in batch.requests])
            batch.failed = True
        for request, result in zip(batch.requests, batch.results, strict=False):
            if isinstance(result, StageError) and not result.client_fault:
                log.warning("request %d at stage '%s': %s", request.tag, self._stages[batch.stage].stage.name, result)

    def _tell_lost(self, engine: int) -> None:
        self._loop.call_soon_threadsafe(self._on_lost, engine)

    def _look_ahead(self, batch: Batch) -> None:
        """Find the bucket of each result at the next stage, or that it can be sent; here rather than on the loop."""
        following = batch.stage + 1
        for index, result in enumerate(batch.results):
            bucket = 0
            try:
                if isinstance(result, StageError):
                    pass
                elif following < len(self._stages):
                    version = batch.requests[index].version
                    bucket = self._stages[following].bucket_of(result, version or STABLE)
                else:
                    check_outputs(result.tensors)
            except StageInputError as fault:
                batch.results[index] = StageError(f"gave nothing that the next stage can use: {fault}")
            except StageError as fault:
                batch.results[index] = fault
            batch.next_buckets.append(bucket)

    def _run_probe(self) -> bool:
        try:
            if self._residents is not None:
                self._residents.probe(self._slot)
            else:
                for runner in self._runners.values():
                    runner.probe(self._slot)
        except BaseException:
            # Said once: an engine that is down is asked again and again.
            log.log(
                logging.DEBUG if self._is_ill else logging.ERROR, "worker %s: a probe failed", self.name, exc_info=True
            )
            self._is_ill = True
            return False
        self._is_ill = False
        return True


class InlineWorker(Worker):
    """Runs batches of up to some rows on the loop's own thread as they are dispatched; see `inline`.

    Args:
        rows: Most that such a batch may have; a larger one goes to the thread.
        arguments: As `Worker`.
    """

    def __init__(self, rows: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rows = rows
        # A probe, or a large batch before it, may still be in the slot that the next batch is run in from the loop.
        self._lock = threading.Lock()

    def give(self, batch: Batch) -> None:
        """See `Worker.give`."""
        if batch.rows > self._rows:
            super().give(batch)
        else:
            self._run_batch(batch)
            self._on_done(batch)

    def _run_batch(self, batch: Batch) -> None:
        with self._lock:
            super()._run_batch(batch)

    def _run_probe(self) -> bool:
        with self._lock:
            return super()._run_probe()


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
        loop = asyncio.get_running_loop()
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
            for slot in range(engine.max_inflight):
                shared = self._residents.get(index), self.processes.get(index), self._lost
                job = (name, slot, runners, stages, loop, self._batch_done, clock, *shared)
                rows = self._inline_rows.get(index)
                self._workers.append(Worker(*job) if rows is None else InlineWorker(rows, *job))
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

    def stop(self, join_timeout_s: float = JOIN_TIMEOUT_S) -> list[str]:
        """End every worker; returns those that did not end within the time, each, and were left behind."""
        for worker in self._workers:
            worker.finish()
        for worker in self._workers:
            worker.join(join_timeout_s)
        for engine, process in self.processes.items():
            slots = [self._workers[slot] for slot in self.slots(engine)]
            if any(worker.is_alive() for worker in slots):
                process.kill()  # its end frees whoever waits for it
                for worker in slots:
                    worker.join(JOIN_TIMEOUT_S)
            process.close()
        return [worker.name for worker in self._workers if worker.is_alive()]
