"""The pipeline file: engines, stages and every policy number.

Rules of this file: an unknown key is refused with its path; a name that points nowhere is refused with the names that
exist; what is not implemented is not a key. `load` returns a pipeline that the lowering can trust.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml

ClassName = Literal["critical_plus", "critical", "sheddable_plus", "sheddable"]
CLASSES: tuple[ClassName, ...] = ("critical_plus", "critical", "sheddable_plus", "sheddable")
"""Priority classes, highest first; their index is the class number everywhere."""

PRECISIONS = ("int4", "int8", "bf16", "fp16", "fp32")
"""Lowest first: a request's floor admits this precision and everything after it."""

PADS_MAX = 8
"""Row counts that one engine may be built for at one stage."""

TENANTS_MAX = 1000

DEADLINE_MS_MAX = 86_400_000

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
    """A half-open breaker decides at the latest this long after its first probe."""


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
    _within(f"{path}: ", deadlines, 0.001, DEADLINE_MS_MAX)
    _check_guarantees(pipeline, path)
    for priority, limits in pipeline.classes.items():
        if limits.offline and limits.floor > 0:
            raise InputError(f"{path}: classes.{priority}: an offline class takes what is left; it can have no floor.")
    floors = {f"classes.{name}.floor": limits.floor for name, limits in pipeline.classes.items()}
    _within(f"{path}: ", floors, 0, 1)
    if sum(floors.values()) > 1:
        raise InputError(f"{path}: classes: floors add up to {sum(floors.values())}, more than everything.")
    retry = pipeline.retry
    _within(f"{path}: ", {"retry.budget": retry.budget}, 0, 1)
    _within(f"{path}: ", {"retry.attempts": retry.attempts}, 1, 10)
    _within(f"{path}: ", {"retry.per_s": retry.per_s, "retry.reserve": retry.reserve}, 0, 1_000_000)
    for name, engine in pipeline.engines.items():
        _check_engine(engine, f"{path}: engines.{name}")
    names = [stage.name for stage in pipeline.stages]
    for index, stage in enumerate(pipeline.stages):
        place = f"{path}: stages[{index}]"
        if names.index(stage.name) != index:
            raise InputError(f"{place}.name: '{stage.name}' is already stage {names.index(stage.name)}.")
        _check_stage(stage, pipeline.engines, place)
        _check_shared(stage, pipeline, place)
    return msgspec.structs.replace(pipeline, stages=_in_order(pipeline.stages, path))


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
                _known(place, "on", name, list(pipeline.engines))
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


OTHER_TENANTS = "others"
"""What metrics call whoever has no guarantee."""

TENANT_LENGTH_MAX = 64

LEAST_SHARE = 0.01
"""What is left to those without a guarantee, so that nobody is locked out."""


def _check_guarantees(pipeline: Pipeline, path: str) -> None:
    shares = {f"tenants.{name}.share": tenant.share for name, tenant in pipeline.tenants.items()}
    _within(f"{path}: ", shares, 0.0001, 1)
    for name in pipeline.tenants:
        if not 1 <= len(name) <= TENANT_LENGTH_MAX or not name.isprintable() or name == OTHER_TENANTS:
            raise InputError(
                f"{path}: tenants: {name!r:.80} is not a name of 1 to {TENANT_LENGTH_MAX} printable characters other "
                f"than '{OTHER_TENANTS}', which stands for whoever is not named."
            )
    if sum(shares.values()) > 1 - LEAST_SHARE:
        raise InputError(
            f"{path}: tenants: shares add up to {sum(shares.values()):g}; leave {LEAST_SHARE:g} to those not named."
        )
    if len(shares) > TENANTS_MAX:
        raise InputError(f"{path}: tenants: {len(shares)} are more than {TENANTS_MAX}.")
    for engine in pipeline.engines:
        guaranteed = sum(stage.share.get(engine, 0.0) for stage in pipeline.stages)
        if guaranteed > 1 - LEAST_SHARE and any(
            engine in stage.engine_names and engine not in stage.share for stage in pipeline.stages
        ):
            raise InputError(
                f"{path}: stages: shares of '{engine}' add up to {guaranteed:g}; nothing is left for others."
            )
        if guaranteed > 1 + 1e-9:
            raise InputError(f"{path}: stages: shares of '{engine}' add up to {guaranteed:g}, more than everything.")
    steps = pipeline.rollout.steps
    _within(f"{path}: ", {f"rollout.steps[{number}]": step for number, step in enumerate(steps)}, 0, 1)
    if sorted(set(steps)) != steps:
        raise InputError(f"{path}: rollout.steps: {steps} must rise from step to step.")
    _within(f"{path}: ", {"rollout.at": pipeline.rollout.at}, 0, len(steps))


