"""When a batch is closed and who is in it.

A lane is ready when its rows fill a batch, or its oldest has waited ``min(window, slack)``, where slack is what its
expiry leaves after the expected service. Classes are asked highest first, but for one that is owed its floor, and
inside a class the head that arrived first; a lane that still waits for company does not hold up a lower class. A batch
is filled from its lane highest class first and in order, and stops at the first that does not fit: nobody overtakes.
"""

from loadslice.policy import columns as c
from loadslice.policy.ends import say
from loadslice.policy.kernel import kernel
from loadslice.policy.queues import unlink
from loadslice.policy.routing import dropped, service_ns
from loadslice.policy.tables import State, Tables


@kernel
def stage_of_lane(tables: Tables, lane: int) -> int:
    """Stage a lane belongs to."""
    stage = 0
    while stage + 1 < tables.stages.shape[0] and tables.stages[stage + 1, c.S_FIRST_LANE] <= lane:
        stage += 1
    return stage


@kernel
def ready_ns(tables: Tables, state: State, engine: int, lane: int) -> int:
    """When a lane that has requests may be dispatched on a free slot; not later than when it fills."""
    stage = stage_of_lane(tables, lane)
    pair = tables.pairs[stage, engine]
    if pair[c.P_WINDOW_NS] == 0 or state.lane_rows[engine, lane] >= pair[c.P_BATCH_SIZE]:
        return 0
    ready = c.FOREVER
    for priority in range(c.CLASSES):
        head = state.lanes[engine, priority, lane, c.L_HEAD]
        if head >= 0:
            row = state.requests[head]
            ready = min(ready, row[c.R_ENQUEUED_NS] + pair[c.P_WINDOW_NS], row[c.R_EXPIRY_NS] - row[c.R_ESTIMATE_NS])
    return int(ready)


@kernel
def ready_lane(now_ns: int, tables: Tables, state: State, engine: int, priority: int) -> int:
    """The lane of a class to dispatch now, the head that arrived first first; -1: all are empty or wait for company.

    By arrival in the system, not in the queue: what has begun is finished before what has not. By arrival in the queue
    a request would wait for the whole of it again at every stage, and under overload most work would be spent on
    requests that are dropped before their last.
    """
    best = -1
    for lane in range(state.lanes.shape[2]):
        head = state.lanes[engine, priority, lane, c.L_HEAD]
        if head < 0 or (best >= 0 and not came_first(state, head, state.lanes[engine, priority, best, c.L_HEAD])):
            continue
        if ready_ns(tables, state, engine, lane) <= now_ns:
            best = lane
    return best


@kernel
def came_first(state: State, request: int, other: int) -> bool:
    """Whether a request arrived before another; the order of queueing tells those of one instant apart."""
    arrived = state.requests[request, c.R_ARRIVED_NS]
    other_arrived = state.requests[other, c.R_ARRIVED_NS]
    if arrived != other_arrived:
        return bool(arrived < other_arrived)
    return bool(state.requests[request, c.R_SEQUENCE] < state.requests[other, c.R_SEQUENCE])


