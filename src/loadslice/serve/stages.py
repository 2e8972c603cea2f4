"""Stages made ready to run: models loaded on their engines, Python functions found."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loadslice.backends.base import REMOTE, EngineError, Session, TensorInfo
from loadslice.backends.gather import bucket_of, check_rows
from loadslice.backends.isolated.host import EngineProcess
from loadslice.backends.isolated.session import Hosts, IsolatedSession
from loadslice.backends.python_stage import open_python_stage
from loadslice.policy.columns import CANARY, STABLE
from loadslice.policy.tables import versions
from loadslice.serve.clock import Clock
from loadslice.serve.patience import Step
from loadslice.serve.runners import ModelRunner, PythonRunner, Runner
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.pipeline import Canary, Pipeline, Stage
from loadslice.spec.work import Work

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One version of a stage, ready on each of the stage's engines."""

    runners: dict[int, Runner]
    """By engine index."""
    inputs: list[TensorInfo] | None
    """What its model reads; ``None`` for a Python stage."""
    outputs: list[TensorInfo] | None


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """One stage, ready in each of its versions: one, or two with a canary."""

    stage: Stage
    versions: tuple[LoadedVersion, ...]

    @property
    def stable(self) -> LoadedVersion:
        """What everybody gets who does not get the canary."""
        return self.versions[STABLE]

    def at(self, version: int) -> LoadedVersion:
        """This stage as a request of a version meets it; a stage without a canary is the same in both."""
        return self.versions[min(version, len(self.versions) - 1)]

    def bucket_of(self, work: Work, version: int = STABLE) -> int:
        """Shape bucket of the work at this stage.

        Raises:
            StageInputError: The tensor that buckets are about is missing.
        """
        return bucket_of(self.stage, work, self.at(version).inputs) if self.stage.buckets else 0


def load_stages(pipeline: Pipeline, folder: Path, clock: Clock, step: Step | None = None) -> list[LoadedStage]:
    """Load every stage, in every version, on each of its engines.

    Args:
        pipeline: Checked.
        folder: Where the pipeline file stands; models and Python stages are found from there.
        clock: Stamps copy and compute times.
        step: Told of each model before it is loaded.

    Raises:
        InputError: A model or a function cannot be loaded, a stage names only a variant, the two versions of a stage
            do not fit the same clients, or an engine's memory does not hold both.
    """
    check_memory(pipeline)
    loaded: list[LoadedStage] = []
    hosts = Hosts(step)
    try:
        for index, stage in enumerate(pipeline.stages):
            log.info("loading stage '%s': %s on %s", stage.name, _what(stage), ", ".join(stage.engine_names))
            loaded.append(_load_stage(pipeline, stage, folder, clock, hosts, first=index == 0))
            _check_versions(loaded[-1], first=index == 0, last=index == len(pipeline.stages) - 1)
        _tell_carried(loaded)
    except BaseException:
        close_stages(loaded)
        hosts.stop()
        raise
    return loaded


def _what(stage: Stage) -> str:
    return str(stage.python or stage.model or stage.variant)


def _tell_carried(loaded: list[LoadedStage]) -> None:
    """Have the first stage ask clients for what it only carries, and the last one say what it only hands on."""
    read = {info.name: info for stage in loaded[1:] for info in stage.stable.inputs or []}
    made = {info.name: info for stage in loaded[:-1] for info in stage.stable.outputs or []}
    first, last = loaded[0], loaded[-1]
    if first.stage.carry and first.stable.inputs is not None:
        more = [read[name] for name in first.stage.carry if name in read]
        loaded[0] = replace(
            first, versions=tuple(replace(v, inputs=[*(v.inputs or []), *more]) for v in first.versions)
        )
    if last.stage.carry and last.stable.outputs is not None and len(loaded) > 1:
        more = [made[name] for name in last.stage.carry if name in made]
        loaded[-1] = replace(
            last, versions=tuple(replace(v, outputs=[*(v.outputs or []), *more]) for v in last.versions)
        )


def close_stages(stages: Sequence[LoadedStage]) -> None:
    """Free every model, and end the processes of engines that have one."""
    for process in set(processes_of(stages).values()):
        process.close()  # first: one that hangs would never say that it has freed a model
    for stage in stages:
        for version in stage.versions:
            _close(version.runners)


def processes_of(stages: Sequence[LoadedStage]) -> dict[int, EngineProcess]:
    """Processes by engine index, of the engines that have one of their own."""
    return {
        engine: session.process
        for stage in stages
        for version in stage.versions
        for engine, runner in version.runners.items()
        if isinstance(session := getattr(runner, "session", None), IsolatedSession)
    }


def _close(runners: Mapping[int, Runner]) -> None:
    for runner in runners.values():
        runner.close()


def goes_by_turns(pipeline: Pipeline, engine_name: str) -> bool:
    """Whether an engine does not hold the models of all its stages at once."""
    memory_mb = pipeline.engines[engine_name].memory_mb
    return memory_mb is not None and _needs_mb(pipeline, engine_name) > memory_mb


def _needs_mb(pipeline: Pipeline, engine_name: str) -> float:
    """What all models of an engine take, both versions of a stage with a canary."""
    here = [stage for stage in pipeline.stages if engine_name in stage.engine_names]
    return sum((stage.memory_mb or 0.0) * versions(stage) for stage in here)