def _check_shared(stage: Stage, pipeline: Pipeline, place: str) -> None:
    """Shares, memory, canary and prices of one stage."""
    for name, share in stage.share.items():
        _known(place, f"share.{name}", name, stage.engine_names)
        _within(f"{place}.", {f"share.{name}": share}, 0.0001, 1)
    _within(f"{place}.", {"memory_mb": stage.memory_mb, "load_ms": stage.load_ms}, 0, 10_000_000)
    if stage.degraded is not None and not re.fullmatch(r"[^:]+:[^:]+", stage.degraded):
        raise InputError(f"{place}.degraded: '{stage.degraded}' is not module:function.")
    if stage.canary is not None:
        given = [key for key in ("python", "model", "variant") if getattr(stage.canary, key) is not None]
        if len(given) != 1 or (given == ["python"]) != (stage.python is not None):
            raise InputError(f"{place}.canary: give one of python, model or variant, of the stage's own kind.")
    for name in stage.engine_names:
        engine = pipeline.engines[name]
        if engine.memory_mb is not None:
            if stage.memory_mb is None or stage.load_ms is None:
                raise InputError(f"{place}: engine '{name}' has memory_mb; give the stage memory_mb and load_ms too.")
            if stage.memory_mb > engine.memory_mb:
                raise InputError(
                    f"{place}.memory_mb: {stage.memory_mb:g} does not fit engine '{name}' ({engine.memory_mb:g})."
                )
        price = engine.active_w if pipeline.cheapest == "energy" else engine.cost_per_hour
        if stage.prefer == "cheapest" and price is None:
            key = "active_w" if pipeline.cheapest == "energy" else "cost_per_hour"
            raise InputError(f"{place}.prefer: 'cheapest' by {pipeline.cheapest} needs engines.{name}.{key}.")
    for name, batch in stage.batch.items():
        pads = batch.pad_to
        if pads and (sorted(set(pads)) != pads or pads[0] < 1 or pads[-1] != batch.size or len(pads) > PADS_MAX):
            raise InputError(
                f"{place}.batch.{name}.pad_to: {pads} must rise, end at the size ({batch.size}) "
                f"and name at most {PADS_MAX}."
            )


def _within(place: str, values: Mapping[str, float | None], low: float, high: float) -> None:
    """Refuse the first number outside ``low .. high``; NaN is outside everything."""
    for key, value in values.items():
        if value is not None and not low <= value <= high:
            raise InputError(f"{place}{key}: {value:g} is not between {low:g} and {high:g}.")


def _check_engine(engine: Engine, place: str) -> None:
    queue = engine.queue
    _within(f"{place}.", {"threads": engine.threads}, 1, 4096)
    _within(f"{place}.", {"max_inflight": engine.max_inflight}, 1, 256)
    _within(f"{place}.", {"queue.limit": queue.limit, "queue.overflow_at": queue.overflow_at}, 0, 1_000_000)
    _within(f"{place}.", {"queue.wait_limit_ms": queue.wait_limit_ms}, 0, 86_400_000)
    _within(f"{place}.", {"active_w": engine.active_w, "idle_w": engine.idle_w}, 0, 1_000_000)
    _within(f"{place}.", {"cost_per_hour": engine.cost_per_hour, "memory_mb": engine.memory_mb}, 0, 1_000_000_000)
    _within(f"{place}.", {"memory_limit_mb": engine.memory_limit_mb}, 64, 1_000_000_000)
    _within(f"{place}.", {"hand_over_mb": engine.hand_over_mb}, 1, 65_536)


