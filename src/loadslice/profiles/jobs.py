"""What there is to measure: every example input walked through every stage.

A job is what a worker of the server does with one batch: pad and stack the rows, run the model, hand the rows back; or
call one Python stage. A walk is the jobs of one request in the order in which it passes the stages, because that is
what a stage finds: what the stage before it has just written, caches that it has filled, and a runtime that has just
seen another shape. Timed in a loop by themselves, short stages took a fifth less than they take in a server; given
results that were written long ago, reading a recogniser's took twice as long.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadslice.backends.base import EngineError, Session
from loadslice.backends.gather import bucket_of, bucket_shape, gather, scatter
from loadslice.backends.python_stage import StageFunction
from loadslice.backends.twin import TwinSession
from loadslice.profiles.chain import Step, nobody, open_steps, walk
from loadslice.profiles.overdue import Overdue
from loadslice.spec.errors import InputError
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

    def __str__(self) -> str:
        shape = "" if self.shape is None else f" of {'x'.join(map(str, self.shape))}"
        return f"'{self.variant}' on engine '{self.engine}', {self.rows} rows{shape}"


class Job(NamedTuple):
    """One batch's work."""

    key: Key
    is_model: bool
    call: Call


Walk = list[Job]
"""One request's way through the stages, each on one of its engines."""


class _Batch(NamedTuple):
    """What a job works on."""

    works: list[Work]
    held: list[Work] | None = None
    """Of one request on its way: what each stage finds. A job reads its place and writes the next one's, so that every
    stage finds what was just made; stages that are not run leave what they gave when the input was first walked."""
    place: int = 0

    def found(self) -> list[Work]:
        """What there is to work on now."""
        return self.works if self.held is None else [self.held[self.place]]

    def leave(self, made: Work) -> None:
        """For the stage after."""
        if self.held is not None:
            self.held[self.place + 1] = made


@dataclass(frozen=True, slots=True)
class Jobs:
    """Everything to measure of one pipeline."""

    walks: list[Walk]
    sources: dict[Key, str]
    """How each kind of work is run: runtime, version, device, precision, threads."""
    inputs: list[InputWork]
    steps: list[Step]


def collect(
    pipeline: Pipeline,
    folder: Path,
    samples: Sequence[Sample],
    on: Sequence[str] | None = None,
    overdue: Overdue | None = None,
) -> Jobs:
    """Load every stage and walk every input through them.

    Beside the walks of the inputs there are walks of batches, as full as whole requests make them, and of rows of
    zeros for buckets that no input falls into: what the pipeline file says may come is measured.

    Args:
        pipeline: From `loadslice.spec.pipeline.load`.
        folder: The folder of the pipeline file.
        samples: Example inputs.
        on: Engines to measure; ``None``: all.
        overdue: Told of each model that is loaded and each stage of a walk; ``None``: nobody looks after these.

    Raises:
        InputError: An unknown engine, a stage that cannot be loaded or measured, or an input that a stage refuses.
    """
    for name in on or ():
        if name not in pipeline.engines:
            raise InputError(f"--on {name}: not an engine of this pipeline ({', '.join(pipeline.engines)}).")
    begin = nobody if overdue is None else overdue.begin
    steps = open_steps(pipeline, folder, on, begin)
    passed = [walk(sample, steps, begin) for sample in samples]
    if overdue is not None:
        overdue.end()
    inputs = [
        InputWork(input=sample.name, stages=[_asked(step, work) for step, work in zip(steps, works, strict=False)])
        for sample, works in zip(samples, passed, strict=True)
    ]
    sources: dict[Key, str] = {}
    walks: list[Walk] = []
    for turn in range(max(len(stage.engine_names) for stage in pipeline.stages)):
        # In each turn a stage runs on the next of its engines; a stage that has fewer begins again.
        engines = [_engine(step.stage, on, turn) for step in steps]
        for works in passed:
            held = list(works)
            alone = [[_Batch([work], held, place)] if work.items else [] for place, work in enumerate(works[:-1])]
            walks.append(list(_jobs(steps, engines, alone, sources)))
        of_stage = [[works[index] for works in passed if works[index].items] for index in range(len(steps))]
        batches = [_batches(*place) for place in zip(steps, engines, of_stage, strict=True)]
        walks.append(list(_jobs(steps, engines, batches, sources)))
        absent = [_absent(*place, sources) for place in zip(steps, engines, strict=True)]
        walks.append(list(_jobs(steps, engines, absent, sources)))
    return Jobs([one for one in walks if one], sources, inputs, steps)


def _engine(stage: Stage, on: Sequence[str] | None, turn: int) -> str | None:
    measured = [name for name in stage.engine_names if on is None or name in on]
    return measured[turn % len(measured)] if measured else None


