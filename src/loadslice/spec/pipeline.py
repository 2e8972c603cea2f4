"""The pipeline file: engines, stages and every policy number.

Rules of this file: an unknown key is refused with its path; a name that points nowhere is refused with the names that
exist; what is not implemented is not a key. `load` returns a pipeline that the lowering can trust.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml
from loadslice.spec.pipeline_shares import check_shares
from loadslice.spec.pipeline_stage import TIME_MS_MAX, check_engine, check_stage, in_order, known, within

ClassName = Literal["critical_plus", "critical", "sheddable_plus", "sheddable"]
CLASSES: tuple[ClassName, ...] = ("critical_plus", "critical", "sheddable_plus", "sheddable")
"""Priority classes, highest first; their index is the class number everywhere."""

PRECISIONS = ("int4", "int8", "bf16", "fp16", "fp32")
"""Lowest first: a request's floor admits this precision and everything after it."""

DEADLINE_MS_MAX = TIME_MS_MAX

Precision = Literal["int4", "int8", "bf16", "fp16", "fp32"]

Isolation = Literal["auto", "inline", "thread", "process"]


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of one engine's queue."""

    limit: int = 64
    """Requests that may wait, over all classes; 0 admits none that cannot start at once."""
    overflow_at: int | None = None
    """An arrival that finds this many waiting is overflow; ``None``: never."""
    wait_limit_ms: float | None = None
    """An arrival whose expected wait is longer is overflow; ``None``: never."""


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine: a device or a part of one, with the runtime that drives it."""

    backend: str
    device: str | None = None
    threads: int = 1
    max_inflight: int = 1
    """Batches that may run at the same time; hard."""
    queue: Queue = Queue()
    precision: Precision = "fp32"
    options: dict[str, str | int | float | bool] = {}
    """Passed to the runtime as they are."""
    active_w: float | None = None
    """Power while any slot runs a batch, watts; ``None``: energy is unknown."""
    idle_w: float | None = None
    cost_per_hour: float | None = None
    """Money per hour that the engine is there, in the pipeline's currency; ``None``: unknown."""
    memory_mb: float | None = None
    """Room for models, MB of 10**6 bytes; where the stages' models need more, they are loaded and dropped by turns.
    ``None``: they all fit."""
    isolation: Isolation = "auto"
    """Where its batches run: on the event loop's own thread (inline), on threads of the server, or in a process of its
    own, which a crash, a hang or a leak does not leave. auto: a process for accelerators; inline for a model that was
    measured to be done with a full batch before a thread would have begun; threads otherwise."""
    memory_limit_mb: float | None = None
    """What a process of its own may allocate in all, MB of 10**6 bytes; a batch that would take more fails. ``None``:
    what the machine has."""
    hand_over_mb: float = 256.0
    """Largest batch that may go to a process of its own, or come from it; memory is taken as it is filled."""


class Accept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one engine takes at one stage."""

    shape: list[int] | None = None
    """Static input shape with the row dimension first; ``None``: any."""
    precision: Precision | None = None
    """Precision this engine computes the stage at; ``None``: the engine's own."""
    max_items: int | None = None


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a batch is closed on one engine."""

    size: int = 1
    """Rows at most. A single request of more rows runs alone."""
    window_ms: float = 0.0
    """How long the oldest may wait for company while the engine is free."""
    pad_to: list[int] = []
    """Row counts that the engine has been built for, ascending: a batch is padded to the first that holds it."""


class Failover(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where overflow of a stage's preferred engine goes."""

    to: str
    share: float = 1.0
    """Exact share of overflow that is sent, by error diffusion."""
    classes: list[ClassName] | None = None
    """Classes that may fail over; ``None``: all."""


class Breaker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When an engine is left alone at a stage for a while. One breaker per engine of the stage."""

    failure_rate: float = 0.5
    """Opens at this share of failed calls in the window."""
    slow_ms: float | None = None
    """A call that takes longer is slow; ``None``: none is."""
    slow_rate: float = 1.0
    """Opens at this share of slow calls."""
    window: int = 100
    """Calls (requests served by the engine at this stage) that are remembered."""
    min_calls: int = 20
    """Fewer say nothing."""
    open_ms: float = 5000.0
    """How long it stays open; doubles each time it opens again soon after."""
    open_ms_max: float = 60_000.0
    permits: int = 3
    """Probes that a half-open breaker lets through."""
    half_open_ms: float = 10_000.0
    """A half-open breaker decides this long after its first probe; later only while one runs whose batch is expected to
    take more than half as long."""


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Extra attempts: after a failed batch, after a stage timeout, and those that clients announce."""

    budget: float = 0.1
    """Extra attempts per arrival; every kind spends from this one budget."""
    attempts: int = 2
    """Attempts of one request at most, the first included; 1: none is repeated."""
    per_s: float = 1.0
    """Extra attempts per second that are granted whatever the traffic."""
    reserve: int = 10
    """Unspent extra attempts that may pile up; also what a run starts with."""


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Predicates of one rule; all that are given must hold."""

    items: str | None = None
    """``'>8'``, ``'>=8'``, ``'<8'``, ``'<=8'`` or ``'8'``."""
    tokens_in: str | None = None
    class_: ClassName | None = msgspec.field(name="class", default=None)
    source: str | None = None
    bucket: int | None = None
    """Index into the stage's ``buckets``."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first rule whose predicates hold names the preferred engine."""

    when: When
    to: str