def _check_stage(stage: Stage, engines: dict[str, Engine], place: str) -> None:
    kinds = [key for key in ("python", "model", "variant") if getattr(stage, key) is not None]
    if not stage.name or any(character in stage.name for character in "/\\ \t\n"):
        raise InputError(f"{place}.name: '{stage.name}' must be one word without slashes.")
    if len(kinds) == 0 or ("python" in kinds and len(kinds) > 1):
        raise InputError(f"{place}: give one of python, model or variant (a model may name its variant too).")
    if (stage.from_ is not None or stage.to is not None) and (stage.model is None or stage.canary is not None):
        raise InputError(f"{place}: from and to name a part of a model; give `model` too, and no canary.")
    _check_engine_names(stage, engines, place)
    _check_rules(stage, place)
    _check_numbers(stage, place)


def _known(place: str, key: str, name: str, among: list[str]) -> None:
    if name not in among:
        raise InputError(f"{place}.{key}: '{name}' is not an engine here ({', '.join(among)}).")


def _check_engine_names(stage: Stage, engines: dict[str, Engine], place: str) -> None:
    if stage.engine is not None and stage.engines is not None:
        raise InputError(f"{place}: give engine or engines, not both.")
    if not stage.engine_names:
        raise InputError(f"{place}.engines: at least one of {', '.join(engines)}.")
    for name in stage.engine_names:
        _known(place, "engines", name, list(engines))
    if len(set(stage.engine_names)) != len(stage.engine_names):
        raise InputError(f"{place}.engines: an engine is named twice.")
    for key, names in (("accept", stage.accept), ("batch", stage.batch)):
        for name in names:
            _known(place, f"{key}.{name}", name, stage.engine_names)
    if stage.failover is not None:
        _known(place, "failover.to", stage.failover.to, stage.engine_names)
        if stage.failover.to == stage.engine_names[0]:
            raise InputError(f"{place}.failover.to: '{stage.failover.to}' is the preferred engine itself, a cycle.")


def _check_rules(stage: Stage, place: str) -> None:
    if bool(stage.rules) != (stage.prefer == "rules"):
        raise InputError(f"{place}.prefer: 'rules' and a list of rules go together.")
    for number, rule in enumerate(stage.rules):
        _known(place, f"rules[{number}].to", rule.to, stage.engine_names)
        for key, text in (("items", rule.when.items), ("tokens_in", rule.when.tokens_in)):
            if text is not None:
                bounds(text, f"{place}.rules[{number}].when.{key}")
        if rule.when.bucket is not None and not 0 <= rule.when.bucket <= len(stage.buckets):
            raise InputError(f"{place}.rules[{number}].when.bucket: {rule.when.bucket} is not a bucket of this stage.")


