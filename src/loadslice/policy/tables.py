"""Lowers a pipeline and a latency table to arrays, once, for both shells; and makes the state they are decided on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.policy import columns as c
from loadslice.policy.estimate import ServiceCurve, service_curves
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import CLASSES, PRECISIONS, Breaker, Pipeline, Stage, bounds

Int64s = NDArray[np.int64]

_NS_PER_MS = 1_000_000


class Tables(NamedTuple):
    """What a run never changes. S stages, E engines, L lanes, B buckets (the last: "fits none")."""

    run: Int64s
    """[RUN_SETTINGS]"""
    engines: Int64s
    """[E, ENGINE_SETTINGS]"""
    stages: Int64s
    """[S, STAGE_SETTINGS]"""
    breakers: Int64s
    """[S, BREAKER_SETTINGS] window 0: the stage has none"""
    pairs: Int64s
    """[S, E, PAIR_SETTINGS]"""
    preference: Int64s
    """[S, E] engine indices in preference order, then -1"""
    eligible: Int64s
    """[S, E, B] 1 where the engine takes the bucket"""
    rules: Int64s
    """[rules, RULE_SETTINGS] in file order"""
    base_ns: Int64s
    """[S, E, B] expected service time of a batch, before rows are counted; 0: unknown"""
    row_ns: Int64s
    """[S, E, B] expected service time per row"""


class State(NamedTuple):
    """What decisions change. Fixed size; full means a named refusal."""

    requests: Int64s
    """[max_requests, REQUEST_COLUMNS]"""
    lanes: Int64s
    """[E, CLASSES, L, LANE_COLUMNS]"""
    lane_rows: Int64s
    """[E, L] rows waiting in a lane, over all classes"""
    engines: Int64s
    """[E, ENGINE_COLUMNS]"""
    batches: Int64s
    """[slots, BATCH_COLUMNS]"""
    members: Int64s
    """[slots, largest batch, MEMBER_COLUMNS]"""
    stages: Int64s
    """[S, STAGE_COLUMNS]"""
    breakers: Int64s
    """[S, E, BREAKER_COLUMNS]"""
    calls: Int64s
    """[S, E, largest window] what each remembered call was"""
    floors: Int64s
    """[E, CLASSES] credit of a waiting class towards its floor, ppm of a dispatch"""
    learned_ns: Int64s
    """[S, E] mean time of a batch as seen; 0: none was"""
    counters: Int64s
    """[COUNTERS]"""
    dirty: Int64s
    """[E] engines to look at before the event ends"""
    effects: Int64s
    """[capacity, EFFECT_COLUMNS]; the first counters[C_EFFECTS] rows are this event's"""


def lower(pipeline: Pipeline, latency: LatencyTable | None = None, sources: tuple[str, ...] = ()) -> Tables:
    """Lower a checked pipeline.

    Args:
        pipeline: From `spec.pipeline.load`.
        latency: Expected service times; without it the core learns them as it runs.
        sources: Source tags that rules may name; a request's source is an index into it, or -1.

    Returns:
        Arrays as `Tables` describes them.
    """
    engine_names = list(pipeline.engines)
    stage_count, engine_count = len(pipeline.stages), len(engine_names)
    bucket_count = max(len(stage.buckets) for stage in pipeline.stages) + 1
    engines = np.zeros((engine_count, c.ENGINE_SETTINGS), np.int64)
    first_slot = 0
    for index, engine in enumerate(pipeline.engines.values()):
        queue = engine.queue
        engines[index] = (
            engine.max_inflight,
            queue.limit,
            c.FOREVER if queue.overflow_at is None else queue.overflow_at,
            c.FOREVER if queue.wait_limit_ms is None else round(queue.wait_limit_ms * _NS_PER_MS),
            first_slot,
        )
        first_slot += engine.max_inflight

    stages = np.zeros((stage_count, c.STAGE_SETTINGS), np.int64)
    breakers = np.zeros((stage_count, c.BREAKER_SETTINGS), np.int64)
    pairs = np.zeros((stage_count, engine_count, c.PAIR_SETTINGS), np.int64)
    preference = np.full((stage_count, engine_count), -1, np.int64)
    eligible = np.zeros((stage_count, engine_count, bucket_count), np.int64)
    base_ns = np.zeros((stage_count, engine_count, bucket_count), np.int64)
    row_ns = np.zeros((stage_count, engine_count, bucket_count), np.int64)
    curves = service_curves(pipeline, latency) if latency is not None else {}
    first_lane = 0
    for s, stage in enumerate(pipeline.stages):
        lanes = len(stage.buckets) + 1
        stages[s] = _stage_row(stage, engine_names, first_lane, lanes)
        breakers[s] = _breaker_row(stage.breaker)
        first_lane += lanes
        for order, name in enumerate(stage.engine_names):
            e = engine_names.index(name)
            preference[s, order] = e
            pairs[s, e] = _pair_row(stage, name, pipeline)
            eligible[s, e, :lanes] = _eligible(stage, name)
            for bucket in range(lanes):
                curve = curves.get((s, e, bucket), ServiceCurve(0, 0))
                base_ns[s, e, bucket], row_ns[s, e, bucket] = curve.base_ns, curve.row_ns
    return Tables(
        run=_run_row(pipeline),
        engines=engines,
        stages=stages,
        breakers=breakers,
        pairs=pairs,
        preference=preference,
        eligible=eligible,
        rules=_rules(pipeline, sources),
        base_ns=base_ns,
        row_ns=row_ns,
    )


