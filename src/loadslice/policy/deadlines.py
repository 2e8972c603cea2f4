"""The hopeless test: whether a request can still meet its deadline, by what is expected now.

Dropping only what has expired does not keep a pipeline out of collapse: survivors start just before their deadline and
waste the engine. The test is made at the door, between stages and when a batch is filled.
"""

from loadslice.policy import columns as c
from loadslice.policy.ends import finish, refuse
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.live import service_ns, wait_ns
from loadslice.policy.residency import load_ns
from loadslice.policy.shares import came_first, head_of, is_shared
from loadslice.spec.outcome import Outcome, Reason

EXPIRED, SHED = int(Outcome.EXPIRED), int(Outcome.SHED)
HOPELESS, DEADLINE = int(Reason.HOPELESS), int(Reason.DEADLINE)

HINT_FLOOR_NS = 50_000_000
"""A client told to come back sooner than 50 ms would rather wait; the hint of an unknown drain rate is this too."""

TRIAL_NS = 1_000_000_000
"""An idle engine whose last batch ended this long ago, or one expected service ago, may be tried all the same."""


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
    if row[c.R_STAGE] == 0 or wait == 0 or is_shared(tables, engine):
        return wait
    return elders_ns(tables, state, request, engine, wait)


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
    for lane in range(state.lanes.shape[2]):
        rows = state.lane_rows[engine, lane]
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
    return 0 if is_last else later_ns(now_ns, tables, state, request)


@rare
def later_ns(now_ns: int, tables: Tables, state: State, request: int) -> int:
    """The same where there are stages after it."""
    service = 0
    longest_wait = 0
    for later in range(state.requests[request, c.R_STAGE] + 1, tables.stages.shape[0]):
        quickest = c.FOREVER
        shortest_wait = c.FOREVER
        for order in range(tables.preference.shape[1]):
            engine = tables.preference[later, order]
            if engine < 0:
                break
            if state.engines[engine, c.N_UP] == 1:
                quickest = min(quickest, state.learned_ns[later, engine])
                shortest_wait = min(shortest_wait, expected_wait_ns(now_ns, tables, state, request, engine))
        if quickest < c.FOREVER:
            service += quickest
            longest_wait = max(longest_wait, shortest_wait)
    return int(service + longest_wait)


@kernel
def may_be_tried(now_ns: int, state: State, engine: int, service: int) -> bool:
    """Whether an engine is idle and its estimate old, so that one request may show what it is worth now.

    Estimates learn from batches alone. After one slow spell they would otherwise refuse every deadline, and with it
    every batch that could teach them better.
    """
    counts = state.engines[engine]
    return bool(
        counts[c.N_INFLIGHT] == 0 and counts[c.N_QUEUED] == 0 and now_ns - counts[c.N_DONE_NS] >= min(service, TRIAL_NS)
    )


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
def drop(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> bool:
    """End a request that is late and stands in no queue, unless it may try an idle engine; whether it was ended."""
    row = state.requests[request]
    if row[c.R_DEADLINE_NS] <= now_ns:
        finish(state, request, EXPIRED, DEADLINE, 0)
        return True
    if may_be_tried(now_ns, state, engine, needed_ns(tables, state, request, engine)):
        row[c.R_TRIAL] = 1
        return False
    refuse(tables, state, request, SHED, HOPELESS, hint_ns(now_ns, tables, state, engine))
    return True
