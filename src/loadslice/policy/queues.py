"""Bounded four-class queues: one FIFO per engine, class, lane and tenant; a lane is one (stage, version, shape bucket).

Rules of this file: a request is in exactly one FIFO while its status is QUEUED; every number that is kept about a queue
(length, rows, backlog) changes in `push` and `uncount` alone; nothing here decides anything. Whoever takes a request
out by `pop` owes an `uncount` before anything else is asked about the engine.
"""

from loadslice.policy import columns as c
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.shares import is_shared, joined, left


@kernel
def add_backlog(state: State, engine: int, priority: int, work_ns: int) -> None:
    """Count work that waits for whoever comes after it: newcomers of its class and of those below."""
    # All classes, whatever ``priority``: a loop whose length nobody can guess takes longer than one that adds nothing.
    for other in range(c.CLASSES):
        state.backlog_ns[other, engine] += work_ns if other >= priority else 0


@kernel
def push(now_ns: int, tables: Tables, state: State, request: int, stage: int, engine: int) -> None:
    """Put a request at the tail of the FIFO of its stage on an engine."""
    row = state.requests[request]
    priority = row[c.R_CLASS]
    lane = tables.stages[stage, c.S_FIRST_LANE] + row[c.R_BUCKET]
    fifo = state.lanes[lane, row[c.R_TENANT], engine, priority]
    head = fifo[c.L_HEAD]
    tail = fifo[c.L_TAIL]
    row[c.R_PREVIOUS] = tail
    # Whether somebody waits already nobody can guess: the first follows itself, for a moment.
    state.requests[tail if tail >= 0 else request, c.R_NEXT] = request
    row[c.R_NEXT] = -1
    fifo[c.L_HEAD] = head if tail >= 0 else request
    fifo[c.L_TAIL] = request
    state.lane_rows[lane, engine] += row[c.R_ITEMS]

    state.counters[c.C_SEQUENCE] += 1
    row[c.R_SEQUENCE] = state.counters[c.C_SEQUENCE]
    row[c.R_STATUS] = c.QUEUED
    row[c.R_ENGINE] = engine
    row[c.R_ENQUEUED_NS] = now_ns
    counts = state.engines[engine]
    counts[c.N_QUEUED] += 1
    counts[c.N_WAITING + priority] += 1
    add_backlog(state, engine, priority, row[c.R_WORK_NS])
    if row[c.R_EXPIRY_NS] < counts[c.N_QUEUE_EXPIRY_NS]:
        counts[c.N_QUEUE_EXPIRY_NS] = row[c.R_EXPIRY_NS]
    if is_shared(tables, engine):
        joined(tables, state, request, engine)


@kernel
def unlink(tables: Tables, state: State, request: int) -> None:
    """Take a queued request out of its FIFO, wherever it stands; the order of the others is unchanged."""
    row = state.requests[request]
    engine = row[c.R_ENGINE]
    priority = row[c.R_CLASS]
    lane = tables.stages[row[c.R_STAGE], c.S_FIRST_LANE] + row[c.R_BUCKET]
    fifo = state.lanes[lane, row[c.R_TENANT], engine, priority]
    previous = row[c.R_PREVIOUS]
    following = row[c.R_NEXT]
    if previous >= 0:
        state.requests[previous, c.R_NEXT] = following
    else:
        fifo[c.L_HEAD] = following
    if following >= 0:
        state.requests[following, c.R_PREVIOUS] = previous
    else:
        fifo[c.L_TAIL] = previous
    uncount(state, engine, priority, lane, 1, row[c.R_ITEMS], row[c.R_WORK_NS])
    if is_shared(tables, engine):
        left(tables, state, request, engine)


@kernel
def pop(tables: Tables, state: State, request: int, engine: int, priority: int, lane: int) -> int:
    """Take the head of a FIFO out of it, the numbers excepted: several that leave together are counted once.

    Returns:
        The next one of the same FIFO; -1: there is none.
    """
    row = state.requests[request]
    fifo = state.lanes[lane, row[c.R_TENANT], engine, priority]
    following = row[c.R_NEXT]
    tail = fifo[c.L_TAIL]
    fifo[c.L_HEAD] = following
    # As in `push`: the last one, which has nobody before it, is told so once more.
    state.requests[following if following >= 0 else request, c.R_PREVIOUS] = -1
    fifo[c.L_TAIL] = tail if following >= 0 else -1
    if is_shared(tables, engine):
        left(tables, state, request, engine)
    return int(following)


@kernel
def uncount(state: State, engine: int, priority: int, lane: int, requests: int, rows: int, work_ns: int) -> None:
    """Count requests of one class and lane, and what they ask, out of an engine's queue."""
    counts = state.engines[engine]
    counts[c.N_QUEUED] -= requests
    counts[c.N_WAITING + priority] -= requests
    state.lane_rows[lane, engine] -= rows
    add_backlog(state, engine, priority, -work_ns)


@rare
def newest(state: State, engine: int, priority: int, tenant: int) -> int:
    """The request of a class, and of one tenant unless that is -1, that queued last on an engine; -1: none waits."""
    found = -1
    for lane in range(state.lanes.shape[0]):
        for owner in range(state.lanes.shape[1]):
            tail = state.lanes[lane, owner, engine, priority, c.L_TAIL]
            if tail < 0 or (tenant >= 0 and tenant != owner):
                continue
            if found < 0 or state.requests[tail, c.R_SEQUENCE] > state.requests[found, c.R_SEQUENCE]:
                found = tail
    return int(found)


@rare
def newest_behind(tables: Tables, state: State, engine: int, request: int) -> int:
    """The request that has done least of those that have done less than ``request``, of its class and tenant.

    Returns:
        Of the earliest stage that waits on an engine, if that is before the stage of ``request``, the newest; else -1.
    """
    row = state.requests[request]
    found = -1
    earliest = row[c.R_STAGE] * 1
    for lane in range(state.lanes.shape[0]):
        tail = state.lanes[lane, row[c.R_TENANT], engine, row[c.R_CLASS], c.L_TAIL]
        stage = tables.lane_stage[lane]
        if tail < 0 or stage > earliest or stage >= row[c.R_STAGE]:
            continue
        if stage < earliest or state.requests[tail, c.R_SEQUENCE] > state.requests[found, c.R_SEQUENCE]:
            found = tail
            earliest = stage
    return int(found)


@kernel
def newest_below(state: State, engine: int, priority: int) -> int:
    """The request a newcomer of class ``priority`` may displace on an engine.

    Returns:
        The newest request of the lowest class present that is lower than ``priority``; -1 when there is none.
    """
    for lower in range(c.CLASSES - 1, priority, -1):
        if state.engines[engine, c.N_WAITING + lower] > 0:
            return newest(state, engine, lower, -1)
    return -1
