"""The hopeless test: whether a request can still meet its deadline, by what is expected now.

Dropping only what has expired does not keep a pipeline out of collapse: survivors start just before their deadline and
waste the engine. The test is made at the door, between stages and when a batch is filled.
"""

from loadslice.policy import columns as c
from loadslice.policy.ends import finish, refuse
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.live import best_service_ns, service_ns, wait_ns
from loadslice.policy.residency import load_ns
from loadslice.policy.shares import came_first, head_of, is_shared
from loadslice.spec.outcome import Outcome, Reason

EXPIRED, SHED = int(Outcome.EXPIRED), int(Outcome.SHED)
HOPELESS, DEADLINE = int(Reason.HOPELESS), int(Reason.DEADLINE)

HINT_FLOOR_NS = 50_000_000
"""A client told to come back sooner than 50 ms would rather wait; the hint of an unknown drain rate is this too."""

TRIAL_NS = 1_000_000_000
"""An idle engine whose last batch ended this long ago, or one expected service ago, may be tried all the same."""

SELDOM = 10
"""So many times as long ago, where the request would be late even on engines as quick as they ever were."""


@kernel
def hint_ns(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """When to come back: how long the engine needs to drain what it has. Finite, and falls as the backlog falls."""
    return max(HINT_FLOOR_NS, wait_ns(now_ns, tables, state, engine, c.CLASSES - 1))


@kernel
def expected_wait_ns(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> int:
    """Expected wait of a request on an engine: of all that waits there, or, once it has begun, of its elders.

    One answer for every question that looks at waits: which engine is fastest, is it overflow there, is it hopeless.
    """
    row = state.requests[request]
    wait = wait_ns(now_ns, tables, state, engine, row[c.R_CLASS])
    if wait == 0:
        return wait
    has_begun = row[c.R_STAGE] > 0 and not is_shared(tables, engine)
    if has_begun:
        wait = elders_ns(tables, state, request, engine, wait)
    if tables.engines[engine, c.E_FILLS_APART] == 0 or state.engines[engine, c.N_QUEUED] == 0:
        return wait
    return int(wait + bases_ns(tables, state, request, engine, has_begun) // tables.engines[engine, c.E_MAX_INFLIGHT])


@rare
def bases_ns(tables: Tables, state: State, request: int, engine: int, has_begun: bool) -> int:
    """What lanes that do not fill a batch ask of an engine beyond their rows' parts of a full one, before a request.

    Each lane fills batches of its own, and however few its rows, the next one takes all of its base. Left out, nine
    shapes with a row or two each looked like a ninth of the work they are. The request's own lane has room for it.
    """
    row = state.requests[request]
    own = tables.stages[row[c.R_STAGE], c.S_FIRST_LANE] + row[c.R_BUCKET]
    missing = 0
    for lane in range(state.lanes.shape[0]):
        rows = state.lane_rows[lane, engine]
        stage = tables.lane_stage[lane]
        size = tables.pairs[stage, engine, c.P_BATCH_SIZE]
        if (
            rows == 0
            or rows >= size
            or lane == own
            or not stands_before(tables, state, request, engine, lane, has_begun)
        ):
            continue
        base = state.live[stage, lane - tables.stages[stage, c.S_FIRST_LANE], engine, c.V_BASE_NS]
        missing += base - rows * (base // size)
    return int(missing)


@rare
def stands_before(tables: Tables, state: State, request: int, engine: int, lane: int, has_begun: bool) -> bool:
    """Whether a lane has somebody who goes before a request: of its class or above, and, once it has begun, older."""
    if has_begun:
        return has_elder(tables, state, request, engine, lane)
    for priority in range(state.requests[request, c.R_CLASS] + 1):
        if head_of(tables, state, engine, priority, lane) >= 0:
            return True
    return False


@rare
def elders_ns(tables: Tables, state: State, request: int, engine: int, wait: int) -> int:
    """What is left of a wait without the lanes whose requests all arrived after one that has begun.

    They are served after it, as an engine serves by arrival in the system. Counted as well, requests were dropped as
    hopeless half-way behind newcomers at an engine that serves an early and a late stage, and under overload most of
    its work was spent on them.

    Args:
        tables: What never changes.
        state: Read.
        request: Has begun.
        engine: Nobody has guarantees there.
        wait: Of a newcomer of its class.
    """
    priority = state.requests[request, c.R_CLASS]
    elders = 0
    for lane in range(state.lanes.shape[0]):
        rows = state.lane_rows[lane, engine]
        if rows > 0 and has_elder(tables, state, request, engine, lane):
            stage = tables.lane_stage[lane]
            elders += rows * state.live[stage, lane - tables.stages[stage, c.S_FIRST_LANE], engine, c.V_PART_NS]
    backlog = state.backlog_ns[priority, engine]
    return int(wait - max(0, backlog - elders) // tables.engines[engine, c.E_MAX_INFLIGHT])


@rare
def has_elder(tables: Tables, state: State, request: int, engine: int, lane: int) -> bool:
    """Whether one of a lane's first, of the request's class or above, goes before it."""
    for priority in range(state.requests[request, c.R_CLASS] + 1):
        head = head_of(tables, state, engine, priority, lane)
        if head >= 0 and (priority < state.requests[request, c.R_CLASS] or came_first(state, head, request)):
            return True
    return False


@kernel
def ahead_ns(now_ns: int, tables: Tables, state: State, request: int) -> int:
    """What the stages after its own are expected to take of a request: batches as seen, and the longest of the waits.

    Waits are not added up: an engine serves first what arrived first, so that a request waits for its elders once.
    """
    is_last = state.requests[request, c.R_STAGE] + 1 == tables.stages.shape[0]
    return 0 if is_last else later_ns(now_ns, tables, state, request, 1, 0)


@kernel
def rest_ns(now_ns: int, tables: Tables, state: State, request: int) -> int:
    """The same without waits: the least that is still to be spent on a request once its present batch has ended."""
    is_last = state.requests[request, c.R_STAGE] + 1 == tables.stages.shape[0]
    return 0 if is_last else later_ns(now_ns, tables, state, request, 0, 0)


@rare
def later_ns(now_ns: int, tables: Tables, state: State, request: int, waits: int, best: int) -> int:
    """What the stages after a request's own take of it, each on the engine where it would be placed now.

    Wait and service are of the same engine. One that only stands second, or takes overflow only, says nothing: looked
    at for its short queue, it hid the queue of the engine where all go, and the door let in what had no hope.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Read.
        request: What it will be at those stages in rows and shape is not known.
        waits: 1: the longest of the expected waits counts as well.
        best: 1: as if every engine were as quick as it ever was.
    """
    precision = state.requests[request, c.R_PRECISION]
    service = 0
    longest_wait = 0
    for later in range(state.requests[request, c.R_STAGE] + 1, tables.stages.shape[0]):
        how = tables.stages[later, c.S_PREFER]
        first = 1
        soonest = c.BLOCKED_NS
        its_wait = 0
        for order in range(tables.preference.shape[1]):
            engine = tables.preference[later, order]
            if engine < 0:
                break
            if state.admission[later, engine] > 0 or tables.pairs[later, engine, c.P_PRECISION] < precision:
                continue
            if how == c.PREFER_RULES and not may_be_sent(tables, state, request, later, engine, first):
                first = 0
                continue
            first = 0
            wait = expected_wait_ns(now_ns, tables, state, request, engine) if waits == 1 else 0
            ends = wait + quickest_ns(tables, state, later, engine, best)
            if ends < soonest:
                soonest = ends
                its_wait = wait
            if how == c.PREFER_STATIC:
                break
        if soonest < c.BLOCKED_NS:
            service += soonest - its_wait
            longest_wait = max(longest_wait, its_wait)
    return int(service + longest_wait)


@rare
def may_be_sent(tables: Tables, state: State, request: int, stage: int, engine: int, first: int) -> bool:
    """Whether the rules of a later stage could send a request to an engine, whatever its rows and shape are there.

    Args:
        tables: What never changes.
        state: Read.
        request: Has not come to that stage.
        stage: Goes by rules.
        engine: Admits at that stage.
        first: 1: it is the first that does, where all go whom no rule names an engine for.
    """
    row = state.requests[request]
    for index in range(tables.rules.shape[0]):
        rule = tables.rules[index]
        if (
            rule[c.U_STAGE] == stage
            and rule[c.U_TOKENS_MIN] <= row[c.R_TOKENS] <= rule[c.U_TOKENS_MAX]
            and (rule[c.U_CLASSES] >> row[c.R_CLASS]) & 1 == 1
            and (rule[c.U_SOURCE] == c.ANY or rule[c.U_SOURCE] == row[c.R_SOURCE])
        ):
            if rule[c.U_TO] == engine:
                return True
            is_sure = rule[c.U_ITEMS_MIN] == 0 and rule[c.U_ITEMS_MAX] == c.FOREVER and rule[c.U_BUCKET] == c.ANY
            if is_sure and state.admission[stage, rule[c.U_TO]] == 0:
                return False
    return first == 1


@rare
def quickest_ns(tables: Tables, state: State, stage: int, engine: int, best: int) -> int:
    """What an engine takes at a stage for a request not yet known there: its mean batch, or its quickest lane's row."""
    if best == 0 and state.learned_ns[stage, engine] > 0:
        return int(state.learned_ns[stage, engine])
    quickest = c.BLOCKED_NS
    for lane in range(tables.stages[stage, c.S_LANES]):
        if tables.eligible[stage, engine, lane] == 1:
            if best == 1:
                quickest = min(quickest, best_service_ns(tables, state, stage, engine, lane, 1))
            else:
                quickest = min(quickest, service_ns(tables, state, stage, engine, lane, 1))
    return int(quickest)


@rare
def may_be_tried(now_ns: int, tables: Tables, state: State, request: int, engine: int, waits: int) -> bool:
    """Whether a request that is late may show what an idle engine is worth now.

    Estimates learn from batches alone. After one slow spell they would otherwise refuse every deadline, and with it
    every batch that could teach them better. What would be late even were all as quick as they ever were has to wait
    ten times as long for it: granted as soon, such trials took half of an engine's time from those it could serve.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Read.
        request: Late at this engine.
        engine: Where it would be served.
        waits: 1: the waits at later stages count, as in `later_ns`.
    """
    counts = state.engines[engine]
    if counts[c.N_INFLIGHT] > 0 or counts[c.N_QUEUED] > 0:
        return False
    row = state.requests[request]
    stage = row[c.R_STAGE]
    idle_ns = now_ns - counts[c.N_DONE_NS]
    spell_ns = min(needed_ns(tables, state, request, engine) + rest_ns(now_ns, tables, state, request), TRIAL_NS)
    if idle_ns < spell_ns:
        return False
    service = best_service_ns(tables, state, stage, engine, row[c.R_BUCKET], row[c.R_ITEMS])
    later = later_ns(now_ns, tables, state, request, waits, 1)
    at_best_ns = now_ns + service + load_ns(tables, state, engine, stage) + later
    return bool(at_best_ns <= row[c.R_DEADLINE_NS] or idle_ns >= SELDOM * spell_ns)


@kernel
def needed_ns(tables: Tables, state: State, request: int, engine: int) -> int:
    """What a request is expected to take of an engine once it is its turn."""
    row = state.requests[request]
    stage = row[c.R_STAGE]
    return int(
        service_ns(tables, state, stage, engine, row[c.R_BUCKET], row[c.R_ITEMS])
        + load_ns(tables, state, engine, stage)
    )


@kernel
def is_late(now_ns: int, tables: Tables, state: State, request: int, engine: int, wait: int, ahead: int) -> bool:
    """Whether a request cannot meet its deadline: it is expired already, or hopeless by what is expected of it.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Read.
        request: Has a deadline.
        engine: Where it would be served.
        wait: Expected wait there.
        ahead: Expected time at later stages.
    """
    deadline_ns = state.requests[request, c.R_DEADLINE_NS]
    expected_ns = now_ns + wait + needed_ns(tables, state, request, engine) + ahead
    return bool(expected_ns > deadline_ns or deadline_ns <= now_ns)


@rare
def drop(now_ns: int, tables: Tables, state: State, request: int, engine: int, waits: int) -> bool:
    """End a request that is late and stands in no queue, unless it may try an idle engine; whether it was ended.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        request: `is_late` there.
        engine: Where it would be served.
        waits: 1: it is late by the waits at later stages too.
    """
    row = state.requests[request]
    if row[c.R_DEADLINE_NS] <= now_ns:
        finish(state, request, EXPIRED, DEADLINE, 0)
        return True
    if may_be_tried(now_ns, tables, state, request, engine, waits):
        row[c.R_TRIAL] = 1
        return False
    refuse(tables, state, request, SHED, HOPELESS, hint_ns(now_ns, tables, state, engine))
    return True