@kernel
def choose_class(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """The class whose turn it is: one that is owed its floor, else the highest that can be dispatched; -1: none can.

    Error diffusion again: each dispatch that a class waits through adds its floor to its credit, a whole credit is a
    turn. Of n dispatches while it waits it gets at least floor * n - 1.
    """
    chosen = -1
    for priority in range(c.CLASSES - 1, -1, -1):
        if ready_lane(now_ns, tables, state, engine, priority) >= 0:
            chosen = priority
    if chosen < 0 or tables.run[c.W_HAS_FLOORS] == 0:
        return chosen
    credit = state.floors[engine]
    for priority in range(c.CLASSES):
        if ready_lane(now_ns, tables, state, engine, priority) < 0:
            credit[priority] = 0
            continue
        credit[priority] += tables.run[c.W_FLOOR_PPM + priority]
        if credit[priority] >= c.PPM and (credit[chosen] < c.PPM or credit[priority] > credit[chosen]):
            chosen = priority
    credit[chosen] = max(0, credit[chosen] - c.PPM)
    return chosen


@kernel
def free_slot(tables: Tables, state: State, engine: int) -> int:
    """The first idle batch slot of an engine that has one."""
    slot = tables.engines[engine, c.E_FIRST_SLOT]
    while state.batches[slot, c.B_BUSY] == 1:
        slot += 1
    return int(slot)


@kernel
def close_batch(now_ns: int, tables: Tables, state: State, engine: int, lane: int, turn: int) -> None:
    """Fill a free slot from a lane and say DISPATCH; what can no longer meet its deadline is dropped instead.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        engine: Has a free slot.
        lane: Has requests.
        turn: Class whose head comes first; the rest is filled highest class first.
    """
    stage = stage_of_lane(tables, lane)
    bucket = lane - tables.stages[stage, c.S_FIRST_LANE]
    size = tables.pairs[stage, engine, c.P_BATCH_SIZE]
    slot = free_slot(tables, state, engine)
    batch = state.batches[slot]
    count = 0
    rows = 0
    expiry = c.FOREVER
    full = False
    for step in range(-1, c.CLASSES):
        priority = turn if step < 0 else step
        while not full and (step >= 0 or count == 0) and state.lanes[engine, priority, lane, c.L_HEAD] >= 0:
            request = state.lanes[engine, priority, lane, c.L_HEAD]
            row = state.requests[request]
            if count > 0 and (rows + row[c.R_ITEMS] > size or count == state.members.shape[1]):
                full = True
                break
            unlink(tables, state, request)
            if row[c.R_DEADLINE_NS] < c.FOREVER and dropped(now_ns, tables, state, request, engine, 0, 0):
                continue
            row[c.R_STATUS] = c.RUNNING
            member = state.members[slot, count]
            member[c.M_REQUEST] = request
            member[c.M_EPOCH] = row[c.R_EPOCH]
            member[c.M_TAG] = row[c.R_TAG]
            count += 1
            rows += row[c.R_ITEMS]
            expiry = min(expiry, row[c.R_EXPIRY_NS])
    if count == 0:
        return
    batch[c.B_BUSY] = 1
    batch[c.B_EPOCH] += 1
    batch[c.B_STAGE] = stage
    batch[c.B_BUCKET] = bucket
    batch[c.B_COUNT] = count
    batch[c.B_ROWS] = rows
    batch[c.B_STARTED_NS] = now_ns
    batch[c.B_EXPECTED_NS] = service_ns(tables, state, stage, engine, bucket, rows)
    batch[c.B_EXPIRY_NS] = expiry
    counts = state.engines[engine]
    counts[c.N_INFLIGHT] += 1
    counts[c.N_BATCHES] += 1
    counts[c.N_DISPATCHED] += count
    say(state, c.DISPATCH, slot, engine, stage, bucket, batch[c.B_EPOCH])


@kernel
def start_all(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Dispatch everything that may start now on one engine, then say when to look at it again."""
    counts = state.engines[engine]
    width = tables.engines[engine, c.E_MAX_INFLIGHT]
    while counts[c.N_UP] == 1 and counts[c.N_QUEUED] > 0 and counts[c.N_INFLIGHT] < width:
        turn = choose_class(now_ns, tables, state, engine)
        if turn < 0:
            break
        close_batch(now_ns, tables, state, engine, ready_lane(now_ns, tables, state, engine, turn), turn)
    wake(now_ns, tables, state, engine)


@kernel
def wake(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Set when an engine must be looked at again: a window that closes, or an expiry in its queue or its batches."""
    counts = state.engines[engine]
    if counts[c.N_QUEUED] == 0:
        counts[c.N_QUEUE_EXPIRY_NS] = c.FOREVER
    at = min(counts[c.N_QUEUE_EXPIRY_NS], counts[c.N_BREAKER_NS])
    first = tables.engines[engine, c.E_FIRST_SLOT]
    width = tables.engines[engine, c.E_MAX_INFLIGHT]
    for slot in range(first, first + width):
        at = min(at, state.batches[slot, c.B_EXPIRY_NS])
    if counts[c.N_UP] == 1 and counts[c.N_QUEUED] > 0 and counts[c.N_INFLIGHT] < width:
        for lane in range(state.lanes.shape[2]):
            if state.lane_rows[engine, lane] > 0:
                at = min(at, max(now_ns, ready_ns(tables, state, engine, lane)))
    counts[c.N_WAKE_NS] = at
