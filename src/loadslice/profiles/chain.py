"""A pipeline run in one process, one request at a time: how inputs are walked before anything is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadslice.backends.base import EngineError, Session, TensorInfo, open_backend
from loadslice.backends.gather import bucket_of, bucket_shape, gather, no_rows
from loadslice.backends.python_stage import StageFunction, open_python_stage
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.work import Sample, StageError, Work


@dataclass(frozen=True, slots=True)
class Step:
    """One stage, ready to run."""

    stage: Stage
    function: StageFunction | None
    """Of a Python stage."""
    sessions: Mapping[str, Session]
    """Of a model stage, by engine, in preference order; empty for a Python stage."""

    @property
    def inputs(self) -> list[TensorInfo]:
        """Of a model stage."""
        return next(iter(self.sessions.values())).inputs

    def run(self, work: Work) -> Work:
        """Do the stage's work, on the first engine loaded; ``work`` is left as it is.

        Raises:
            StageError: The stage refuses the work or fails.
            EngineError: The runtime fails.
        """
        if self.function is not None:
            return self.function(Work(dict(work.tensors), work.context))
        name, session = next(iter(self.sessions.items()))
        if work.items == 0:
            return Work(no_rows(session.outputs), work.context)
        bucket = bucket_shape(self.stage, bucket_of(self.stage, work, session.inputs))
        accept, batch = self.stage.accept.get(name), self.stage.batch.get(name)
        static = None if accept is None or accept.shape is None else accept.shape[1:]
        padded = next((rows for rows in batch.pad_to if rows >= work.items), 0) if batch is not None else 0
        outputs = session.run(gather([work], static or bucket, session.inputs, padded))
        return Work({name: rows[: work.items] if padded else rows for name, rows in outputs.items()}, work.context)


def open_steps(pipeline: Pipeline, folder: Path, on: Sequence[str] | None = None) -> list[Step]:
    """Load every stage.

    Args:
        pipeline: From `loadslice.spec.pipeline.load`.
        folder: The folder of the pipeline file.
        on: Load models on these engines; a stage that has none of them is loaded on the engine it prefers. ``None``:
            on every engine of the stage.

    Raises:
        InputError: A stage that cannot be loaded, or that names a variant and no model.
    """
    return [_open(stage, pipeline, folder, on) for stage in pipeline.stages]


def close(steps: Sequence[Step]) -> None:
    """Free the models."""
    for step in steps:
        for session in step.sessions.values():
            session.close()


def walk(sample: Sample, steps: Sequence[Step]) -> list[Work]:
    """Run one input through all stages.

    Returns:
        The work each stage found, then the answer: one more than there are stages.

    Raises:
        InputError: A stage refuses the input; names both.
    """
    works = [sample.work()]
    for step in steps:
        try:
            works.append(step.run(works[-1]))
        except (StageError, EngineError) as error:
            raise InputError(f"input '{sample.name}': stage '{step.stage.name}' refuses it: {error}") from error
    return works


def _open(stage: Stage, pipeline: Pipeline, folder: Path, on: Sequence[str] | None) -> Step:
    if stage.python is not None:
        return Step(stage, open_python_stage(stage.python, folder), {})
    if stage.model is None:
        raise InputError(
            f"stage '{stage.name}' names only the variant '{stage.variant}', which cannot be run here. "
            "Add `model: FILE.onnx` to the stage."
        )
    model = resolve_model(stage.model, folder)
    names = [name for name in stage.engine_names if on is None or name in on] or stage.engine_names[:1]
    sessions = {
        name: open_backend(pipeline.engines[name].backend).load(model, pipeline.engines[name]) for name in names
    }
    return Step(stage, None, sessions)
