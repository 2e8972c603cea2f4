"""A fleet as a pipeline and a latency table: what `simulate` runs and `serve` takes.

Every engine of a type is an engine of its own with its own queue, for two cards do not share one. Stages keep what the
user's pipeline says of them (timeouts, breakers, shapes); where they run, in what batches and by what preference is the
fleet's.
"""

import math
from dataclasses import dataclass, field

import msgspec

from loadslice.plan.fleet.elsewhere import entries_name
from loadslice.plan.fleet.problem import Int64s
from loadslice.sim.crowding import measured_crowding, shared_cores, shared_threads
from loadslice.spec.latency import MS_MAX, Entry, LatencyTable, Milliseconds
from loadslice.spec.offers import Box, Offer
from loadslice.spec.pipeline import Batch, Engine, Failover, Pipeline, Queue, Rule, Stage, When

QUEUE_LIMIT = 128
REQUESTS_PER_ENGINE = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy numbers of a fleet."""

    name: str = "fastest"
    prefer: str = "fastest"
    batch_ms: float = MS_MAX
    """Rows per batch are as many as are worth it and take no longer than this."""
    rows_most: int = 1 << 16
    window_ms: float = 0.0
    failover_share: float | None = None
    """Overflow of a stage's first engine that goes to its second; ``None``: no failover."""
    overflow_at: int | None = None
    large_items: int | None = None
    """Requests of more items go to the first engine, the others to the last; ``None``: not told apart."""


@dataclass(frozen=True, slots=True)
class Design:
    """What all candidates have in common."""

    pipeline: Pipeline
    """The user's."""
    latency: LatencyTable
    offers: dict[str, Offer]
    boxes: dict[str, Box]
    runs: tuple[tuple[str, ...], ...]
    """By stage, offers that can run it."""
    per_hour: dict[str, float | None] = field(default_factory=dict)
    """Money per hour for one engine of an offer, its share of the purchase and its rent; ``None``: unknown."""
    currency: str | None = None
    taken_over: dict[str, str] = field(default_factory=dict)
    """Engine types whose times were measured on another machine -> engine of the latency table that they are of."""

    @property
    def names(self) -> tuple[str, ...]:
        """Engine types, in the order of counts."""
        return tuple(self.offers)


def times_name(name: str, offer: Offer) -> str:
    """The engine of the latency table whose times an offer has."""
    return offer.times or name


def template(design: Design, name: str) -> Engine:
    """One engine of an offer."""
    offer = design.offers[name]
    known = design.pipeline.engines.get(times_name(name, offer)) or design.pipeline.engines.get(name)
    base = known if known is not None else Engine(backend=offer.backend or "twin", queue=Queue(limit=QUEUE_LIMIT))
    per_hour = design.per_hour.get(name)
    return msgspec.structs.replace(
        base,
        backend=offer.backend or base.backend,
        device=offer.device or base.device,
        max_inflight=offer.slots,
        precision=offer.precision or base.precision,
        idle_w=offer.idle_w if offer.idle_w is not None else base.idle_w,
        active_w=offer.active_w if offer.active_w is not None else base.active_w,
        cost_per_hour=per_hour if per_hour is not None else base.cost_per_hour,
    )


def instances(design: Design, counts: Int64s) -> dict[str, list[str]]:
    """Names of the engines of each type that is there."""
    return {
        name: [name] if count == 1 else [f"{name}-{number}" for number in range(1, int(count) + 1)]
        for name, count in zip(design.names, counts, strict=True)
        if count > 0
    }


def pipeline_of(design: Design, counts: Int64s, policy: Policy) -> Pipeline | None:
    """The pipeline of a fleet; ``None``: a stage has no engine."""
    there = instances(design, counts)
    base = design.pipeline
    engines: dict[str, Engine] = {}
    for name, own in there.items():
        settings = template(design, name)
        if policy.overflow_at is not None:
            settings = msgspec.structs.replace(
                settings, queue=msgspec.structs.replace(settings.queue, overflow_at=policy.overflow_at)
            )
        engines |= dict.fromkeys(own, settings)
    stages = []
    for s, stage in enumerate(base.stages):
        types = [name for name in design.runs[s] if name in there]
        if not types:
            return None
        stages.append(_stage(design, stage, _in_order(design, stage, types), there, policy))
    return msgspec.structs.replace(
        base,
        engines=engines,
        stages=stages,
        currency=design.currency or base.currency,
        max_requests=max(base.max_requests, REQUESTS_PER_ENGINE * len(engines)),
    )


def _in_order(design: Design, stage: Stage, types: list[str]) -> list[str]:
    """Types of a stage, the fastest per row first."""
    return sorted(types, key=lambda name: row_ms(design, stage, name))


def row_ms(design: Design, stage: Stage, name: str) -> float:
    """Least time per row that the profile knows of a stage on an offer."""
    found = entries_of(design, stage, name)
    return min(middle_ms(entry.latency_ms) / entry.batch for entry in found)


def entries_of(design: Design, stage: Stage, name: str) -> list[Entry]:
    """Entries of a stage on an offer."""
    times = _times_of(design, name)
    return [entry for entry in design.latency.entries if (entry.variant, entry.engine) == (stage.variant_id, times)]


def _times_of(design: Design, name: str) -> str:
    """Engine of the design's latency table that an offer's entries stand under."""
    offer = design.offers[name]
    times = times_name(name, offer)
    return entries_name(times, offer.box) if name in design.taken_over else times


