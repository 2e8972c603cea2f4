"""When a batch is closed and who is in it.

A lane is ready when its rows fill a batch, or its oldest has waited ``min(window, slack)``, where slack is what its
expiry leaves after the service of all that waits with it, and of the stages still to come. Classes are asked highest
first, but for one that is owed its floor; an offline class only while no other waits. Inside a class the order is that
of `shares`: guaranteed shares first, then by arrival. A lane that still waits for company does not hold up a lower
class. A batch is filled from its lane highest class first and in order, and stops at the first that does not fit:
nobody overtakes.
"""

from loadslice.policy import columns as c
from loadslice.policy.deadlines import drop, is_late, rest_ns
from loadslice.policy.ends import say
from loadslice.policy.kernel import called, kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.live import padded, service_ns, slow_ns
from loadslice.policy.queues import pop, uncount
from loadslice.policy.residency import can_hold, is_bounded, load_ns, make_resident
from loadslice.policy.shares import charge, goes_first, head_of, is_shared
from loadslice.policy.timers import set_timer


@rare
def oldest_due_ns(tables: Tables, state: State, engine: int, lane: int) -> int:
    """When the first of a lane's heads has waited long enough: its window is over, or its expiry needs it to start."""
    stage = tables.lane_stage[lane]
    pair = tables.pairs[stage, engine]
    # Of the batch it would be now, and as long as one in twenty takes: by its typical time every second would be late,
    # and by the head's rows alone whoever waits with the head would cost it its deadline, or be left behind.
    place = lane - tables.stages[stage, c.S_FIRST_LANE]
    typical_ns = service_ns(tables, state, stage, engine, place, state.lane_rows[lane, engine])
    service = slow_ns(typical_ns, pair[c.P_SLOW_PPM]) + load_ns(tables, state, engine, stage)
    due = c.FOREVER
    for priority in range(c.CLASSES):
        for tenant in range(tables.tenants.shape[0]):
            head = state.lanes[lane, tenant, engine, priority, c.L_HEAD]
            if head >= 0:
                row = state.requests[head]
                latest = min(row[c.R_EXPIRY_NS], row[c.R_LATEST_NS])
                due = min(due, row[c.R_ENQUEUED_NS] + pair[c.P_WINDOW_NS], latest - service)
    return int(due)


@kernel
def ready_ns(tables: Tables, state: State, engine: int, lane: int) -> int:
    """When a lane that has requests may be dispatched on a free slot; not later than when it fills."""
    pair = tables.pairs[tables.lane_stage[lane], engine]
    if pair[c.P_WINDOW_NS] == 0 or state.lane_rows[lane, engine] >= pair[c.P_BATCH_SIZE]:
        return 0
    if tables.engines[engine, c.E_QUEUE_LIMIT] == 0:
        return 0  # nobody may wait, so nobody can come to fill the batch
    return oldest_due_ns(tables, state, engine, lane)


@kernel
def ready_lane(now_ns: int, tables: Tables, state: State, engine: int, priority: int) -> int:
    """The lane of a class to dispatch now; -1: all are empty, wait for company, or for memory.

    By arrival in the system, not in the queue: what has begun is finished before what has not. By arrival in the queue
    a request would wait for the whole of it again at every stage, and under overload most work would be spent on
    requests that are dropped before their last.
    """
    best = -1
    first = -1
    bounded = is_bounded(tables, engine)
    for lane in range(state.lanes.shape[0]):
        if state.lane_rows[lane, engine] == 0:
            continue
        head = head_of(tables, state, engine, priority, lane)
        if head < 0 or (first >= 0 and not goes_first(tables, state, engine, head, first)):
            continue
        if bounded and not can_hold(tables, state, engine, tables.lane_stage[lane]):
            continue
        if ready_ns(tables, state, engine, lane) <= now_ns:
            best = lane
            first = head
    return best


@kernel
def held_classes(tables: Tables, state: State, engine: int) -> int:
    """Classes, as bits, that may not start on an engine now: the offline ones while any other waits there."""
    offline = tables.run[c.W_OFFLINE_CLASSES] * 1
    if offline > 0:
        for priority in range(c.CLASSES):
            if (offline >> priority) & 1 == 0 and state.engines[engine, c.N_WAITING + priority] > 0:
                return int(offline)
    return 0


