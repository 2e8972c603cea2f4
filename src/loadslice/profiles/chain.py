"""A pipeline run in one process, one request at a time: how inputs are walked before anything is measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadslice.backends.base import REMOTE, EngineError, Session, TensorInfo
from loadslice.backends.gather import bucket_of, bucket_shape, check_rows, gather, no_rows
from loadslice.backends.isolated.session import Hosts, IsolatedSession
from loadslice.backends.python_stage import StageFunction, open_python_stage
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.twin import TWIN
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

    def padded(self, engine: str, rows: int) -> int:
        """Rows that an engine pads a batch to; 0: it does not, or the batch is larger than all it was built for."""
        batch = self.stage.batch.get(engine)
        return 0 if batch is None else next((size for size in batch.pad_to if size >= rows), 0)

    def run(self, work: Work, slot: int = 0) -> Work:
        """Do the stage's work, on the first engine loaded; ``work`` is left as it is.

        Args:
            work: One request.
            slot: Of the engine, as in `loadslice.backends.base.Session.run`.

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
        accept = self.stage.accept.get(name)
        static = None if accept is None or accept.shape is None else accept.shape[1:]
        padded = self.padded(name, work.items)
        outputs = session.run(gather([work], static or bucket, session.inputs, padded), slot)
        carried = {name: work.tensors[name] for name in self.stage.carry if name in work.tensors}
        made = {name: rows[: work.items] if padded else rows for name, rows in outputs.items()}
        return Work(carried | made, work.context)


def nobody(_what: str) -> None:
    """Waits for what begins."""


def open_steps(
    pipeline: Pipeline, folder: Path, on: Sequence[str] | None = None, begin: Callable[[str], None] = nobody
) -> list[Step]:
    """Load every stage.

    Args:
        pipeline: From `loadslice.spec.pipeline.load`.
        folder: The folder of the pipeline file.
        on: Load models on these engines; a stage that has none of them is loaded on the engine it prefers. ``None``:
            on every engine of the stage.
        begin: Told of each model that is loaded now.

    Raises:
        InputError: A stage that cannot be loaded, or that names a variant and no model.
    """
    hosts = Hosts()
    try:
        return [_open(stage, pipeline, folder, on, hosts, begin) for stage in pipeline.stages]
    except BaseException:
        hosts.stop()
        raise


def close(steps: Sequence[Step]) -> None:
    """Free the models, and end the processes of engines that have one."""
    sessions = [session for step in steps for session in step.sessions.values()]
    for session in sessions:
        session.close()
    for process in {session.process for session in sessions if isinstance(session, IsolatedSession)}:
        process.close()


def walk(sample: Sample, steps: Sequence[Step], begin: Callable[[str], None] = nobody) -> list[Work]:
    """Run one input through all stages.

    Args:
        sample: The input.
        steps: Loaded.
        begin: Told of each stage that begins now.

    Returns:
        The work each stage found, then the answer: one more than there are stages.

    Raises:
        InputError: A stage refuses the input; names both.
    """
    works = [sample.work()]
    for step in steps:
        begin(f"input '{sample.name}' at stage '{step.stage.name}'")
        try:
            works.append(step.run(works[-1]))
        except (StageError, EngineError) as error:
            raise InputError(f"input '{sample.name}': stage '{step.stage.name}' refuses it: {error}") from error
    return works


def _open(
    stage: Stage,
    pipeline: Pipeline,
    folder: Path,
    on: Sequence[str] | None,
    hosts: Hosts,
    begin: Callable[[str], None],
) -> Step:
    begin(f"stage '{stage.name}': loading")
    if stage.python is not None:
        return Step(stage, open_python_stage(stage.python, folder), {})
    names = [name for name in stage.engine_names if on is None or name in on] or stage.engine_names[:1]
    here = [name for name in names if pipeline.engines[name].backend not in REMOTE]
    if stage.model is None and here:
        raise InputError(
            f"stage '{stage.name}' names only the variant '{stage.variant}', which cannot be run here. "
            "Add `model: FILE.onnx` to the stage."
        )
    model = resolve_model(stage.model, folder) if stage.model is not None else Path(stage.variant_id)
    sessions = {}
    for name in names:
        engine = pipeline.engines[name]
        begin(f"stage '{stage.name}' on engine '{name}': loading")
        if engine.backend == TWIN:
            engine = msgspec.structs.replace(engine, isolation="thread")  # its times are its sheet's, not measured
        sessions[name] = hosts.load(name, engine, Path(stage.variant_id) if name not in here else model)
        check_rows(stage, name, sessions[name].inputs)
    return Step(stage, None, sessions)