def middle_ms(times: Milliseconds) -> float:
    """Median, or mean where that is known alone."""
    if times.samples:
        return float(sorted(times.samples)[len(times.samples) // 2])
    known = times.p50 if times.p50 is not None else times.mean
    assert known is not None
    return known


def _stage(design: Design, stage: Stage, types: list[str], there: dict[str, list[str]], policy: Policy) -> Stage:
    names = [name for kind in types for name in there[kind]]
    batches: dict[str, Batch] = {}
    for kind in types:
        batch = batch_of(design, stage, kind, policy)
        if batch is not None:
            batches |= dict.fromkeys(there[kind], batch)
    accept = {
        name: stage.accept[times]
        for kind in types
        if (times := times_name(kind, design.offers[kind])) in stage.accept
        for name in there[kind]
    }
    share = {
        name: stage.share[times]
        for kind in types
        if (times := times_name(kind, design.offers[kind])) in stage.share
        for name in there[kind]
    }
    rules: list[Rule] = []
    prefer = policy.prefer if len(names) > 1 else "static"
    if policy.large_items is not None and len(types) > 1 and stage.python is None:
        small, large = there[types[-1]][0], there[types[0]][0]
        rules = [Rule(when=When(items=f">{policy.large_items}"), to=large), Rule(when=When(), to=small)]
        prefer = "rules"
    failover = None
    if policy.failover_share is not None and len(names) > 1:
        failover = Failover(to=names[-1], share=policy.failover_share)
    return msgspec.structs.replace(
        stage,
        engine=None,
        engines=names,
        prefer=prefer,
        rules=rules,
        accept=accept,
        batch=batches,
        share=share,
        failover=failover,
    )


def batch_of(design: Design, stage: Stage, name: str, policy: Policy) -> Batch | None:
    """How a stage's rows are batched on an offer.

    The offer's own word first, then the user's pipeline, then the profile: the row count whose time per row is least
    among those measured that take no longer than the policy allows.
    """
    offer = design.offers[name]
    stated = offer.batch.get(stage.name) or stage.batch.get(times_name(name, offer))
    if stated is not None:
        size = stated.size if stated.pad_to else min(stated.size, policy.rows_most)
        return msgspec.structs.replace(stated, size=size, window_ms=max(stated.window_ms, policy.window_ms))
    if stage.python is not None:
        return None
    rows = _best_rows(entries_of(design, stage, name), policy)
    return Batch(size=rows, window_ms=policy.window_ms) if rows > 1 else None


def _best_rows(entries: list[Entry], policy: Policy) -> int:
    """The row count whose time per row is least, shapes compared each with itself."""
    alone = {tuple(entry.shape or ()): middle_ms(entry.latency_ms) for entry in entries if entry.batch == 1}
    gains: dict[int, list[float]] = {}
    for entry in entries:
        shape, took_ms = tuple(entry.shape or ()), middle_ms(entry.latency_ms)
        if shape in alone and entry.batch <= policy.rows_most and took_ms <= policy.batch_ms:
            gains.setdefault(entry.batch, []).append(took_ms / entry.batch / max(alone[shape], 1e-9))
    mean = {rows: sum(found) / len(found) for rows, found in gains.items()}
    # A batch that saves less than a fiftieth is not worth what it adds to the first one's time.
    return min(mean, key=lambda rows: (mean[rows] if mean[rows] < 0.98 else 1.0, rows), default=1)


def table_of(design: Design, counts: Int64s, boxes: Int64s, pipeline: Pipeline) -> LatencyTable:
    """The latency table of a fleet: every engine has its type's times, on as many cores as its machines have."""
    there = instances(design, counts)
    base_cores = shared_cores(design.latency)
    cores = _fleet_cores(design, boxes, pipeline) if math.isfinite(base_cores) else math.inf
    entries: list[Entry] = []
    by_engine: dict[str, list[Entry]] = {}
    for entry in design.latency.entries:
        by_engine.setdefault(entry.engine, []).append(entry)
    for kind, own in there.items():
        times = times_name(kind, design.offers[kind])
        factor = _recrowded(design, pipeline, own[0], times, base_cores, cores)
        for entry in by_engine.get(_times_of(design, kind), []):
            contended = entry.contended_ms
            if contended is not None and factor != 1.0:
                contended = scaled(contended, factor)
            entries += [msgspec.structs.replace(entry, engine=name, contended_ms=contended) for name in own]
    stamp = design.latency.stamp
    if stamp is not None and math.isfinite(cores):
        stamp = msgspec.structs.replace(stamp, machine={**stamp.machine, "cpus": int(cores)})
    return msgspec.structs.replace(design.latency, entries=entries, stamp=stamp)


def _fleet_cores(design: Design, boxes: Int64s, pipeline: Pipeline) -> float:
    """Cores of all machines, which the engines on processors share."""
    cores = sum(int(count) * box.cores for count, box in zip(boxes, design.boxes.values(), strict=True))
    busiest = max((shared_threads(pipeline, name) for name in pipeline.engines), default=1)
    return float(max(cores, busiest, 1))


def _recrowded(design: Design, pipeline: Pipeline, name: str, times: str, base_cores: float, cores: float) -> float:
    """What contended times are multiplied by, so that they say of this fleet what they said of the profiled machine."""
    if not math.isfinite(base_cores) or times not in design.pipeline.engines:
        return 1.0
    return measured_crowding(pipeline, name, cores) / measured_crowding(design.pipeline, times, base_cores)


def scaled(times: Milliseconds, factor: float) -> Milliseconds:
    """The same distribution, so many times as long."""
    return Milliseconds(
        p50=None if times.p50 is None else times.p50 * factor,
        p90=None if times.p90 is None else times.p90 * factor,
        p99=None if times.p99 is None else times.p99 * factor,
        mean=None if times.mean is None else times.mean * factor,
        family=times.family,
        cv=times.cv,
        samples=None if times.samples is None else [value * factor for value in times.samples],
    )
