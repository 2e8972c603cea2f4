"""Engines whose batches run on the event loop's own thread, because handing them over would take longer.

Handing a batch to another thread and its results back costs 20 to 50 us at one client, and more while both threads want
the interpreter. A model that computes a full batch in less than that is better run where the batch was put together:
nothing else could have been done in that time. Who says ``isolation: inline`` has it so whatever the model takes;
``auto`` measures, once everything is warm.
"""

import time
from collections.abc import Iterable, Sequence

import numpy as np

from loadslice.backends.base import EngineError
from loadslice.backends.isolated.session import isolation
from loadslice.serve.runners import ModelRunner, Runner
from loadslice.serve.stages import LoadedStage, goes_by_turns
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import dilation
from loadslice.spec.work import StageInputError, Tensor

HAND_OVER_NS = 50_000
"""A full batch must take less than this, its shortest of `RUNS`: the upper end of what a hand-over was measured at."""

RUNS = 5

UNLIMITED = 1 << 62


def inline_rows(pipeline: Pipeline, stages: Sequence[LoadedStage]) -> dict[int, int]:
    """Engines whose batches run on the loop's thread, by index, and how many rows such a batch may have.

    A larger one, which is one large request, goes to the engine's thread. Measures; call it once everything is warm.

    Args:
        pipeline: Checked.
        stages: Loaded and warm.
    """
    found: dict[int, int] = {}
    for index, (name, engine) in enumerate(pipeline.engines.items()):
        if isolation(engine) == "inline":
            found[index] = UNLIMITED
        elif (
            engine.isolation == "auto"
            and engine.backend == "onnxruntime"
            and isolation(engine) == "thread"
            and (engine.max_inflight, engine.threads) == (1, 1)
            and not goes_by_turns(pipeline, name)
            and dilation(pipeline) == 1
        ):
            rows = _rows_in_time(name, [(loaded, runner) for loaded in stages for runner in _runners(loaded, index)])
            if rows is not None:
                found[index] = rows
    return found


def _runners(loaded: LoadedStage, engine: int) -> Iterable[Runner]:
    return [version.runners[engine] for version in loaded.versions if engine in version.runners]


def _rows_in_time(name: str, runners: Sequence[tuple[LoadedStage, Runner]]) -> int | None:
    """Rows of the smallest full batch among an engine's models, where each of them runs its own in time."""
    smallest = None
    for loaded, runner in runners:
        batch = loaded.stage.batch.get(name)
        rows = 1 if batch is None else max([batch.size, *batch.pad_to])
        if not isinstance(runner, ModelRunner) or runner.probe_feeds is None or not _is_in_time(loaded, runner, rows):
            return None
        smallest = rows if smallest is None else min(smallest, rows)
    return smallest


def _is_in_time(loaded: LoadedStage, runner: ModelRunner, rows: int) -> bool:
    feeds = _full(loaded, runner, rows)
    for _ in range(RUNS):
        began_ns = time.perf_counter_ns()
        try:
            runner.session.run(feeds)
        except (EngineError, StageInputError):
            return False
        if time.perf_counter_ns() - began_ns < HAND_OVER_NS:
            return True
    return False


def _full(loaded: LoadedStage, runner: ModelRunner, rows: int) -> dict[str, Tensor]:
    """The largest batch: as many rows as it may have, of the largest bucket."""
    assert runner.probe_feeds is not None
    shape = runner.padded_shape(len(loaded.stage.buckets) - 1) if loaded.stage.buckets else None
    feeds: dict[str, Tensor] = {}
    for position, info in enumerate(runner.session.inputs):
        smallest = runner.probe_feeds[info.name]
        sides = smallest.shape[1:] if shape is None or position else tuple(shape)
        count = rows if info.shape and info.shape[0] is None else smallest.shape[0]
        feeds[info.name] = np.full((count, *sides), "" if info.dtype.kind == "O" else 0, info.dtype)
    return feeds
