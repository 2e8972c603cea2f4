"""What there is to measure: every example input walked through every stage, gathered into jobs.

A job is what a worker of the server does with one batch: pad and stack the rows, run the model, hand the rows back; or
call one Python stage. Jobs that a latency table cannot tell apart (same stage, engine, rows and shape) are one job with
several calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from loadslice.backends.base import EngineError, Session, open_backend
from loadslice.backends.gather import bucket_of, bucket_shape, gather, no_rows, scatter
from loadslice.backends.python_stage import StageFunction, open_python_stage
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.latency import InputWork, StageWork
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.work import Sample, StageError, Work

Call = Callable[[int], object]
"""Does one batch's work in the slot it is given."""


class Key(NamedTuple):
    """What a latency table tells apart."""

    variant: str
    engine: str
    rows: int
    shape: tuple[int, ...] | None


@dataclass(slots=True)
class Job:
    """Work of one kind."""

    key: Key
    is_model: bool
    source: str
    """How it is run: runtime, version, device, precision, threads."""
    calls: list[Call] = field(default_factory=list)
    """One per example that asks for it."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Everything to measure of one pipeline."""

    jobs: list[Job]
    inputs: list[InputWork]
    sessions: list[Session]

    def close(self) -> None:
        """Free the models."""
        for session in self.sessions:
            session.close()


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One stage, ready to run."""

    stage: Stage
    function: StageFunction | None
    """Of a Python stage."""
    sessions: dict[str, Session]
    """Of a model stage, by engine."""
    measured: list[str]
    """Engines to measure the stage on; the first session serves the walk even when it is not among them."""


def collect(pipeline: Pipeline, folder: Path, samples: Sequence[Sample], on: Sequence[str] | None = None) -> Jobs:
    """Load every stage and walk every input through them.

    Args:
        pipeline: From `loadslice.spec.pipeline.load`.
        folder: The folder of the pipeline file.
        samples: Example inputs.
        on: Engines to measure; ``None``: all.

    Raises:
        InputError: An unknown engine, a stage that cannot be loaded or measured, or an input that a stage refuses.
    """
    for name in on or ():
        if name not in pipeline.engines:
            raise InputError(f"--on {name}: not an engine of this pipeline ({', '.join(pipeline.engines)}).")
    loaded = [_load(stage, pipeline, folder, on) for stage in pipeline.stages]
    works: list[list[Work]] = [[] for _ in loaded]
    inputs = []
    for sample in samples:
        before = _walk(sample, loaded)
        for stage_works, work in zip(works, before, strict=True):
            stage_works.append(work)
        asked = [_asked(one.stage, work) for one, work in zip(loaded, before, strict=True)]
        inputs.append(InputWork(input=sample.name, stages=asked))
    jobs: dict[Key, Job] = {}
    for one, stage_works in zip(loaded, works, strict=True):
        for engine in one.measured:
            _add_jobs(jobs, one, engine, [work for work in stage_works if work.items])
    return Jobs(list(jobs.values()), inputs, [session for one in loaded for session in one.sessions.values()])


def _load(stage: Stage, pipeline: Pipeline, folder: Path, on: Sequence[str] | None) -> _Loaded:
    measured = [name for name in stage.engine_names if on is None or name in on]
    if stage.python is not None:
        return _Loaded(stage, open_python_stage(stage.python, folder), {}, measured)
    if stage.model is None:
        raise InputError(
            f"stage '{stage.name}' names only the variant '{stage.variant}', which cannot be run here to be measured. "
            "Add `model: FILE.onnx` to the stage."
        )
    model = resolve_model(stage.model, folder)
    engines = measured or stage.engine_names[:1]
    sessions = {
        name: open_backend(pipeline.engines[name].backend).load(model, pipeline.engines[name]) for name in engines
    }
    return _Loaded(stage, None, sessions, measured)


def _walk(sample: Sample, loaded: Sequence[_Loaded]) -> list[Work]:
    """The work each stage finds for one input."""
    work = sample.work()
    before = []
    for one in loaded:
        before.append(work)
        try:
            work = _step(one, work)
        except (StageError, EngineError) as error:
            raise InputError(f"input '{sample.name}': stage '{one.stage.name}' refuses it: {error}") from error
    return before


def _step(one: _Loaded, work: Work) -> Work:
    if one.function is not None:
        return one.function(_copy(work))
    session = next(iter(one.sessions.values()))
    if work.items == 0:
        return Work(no_rows(session.outputs), work.context)
    bucket = bucket_shape(one.stage, bucket_of(one.stage, work, session.inputs))
    return Work(session.run(gather([work], bucket, session.inputs)), work.context)


def _asked(stage: Stage, work: Work) -> StageWork:
    shape = _shape(stage, work)
    return StageWork(stage=stage.name, items=work.items, shape=None if shape is None else list(shape))


def _shape(stage: Stage, work: Work) -> tuple[int, ...] | None:
    """The bucket the work falls into, its own row shape where it fits none, ``None`` where shapes do not matter."""
    if stage.python is not None or not stage.buckets:
        return None
    bucket = bucket_shape(stage, bucket_of(stage, work))
    if bucket is not None:
        return tuple(bucket)
    return tuple(int(side) for side in next(iter(work.tensors.values())).shape[1:])


def _add_jobs(jobs: dict[Key, Job], one: _Loaded, engine: str, works: Sequence[Work]) -> None:
    stage = one.stage
    groups: list[list[Work]] = [[work] for work in works]
    if engine in stage.batch:
        groups += _full_batches(stage, works, stage.batch[engine].size)
    for group in groups:
        rows = sum(work.items for work in group)
        key = Key(stage.variant_id, engine, rows, _shape(stage, group[0]))
        if not _accepted(stage, key):
            continue
        if key not in jobs:
            jobs[key] = Job(key, one.function is None, _source(one, engine))
        jobs[key].calls.append(_call(one, engine, group))


def _full_batches(stage: Stage, works: Sequence[Work], size: int) -> list[list[Work]]:
    """One batch per shape, as full as whole requests fill it: what a batching window may come to."""
    by_shape: dict[tuple[int, ...] | None, list[Work]] = {}
    for work in works:
        group = by_shape.setdefault(_shape(stage, work), [])
        if sum(member.items for member in group) + work.items <= size:
            group.append(work)
    return [group for group in by_shape.values() if len(group) > 1]


def _accepted(stage: Stage, key: Key) -> bool:
    accept = stage.accept.get(key.engine)
    if accept is None:
        return True
    few_enough = accept.max_items is None or key.rows <= accept.max_items
    fits = accept.shape is None or key.shape is None or list(key.shape) == accept.shape[1:]
    return few_enough and fits


def _call(one: _Loaded, engine: str, works: list[Work]) -> Call:
    if one.function is not None:
        return partial(_run_python, one.function, works[0])
    session = one.sessions[engine]
    bucket = bucket_shape(one.stage, bucket_of(one.stage, works[0], session.inputs))
    return partial(_run_model, session, works, bucket)


def _run_python(function: StageFunction, work: Work, _slot: int) -> Work:
    return function(_copy(work))


def _run_model(session: Session, works: list[Work], bucket: list[int] | None, slot: int) -> list[Work]:
    outputs = session.run(gather(works, bucket, session.inputs), slot)
    parts = scatter(outputs, [work.items for work in works])
    return [Work(part, work.context) for part, work in zip(parts, works, strict=True)]


def _copy(work: Work) -> Work:
    """A stage may replace what its work holds; the next call must find it as it was."""
    return Work(dict(work.tensors), work.context)


def _source(one: _Loaded, engine: str) -> str:
    if one.function is not None:
        return f"python {one.stage.python}"
    said = one.sessions[engine].describe()
    return f"{said['runtime']} {said['version']} {said['device']} {said['precision']} threads={said['threads']}"