@kernel
def first_class(state: State, engine: int) -> int:
    """The highest class that waits on an engine where somebody does, found without guesses."""
    first = c.CLASSES - 1
    for step in range(1, c.CLASSES):
        priority = c.CLASSES - 1 - step
        first = priority if state.engines[engine, c.N_WAITING + priority] > 0 else first
    return first


@kernel
def choose_class(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """The class whose turn it is: one that is owed its floor, else the highest that can be dispatched; -1: none can.

    Error diffusion again: each dispatch that a class waits through adds its floor to its credit, a whole credit is a
    turn, the largest first. Of n dispatches while it waits it gets at least floor * n - m, m being the number of
    classes with a floor. The lane of the class, and of each that has a floor, is left in ``state.choice``.
    """
    held_back = held_classes(tables, state, engine)
    floors = tables.run[c.W_HAS_FLOORS] == 1
    chosen = -1
    first = first_class(state, engine)
    if state.engines[engine, c.N_WAITING + first] == state.engines[engine, c.N_QUEUED] and held_back == 0:
        # One class alone has no need of floors, and of four questions three.
        for priority in range(c.CLASSES):
            state.choice[priority] = -1
        state.choice[first] = ready_lane(now_ns, tables, state, engine, first)
        return first if state.choice[first] >= 0 else -1
    for priority in range(c.CLASSES):
        lane = -1
        asked = chosen < 0 or tables.run[c.W_FLOOR_PPM + priority] > 0
        if asked and state.engines[engine, c.N_WAITING + priority] > 0 and (held_back >> priority) & 1 == 0:
            lane = ready_lane(now_ns, tables, state, engine, priority)
        state.choice[priority] = lane
        if lane >= 0 and chosen < 0:
            chosen = priority
            if not floors:
                return chosen
    if chosen < 0:
        return chosen
    most = c.PPM - 1
    for priority in range(c.CLASSES):
        if state.choice[priority] >= 0:
            credit = state.floors[engine, priority] + tables.run[c.W_FLOOR_PPM + priority]
            if credit > most:
                most = credit
                chosen = priority
    return chosen


@kernel
def keep_floors(tables: Tables, state: State, engine: int, served: int) -> None:
    """A batch whose first is of class ``served`` was dispatched: who could have been, and was not, comes nearer."""
    credit = state.floors[engine]
    for priority in range(c.CLASSES):
        nearer = credit[priority] + tables.run[c.W_FLOOR_PPM + priority]
        credit[priority] = 0 if state.choice[priority] < 0 else nearer
    credit[served] = max(0, credit[served] - c.PPM)


@kernel
def free_slot(tables: Tables, state: State, engine: int) -> int:
    """The first idle batch slot of an engine that has one."""
    slot = tables.engines[engine, c.E_FIRST_SLOT]
    while state.batches[slot, c.B_BUSY] == 1:
        slot += 1
    return int(slot)


@kernel
def why_closed(now_ns: int, tables: Tables, state: State, engine: int, lane: int) -> int:
    """Why a ready lane is dispatched now: ALONE, FULL, WINDOW or SLACK."""
    stage = tables.lane_stage[lane]
    pair = tables.pairs[stage, engine]
    if state.lane_rows[lane, engine] >= pair[c.P_BATCH_SIZE] and pair[c.P_BATCH_SIZE] > 1:
        return c.FULL
    return c.ALONE if pair[c.P_WINDOW_NS] == 0 else window_or_slack(now_ns, tables, state, engine, lane)


@rare
def window_or_slack(now_ns: int, tables: Tables, state: State, engine: int, lane: int) -> int:
    """Whether a lane that waited is ready because a window has ended, or because a deadline would not wait."""
    pair = tables.pairs[tables.lane_stage[lane], engine]
    for priority in range(c.CLASSES):
        head = head_of(tables, state, engine, priority, lane)
        if head >= 0 and state.requests[head, c.R_ENQUEUED_NS] + pair[c.P_WINDOW_NS] <= now_ns:
            return c.WINDOW
    return c.SLACK


@kernel
def costs_a_deadline(
    now_ns: int, tables: Tables, state: State, engine: int, request: int, rows: int, latest_ns: int
) -> bool:
    """Whether one more request would make a batch of ``rows`` end too late.

    That is past the newcomer's own latest end, or past its members' earliest, ``latest_ns``, if the batch would keep
    that without it.
    """
    row = state.requests[request]
    own_ns = row[c.R_LATEST_NS]
    if min(latest_ns, own_ns) == c.FOREVER:
        return False
    stage = row[c.R_STAGE]
    lane = row[c.R_BUCKET]
    starts_ns = now_ns + load_ns(tables, state, engine, stage)
    ends_ns = starts_ns + service_ns(tables, state, stage, engine, lane, rows + row[c.R_ITEMS])
    if ends_ns > own_ns:
        return True
    return bool(ends_ns > latest_ns and starts_ns + service_ns(tables, state, stage, engine, lane, rows) <= latest_ns)


@kernel
def fill(now_ns: int, tables: Tables, state: State, engine: int, lane: int, turn: int, slot: int) -> int:
    """Take requests from a lane into a slot; what can no longer meet its deadline is dropped instead.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        engine: Has the slot.
        lane: Has requests.
        turn: Class whose first comes first; the rest is filled highest class first.
        slot: Idle.

    Returns:
        How many were taken; their rows and first expiry stand in the slot's row. 0 when all of the turn's class there
        were dropped: whose turn it is must be asked anew.
    """
    batch = state.batches[slot]
    stage = tables.lane_stage[lane]
    size = tables.pairs[stage, engine, c.P_BATCH_SIZE]
    count = 0
    rows = 0
    expiry = c.FOREVER
    latest = c.FOREVER
    trial = 0
    full = False
    for step in range(-1, c.CLASSES):
        if step == 0 and count == 0:
            break
        priority = turn if step < 0 else step
        left, left_rows, left_ns = 0, 0, 0
        request = head_of(tables, state, engine, priority, lane)
        while request >= 0 and (step >= 0 or count == 0):
            row = state.requests[request]
            full = count > 0 and (
                rows + row[c.R_ITEMS] > size
                or count == state.members.shape[1]
                or costs_a_deadline(now_ns, tables, state, engine, request, rows, latest)
            )
            if full:
                break
            following = pop(tables, state, request, engine, priority, lane)
            left += 1
            left_rows += row[c.R_ITEMS]
            left_ns += row[c.R_WORK_NS]
            dropped = False
            if row[c.R_DEADLINE_NS] < c.FOREVER and is_late(
                now_ns, tables, state, request, engine, 0, rest_ns(now_ns, tables, state, request)
            ):
                uncount(state, engine, priority, lane, left, left_rows, left_ns)
                left, left_rows, left_ns = 0, 0, 0
                dropped = drop(now_ns, tables, state, request, engine, 0)
            if not dropped:
                if is_shared(tables, engine):
                    charge(tables, state, request, engine)
                row[c.R_STATUS] = c.RUNNING
                member = state.members[slot, count]
                member[c.M_REQUEST] = request
                member[c.M_EPOCH] = row[c.R_EPOCH]
                member[c.M_TAG] = row[c.R_TAG]
                count += 1
                rows += row[c.R_ITEMS]
                expiry = min(expiry, row[c.R_EXPIRY_NS])
                latest = min(latest, row[c.R_LATEST_NS])
                trial |= row[c.R_TRIAL]
                row[c.R_TRIAL] = 0
            # Of one tenant it is the next in line; of several, whose turn it is has just changed.
            request = following if tables.tenants.shape[0] == 1 else head_of(tables, state, engine, priority, lane)
        if left > 0:
            uncount(state, engine, priority, lane, left, left_rows, left_ns)
        if full or state.engines[engine, c.N_QUEUED] == 0:
            break
    batch[c.B_TRIAL] = trial
    batch[c.B_COUNT] = count
    batch[c.B_ROWS] = rows
    batch[c.B_EXPIRY_NS] = expiry
    return count


@kernel
def close_batch(now_ns: int, tables: Tables, state: State, engine: int, lane: int, turn: int) -> None:
    """Fill a free slot from a lane and say DISPATCH, unless nobody whose turn it is can still meet a deadline."""
    stage = tables.lane_stage[lane]
    place = lane - tables.stages[stage, c.S_FIRST_LANE]
    slot = free_slot(tables, state, engine)
    why = why_closed(now_ns, tables, state, engine, lane)
    count = fill(now_ns, tables, state, engine, lane, turn, slot)
    batch = state.batches[slot]
    if count == 0:
        batch[c.B_EXPIRY_NS] = c.FOREVER
        return
    rows = batch[c.B_ROWS]
    batch[c.B_STAGE] = stage
    batch[c.B_BUCKET] = place
    batch[c.B_PADDED] = padded(tables, stage, engine, rows)
    batch[c.B_STARTED_NS] = now_ns
    batch[c.B_LOAD_NS] = make_resident(now_ns, tables, state, engine, stage) if is_bounded(tables, engine) else 0
    batch[c.B_EXPECTED_NS] = service_ns(tables, state, stage, engine, place, rows) + batch[c.B_LOAD_NS]
    batch[c.B_WHY] = why
    batch[c.B_BUSY] = 1
    batch[c.B_EPOCH] += 1
    counts = state.engines[engine]
    if tables.engines[engine, c.E_MAX_INFLIGHT] == 1:
        state.ends_ns[engine] = now_ns + batch[c.B_EXPECTED_NS]
    if counts[c.N_INFLIGHT] == 0:
        counts[c.N_SINCE_NS] = now_ns
    counts[c.N_INFLIGHT] += 1
    counts[c.N_BATCHES] += 1
    counts[c.N_DISPATCHED] += count
    state.closed[stage, engine, why] += 1
    if tables.run[c.W_HAS_FLOORS] == 1:
        keep_floors(tables, state, engine, state.requests[state.members[slot, 0, c.M_REQUEST], c.R_CLASS])
    say(state, c.DISPATCH, slot, engine, stage, place, batch[c.B_EPOCH])


@called
def start_all(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Dispatch everything that may start now on one engine, then say when to look at it again."""
    counts = state.engines[engine]
    width = tables.engines[engine, c.E_MAX_INFLIGHT]
    while counts[c.N_UP] == 1 and counts[c.N_QUEUED] > 0 and counts[c.N_INFLIGHT] < width:
        turn = choose_class(now_ns, tables, state, engine)
        if turn < 0:
            break
        close_batch(now_ns, tables, state, engine, state.choice[turn], turn)
    wake(now_ns, tables, state, engine)


@kernel
def wake(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Set when an engine must be looked at again: a window that closes, or an expiry in its queue or its batches."""
    counts = state.engines[engine]
    if counts[c.N_QUEUED] == 0:
        counts[c.N_QUEUE_EXPIRY_NS] = c.FOREVER
    at = min(counts[c.N_QUEUE_EXPIRY_NS], counts[c.N_BREAKER_NS])
    width = tables.engines[engine, c.E_MAX_INFLIGHT]
    if width == 1:
        at = min(at, state.batches[tables.engines[engine, c.E_FIRST_SLOT], c.B_EXPIRY_NS])
    else:
        at = min(at, first_expiry_ns(tables, state, engine))
    if counts[c.N_UP] == 1 and counts[c.N_QUEUED] > 0 and counts[c.N_INFLIGHT] < width:
        at = min(at, window_ns(now_ns, tables, state, engine))
    set_timer(state, engine, at)


@rare
def first_expiry_ns(tables: Tables, state: State, engine: int) -> int:
    """When the first member of any batch on an engine expires."""
    at = c.FOREVER
    first = tables.engines[engine, c.E_FIRST_SLOT]
    for slot in range(first, first + tables.engines[engine, c.E_MAX_INFLIGHT]):
        at = min(at, state.batches[slot, c.B_EXPIRY_NS])
    return int(at)


@rare
def window_ns(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """When the first lane that waits for company on an idle slot will have waited long enough.

    Lanes that wait for something else (an offline class for the others, a model for memory) are left out: what frees
    them is an event of its own.
    """
    held_back = held_classes(tables, state, engine)
    at = c.FOREVER
    for lane in range(state.lanes.shape[0]):
        if state.lane_rows[lane, engine] == 0:
            continue
        if is_bounded(tables, engine) and not can_hold(tables, state, engine, tables.lane_stage[lane]):
            continue
        for priority in range(c.CLASSES):
            if (held_back >> priority) & 1 == 0 and head_of(tables, state, engine, priority, lane) >= 0:
                at = min(at, max(now_ns, ready_ns(tables, state, engine, lane)))
                break
    return int(at)
