"""Lowers a pipeline and a latency table to arrays, once, for both shells; and makes the state they are decided on."""

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.estimate import ServiceCurve, row_prices, service_curves, slow_ppm
from loadslice.policy.layout import Int64s as Int64s
from loadslice.policy.layout import State as State
from loadslice.policy.layout import Tables as Tables
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Reason
from loadslice.spec.pipeline import CLASSES, PRECISIONS, Breaker, Pipeline, Stage
from loadslice.spec.pipeline_shares import LEAST_SHARE
from loadslice.spec.predicate import bounds

_NS_PER_MS = 1_000_000
_LINE = 8
"""Cells in a line of the cache."""
_BYTES_PER_MB = 1_000_000


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
    lane_counts = [(len(stage.buckets) + 1) * versions(stage) for stage in pipeline.stages]
    shape = (stage_count, engine_count, max(lane_counts))
    stages = np.zeros((stage_count, c.STAGE_SETTINGS), np.int64)
    breakers = np.zeros((stage_count, c.BREAKER_SETTINGS), np.int64)
    pairs = np.zeros((stage_count, engine_count, c.PAIR_SETTINGS), np.int64)
    preference = np.full((stage_count, engine_count), -1, np.int64)
    eligible, base_ns, row_ns = (np.zeros(shape, np.int64) for _ in range(3))
    price = np.zeros(shape, np.int64)
    curves = service_curves(pipeline, latency) if latency is not None else {}
    first_lane = 0
    for s, stage in enumerate(pipeline.stages):
        lanes = lane_counts[s]
        stages[s] = _stage_row(stage, pipeline, first_lane, lanes)
        breakers[s] = _breaker_row(stage.breaker)
        first_lane += lanes
        for order, name in enumerate(stage.engine_names):
            e = engine_names.index(name)
            preference[s, order] = e
            pairs[s, e] = _pair_row(stage, name, pipeline)
            pairs[s, e, c.P_SLOW_PPM] = slow_ppm(stage, name, latency)
            eligible[s, e, :lanes] = _eligible(stage, name) * versions(stage)
            for lane in range(lanes):
                curve = curves.get((s, e, lane), ServiceCurve(0, 0))
                base_ns[s, e, lane], row_ns[s, e, lane] = curve.base_ns, curve.row_ns
            price[s, e, :lanes] = row_prices(pipeline, stage, name, base_ns[s, e, :lanes], row_ns[s, e, :lanes])
    return Tables(
        run=_run_row(pipeline),
        engines=_engine_rows(pipeline),
        stages=stages,
        breakers=breakers,
        pairs=pairs,
        preference=preference,
        rank=_ranks(preference),
        eligible=eligible,
        rules=_rules(pipeline, sources),
        base_ns=base_ns,
        row_ns=row_ns,
        price=price,
        tenants=_tenant_shares(pipeline),
        steps=np.array([0, *(round(step * c.PPM) for step in pipeline.rollout.steps)], np.int64),
        lane_stage=np.repeat(np.arange(stage_count), lane_counts),
    )


def _ranks(preference: Int64s) -> Int64s:
    rank = np.full(preference.shape, preference.shape[1], np.int64)
    for stage, order in enumerate(preference):
        engines = order[order >= 0]
        rank[stage, engines] = np.arange(len(engines))
    return rank


def versions(stage: Stage) -> int:
    """How many versions of a stage there are side by side: 1, or 2 with a canary."""
    return 1 if stage.canary is None else 2


def tenant_names(pipeline: Pipeline) -> tuple[str, ...]:
    """Tenants with a guarantee; a request's tenant is 1 + its place here, 0 for whoever has none."""
    return tuple(pipeline.tenants)


def _tenant_shares(pipeline: Pipeline) -> Int64s:
    named = [tenant.share for tenant in pipeline.tenants.values()]
    shares = [max(LEAST_SHARE, 1.0 - sum(named)), *named]
    return np.array([round(share * c.PPM) for share in shares], np.int64)


def _engine_rows(pipeline: Pipeline) -> Int64s:
    rows = np.zeros((len(pipeline.engines), c.ENGINE_SETTINGS), np.int64)
    first_slot = 0
    for index, (name, engine) in enumerate(pipeline.engines.items()):
        queue = engine.queue
        has_shares = any(name in stage.share for stage in pipeline.stages)
        rows[index] = (
            engine.max_inflight,
            queue.limit,
            c.FOREVER if queue.overflow_at is None else queue.overflow_at,
            c.FOREVER if queue.wait_limit_ms is None else round(queue.wait_limit_ms * _NS_PER_MS),
            first_slot,
            c.FOREVER if engine.memory_mb is None else round(engine.memory_mb * _BYTES_PER_MB),
            int(has_shares or bool(pipeline.tenants)),
            int(has_shares),
            int(_fills_apart(pipeline, name)),
        )
        first_slot += engine.max_inflight
    return rows


