"""What is expected now: how long a batch takes, how long a newcomer waits, and how both are learned.

The table's straight line in rows, at the speed that each stage shows on each engine. Where the table says nothing, the
mean of what was seen, whatever the rows; 0 as long as nothing was, which routes the first request there.
"""

from loadslice.policy import columns as c
from loadslice.policy.ends import set_quick
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables

MEMORY_SHIFT = 3
"""Estimates move by 1/8 of each new observation: a slow-down of 6x is seen to two thirds after eight batches."""

SCALE_MIN_PPM, SCALE_MAX_PPM = 10_000, 1_000_000_000

EXPECTED_NS_MAX = 86_400_000_000_000
"""A day: what is expected to take longer is as hopeless, and 100,000 of them together still fit 64 bits."""

SHORT_NS = 1 << 32
"""A time below it, times the largest scale, fits 64 bits."""


@kernel
def padded(tables: Tables, stage: int, engine: int, rows: int) -> int:
    """Rows that an engine computes for so many: padded to the first count it was built for that holds them."""
    return rows if tables.pairs[stage, engine, c.P_FIRST_PAD] == 0 else next_pad(tables, stage, engine, rows)


@rare
def next_pad(tables: Tables, stage: int, engine: int, rows: int) -> int:
    """The first row count an engine was built for that holds so many; themselves where none does."""
    pair = tables.pairs[stage, engine]
    for pad in range(c.P_FIRST_PAD, c.P_FIRST_PAD + c.PADS_MAX):
        if pair[pad] >= rows:
            return int(pair[pad])
    return rows


@kernel
def service_ns(tables: Tables, state: State, stage: int, engine: int, lane: int, rows: int) -> int:
    """Expected service time of a batch of ``rows`` on an engine that takes the lane of the stage."""
    speed = state.live[stage, lane, engine]
    return int(speed[c.V_BASE_NS] + padded(tables, stage, engine, rows) * speed[c.V_ROW_NS])