class Canary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stage in the new version: exactly one of the three, as in the stage itself."""

    python: str | None = None
    model: str | None = None
    variant: str | None = None


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Two engines, such as the banks of one device, that share each batch of a stage and work at the same time."""

    split: Literal["batch", "channel"]
    """batch: each takes half of the rows. channel: each computes half of the output channels of a model of one
    operator."""
    on: tuple[str, str]

    @property
    def name(self) -> str:
        """What the two are called as one engine."""
        return "+".join(self.on)


class SplitEngine(Engine, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Two engines of the pipeline file as one; made when the file is checked."""

    by: Literal["batch", "channel"] = "batch"
    parts: dict[str, Engine] = {}
    halves: dict[str, tuple[str, str, int]] = {}
    """Split by channel: model to the files of its halves, and the axis along which their outputs are joined."""


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One step of the pipeline: a model, or a Python function."""

    name: str
    python: str | None = None
    """``module:function``; the module is found beside the pipeline file."""
    model: str | None = None
    """A path relative to this file, or ``package:NAME/PATH``."""
    variant: str | None = None
    """A variant id of a latency table; enough to simulate, not to serve."""
    from_: str | None = msgspec.field(name="from", default=None)
    """With ``model``: only the part of it that computes ``to`` from this tensor and the model's inputs."""
    to: str | None = None
    """The tensor that this part ends with; ``None``: the model's outputs."""
    carry: list[str] = []
    """Tensors that pass this stage by, for a later one or the answer."""
    engine: str | None = None
    engines: Sequence[str | Split] | None = None
    """Preference order."""
    prefer: Literal["static", "fastest", "cheapest", "rules"] = "static"
    """static: the order of the file. fastest: least expected completion. cheapest: least energy or money (the
    pipeline's ``cheapest``) among the engines expected to meet the deadline. rules: the first that holds."""
    rules: list[Rule] = []
    accept: dict[str, Accept] = {}
    buckets: list[list[int]] = []
    """Input shapes without the row dimension, ascending; inputs are padded with zeros to the first that fits."""
    batch: dict[str, Batch] = {}
    timeout_ms: float | None = None
    """Longest queueing plus service at this stage."""
    failover: Failover | None = None
    breaker: Breaker | None = None
    degraded: str | None = None
    """``module:function`` that answers, from the work as it stood before this stage, what would be refused here."""
    share: dict[str, float] = {}
    """Guaranteed share of an engine's time, by engine; lent while unused. Stages without one divide what is left."""
    canary: Canary | None = None
    """This stage in the new version; ``None``: the same in both."""
    memory_mb: float | None = None
    """What the model takes on an engine with ``memory_mb``."""
    load_ms: float | None = None
    """How long loading it takes there."""
    after: str | None = None
    """The stage before this one; default: the one above."""

    @property
    def engine_names(self) -> list[str]:
        """Engines of this stage in preference order."""
        if self.engines is not None:
            return [one if isinstance(one, str) else one.name for one in self.engines]
        return [self.engine] if self.engine is not None else []

    @property
    def variant_id(self) -> str:
        """The name this stage's work has in a latency table."""
        return self.variant or self.name

    @property
    def canary_id(self) -> str:
        """The same for the new version."""
        return self.canary.variant if self.canary is not None and self.canary.variant else f"{self.variant_id}@canary"


class ClassLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Per-class numbers."""

    deadline_ms: float | None = None
    """Deadline of a request that states none."""
    floor: float = 0.0
    """Share of an engine's dispatches that this class gets while it waits, whatever waits above it."""
    offline: bool = False
    """Fills valleys: starts on an engine only while no other class waits there."""


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One tenant's guarantee."""

    share: float
    """Guaranteed share of every engine's time inside each class; what is unused is lent to the others."""


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a new version gets its traffic: the stages with a ``canary`` are the new version."""

    steps: list[float] = msgspec.field(default_factory=lambda: [0.05, 0.25, 0.5, 1.0])
    """Shares of requests, ascending; a passed analysis moves one step up, a failed one to nothing."""
    at: int = 1
    """Step that a run starts with, 1 the first; 0: no traffic yet."""


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole pipeline file."""

    version: Literal[1]
    pipeline: str
    engines: dict[str, Engine]
    stages: list[Stage]
    classes: dict[ClassName, ClassLimits] = {}
    retry: Retry = Retry()
    tenants: dict[str, Tenant] = {}
    """By name, as in ``x-loadslice-tenant``; whoever is not named shares what is left."""
    rollout: Rollout = Rollout()
    cheapest: Literal["energy", "money"] = "energy"
    """What ``prefer: cheapest`` saves."""
    currency: str | None = None
    """Of every ``cost_per_hour``."""
    inputs: str | None = None
    """``module:function`` giving example inputs, for profiling and replay."""
    max_requests: int = 1024
    """Requests in the system at once; the next is rejected."""
    deadline_ms: float | None = None
    """Deadline of a request that states none and whose class has none."""


def load(path: Path) -> Pipeline:
    """Read and check a pipeline file.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check(decode_yaml(path, Pipeline), str(path))


def check(pipeline: Pipeline, path: str) -> Pipeline:
    """Refuse what types cannot: dangling names, cycles, numbers out of range. Returns stages in execution order.

    Raises:
        InputError: The first fault found.
    """
    pipeline = _with_splits(pipeline, path)
    if not pipeline.engines:
        raise InputError(f"{path}: engines: at least one is needed.")
    if not pipeline.stages:
        raise InputError(f"{path}: stages: at least one is needed.")
    if not 1 <= pipeline.max_requests <= 1_000_000:
        raise InputError(f"{path}: max_requests: {pipeline.max_requests} is not between 1 and 1000000.")
    deadlines = {"deadline_ms": pipeline.deadline_ms}
    deadlines |= {f"classes.{name}.deadline_ms": limits.deadline_ms for name, limits in pipeline.classes.items()}
    within(f"{path}: ", deadlines, 0.001, DEADLINE_MS_MAX)
    check_shares(pipeline, path)
    retry = pipeline.retry
    within(f"{path}: ", {"retry.budget": retry.budget}, 0, 1)
    within(f"{path}: ", {"retry.attempts": retry.attempts}, 1, 10)
    within(f"{path}: ", {"retry.per_s": retry.per_s, "retry.reserve": retry.reserve}, 0, 1_000_000)
    for name, engine in pipeline.engines.items():
        check_engine(engine, f"{path}: engines.{name}")
    names = [stage.name for stage in pipeline.stages]
    for index, stage in enumerate(pipeline.stages):
        place = f"{path}: stages[{index}]"
        if names.index(stage.name) != index:
            raise InputError(f"{place}.name: '{stage.name}' is already stage {names.index(stage.name)}.")
        check_stage(stage, pipeline, place)
    return msgspec.structs.replace(pipeline, stages=in_order(pipeline.stages, path))


SPLIT = "split"
"""The backend of two engines as one."""


def _with_splits(pipeline: Pipeline, path: str) -> Pipeline:
    """Put one engine in the place of each two that share a stage: the core counts what runs by engine."""
    engines, stages = dict(pipeline.engines), []
    used = {one for stage in pipeline.stages for one in [*(stage.engines or []), stage.engine] if isinstance(one, str)}
    for index, stage in enumerate(pipeline.stages):
        for split in stage.engines or []:
            if isinstance(split, str):
                continue
            place = f"{path}: stages[{index}].engines"
            for name in split.on:
                known(place, "on", name, list(pipeline.engines))
                if name in used:
                    raise InputError(f"{place}: '{name}' shares this stage and serves another alone; it can do one.")
                engines.pop(name, None)
            first, second = (pipeline.engines[name] for name in split.on)
            if split.on[0] == split.on[1] or first.max_inflight != second.max_inflight:
                raise InputError(f"{place}: {' and '.join(split.on)} must be two engines of the same max_inflight.")
            if "process" in (first.isolation, second.isolation):
                raise InputError(
                    f"{place}: engines that share a stage run on threads; isolation: process is not for them."
                )
            fields = {name: getattr(first, name) for name in Engine.__struct_fields__} | {"backend": SPLIT}
            made = SplitEngine(**fields, by=split.split, parts=dict(zip(split.on, (first, second), strict=True)))
            if engines.setdefault(split.name, made) != made:
                raise InputError(f"{place}: '{split.name}' is split by batch and by channel; choose one.")
        plain = stage.engine_names if stage.engines is not None else None
        stages.append(msgspec.structs.replace(stage, engines=plain))
    return msgspec.structs.replace(pipeline, engines=engines, stages=stages)