def _fills_apart(pipeline: Pipeline, name: str) -> bool:
    """Whether requests of several lanes wait on an engine, and some of them for batches of more than one row."""
    here = [stage for stage in pipeline.stages if name in stage.engine_names]
    lanes = sum((len(stage.buckets) + 1) * versions(stage) for stage in here)
    return lanes > 1 and any(name in stage.batch and stage.batch[name].size > 1 for stage in here)


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
        row[c.W_OFFLINE_CLASSES] |= int(limits is not None and limits.offline) << priority
    row[c.W_HAS_FLOORS] = int(row[c.W_FLOOR_PPM :].any())
    has_canary = any(stage.canary is not None for stage in pipeline.stages)
    row[c.W_FIRST_STEP] = pipeline.rollout.at if has_canary else 0
    return row


def _breaker_row(breaker: Breaker | None) -> tuple[int, ...]:
    if breaker is None:
        return tuple(c.FOREVER if setting == c.K_SLOW_NS else 0 for setting in range(c.BREAKER_SETTINGS))
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


def _stage_row(stage: Stage, pipeline: Pipeline, first_lane: int, lanes: int) -> tuple[int, ...]:
    engine_names = list(pipeline.engines)
    failover = stage.failover
    classes = CLASSES if failover is None or failover.classes is None else failover.classes
    return (
        c.FOREVER if stage.timeout_ms is None else round(stage.timeout_ms * _NS_PER_MS),
        _PREFERENCES[stage.prefer],
        -1 if failover is None else engine_names.index(failover.to),
        0 if failover is None else round(failover.share * c.PPM),
        sum(1 << CLASSES.index(name) for name in classes),
        first_lane,
        lanes,
        len(stage.buckets) + 1,
        int(stage.degraded is not None),
        int(_is_exact(stage, pipeline)),
    )


def _is_exact(stage: Stage, pipeline: Pipeline) -> bool:
    """Whether the three numbers that `preference.fastest` reads of an engine say when a row would end there.

    On each engine one slot, no padding of one row, room for every model and no batches of several lanes; and equal
    engines go by the file's order.
    """
    in_order = [list(pipeline.engines).index(name) for name in stage.engine_names]
    engines = [pipeline.engines[name] for name in stage.engine_names]
    pads = [stage.batch[name].pad_to[:1] for name in stage.engine_names if name in stage.batch]
    return (
        in_order == sorted(in_order)
        and all(engine.max_inflight == 1 and engine.memory_mb is None for engine in engines)
        and all(first in ([], [1]) for first in pads)
        and not any(_fills_apart(pipeline, name) for name in stage.engine_names)
    )


_PREFERENCES = {
    "static": c.PREFER_STATIC,
    "fastest": c.PREFER_FASTEST,
    "cheapest": c.PREFER_CHEAPEST,
    "rules": c.PREFER_RULES,
}


def _pair_row(stage: Stage, engine_name: str, pipeline: Pipeline) -> tuple[int, ...]:
    batch = stage.batch.get(engine_name)
    accept = stage.accept.get(engine_name)
    precision = (accept.precision if accept else None) or pipeline.engines[engine_name].precision
    pads = [] if batch is None else batch.pad_to
    return (
        1 if batch is None else batch.size,
        0 if batch is None else round(batch.window_ms * _NS_PER_MS),
        c.FOREVER if accept is None or accept.max_items is None else accept.max_items,
        PRECISIONS.index(precision),
        _stage_share_ppm(pipeline, stage, engine_name),
        round((stage.memory_mb or 0.0) * _BYTES_PER_MB),
        round((stage.load_ms or 0.0) * _NS_PER_MS),
        c.PPM,
        *pads,
        *[0] * (c.PADS_MAX - len(pads)),
    )


