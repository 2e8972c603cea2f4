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

from loadslice.backends.base import Session
from loadslice.backends.gather import bucket_of, bucket_shape, gather, scatter
from loadslice.backends.python_stage import StageFunction
from loadslice.profiles.chain import Step, open_steps, walk
from loadslice.spec.errors import InputError
from loadslice.spec.latency import InputWork, StageWork
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.work import Sample, Work

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
    steps: list[Step]


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
    steps = open_steps(pipeline, folder, on)
    walks = [walk(sample, steps) for sample in samples]
    inputs = [
        InputWork(input=sample.name, stages=[_asked(step, work) for step, work in zip(steps, works, strict=False)])
        for sample, works in zip(samples, walks, strict=True)
    ]
    jobs: dict[Key, Job] = {}
    for index, step in enumerate(steps):
        works = [one[index] for one in walks if one[index].items]
        for engine in step.stage.engine_names:
            if on is None or engine in on:
                _add_jobs(jobs, step, engine, works)
    return Jobs(list(jobs.values()), inputs, steps)


def _asked(step: Step, work: Work) -> StageWork:
    shape = _shape(step, work)
    return StageWork(stage=step.stage.name, items=work.items, shape=None if shape is None else list(shape))


def _shape(step: Step, work: Work) -> tuple[int, ...] | None:
    """The bucket the work falls into, its own row shape where it fits none, ``None`` where shapes do not matter."""
    stage = step.stage
    if step.function is not None or not stage.buckets:
        return None
    bucket = bucket_shape(stage, bucket_of(stage, work, step.inputs))
    if bucket is not None:
        return tuple(bucket)
    return tuple(int(side) for side in next(iter(work.tensors.values())).shape[1:])


def _add_jobs(jobs: dict[Key, Job], step: Step, engine: str, works: Sequence[Work]) -> None:
    stage = step.stage
    groups: list[list[Work]] = [[work] for work in works]
    if engine in stage.batch and step.function is None:
        groups += _full_batches(step, works, stage.batch[engine].size)
    for group in groups:
        rows = sum(work.items for work in group)
        key = Key(stage.variant_id, engine, rows, _shape(step, group[0]))
        if not _accepted(stage, key):
            continue
        if key not in jobs:
            jobs[key] = Job(key, step.function is None, _source(step, engine))
        jobs[key].calls.append(_call(step, engine, group))


def _full_batches(step: Step, works: Sequence[Work], size: int) -> list[list[Work]]:
    """One batch per shape, as full as whole requests fill it: what a batching window may come to."""
    by_shape: dict[tuple[int, ...] | None, list[Work]] = {}
    for work in works:
        group = by_shape.setdefault(_shape(step, work), [])
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


def _call(step: Step, engine: str, works: list[Work]) -> Call:
    if step.function is not None:
        return partial(_run_python, step.function, works[0])
    session = step.sessions[engine]
    bucket = bucket_shape(step.stage, bucket_of(step.stage, works[0], session.inputs))
    return partial(_run_model, session, works, bucket)


def _run_python(function: StageFunction, work: Work, _slot: int) -> Work:
    # A stage may replace what its work holds; the next call must find it as it was.
    return function(Work(dict(work.tensors), work.context))


def _run_model(session: Session, works: list[Work], bucket: list[int] | None, slot: int) -> list[Work]:
    outputs = session.run(gather(works, bucket, session.inputs), slot)
    parts = scatter(outputs, [work.items for work in works])
    return [Work(part, work.context) for part, work in zip(parts, works, strict=True)]


def _source(step: Step, engine: str) -> str:
    if step.function is not None:
        return f"python {step.stage.python}"
    said = step.sessions[engine].describe()
    return f"{said['runtime']} {said['version']} {said['device']} {said['precision']} threads={said['threads']}"
