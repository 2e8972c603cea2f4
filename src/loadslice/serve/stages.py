"""Stages made ready to run: models loaded on their engines, Python functions found.

A `Runner` runs one batch of one stage on one engine; it is called by that engine's worker threads and by nobody else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loadslice.backends.base import Session, TensorInfo, open_backend
from loadslice.backends.gather import bucket_of, bucket_shape, gather, no_rows, scatter
from loadslice.backends.python_stage import StageFunction, open_python_stage
from loadslice.serve.clock import Clock
from loadslice.serve.request import Batch
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.work import StageError, StageInputError, Tensor, Work


class Runner(Protocol):
    """One stage on one engine."""

    def run(self, batch: Batch, slot: int) -> None:
        """Fill in results and times; blocks.

        Raises:
            EngineError: The runtime failed; the batch has no results.
        """

    def probe(self, slot: int) -> None:
        """Do the smallest piece of real work.

        Raises:
            EngineError: The runtime failed.
        """

    def close(self) -> None:
        """Free what was loaded."""


class PythonRunner:
    """Runs a function request by request, so that one bad request fails alone."""

    def __init__(self, function: StageFunction, clock: Clock) -> None:
        self._function = function
        self._clock = clock

    def run(self, batch: Batch, slot: int) -> None:
        """See `Runner.run`."""
        for work in batch.works:
            try:
                batch.results.append(self._function(work))
            except StageError as fault:
                batch.results.append(fault)
        batch.compute_ns = self._clock.now_ns() - batch.started_ns

    def probe(self, slot: int) -> None:
        """Reaching the worker is the whole round trip: a function has no state to ask."""

    def close(self) -> None:
        """Nothing was loaded."""


class ModelRunner:
    """Runs a model on a batch: gather, run, scatter.

    Args:
        stage: The stage.
        engine: Name of the engine.
        session: Its model, loaded there.
        clock: Stamps copy and compute times.
        first: Whether its tensors come from the client.
    """

    def __init__(self, stage: Stage, engine: str, session: Session, clock: Clock, *, first: bool) -> None:
        self.session = session
        self._stage = stage
        accept = stage.accept.get(engine)
        self._static = None if accept is None or accept.shape is None else accept.shape[1:]
        self._first = first
        self._clock = clock
        self.probe_feeds: dict[str, Tensor] | None = None
        """Set once warm: the smallest feeds that this model has run on."""

    def padded_shape(self, bucket: int) -> list[int] | None:
        """What rows of a bucket are padded to here: an engine of one static shape takes every bucket at that shape."""
        return self._static if self._static is not None else bucket_shape(self._stage, bucket)

    def run(self, batch: Batch, slot: int) -> None:
        """See `Runner.run`."""
        shape = self.padded_shape(batch.bucket)
        try:
            batch.results.extend(self._run(batch, batch.works, shape, slot))
        except StageInputError:
            # Only the request whose tensors do not fit may fail: find it by running each alone.
            for work in batch.works:
                try:
                    batch.results.extend(self._run(batch, [work], shape, slot))
                except StageInputError as fault:
                    # Tensors made by the stage before are not the client's fault.
                    batch.results.append(fault if self._first else StageError(str(fault)))

    def _run(self, batch: Batch, works: Sequence[Work], shape: list[int] | None, slot: int) -> list[Work]:
        began_ns = self._clock.now_ns()
        rows = [work.items for work in works]
        if sum(rows) == 0:
            outputs = no_rows(self.session.outputs)
            ran_ns = done_ns = self._clock.now_ns()
        else:
            feeds = gather(works, shape, self.session.inputs)
            ran_ns = self._clock.now_ns()
            outputs = self.session.run(feeds, slot)
            done_ns = self._clock.now_ns()
        results = [Work(tensors, work.context) for tensors, work in zip(scatter(outputs, rows), works, strict=True)]
        batch.compute_ns += done_ns - ran_ns
        batch.copy_ns += (ran_ns - began_ns) + (self._clock.now_ns() - done_ns)
        return results

    def probe(self, slot: int) -> None:
        """See `Runner.probe`."""
        if self.probe_feeds is not None:
            self.session.run(self.probe_feeds, slot)

    def close(self) -> None:
        """See `Runner.close`."""
        self.session.close()


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """One stage, ready on each of its engines."""

    stage: Stage
    runners: dict[int, Runner]
    """By engine index."""
    inputs: list[TensorInfo] | None
    """What its model reads; ``None`` for a Python stage."""
    outputs: list[TensorInfo] | None

    def bucket_of(self, work: Work) -> int:
        """Shape bucket of the work at this stage.

        Raises:
            StageInputError: The tensor that buckets are about is missing.
        """
        return bucket_of(self.stage, work, self.inputs) if self.stage.buckets else 0


def load_stages(pipeline: Pipeline, folder: Path, clock: Clock) -> list[LoadedStage]:
    """Load every stage on each of its engines.

    Args:
        pipeline: Checked.
        folder: Where the pipeline file stands; models and Python stages are found from there.
        clock: Stamps copy and compute times.

    Raises:
        InputError: A model or a function cannot be loaded, or a stage names only a variant.
    """
    loaded: list[LoadedStage] = []
    try:
        for index, stage in enumerate(pipeline.stages):
            loaded.append(_load_stage(pipeline, stage, folder, clock, first=index == 0))
    except BaseException:
        close_stages(loaded)
        raise
    return loaded


def close_stages(stages: Sequence[LoadedStage]) -> None:
    """Free every model."""
    for stage in stages:
        for runner in stage.runners.values():
            runner.close()


def _load_stage(pipeline: Pipeline, stage: Stage, folder: Path, clock: Clock, *, first: bool) -> LoadedStage:
    engine_names = list(pipeline.engines)
    indices = {name: engine_names.index(name) for name in stage.engine_names}
    if stage.python is not None:
        function = open_python_stage(stage.python, folder)
        return LoadedStage(stage, {index: PythonRunner(function, clock) for index in indices.values()}, None, None)
    if stage.model is None:
        raise InputError(
            f"stage '{stage.name}' names the variant '{stage.variant}' only, which can be simulated but not served. "
            "Give it `model: FILE`."
        )
    model = resolve_model(stage.model, folder)
    runners: dict[int, Runner] = {}
    session: Session | None = None
    try:
        for name, index in indices.items():
            engine = pipeline.engines[name]
            session = open_backend(engine.backend).load(model, engine)
            runners[index] = ModelRunner(stage, name, session, clock, first=first)
    except BaseException:
        for runner in runners.values():
            runner.close()
        raise
    assert session is not None
    return LoadedStage(stage, runners, session.inputs, session.outputs)
