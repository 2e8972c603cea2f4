import asyncio
import os

import msgspec
import pytest

from loadslice.policy import events
from loadslice.policy.tables import fresh, lower
from loadslice.serve.clock import Clock
from loadslice.serve.metrics import Metrics
from loadslice.serve.request import Request
from loadslice.serve.shell import Shell, warm_kernels
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
