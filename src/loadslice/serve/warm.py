"""Running everything once before the first client does: shapes that a runtime prepares, functions that import late."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadslice.backends.base import EngineError, TensorInfo
from loadslice.policy.columns import CANARY
from loadslice.serve.patience import Step, unwatched
from loadslice.serve.request import Batch
from loadslice.serve.runners import ModelRunner, opened
from loadslice.serve.stages import LoadedStage
from loadslice.spec.errors import InputError
from loadslice.spec.functions import call_function
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.work import StageError, StageInputError, Tensor, Work

log = logging.getLogger(__name__)

FREE_SIDES = (32, 1)
"""Sides tried for a dimension that model and pipeline leave open: most networks take a multiple of 32, some only 1."""

EXAMPLES_MAX = 64
"""Of the pipeline's own examples; they are few and stand for its traffic."""


def warm_models(
    pipeline: Pipeline, stages: Sequence[LoadedStage], only: int | None = None, step: Step = unwatched
) -> None:
    """Run every version of every model on every engine slot at every bucket.

    With one row and with a full batch, or with each count of rows that batches are padded to.

    Args:
        pipeline: Checked.
        stages: Loaded.
        only: This engine, and of its models those that are loaded now; ``None``: all.
        step: Told of each slot before it is warmed.

    Raises:
        InputError: A model does not run at a shape that the pipeline promises.
    """
    engines = list(pipeline.engines.items())
    for loaded in stages:
        for version in loaded.versions:
            for index, runner in version.runners.items():
                if not isinstance(runner, ModelRunner) or (only is not None and (index != only or not runner.is_open)):
                    continue
                name, engine = engines[index]
                if only is None:
                    log.info("warming up stage '%s' on %s", loaded.stage.name, name)
                with opened(runner):
                    for slot in range(engine.max_inflight):
                        _warm_slot(loaded.stage, name, runner, slot, step)


def _warm_slot(stage: Stage, engine_name: str, runner: ModelRunner, slot: int, step: Step) -> None:
    what = f"stage '{stage.name}' on engine '{engine_name}': warming up"
    inputs = runner.session.inputs
    for bucket in _shapes(stage, runner):
        for rows in _row_counts(stage, engine_name):
            feeds = _zeros(inputs, rows, bucket, FREE_SIDES[0])
            step(what)
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
        step(what)
        runner.probe_feeds = _warm_free(stage, engine_name, runner, slot)


def _row_counts(stage: Stage, engine_name: str) -> list[int]:
    """Rows to warm with, ascending."""
    batch = stage.batch.get(engine_name)
    if batch is None:
        return [1]
    return batch.pad_to or sorted({1, batch.size})


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
    batch = stage.batch.get(engine_name)
    counts = batch.pad_to if batch is not None and batch.pad_to else [1]
    for side in FREE_SIDES:
        feeds = [_zeros(runner.session.inputs, rows, None, side) for rows in counts]
        try:
            for fed in feeds:
                runner.session.run(fed, slot)
        except (EngineError, StageInputError) as error:
            log.debug("stage '%s' does not run at sides of %d: %s", stage.name, side, error)
        else:
            return feeds[0]
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


def run_examples(
    pipeline: Pipeline, folder: Path, stages: Sequence[LoadedStage], step: Step = unwatched
) -> Work | None:
    """Run the pipeline's own examples through all stages in every version, each new shape on every slot of each engine.

    A runtime prepares a shape when it first meets it: OpenVINO took up to twice as long over one it had not seen in
    that slot, an eighth of the requests of a short replay. Buckets and a full batch do not cover rows that vary.

    Args:
        pipeline: Checked.
        folder: Where its file stands.
        stages: Loaded.
        step: Told of each stage before it runs an example.

    Returns:
        What the last stage gave for the first example, in the stable version; ``None`` where the pipeline names no
        examples that fit its first stage.

    Raises:
        InputError: The pipeline cannot serve its own example.
    """
    if pipeline.inputs is None:
        return None
    slots = [engine.max_inflight for engine in pipeline.engines.values()]
    seen: set[tuple[int, int, int, int]] = set()
    answer = None
    versions = range(max((len(loaded.versions) for loaded in stages), default=1))
    step(f"inputs '{pipeline.inputs}'")
    samples = call_function(pipeline.inputs, folder)
    if not isinstance(samples, list):
        raise InputError(f"inputs '{pipeline.inputs}': gives {type(samples).__name__}, not a list of samples.")
    for sample in samples[:EXAMPLES_MAX]:
        if pipeline.stages[0].python is None and sample.tensors is None:
            continue
        for version in versions:
            work = sample.work()
            try:
                for index, loaded in enumerate(stages):
                    step(f"stage '{loaded.stage.name}' on the pipeline's example '{sample.name}'")
                    work = _run_on_all(loaded, index, version, work, slots, seen)
            except (StageError, EngineError) as error:
                canary = ".canary" if version == CANARY and len(loaded.versions) > 1 else ""
                raise InputError(
                    f"stage '{loaded.stage.name}'{canary} fails on the pipeline's example '{sample.name}': {error}"
                ) from error
            answer = answer or work
    return answer


def _run_on_all(
    loaded: LoadedStage,
    index: int,
    version: int,
    work: Work,
    slots: Sequence[int],
    seen: set[tuple[int, int, int, int]],
) -> Work:
    """Run one piece of work on the preferred engine, and at a new shape on every other slot too."""
    bucket = loaded.bucket_of(work, version)
    shape = (index, version, bucket, work.items)
    runners = loaded.at(version).runners
    places = [(engine, slot) for engine in runners for slot in range(slots[engine])]
    if loaded.stage.python is not None or shape in seen:
        places = places[:1]
    seen.add(shape)
    results = []
    for engine, slot in places:
        batch = Batch(-1, -1, engine, index, version, bucket, 0, 0, [], [], [work])
        with opened(runners[engine]):
            runners[engine].run(batch, slot)
        results += batch.results
    if isinstance(results[0], StageError):
        raise results[0]
    return results[0]