def _check_numbers(stage: Stage, place: str) -> None:
    for name, batch in stage.batch.items():
        if not 1 <= batch.size <= 65_536 or not 0 <= batch.window_ms <= 60_000:
            raise InputError(
                f"{place}.batch.{name}: size 1 to 65536 and window_ms 0 to 60000, not {batch.size}, {batch.window_ms}."
            )
    _within(f"{place}.", {"timeout_ms": stage.timeout_ms}, 0.001, 86_400_000)
    if stage.failover is not None:
        _within(f"{place}.", {"failover.share": stage.failover.share}, 0, 1)
    if (breaker := stage.breaker) is not None:
        rates = {"breaker.failure_rate": breaker.failure_rate, "breaker.slow_rate": breaker.slow_rate}
        _within(f"{place}.", rates, 1e-6, 1)
        counts = {"breaker.window": breaker.window, "breaker.permits": breaker.permits}
        _within(f"{place}.", counts, 1, 10_000)
        _within(f"{place}.", {"breaker.min_calls": breaker.min_calls}, 1, breaker.window)
        spans = {"open_ms": breaker.open_ms, "half_open_ms": breaker.half_open_ms, "slow_ms": breaker.slow_ms}
        _within(f"{place}.", {f"breaker.{key}": value for key, value in spans.items()}, 0.001, 86_400_000)
        _within(f"{place}.", {"breaker.open_ms_max": breaker.open_ms_max}, breaker.open_ms, 86_400_000)
        windows = [batch.window_ms for batch in stage.batch.values()]
        # A probe that waits for company past the end of half-open would never be recorded.
        _within(f"{place}.", {"breaker.half_open_ms": breaker.half_open_ms}, max([0.001, *windows]), 86_400_000)
    for number, bucket in enumerate(stage.buckets):
        if not bucket or any(side < 1 for side in bucket) or len(bucket) != len(stage.buckets[0]):
            raise InputError(
                f"{place}.buckets[{number}]: {bucket} is not a shape like the others "
                "(no row dimension, sides of at least 1)."
            )
    for name, accept in stage.accept.items():
        _within(f"{place}.", {f"accept.{name}.max_items": accept.max_items}, 1, 1_000_000)
        if accept.shape is None:
            continue
        if len(accept.shape) < 2 or any(side < 1 for side in accept.shape):
            raise InputError(f"{place}.accept.{name}.shape: {accept.shape} is not a static shape, rows first.")
        if stage.buckets and len(accept.shape) != len(stage.buckets[0]) + 1:
            raise InputError(f"{place}.accept.{name}.shape: {accept.shape} has another rank than the stage's buckets.")
        if not stage.buckets:
            raise InputError(f"{place}.accept.{name}.shape: give the stage `buckets` too: [{accept.shape[1:]}].")


def _in_order(stages: list[Stage], path: str) -> list[Stage]:
    """Follow ``after`` from the first stage to the last; a chain is the only shape served."""
    before = {
        stage.name: stage.after or (stages[index - 1].name if index else None) for index, stage in enumerate(stages)
    }
    for stage_name, previous in before.items():
        if previous is not None and previous not in before:
            raise InputError(f"{path}: stages '{stage_name}'.after: '{previous}' is not a stage ({', '.join(before)}).")
    following = {previous: stage_name for stage_name, previous in before.items()}
    by_name = {stage.name: stage for stage in stages}
    ordered: list[Stage] = []
    name: str | None = following.get(None)
    while name is not None and len(ordered) <= len(stages):
        ordered.append(by_name[name])
        name = following.get(name)
    if len(ordered) != len(stages):
        left = sorted(set(before) - {stage.name for stage in ordered})
        raise InputError(
            f"{path}: stages {', '.join(left)}: `after` makes a cycle or a fork; stages must form one chain."
        )
    return ordered


def bounds(text: str, place: str) -> tuple[int, int]:
    """Inclusive integer bounds of a predicate such as ``'>8'``.

    Raises:
        InputError: Not a comparison with a whole number.
    """
    top = 2**62
    for sign, low, high in (
        (">=", 0, None),
        ("<=", None, 0),
        (">", 1, None),
        ("<", None, -1),
        ("=", 0, 0),
        ("", 0, 0),
    ):
        if text.startswith(sign):
            digits = text.removeprefix(sign).strip()
            if not digits.isdigit():
                break
            value = int(digits)
            return (0 if low is None else value + low, top if high is None else value + high)
    raise InputError(f"{place}: '{text}' is not like '>8', '>=8', '<8', '<=8' or '8'.")
