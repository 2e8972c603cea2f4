import asyncio

import msgspec
import pytest

from loadslice.policy.tables import fresh, lower
from loadslice.serve.clock import Clock
from loadslice.serve.metrics import Metrics
from loadslice.serve.request import Request
from loadslice.serve.shell import Shell
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
        done = asyncio.get_running_loop().create_future()
        request = Request(Work(), 0, 1, 2**62, None, -1, 0, None, None, 0, done, attempt=2**64)
        with pytest.raises(OverflowError):
            shell.submit(request)
        return len(shell.take_events()), shell.cancel_all()

    assert asyncio.run(submitted()) == (0, 0)