def _run_row(pipeline: Pipeline) -> Int64s:
    retry = pipeline.retry
    row = np.zeros(c.RUN_SETTINGS, np.int64)
    row[c.W_RETRY_PPM] = round(retry.budget * c.PPM)
    row[c.W_RETRY_PER_S_PPM] = round(retry.per_s * c.PPM)
    row[c.W_RETRY_RESERVE_PPM] = retry.reserve * c.PPM
    row[c.W_ATTEMPTS] = retry.attempts
    for priority, name in enumerate(CLASSES):
        limits = pipeline.classes.get(name)
        row[c.W_FLOOR_PPM + priority] = 0 if limits is None else round(limits.floor * c.PPM)
    row[c.W_HAS_FLOORS] = int(row[c.W_FLOOR_PPM :].any())
    return row


def _breaker_row(breaker: Breaker | None) -> tuple[int, ...]:
    if breaker is None:
        return (0,) * c.BREAKER_SETTINGS
    return (
        breaker.window,
        breaker.min_calls,
        round(breaker.failure_rate * c.PPM),
        c.FOREVER if breaker.slow_ms is None else round(breaker.slow_ms * _NS_PER_MS),
        round(breaker.slow_rate * c.PPM),
        round(breaker.open_ms * _NS_PER_MS),
        round(breaker.open_ms_max * _NS_PER_MS),
        breaker.permits,
        round(breaker.half_open_ms * _NS_PER_MS),
    )


def _stage_row(stage: Stage, engine_names: list[str], first_lane: int, lanes: int) -> tuple[int, ...]:
    failover = stage.failover
    classes = CLASSES if failover is None or failover.classes is None else failover.classes
    return (
        c.FOREVER if stage.timeout_ms is None else round(stage.timeout_ms * _NS_PER_MS),
        {"static": c.PREFER_STATIC, "fastest": c.PREFER_FASTEST, "rules": c.PREFER_RULES}[stage.prefer],
        -1 if failover is None else engine_names.index(failover.to),
        0 if failover is None else round(failover.share * c.PPM),
        sum(1 << CLASSES.index(name) for name in classes),
        first_lane,
        lanes,
    )


def _pair_row(stage: Stage, engine_name: str, pipeline: Pipeline) -> tuple[int, ...]:
    batch = stage.batch.get(engine_name)
    accept = stage.accept.get(engine_name)
    precision = (accept.precision if accept else None) or pipeline.engines[engine_name].precision
    return (
        1 if batch is None else batch.size,
        0 if batch is None else round(batch.window_ms * _NS_PER_MS),
        c.FOREVER if accept is None or accept.max_items is None else accept.max_items,
        PRECISIONS.index(precision),
    )


def _eligible(stage: Stage, engine_name: str) -> list[int]:
    """A static shape takes the buckets that it contains; any other engine takes every bucket."""
    accept = stage.accept.get(engine_name)
    if accept is None or accept.shape is None:
        return [1] * (len(stage.buckets) + 1)
    static = accept.shape[1:]
    return [int(all(side <= most for side, most in zip(bucket, static, strict=True))) for bucket in stage.buckets] + [0]


