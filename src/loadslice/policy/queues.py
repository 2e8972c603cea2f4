"""Bounded four-class queues: one FIFO per engine, class and lane, where a lane is one (stage, shape bucket).

Rules of this file: a request is in exactly one FIFO while its status is QUEUED; every number that is kept about a queue
(length, rows, backlog) changes in `push` and `unlink` alone; nothing here decides anything.
"""

from loadslice.policy import columns as c
from loadslice.policy.kernel import kernel
from loadslice.policy.tables import State, Tables


@kernel
def lane_of(tables: Tables, stage: int, bucket: int) -> int:
    """Lane of a stage's shape bucket."""
    return int(tables.stages[stage, c.S_FIRST_LANE] + bucket)


@kernel
def push(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> None:
    """Put a request at the tail of its FIFO on an engine."""
    row = state.requests[request]
    lane = lane_of(tables, row[c.R_STAGE], row[c.R_BUCKET])
    fifo = state.lanes[engine, row[c.R_CLASS], lane]
    tail = fifo[c.L_TAIL]
    row[c.R_PREVIOUS] = tail
    row[c.R_NEXT] = -1
    if tail >= 0:
        state.requests[tail, c.R_NEXT] = request
    else:
        fifo[c.L_HEAD] = request
    fifo[c.L_TAIL] = request
    fifo[c.L_COUNT] += 1
    state.lane_rows[engine, lane] += row[c.R_ITEMS]

    state.counters[c.C_SEQUENCE] += 1
    row[c.R_SEQUENCE] = state.counters[c.C_SEQUENCE]
    row[c.R_STATUS] = c.QUEUED
    row[c.R_ENGINE] = engine
    row[c.R_ENQUEUED_NS] = now_ns
    counts = state.engines[engine]
    counts[c.N_QUEUED] += 1
    counts[c.N_BACKLOG_NS] += row[c.R_ESTIMATE_NS]
    if row[c.R_EXPIRY_NS] < counts[c.N_QUEUE_EXPIRY_NS]:
        counts[c.N_QUEUE_EXPIRY_NS] = row[c.R_EXPIRY_NS]


@kernel
def unlink(tables: Tables, state: State, request: int) -> None:
    """Take a queued request out of its FIFO, wherever it stands; the order of the others is unchanged."""
    row = state.requests[request]
    engine = row[c.R_ENGINE]
    lane = lane_of(tables, row[c.R_STAGE], row[c.R_BUCKET])
    fifo = state.lanes[engine, row[c.R_CLASS], lane]
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
    fifo[c.L_COUNT] -= 1
    state.lane_rows[engine, lane] -= row[c.R_ITEMS]
    counts = state.engines[engine]
    counts[c.N_QUEUED] -= 1
    counts[c.N_BACKLOG_NS] -= row[c.R_ESTIMATE_NS]


@kernel
def newest_below(state: State, engine: int, priority: int) -> int:
    """The request a newcomer of class ``priority`` may displace on an engine.

    Returns:
        The newest request of the lowest class present that is lower than ``priority``; -1 when there is none.
    """
    for lower in range(c.CLASSES - 1, priority, -1):
        newest = -1
        for lane in range(state.lanes.shape[2]):
            tail = state.lanes[engine, lower, lane, c.L_TAIL]
            if tail >= 0 and (newest < 0 or state.requests[tail, c.R_SEQUENCE] > state.requests[newest, c.R_SEQUENCE]):
                newest = tail
        if newest >= 0:
            return newest
    return -1