def _stage_share_ppm(pipeline: Pipeline, stage: Stage, engine_name: str) -> int:
    """A stage's guaranteed share of an engine, or its part of what the guarantees leave."""
    if engine_name in stage.share:
        return round(stage.share[engine_name] * c.PPM)
    here = [other for other in pipeline.stages if engine_name in other.engine_names]
    left = 1.0 - sum(other.share.get(engine_name, 0.0) for other in here)
    without = sum(engine_name not in other.share for other in here)
    return max(1, round(max(LEAST_SHARE, left) / without * c.PPM))


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
    engine_count, stage_count = len(tables.engines), len(tables.stages)
    lanes, tenants = len(tables.lane_stage), len(tables.tenants)
    slots = int(tables.engines[:, c.E_MAX_INFLIGHT].sum())
    largest = int(min(max_requests, tables.pairs[:, :, c.P_BATCH_SIZE].max()))

    requests = np.zeros((max_requests, c.REQUEST_COLUMNS), np.int64)
    requests[:, c.R_NEXT] = np.arange(1, max_requests + 1)
    requests[-1, c.R_NEXT] = -1
    requests[:, c.R_PREVIOUS] = -1
    lane_table = _at_line(np.full((lanes, tenants, engine_count, c.CLASSES, c.LANE_COLUMNS), -1, np.int64))
    engines = np.zeros((engine_count, c.ENGINE_COLUMNS), np.int64)
    engines[:, c.N_UP] = 1
    engines[:, [c.N_QUEUE_EXPIRY_NS, c.N_BREAKER_NS]] = c.FOREVER
    engines[:, c.N_DONE_NS] = -c.LONG_AGO_NS
    batches = np.zeros((slots, c.BATCH_COLUMNS), np.int64)
    batches[:, c.B_EXPIRY_NS] = c.FOREVER
    batches[:, c.B_ENGINE] = np.repeat(np.arange(engine_count), tables.engines[:, c.E_MAX_INFLIGHT])
    breakers = np.zeros((stage_count, engine_count, c.BREAKER_COLUMNS), np.int64)
    breakers[..., c.X_UNTIL_NS] = c.FOREVER
    breakers[..., c.X_PERMITS] = tables.breakers[:, c.K_PERMITS, None]
    counters = np.zeros(c.COUNTERS, np.int64)
    counters[c.C_NEXT_TIMER_NS] = c.FOREVER
    counters[c.C_BUDGET_PPM] = tables.run[c.W_RETRY_RESERVE_PPM]
    counters[c.C_STEP] = tables.run[c.W_FIRST_STEP]
    # One event can end every request once, place each once per engine (a sweep opens breaker after breaker, and what
    # waits moves on), and fill every slot.
    effects = np.zeros(((engine_count + 1) * max_requests + slots + 8, c.EFFECT_COLUMNS), np.int64)
    live = _first_estimates(tables)
    leaves = 1 << (engine_count - 1).bit_length()
    return State(
        requests=requests,
        lanes=lane_table,
        lane_rows=np.zeros((lanes, engine_count), np.int64),
        engines=engines,
        batches=batches,
        members=np.zeros((slots, largest, c.MEMBER_COLUMNS), np.int64),
        stages=np.zeros((stage_count, c.STAGE_COLUMNS), np.int64),
        breakers=breakers,
        calls=np.zeros((stage_count, engine_count, max(1, int(tables.breakers[:, c.K_WINDOW].max()))), np.int64),
        floors=np.zeros((engine_count, c.CLASSES), np.int64),
        choice=np.full(c.CLASSES, -1, np.int64),
        learned_ns=np.zeros((stage_count, engine_count), np.int64),
        scale_ppm=np.full((stage_count, engine_count), c.PPM, np.int64),
        best=np.tile(np.array([0, c.PPM], np.int64), (stage_count, engine_count, 1)),
        live=live,
        ends_ns=_at_line(np.zeros(engine_count, np.int64)),
        backlog_ns=_at_line(np.zeros((len(CLASSES), engine_count), np.int64)),
        quick_ns=_at_line(live[..., c.V_BASE_NS] + live[..., c.V_ROW_NS]),
        admission=np.zeros((stage_count, engine_count), np.int64),
        tenant_flows=np.zeros((engine_count, c.CLASSES, tenants + 1, c.FLOW_COLUMNS), np.int64),
        stage_flows=np.zeros((engine_count, c.CLASSES, stage_count + 1, c.FLOW_COLUMNS), np.int64),
        resident=_first_residents(tables),
        placed=np.zeros((stage_count, engine_count, len(Reason)), np.int64),
        closed=np.zeros((stage_count, engine_count, c.CLOSINGS), np.int64),
        timers=np.full(2 * leaves, c.FOREVER, np.int64),
        counters=counters,
        dirty=np.zeros(engine_count, np.int64),
        effects=effects,
    )


def _at_line(cells: Int64s) -> Int64s:
    """The same in memory that begins where a line of the cache does: eight cells that are read at once lie in one."""
    room = np.zeros(cells.size + _LINE - 1, np.int64)
    first = -(room.ctypes.data // room.itemsize) % _LINE
    placed = room[first : first + cells.size].reshape(cells.shape)
    placed[...] = cells
    return placed


def _first_estimates(tables: Tables) -> Int64s:
    """Before anything was seen, the table is all there is."""
    base_ns = np.where(tables.eligible == 1, tables.base_ns, c.BLOCKED_NS)
    part_ns = tables.row_ns + base_ns // np.maximum(1, tables.pairs[:, :, c.P_BATCH_SIZE, None])
    return np.ascontiguousarray(np.stack([base_ns, tables.row_ns, part_ns], axis=-1).swapaxes(1, 2))


def _first_residents(tables: Tables) -> Int64s:
    """Models are loaded in the order of the file while they fit."""
    resident = np.full((len(tables.engines), len(tables.stages)), -1, np.int64)
    for engine in range(len(tables.engines)):
        free_bytes = int(tables.engines[engine, c.E_MEMORY_BYTES])
        for stage in range(len(tables.stages)):
            needed_bytes = int(tables.pairs[stage, engine, c.P_MEMORY_BYTES])
            if engine in tables.preference[stage] and needed_bytes <= free_bytes:
                resident[engine, stage] = 0
                free_bytes -= needed_bytes
    return resident