@kernel
def slow_ns(typical_ns: int, slow_ppm: int) -> int:
    """How long one batch in twenty takes, or longer; parts of a thousand, so that no time overflows."""
    return int(typical_ns // 1000 * (slow_ppm // 1000))


@rare
def best_service_ns(tables: Tables, state: State, stage: int, engine: int, lane: int, rows: int) -> int:
    """The same, were the engine as quick as it ever was; where the table says nothing, its quickest batch so far."""
    base_ns = tables.base_ns[stage, engine, lane]
    row_ns = tables.row_ns[stage, engine, lane]
    if base_ns + row_ns == 0:
        return int(min(state.best[stage, engine, c.Z_TOOK_NS], EXPECTED_NS_MAX))
    scale = state.best[stage, engine, c.Z_SCALE_PPM]
    return int(scaled(base_ns, scale) + padded(tables, stage, engine, rows) * scaled(row_ns, scale))


@kernel
def work_ns(tables: Tables, state: State, stage: int, engine: int, lane: int, rows: int) -> int:
    """What a request adds to an engine's backlog: its rows, and its part of the base of a full batch."""
    speed = state.live[stage, lane, engine]
    if rows < tables.pairs[stage, engine, c.P_BATCH_SIZE]:
        return int(rows * speed[c.V_PART_NS])
    return int(speed[c.V_BASE_NS] + rows * speed[c.V_ROW_NS])


@kernel
def wait_ns(now_ns: int, tables: Tables, state: State, engine: int, priority: int) -> int:
    """Expected wait of a newcomer on an engine: work queued before it, and what is left of running batches, over slots.

    Before it is what waits in its class and those above; what waits below would be overtaken. Counted as well, a burst
    of the lowest class had the highest refused as hopeless.
    """
    if tables.engines[engine, c.E_MAX_INFLIGHT] == 1:
        return int(state.backlog_ns[priority, engine] + max(0, state.ends_ns[engine] - now_ns))
    return wait_for_many_ns(now_ns, tables, state, engine, priority)


@rare
def wait_for_many_ns(now_ns: int, tables: Tables, state: State, engine: int, priority: int) -> int:
    """Expected wait on an engine with several slots: none while one is idle and nobody waits."""
    width = tables.engines[engine, c.E_MAX_INFLIGHT]
    counts = state.engines[engine]
    first = tables.engines[engine, c.E_FIRST_SLOT]
    if counts[c.N_INFLIGHT] < width and counts[c.N_QUEUED] == 0:
        return 0
    left_ns = state.backlog_ns[priority, engine] * 1
    for slot in range(first, first + width):
        if state.batches[slot, c.B_BUSY] == 1:
            left_ns += max(0, state.batches[slot, c.B_STARTED_NS] + state.batches[slot, c.B_EXPECTED_NS] - now_ns)
    return int(left_ns // width)


@kernel
def learn(now_ns: int, tables: Tables, state: State, slot: int) -> None:
    """Move the estimates by how long a batch took that ended well; a trial's answer replaces them.

    A failure teaches nothing: it may come at once, or after a long silence. Nor does a batch that had its model loaded
    first: how long that took is not told.
    """
    batch = state.batches[slot]
    if batch[c.B_LOAD_NS] > 0:
        return
    engine = batch[c.B_ENGINE]
    stage = batch[c.B_STAGE]
    lane = batch[c.B_BUCKET]
    took_ns = now_ns - batch[c.B_STARTED_NS]
    learned = state.learned_ns[stage, engine]
    best = state.best[stage, engine]
    if learned > 0:  # the first batch of all may be long for reasons that do not come again
        best[c.Z_TOOK_NS] = took_ns if best[c.Z_TOOK_NS] == 0 else min(best[c.Z_TOOK_NS], took_ns)
    afresh = learned == 0 or batch[c.B_TRIAL] == 1
    state.learned_ns[stage, engine] = took_ns if afresh else learned + ((took_ns - learned) >> MEMORY_SHIFT)
    expected = tables.base_ns[stage, engine, lane] + batch[c.B_PADDED] * tables.row_ns[stage, engine, lane]
    if expected > 0:
        seen = min(max(ratio_ppm(took_ns, expected), SCALE_MIN_PPM), SCALE_MAX_PPM)
        scale = state.scale_ppm[stage, engine]
        state.scale_ppm[stage, engine] = seen if batch[c.B_TRIAL] == 1 else scale + ((seen - scale) >> MEMORY_SHIFT)
        best[c.Z_SCALE_PPM] = min(best[c.Z_SCALE_PPM], state.scale_ppm[stage, engine])
    for other in range(tables.stages[stage, c.S_LANES]):
        if tables.eligible[stage, engine, other] == 1:
            estimate(tables, state, stage, engine, other)


@kernel
def ratio_ppm(took_ns: int, expected_ns: int) -> int:
    """``took_ns * PPM // expected_ns``, whatever their size."""
    if took_ns < SHORT_NS:
        return int(took_ns * c.PPM // expected_ns)
    # As on paper, in digits of a thousand.
    whole = took_ns // expected_ns
    tenths = (took_ns - whole * expected_ns) * 1000
    thousandths = (tenths - tenths // expected_ns * expected_ns) * 1000
    return int(min(whole, SCALE_MAX_PPM) * c.PPM + tenths // expected_ns * 1000 + thousandths // expected_ns)


@kernel
def scaled(time_ns: int, scale_ppm: int) -> int:
    """``time_ns * scale_ppm // PPM``, whatever its size, and at most a day."""
    if time_ns < SHORT_NS:
        return int(min(time_ns * scale_ppm // c.PPM, EXPECTED_NS_MAX))
    whole = time_ns // c.PPM
    return int(min(whole * scale_ppm + (time_ns - whole * c.PPM) * scale_ppm // c.PPM, EXPECTED_NS_MAX))


@kernel
def estimate(tables: Tables, state: State, stage: int, engine: int, lane: int) -> None:
    """Set the live line of a lane from the table and what was learned."""
    speed = state.live[stage, lane, engine]
    base_ns = tables.base_ns[stage, engine, lane]
    row_ns = tables.row_ns[stage, engine, lane]
    if base_ns + row_ns == 0:
        speed[c.V_BASE_NS] = min(state.learned_ns[stage, engine], EXPECTED_NS_MAX)
    else:
        scale = state.scale_ppm[stage, engine]
        speed[c.V_BASE_NS] = scaled(base_ns, scale)
        speed[c.V_ROW_NS] = scaled(row_ns, scale)
    # Divided here, once a batch, and not at each arrival.
    speed[c.V_PART_NS] = speed[c.V_ROW_NS] + speed[c.V_BASE_NS] // tables.pairs[stage, engine, c.P_BATCH_SIZE]
    set_quick(state, stage, engine, lane)
