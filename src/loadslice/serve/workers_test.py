"""Who runs a batch of an engine that has a process: the loop itself, or the thread, never both at once."""

import asyncio
import os
import threading
from typing import Any

import numpy as np
import pytest

from loadslice.backends.base import TensorInfo
from loadslice.backends.isolated.arena import LENT_BYTES_MAX
from loadslice.backends.isolated.session import IsolatedSession
from loadslice.serve.clock import Clock
from loadslice.serve.handback import Handback
from loadslice.serve.request import Batch
from loadslice.serve.runners import DIRECT_BYTES_MAX, ModelRunner
from loadslice.serve.workers import DirectWorker
from loadslice.spec.pipeline import Engine, Stage
from loadslice.spec.work import StageError, Work

FAST_S = 20.0
"""Nothing here takes so long on a machine that is not stuck."""


def batch_of(*works: Work, bucket: int = 0) -> Batch:
    return Batch(0, 0, 0, 0, 0, bucket, 0, 0, [], [], list(works))


class Runner:
    """Says what it is asked for."""

    def __init__(self) -> None:
        self.begun: list[Batch] = []
        self.ran: list[Batch] = []
        self.error: Exception | None = None
        self.may_end = threading.Event()
        self.answer, self._tell = os.pipe()

    def begin(self, batch: Batch, _slot: int) -> int | None:
        self.begun.append(batch)
        if self.error is not None:
            raise self.error
        return None if batch.bucket else self.answer

    def end(self, batch: Batch, _slot: int) -> None:
        batch.results = list(batch.works)

    def run(self, batch: Batch, _slot: int) -> None:
        assert self.may_end.wait(FAST_S)
        self.ran.append(batch)
        batch.results = list(batch.works)

    def come_true(self) -> None:
        os.write(self._tell, b".")

    def close(self) -> None:
        os.close(self.answer)
        os.close(self._tell)


class Scene:
    """One slot of one engine."""

    def __init__(self) -> None:
        self.runner = Runner()
        self.done: asyncio.Queue[Batch] = asyncio.Queue()
        runners: Any = {(0, 0): self.runner}
        stages: Any = [None]
        self.home = Handback(asyncio.get_running_loop())
        self.worker = DirectWorker("e", 0, runners, stages, self.home, self.done.put_nowait, Clock(), None, object())
        self.worker.start()

    async def next_done(self) -> Batch:
        async with asyncio.timeout(FAST_S):
            return await self.done.get()

    def close(self) -> None:
        self.worker.finish()
        self.worker.join(FAST_S)
        self.home.close()
        self.runner.close()


def test_what_cannot_be_begun_ends_its_batch_alone_and_is_no_error_of_whoever_hands_it_over() -> None:
    async def play() -> None:
        scene = Scene()
        scene.runner.error = MemoryError("rows of two clients, padded to each other")
        scene.runner.may_end.set()
        batch = batch_of(Work({"x": np.zeros((1, 2), np.float32)}))
        scene.worker.give(batch)
        assert await scene.next_done() is batch
        assert not batch.failed
        assert scene.runner.ran == [batch]
        scene.close()

    asyncio.run(play())


def test_while_the_thread_has_a_batch_the_next_waits_behind_it() -> None:
    async def play() -> None:
        scene = Scene()
        given_up, following, later = (batch_of(Work({"x": np.zeros((1, 2), np.float32)})) for _ in range(3))
        given_up.bucket = 1
        scene.worker.give(given_up)
        scene.worker.give(following)
        assert scene.runner.begun == [given_up]
        scene.runner.may_end.set()
        assert [await scene.next_done(), await scene.next_done()] == [given_up, following]
        scene.worker.give(later)
        assert scene.runner.begun == [given_up, later]
        scene.runner.come_true()
        assert await scene.next_done() is later
        scene.close()

    asyncio.run(play())


class Process:
    """Takes everything; has no memory to write it to in place."""

    def __init__(self, output_bytes: int = 0) -> None:
        self.asked: list[str] = []
        self.output_bytes = output_bytes
        self.has_room = True

    def reserve(self, _slot: int) -> bool:
        return True

    def room(self, *_: object) -> None:
        self.asked.append("room")

    def send(self, *_: object) -> None:
        self.asked.append("send")

    def fileno(self, _slot: int) -> int:
        return 7

    def free(self, _slot: int) -> None:
        self.asked.append("free")

    def receive(self, _slot: int) -> dict[str, np.ndarray[Any, Any]]:
        return {"y": np.zeros((1, self.output_bytes), np.uint8)}

    def hand_over_ns(self, _slot: int) -> int:
        return 0

    def lends(self, _slot: int) -> bool:
        return self.has_room


def runner_on(process: Any, buckets: list[list[int]]) -> ModelRunner:
    session = IsolatedSession.__new__(IsolatedSession)
    session.process, session.is_numeric, session._number = process, True, 0
    session.inputs = [TensorInfo("x", np.dtype(np.float32), (None, None, None))]
    stage = Stage(name="s", model="m.onnx", engine="e", buckets=buckets)
    return ModelRunner(stage, "e", Engine(backend="onnxruntime"), lambda: session, Clock(), first=True)


@pytest.mark.parametrize(
    ("buckets", "shapes", "is_small"),
    [
        ([[8, 8]], [(4, 4)], True),
        ([[512, 512]], [(4, 4)], False),
        ([], [(600, 1)], True),
        ([], [(600, 1), (1, 600)], False),
    ],
)
def test_padding_counts_as_much_as_what_is_padded(
    buckets: list[list[int]], shapes: list[tuple[int, int]], is_small: bool
) -> None:
    process: Any = Process()
    runner = runner_on(process, buckets)
    batch = batch_of(*(Work({"x": np.zeros((1, *shape), np.float32)}) for shape in shapes))
    if is_small:
        assert runner.begin(batch, 0) == 7
        assert process.asked[-1] == "send"
    else:
        with pytest.raises(StageError, match="with padding"):
            runner.begin(batch, 0)
        assert process.asked == ["free"]


def test_a_model_that_gives_more_than_is_lent_is_run_by_the_thread_from_then_on() -> None:
    runner = runner_on(Process(LENT_BYTES_MAX + 1), [[8, 8], [16, 16]])
    work = Work({"x": np.zeros((1, 4, 4), np.float32)})
    first = batch_of(work)
    assert runner.begin(first, 0) == 7
    runner.end(first, 0)
    assert runner.begin(batch_of(work), 0) is None
    assert runner.begin(batch_of(work, bucket=1), 0) == 7


def test_large_outputs_are_copied_by_the_thread_while_all_other_memory_is_in_use() -> None:
    process = Process(DIRECT_BYTES_MAX + 1)
    runner = runner_on(process, [])
    work = Work({"x": np.zeros((1, 4, 4), np.float32)})
    first = batch_of(work)
    assert runner.begin(first, 0) == 7
    runner.end(first, 0)
    assert runner.begin(batch_of(work), 0) == 7
    process.has_room = False
    assert runner.begin(batch_of(work), 0) is None
