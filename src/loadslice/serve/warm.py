"""Running everything once before the first client does: shapes that a runtime prepares, functions that import late."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadslice.backends.base import EngineError, TensorInfo
from loadslice.serve.request import Batch
from loadslice.serve.stages import LoadedStage, ModelRunner
from loadslice.spec.errors import InputError
from loadslice.spec.functions import load_function
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.work import RawInput, Sample, StageError, StageInputError, Tensor, Work

log = logging.getLogger(__name__)

FREE_SIDES = (32, 1)
"""Sides tried for a dimension that model and pipeline leave open: most networks take a multiple of 32, some only 1."""


def warm_models(pipeline: Pipeline, stages: Sequence[LoadedStage]) -> None:
    """Run every model on every engine slot at every bucket, with one row and with a full batch.

    Raises:
        InputError: A model does not run at a shape that the pipeline promises.
    """
    engines = list(pipeline.engines.items())
    for loaded in stages:
        for index, runner in loaded.runners.items():
            if not isinstance(runner, ModelRunner):
                continue
            name, engine = engines[index]
            for slot in range(engine.max_inflight):
                _warm_slot(loaded.stage, name, runner, slot)


def _warm_slot(stage: Stage, engine_name: str, runner: ModelRunner, slot: int) -> None:
    batch = stage.batch.get(engine_name)
    inputs = runner.session.inputs
    for bucket in _shapes(stage, runner):
        for rows in sorted({1, 1 if batch is None else batch.size}):
            feeds = _zeros(inputs, rows, bucket, FREE_SIDES[0])
            try:
                runner.session.run(feeds, slot)
            except (EngineError, StageInputError) as error:
                raise InputError(
                    f"stage '{stage.name}' on engine '{engine_name}': {rows} rows of bucket {bucket} do not run: "
                    f"{error} Change stages.*.buckets, batch or accept."
                ) from error
            if runner.probe_feeds is None:
                runner.probe_feeds = feeds
    if not stage.buckets:
        runner.probe_feeds = _warm_free(stage, engine_name, runner, slot)


def _shapes(stage: Stage, runner: ModelRunner) -> list[list[int]]:
    """Shapes that rows come in on one engine, each once."""
    shapes: list[list[int]] = []
    for bucket in range(len(stage.buckets)):
        shape = runner.padded_shape(bucket)
        if shape is not None and shape not in shapes:
            shapes.append(shape)
    return shapes


def _warm_free(stage: Stage, engine_name: str, runner: ModelRunner, slot: int) -> dict[str, Tensor] | None:
    """Warm a model without buckets at its own shape; ``None`` when its open dimensions take none of our guesses."""
    for side in FREE_SIDES:
        feeds = _zeros(runner.session.inputs, 1, None, side)
        try:
            runner.session.run(feeds, slot)
        except (EngineError, StageInputError) as error:
            log.debug("stage '%s' does not run at sides of %d: %s", stage.name, side, error)
        else:
            return feeds
    log.warning(
        "stage '%s' on engine '%s' was not warmed: its model leaves sides open and takes none of %s. Give it buckets.",
        stage.name,
        engine_name,
        FREE_SIDES,
    )
    return None


def _zeros(inputs: Sequence[TensorInfo], rows: int, bucket: list[int] | None, free_side: int) -> dict[str, Tensor]:
    feeds = {}
    for info in inputs:
        sides = [free_side if side is None else side for side in info.shape[1:]]
        if bucket is not None and info is inputs[0]:
            sides = bucket
        elif bucket is not None and len(bucket) == len(sides):
            # Inputs beside the first (a mask beside ids) follow its bucket where the model leaves them open.
            sides = [most if side is None else side for side, most in zip(info.shape[1:], bucket, strict=True)]
        count = rows if not info.shape or info.shape[0] is None else info.shape[0]
        feeds[info.name] = np.full((count, *sides), "" if info.dtype.kind == "O" else 0, info.dtype)
    return feeds


def run_examples(pipeline: Pipeline, folder: Path, stages: Sequence[LoadedStage]) -> Work | None:
    """Run one of the pipeline's own examples through all stages, on the preferred engine of each.

    Returns:
        What the last stage gave; ``None`` where the pipeline names no examples or begins with a model.

    Raises:
        InputError: The pipeline cannot serve its own example.
    """
    if pipeline.inputs is None or pipeline.stages[0].python is None:
        return None
    sample: Sample = load_function(pipeline.inputs, folder)()[0]
    work = Work(context=RawInput(sample.content_type, sample.body))
    try:
        for index, loaded in enumerate(stages):
            work = _run_one(loaded, index, work)
    except (StageError, EngineError) as error:
        raise InputError(
            f"stage '{loaded.stage.name}' fails on the pipeline's example '{sample.name}': {error}"
        ) from error
    return work


def _run_one(loaded: LoadedStage, index: int, work: Work) -> Work:
    engine, runner = next(iter(loaded.runners.items()))
    batch = Batch(-1, -1, engine, index, loaded.bucket_of(work), 0, [], [], [work])
    runner.run(batch, slot=0)
    (result,) = batch.results
    if isinstance(result, StageError):
        raise result
    return result
