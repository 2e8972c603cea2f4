"""What runs where, as those see it who look for engines that hang."""

import asyncio

import msgspec

from loadslice.serve.clock import Clock
from loadslice.serve.engines import Engines
from loadslice.serve.request import Batch
from loadslice.serve.runners import PythonRunner
from loadslice.serve.stages import LoadedStage, LoadedVersion
from loadslice.spec.pipeline import Pipeline, check

PIPELINE = """
version: 1
pipeline: p
engines: {host: {backend: python}}
stages: [{name: work, python: "any:any", engine: host}]
"""


def test_what_comes_back_late_does_not_hide_what_its_slot_runs_now() -> None:
    """The core had given up on the first: one that hangs after it must still be found to hang."""

    async def run() -> None:
        pipeline, clock = check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "p"), Clock()
        version = LoadedVersion({0: PythonRunner(lambda work: work, clock)}, None, None)
        given_back: list[Batch] = []
        stages = [LoadedStage(pipeline.stages[0], (version,))]
        engines = Engines(pipeline, stages, clock, given_back.append, {})
        first, second = (Batch(0, epoch, 0, 0, 0, 0, 0, 0, [], [], []) for epoch in range(2))
        engines.dispatch(first)
        engines.dispatch(second)
        engines._batch_done(first)
        assert engines.running == [second]
        engines._batch_done(second)
        assert engines.running == [None]
        assert given_back == [first, second]

    asyncio.run(run())