def check_memory(pipeline: Pipeline) -> None:
    """Refuse two versions on an engine whose models are loaded and dropped by turns: the core counts one of each stage.

    Raises:
        InputError: Names the engine, its memory, and what its stages need.
    """
    for name, engine in pipeline.engines.items():
        has_canary = any(stage.canary is not None and name in stage.engine_names for stage in pipeline.stages)
        if has_canary and goes_by_turns(pipeline, name):
            raise InputError(
                f"engines.{name}.memory_mb: {engine.memory_mb:g} is less than the {_needs_mb(pipeline, name):g} that "
                "its stages' models need together, both versions of each; a canary cannot be loaded and dropped by "
                "turns. Give the engine fewer stages or more memory, or the pipeline no canary."
            )


def _check_versions(loaded: LoadedStage, *, first: bool, last: bool) -> None:
    """Refuse a canary that takes or gives something else than what clients were told of.

    Raises:
        InputError: Names the stage and what differs.
    """
    if len(loaded.versions) == 1:
        return
    canary = loaded.at(CANARY)
    for what, matters, old, new in (
        ("inputs", first, loaded.stable.inputs, canary.inputs),
        ("outputs", last, loaded.stable.outputs, canary.outputs),
    ):
        if matters and old is not None and new is not None and set(old) != set(new):
            raise InputError(
                f"stage '{loaded.stage.name}'.canary: its {what} are {_told(new)}, the stable version's are "
                f"{_told(old)}; clients would see which one serves them."
            )


def _told(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(
        f"'{info.name}' {info.dtype} {'x'.join('?' if side is None else str(side) for side in info.shape)}"
        for info in tensors
    )


def _load_stage(
    pipeline: Pipeline, stage: Stage, folder: Path, clock: Clock, hosts: Hosts, *, first: bool
) -> LoadedStage:
    loaded = [_load_version(pipeline, stage, stage, folder, clock, hosts, first=first)]
    if stage.canary is not None:
        try:
            loaded.append(_load_version(pipeline, stage, stage.canary, folder, clock, hosts, first=first))
        except BaseException as error:
            _close(loaded[STABLE].runners)
            if isinstance(error, InputError):
                raise InputError(f"stage '{stage.name}'.canary: {error}") from error
            raise
    return LoadedStage(stage, tuple(loaded))


def _load_version(
    pipeline: Pipeline, stage: Stage, source: Stage | Canary, folder: Path, clock: Clock, hosts: Hosts, *, first: bool
) -> LoadedVersion:
    """Load what a stage, or its canary, names on each of the stage's engines."""
    engine_names = list(pipeline.engines)
    indices = {name: engine_names.index(name) for name in stage.engine_names}
    if source.python is not None:
        function = open_python_stage(source.python, folder)
        return LoadedVersion({index: PythonRunner(function, clock) for index in indices.values()}, None, None)
    model = _model_file(pipeline, stage, source, folder)
    there = Path(stage.variant_id if source is stage else stage.canary_id)
    runners: dict[int, Runner] = {}
    session: Session | None = None
    try:
        for name, index in indices.items():
            engine = pipeline.engines[name]
            where = there if engine.backend in REMOTE else model
            try:
                runner = ModelRunner(stage, name, engine, partial(hosts.load, name, engine, where), clock, first=first)
            except EngineError as error:
                raise InputError(f"stage '{stage.name}': cannot be loaded, {error}") from error
            if session is not None:
                _check_alike(stage, name, runner.session, session)
            runners[index] = runner
            session = runner.session
            check_rows(stage, name, session.inputs)
            if goes_by_turns(pipeline, name):
                runner.close()  # what it reads and gives is known; the next may need the room
    except BaseException:
        _close(runners)
        raise
    assert session is not None
    if any(batch.pad_to for batch in stage.batch.values()):
        # A client need not know which row counts an engine was built for.
        return LoadedVersion(runners, _any_rows(session.inputs), _any_rows(session.outputs))
    return LoadedVersion(runners, session.inputs, session.outputs)


def _model_file(pipeline: Pipeline, stage: Stage, source: Stage | Canary, folder: Path) -> Path:
    """The file of a stage's model; of one that only other servers run, its name."""
    if source.model is not None:
        return resolve_model(source.model, folder)
    here = [name for name in stage.engine_names if pipeline.engines[name].backend not in REMOTE]
    if here:
        raise InputError(
            f"stage '{stage.name}' names the variant '{source.variant}' only, which can be simulated but not served on "
            f"engine '{here[0]}'. Give it `model: FILE`."
        )
    return Path(stage.variant_id)


def _check_alike(stage: Stage, name: str, session: Session, before: Session) -> None:
    """Refuse an engine whose model reads something else than the same stage's model on the engine before.

    Raises:
        InputError: Names the stage, the engine and what differs.
    """
    kinds = [[(info.name, info.dtype, len(info.shape)) for info in one.inputs] for one in (session, before)]
    if sorted(kinds[0], key=str) != sorted(kinds[1], key=str):
        raise InputError(
            f"stage '{stage.name}' on engine '{name}': its model reads {_told(session.inputs)}, on the stage's other "
            f"engines it reads {_told(before.inputs)}. Name the same model everywhere."
        )


def _any_rows(tensors: Sequence[TensorInfo]) -> list[TensorInfo]:
    return [TensorInfo(info.name, info.dtype, (None, *info.shape[1:])) if info.shape else info for info in tensors]
