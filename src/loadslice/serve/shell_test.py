import asyncio
import gc
import os
import weakref

import msgspec
import numpy as np
import pytest

from loadslice.policy import events
from loadslice.policy.tables import fresh, lower
from loadslice.serve.clock import Clock
from loadslice.serve.core import EVENTS_MAX, warm_kernels
from loadslice.serve.metrics import Metrics
from loadslice.serve.request import Batch, Request
from loadslice.serve.shell import Shell
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Pipeline, check
from loadslice.spec.work import Work

PIPELINE = b"""
version: 1
pipeline: p
engines: {e: {backend: onnxruntime}}
stages: [{name: s, model: m.onnx, engine: e}]
"""


def test_a_number_the_core_cannot_hold_changes_nothing() -> None:
    async def submitted() -> tuple[int, int]:
        pipeline = check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "p")
        tables = lower(pipeline, None, [])
        state = fresh(tables, pipeline.max_requests)
        clock = Clock()
        metrics = Metrics(pipeline, tables, state, clock)
        shell = Shell(tables, state, clock, [].append, metrics, keep_events=True)
        request = Request(Work(), 0, 1, 2**62, None, -1, 0, None, None, 0, [].append, attempt=2**64)
        with pytest.raises(OverflowError):
            shell.submit(request)
        return len(shell.take_events()), shell.cancel_all()

    assert asyncio.run(submitted()) == (0, 0)


@pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="there is nothing to compile")
def test_a_first_request_finds_everything_compiled() -> None:
    async def compiled_by_a_request() -> tuple[int, int]:
        pipeline = check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "p")
        tables = lower(pipeline, None, [])
        warm_kernels(tables)
        before = len(events.decide.signatures)
        state = fresh(tables, pipeline.max_requests)
        clock = Clock()
        shell = Shell(tables, state, clock, [].append, Metrics(pipeline, tables, state, clock), keep_events=True)
        shell.submit(Request(Work(), 0, 1, 2**62, None, -1, 0, None, None, 0, [].append))
        shell.cancel_all()
        return before, len(events.decide.signatures)

    before, after = asyncio.run(compiled_by_a_request())
    assert before == after > 0


class Bench:
    """A shell whose engine runs batches when it is told to, or as they are dispatched."""

    def __init__(self, *, inline: bool = False, limit: int = 64) -> None:
        text = PIPELINE.replace(b"onnxruntime}", b"onnxruntime, queue: {limit: %d}}" % limit)
        text = text.replace(b"engine: e}", b"engine: e, batch: {e: {size: 8}}}")
        pipeline = check(msgspec.yaml.decode(text, type=Pipeline), "p")
        tables = lower(pipeline, None, [])
        state = fresh(tables, pipeline.max_requests)
        clock = Clock()
        self.inline = inline
        self.sizes: list[int] = []
        self.given: list[Batch] = []
        self.ended: list[Request] = []
        metrics = Metrics(pipeline, tables, state, clock)
        self.shell = Shell(tables, state, clock, self.dispatch, metrics, keep_events=True)

    def dispatch(self, batch: Batch) -> None:
        self.sizes.append(len(batch.requests))
        self.given.append(batch)
        if self.inline:
            self.run()

    def run(self) -> None:
        batch = self.given.pop(0)
        batch.results = [Work() for _ in batch.requests]
        batch.next_buckets = [0] * len(batch.requests)
        self.shell.batch_done(batch)

    def submit(self) -> Request:
        request = Request(Work(), 0, 1, 2**62, None, -1, 0, None, None, 0, self.ended.append)
        self.shell.submit(request)
        return request

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned

    def log(self) -> np.ndarray:
        return np.frombuffer(self.shell.take_events(), np.int64).reshape(-1, events.EVENT_COLUMNS)


def test_arrivals_of_one_turn_are_decided_together_each_at_its_own_time() -> None:
    async def run() -> None:
        bench = Bench()
        for _ in range(5):
            bench.submit()
        assert bench.sizes == []
        await bench.turn()
        assert bench.sizes == [1], "an idle engine is never kept waiting for company"
        bench.run()
        assert bench.sizes == [1, 4]
        bench.run()
        assert [request.outcome for request in bench.ended] == [Outcome.COMPLETED] * 5
        log = bench.log()
        assert log[:5, 0].tolist() == [events.ARRIVAL] * 5
        assert (np.diff(log[:, 1]) >= 0).all()

    asyncio.run(run())


def test_batches_that_are_run_where_they_are_dispatched_all_end() -> None:
    async def run() -> None:
        bench = Bench(inline=True)
        for _ in range(20):
            bench.submit()
        await asyncio.wait_for(bench.shell.idle(), 10)
        assert sum(bench.sizes) == len(bench.ended) == 20
        assert max(bench.sizes) == 8

    asyncio.run(run())


def test_a_client_that_leaves_before_it_was_decided_about_is_cancelled_once() -> None:
    async def run() -> None:
        bench = Bench()
        first, second = bench.submit(), bench.submit()
        bench.shell.cancel(second)
        bench.shell.cancel(second)
        assert bench.ended == [second]
        assert (second.outcome, first.outcome) == (Outcome.CANCELLED, Outcome.NONE)
        bench.run()
        assert first.outcome is Outcome.COMPLETED
        await bench.turn()

    asyncio.run(run())


def test_more_arrivals_than_one_call_takes_are_all_decided() -> None:
    async def run() -> None:
        bench = Bench(limit=10)
        count = 3 * EVENTS_MAX + 5
        for _ in range(count):
            bench.submit()
        async with asyncio.timeout(10):
            while len(bench.ended) < count - 11:  # one runs, ten wait, the others are told so
                await bench.turn()
        assert len(bench.log()) == count
        bench.shell.cancel_all()

    asyncio.run(run())


class _Waiting:
    """Whoever waits for a request, and has it."""

    def __init__(self) -> None:
        self.request = Request(Work(), 0, 1, 2**62, None, -1, 0, None, None, 0, self.ended)

    def ended(self, _request: Request) -> None:
        pass


def test_a_request_that_has_ended_is_gone_with_its_tensors_at_once_and_not_when_garbage_is_collected() -> None:
    async def is_gone() -> bool:
        bench = Bench()
        waiting = _Waiting()
        seen = weakref.ref(waiting)
        bench.shell.submit(waiting.request)
        bench.shell.cancel_all()
        del waiting
        return seen() is None

    gc.disable()
    try:
        assert asyncio.run(is_gone())
    finally:
        gc.enable()
