"""Worker threads: one per engine slot, each running one batch at a time.

Runtimes release the GIL while they compute, so threads do for a runtime that is trusted, and its payloads need no copy.
What is over before a thread would have taken it up runs on the loop's own thread (`InlineWorker`); to an engine that
has a process of its own the loop talks itself (`DirectWorker`), for each thread in between costs two wake-ups.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from loadslice.backends.isolated.host import EngineLostError, EngineProcess
from loadslice.policy.columns import STABLE
from loadslice.serve.clock import Clock
from loadslice.serve.handback import Handback
from loadslice.serve.oip_reply import check_outputs
from loadslice.serve.quarantine import blame, run_guarded
from loadslice.serve.request import Batch
from loadslice.serve.residents import Residents
from loadslice.serve.runners import DirectRunner, Runner
from loadslice.serve.stages import LoadedStage
from loadslice.spec.work import StageError, StageInputError

log = logging.getLogger(__name__)


def _ignore(_engine: int) -> None:
    """Nobody watches."""


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
        home: Where answers go.
        on_done: Called there, on the loop's thread, with each batch that has been run.
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
        home: Handback,
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
        self._home = home
        self._on_done = on_done
        self._clock = clock
        self._residents = residents
        self._process = process
        self._on_lost = on_lost or _ignore
        self._jobs: queue.SimpleQueue[Batch | _Probe | None] = queue.SimpleQueue()
        self._probe: _Probe | None = None
        self._is_ill = False
        self._is_finishing = False

    def give(self, batch: Batch) -> None:
        """Hand over a batch; the core never gives a slot two."""
        self._jobs.put(batch)

    def ask(self) -> asyncio.Future[bool]:
        """Send a probe through; one that is still out is asked no second time, so a hung worker's queue stays short."""
        if self._probe is None or self._probe.answered.done():
            self._probe = _Probe(self._home.loop)
            self._jobs.put(self._probe)
        return self._probe.answered

    def finish(self) -> None:
        """End after what is queued."""
        self._is_finishing = True
        self._jobs.put(None)

    def run(self) -> None:
        """The thread's life."""
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Batch):
                self._run_batch(job)
                self._home.call(self._on_done, job)
            else:
                self._home.call(job.answer, self._run_probe())
            del job  # and with it all tensors of a batch, which would stay until the next one comes

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
        except BaseException as error:  # noqa: BLE001 - it is logged
            # Whatever it is, even a stage that calls sys.exit: the worker lives and the batch has an end.
            self._fail(batch, error)

    def _fail(self, batch: Batch, error: BaseException) -> None:
        """A batch has no results."""
        tags = [request.tag for request in batch.requests]
        batch.failed = True
        if isinstance(error, EngineLostError):
            log.warning("worker %s: batch of requests %s: %s", self.name, tags, error)
            batch.lost = True
        else:
            log.error("worker %s: batch of requests %s failed", self.name, tags, exc_info=error)

    def _tell_lost(self, engine: int) -> None:
        self._home.call(self._on_lost, engine)

    def _look_ahead(self, batch: Batch) -> None:
        """Find the bucket of each result at the next stage, or that it can be sent; here rather than on the loop."""
        following = batch.stage + 1
        is_last = following == len(self._stages)
        for index, result in enumerate(batch.results):
            bucket = 0
            try:
                if isinstance(result, StageError):
                    self._log_fault(batch, index, result)
                elif is_last:
                    check_outputs(result.tensors)
                else:
                    version = batch.requests[index].version
                    bucket = self._stages[following].bucket_of(result, version or STABLE)
            except StageInputError as fault:
                self._replace(batch, index, StageError(f"gave nothing that the next stage can use: {fault}"))
            except StageError as fault:
                self._replace(batch, index, fault)
            batch.next_buckets.append(bucket)

    def _replace(self, batch: Batch, index: int, fault: StageError) -> None:
        batch.results[index] = fault
        self._log_fault(batch, index, fault)

    def _log_fault(self, batch: Batch, index: int, fault: StageError) -> None:
        if not fault.client_fault and batch.requests:
            stage = self._stages[batch.stage].stage.name
            log.warning("request %d at stage '%s': %s", batch.requests[index].tag, stage, fault)

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


class DirectWorker(Worker):
    """Hands batches to the engine's process, and takes their results, on the loop's own thread.

    What the loop must not wait for goes to the thread: large batches, requests that an end of the process is blamed on,
    batches while the process is away, and those of which one request does not fit. While the thread has one, the next
    follows it there: both would write their rows to the same memory.

    Args:
        arguments: As `Worker`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._on_thread: set[Batch] = set()
        """Given to the thread and not run yet; the core may have given up on them, and the slot to another."""

    def give(self, batch: Batch) -> None:
        """See `Worker.give`."""
        runner = cast(DirectRunner, self._runners[batch.stage, batch.version])
        channel = None
        if not self._on_thread and not any(request.crashes for request in batch.requests):
            batch.started_ns = self._clock.now_ns()
            try:
                channel = runner.begin(batch, self._slot)
            except Exception as error:  # noqa: BLE001 - met again on the thread, where it ends this batch alone
                log.debug("worker %s: %s", self.name, error)
        if channel is None:
            self._give_thread(batch)
        else:
            self._home.loop.add_reader(channel, self._answered, channel, runner, batch)

    def _give_thread(self, batch: Batch) -> None:
        batch.copy_ns = batch.compute_ns = 0
        self._on_thread.add(batch)
        super().give(batch)

    def _run_batch(self, batch: Batch) -> None:
        super()._run_batch(batch)
        self._on_thread.discard(batch)

    def _answered(self, channel: int, runner: DirectRunner, batch: Batch) -> None:
        self._home.loop.remove_reader(channel)
        try:
            runner.end(batch, self._slot)
            self._look_ahead(batch)
        except EngineLostError as lost:
            if batch.held and not self._is_finishing:
                blame(batch.requests)
                self._on_lost(batch.engine)
                self._give_thread(batch)
                return
            self._fail(batch, lost)
        except StageInputError:
            self._give_thread(batch)  # to find the request that does not fit
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch has an end
            self._fail(batch, error)
        self._on_done(batch)