def _rules(pipeline: Pipeline, sources: tuple[str, ...]) -> Int64s:
    engine_names = list(pipeline.engines)
    rows = []
    for s, stage in enumerate(pipeline.stages):
        for rule in stage.rules:
            when = rule.when
            items = bounds(when.items, "items") if when.items is not None else (0, c.FOREVER)
            tokens = bounds(when.tokens_in, "tokens_in") if when.tokens_in is not None else (-1, c.FOREVER)
            classes = (1 << len(CLASSES)) - 1 if when.class_ is None else 1 << CLASSES.index(when.class_)
            # A source that no request can carry (-2) never matches; leaving the rule out would shift the others.
            source = c.ANY if when.source is None else sources.index(when.source) if when.source in sources else -2
            bucket = c.ANY if when.bucket is None else when.bucket
            rows.append((s, *items, *tokens, classes, source, bucket, engine_names.index(rule.to)))
    return np.array(rows, np.int64).reshape(len(rows), c.RULE_SETTINGS)


def rule_sources(pipeline: Pipeline) -> tuple[str, ...]:
    """Source tags that the rules of a pipeline look at, in order of appearance."""
    named = (rule.when.source for stage in pipeline.stages for rule in stage.rules)
    return tuple(dict.fromkeys(source for source in named if source is not None))


def fresh(tables: Tables, max_requests: int) -> State:
    """An idle state: every engine up, every row free."""
    engine_count = len(tables.engines)
    stage_count = len(tables.stages)
    lanes = int(tables.stages[-1, c.S_FIRST_LANE] + tables.stages[-1, c.S_LANES])
    slots = int(tables.engines[:, c.E_MAX_INFLIGHT].sum())
    largest = int(min(max_requests, tables.pairs[:, :, c.P_BATCH_SIZE].max()))

    requests = np.zeros((max_requests, c.REQUEST_COLUMNS), np.int64)
    requests[:, c.R_NEXT] = np.arange(1, max_requests + 1)
    requests[-1, c.R_NEXT] = -1
    requests[:, c.R_PREVIOUS] = -1
    lane_table = np.zeros((engine_count, c.CLASSES, lanes, c.LANE_COLUMNS), np.int64)
    lane_table[..., c.L_HEAD] = lane_table[..., c.L_TAIL] = -1
    engines = np.zeros((engine_count, c.ENGINE_COLUMNS), np.int64)
    engines[:, c.N_UP] = 1
    engines[:, [c.N_QUEUE_EXPIRY_NS, c.N_WAKE_NS, c.N_BREAKER_NS]] = c.FOREVER
    engines[:, c.N_SCALE_PPM] = c.PPM
    engines[:, c.N_DONE_NS] = -c.LONG_AGO_NS
    batches = np.zeros((slots, c.BATCH_COLUMNS), np.int64)
    batches[:, c.B_EXPIRY_NS] = c.FOREVER
    for e in range(engine_count):
        first = tables.engines[e, c.E_FIRST_SLOT]
        batches[first : first + tables.engines[e, c.E_MAX_INFLIGHT], c.B_ENGINE] = e
    breakers = np.zeros((stage_count, engine_count, c.BREAKER_COLUMNS), np.int64)
    breakers[..., c.X_UNTIL_NS] = c.FOREVER
    breakers[..., c.X_PERMITS] = tables.breakers[:, c.K_PERMITS, None]
    counters = np.zeros(c.COUNTERS, np.int64)
    counters[c.C_NEXT_TIMER_NS] = c.FOREVER
    counters[c.C_BUDGET_PPM] = tables.run[c.W_RETRY_RESERVE_PPM]
    # One event can end every request once, place each of the largest batch once or every queued one anew when an
    # engine goes down, and fill every slot.
    effects = np.zeros((2 * max_requests + slots + largest + 8, c.EFFECT_COLUMNS), np.int64)
    return State(
        requests=requests,
        lanes=lane_table,
        lane_rows=np.zeros((engine_count, lanes), np.int64),
        engines=engines,
        batches=batches,
        members=np.zeros((slots, largest, c.MEMBER_COLUMNS), np.int64),
        stages=np.zeros((stage_count, c.STAGE_COLUMNS), np.int64),
        breakers=breakers,
        calls=np.zeros((stage_count, engine_count, max(1, int(tables.breakers[:, c.K_WINDOW].max()))), np.int64),
        floors=np.zeros((engine_count, c.CLASSES), np.int64),
        learned_ns=np.zeros((stage_count, engine_count), np.int64),
        counters=counters,
        dirty=np.zeros(engine_count, np.int64),
        effects=effects,
    )