def _jobs(
    steps: Sequence[Step],
    engines: Sequence[str | None],
    groups: Sequence[Sequence[_Batch]],
    sources: dict[Key, str],
) -> Iterator[Job]:
    """Jobs of one walk, stage by stage. ``sources`` gets what is new."""
    for step, engine, of_stage in zip(steps, engines, groups, strict=True):
        if engine is None or isinstance(step.sessions.get(engine), TwinSession):
            continue  # a twin is not measured, see `loadslice.profiles.twins`
        for batch in of_stage:
            works = batch.works
            rows = sum(work.items for work in works)
            key = Key(step.stage.variant_id, engine, rows, _shape(step, works[0]))
            if _accepted(step.stage, key):
                # A padded batch takes as long as a full one of that size, and is looked up as such.
                key = key._replace(rows=step.padded(engine, rows) or rows)
                sources.setdefault(key, _source(step, engine))
                yield Job(key, step.function is None, _call(step, engine, batch))


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


def _batches(step: Step, engine: str | None, works: Sequence[Work]) -> list[_Batch]:
    """Batches of 2, 4, ... rows up to the engine's most, or of the sizes that it pads to, for each shape.

    They are made of whole requests, again from the first.
    """
    batch = None if engine is None or step.function is not None else step.stage.batch.get(engine)
    if batch is None:
        return []
    by_shape: dict[tuple[int, ...] | None, list[Work]] = {}
    for work in works:
        by_shape.setdefault(_shape(step, work), []).append(work)
    powers = [*(2**power for power in range(1, batch.size.bit_length()) if 2**power < batch.size), batch.size]
    sizes = batch.pad_to or powers
    found = [_filled(members, size) for members in by_shape.values() for size in sizes]
    return [_Batch(group) for group in found if len(group) > 1]


def _filled(works: Sequence[Work], rows_max: int) -> list[Work]:
    """As many whole requests as fit, in turn."""
    group: list[Work] = []
    rows = 0
    for work in islice(cycle(works), len(works) + rows_max):
        if rows + work.items <= rows_max:
            group.append(work)
            rows += work.items
    return group


def _absent(step: Step, engine: str | None, sources: Mapping[Key, str]) -> list[_Batch]:
    """One row of zeros, and a full batch, for each bucket that no input of this stage falls into.

    And, of an engine that pads its batches, every size that they are padded to.
    """
    if engine is None or step.function is not None:
        return []
    stage = step.stage
    seen = {key.shape for key in sources if (key.variant, key.engine) == (stage.variant_id, engine)}
    batch = stage.batch.get(engine)
    groups = []
    for bucket in stage.buckets:
        if tuple(bucket) in seen:
            continue
        for rows in (
            batch.pad_to if batch is not None and batch.pad_to else sorted({1, 1 if batch is None else batch.size})
        ):
            work = _zeros(step, bucket, rows)
            groups += [_Batch([work])] if work is not None else []
    return groups


def _zeros(step: Step, bucket: list[int], rows: int) -> Work | None:
    """Rows of a bucket; ``None`` where the model's other inputs leave open what they hold."""
    tensors = {}
    for info in step.inputs:
        sides = bucket if info is step.inputs[0] else list(info.shape[1:])
        if info.dtype.kind == "O" or any(side is None for side in sides):
            return None
        tensors[info.name] = np.zeros((rows, *(side for side in sides if side is not None)), info.dtype)
    return Work(tensors)


def _accepted(stage: Stage, key: Key) -> bool:
    accept = stage.accept.get(key.engine)
    if accept is None:
        return True
    few_enough = accept.max_items is None or key.rows <= accept.max_items
    fits = accept.shape is None or key.shape is None or list(key.shape) == accept.shape[1:]
    return few_enough and fits


def _call(step: Step, engine: str, batch: _Batch) -> Call:
    if step.function is not None:
        return partial(_run_python, step.function, batch)
    session = step.sessions[engine]
    bucket = bucket_shape(step.stage, bucket_of(step.stage, batch.works[0], session.inputs))
    padded = step.padded(engine, sum(work.items for work in batch.works))
    what = f"stage '{step.stage.name}' on engine '{engine}'"
    return partial(_run_model, what, session, batch, bucket, step.stage.carry, padded)


def _run_python(function: StageFunction, batch: _Batch, _slot: int) -> Work:
    # A stage may replace what its work holds; the next call must find it as it was.
    (work,) = batch.found()
    made = function(Work(dict(work.tensors), work.context))
    batch.leave(made)
    return made


def _run_model(
    what: str,
    session: Session,
    batch: _Batch,
    bucket: list[int] | None,
    carry: Sequence[str],
    padded: int,
    slot: int,
) -> list[Work]:
    works = batch.found()
    rows = [work.items for work in works]
    try:
        outputs = session.run(gather(works, bucket, session.inputs, padded), slot)
    except (StageError, EngineError) as error:
        raise EngineError(f"{what}, {sum(rows)} rows: {error}") from error
    if padded:
        outputs = {name: tensor[: sum(rows)] for name, tensor in outputs.items()}
    parts = scatter(outputs, rows)
    made = [
        Work({name: work.tensors[name] for name in carry if name in work.tensors} | part, work.context)
        for part, work in zip(parts, works, strict=True)
    ]
    batch.leave(made[0])
    return made


def _source(step: Step, engine: str) -> str:
    if step.function is not None:
        return f"python {step.stage.python}"
    said = step.sessions[engine].describe()
    return f"{said['runtime']} {said['version']} {said['device']} {said['precision']} threads={said['threads']}"
