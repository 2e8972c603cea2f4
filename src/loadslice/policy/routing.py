"""Where a request goes: eligibility, preference, overflow with an exact failover share, and the hard bound.

Order of the questions, as a request meets them:

1. Which engines may serve it (up, breaker, shape bucket, rows, precision floor)?
2. Which of them is preferred (`preference`)?
3. Is it overflow there? Exactly the configured share of overflow goes to the backup, while that has spare quota and
   can keep the deadline.
4. Can it still meet its deadline, there and at the stages ahead (`deadlines`)? If not, it is hopeless and refused at
   once; but for one at a time that tries an idle engine whose estimate is old.
5. Is there room? Otherwise it displaces the newest of a lower class, or of a tenant that holds more than its share of
   the places, or of those that have done less than itself, or is refused with a hint; where the stage has a degraded
   reply, that is the answer to any refusal.
"""

from loadslice.policy import columns as c
from loadslice.policy.breaker import enter
from loadslice.policy.deadlines import SHED, ahead_ns, drop, expected_wait_ns, hint_ns, is_late, may_be_tried, rest_ns
from loadslice.policy.ends import leave, mark_dirty, refuse, say
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.live import work_ns
from loadslice.policy.preference import (
    CHEAPEST,
    FASTEST,
    PREFERRED,
    RULE,
    accepts,
    available,
    cheapest,
    fastest,
    first_in_order,
    rule_target,
)
from loadslice.policy.queues import newest, newest_behind, newest_below, push, unlink
from loadslice.policy.retries import withdraw
from loadslice.policy.shares import greediest
from loadslice.policy.timers import hasten
from loadslice.spec.outcome import Outcome, Reason

FAILED, REJECTED = int(Outcome.FAILED), int(Outcome.REJECTED)
FAILOVER, RETRY, INELIGIBLE = int(Reason.FAILOVER), int(Reason.RETRY), int(Reason.INELIGIBLE)
QUEUE_FULL, DISPLACED, ENGINE_DOWN = int(Reason.QUEUE_FULL), int(Reason.DISPLACED), int(Reason.ENGINE_DOWN)


@kernel
def has_room(tables: Tables, state: State, engine: int) -> bool:
    """Whether one more may join: the queue has room, or nothing waits and a batch slot is free."""
    counts = state.engines[engine]
    return bool(
        counts[c.N_QUEUED] < tables.engines[engine, c.E_QUEUE_LIMIT]
        or (counts[c.N_QUEUED] == 0 and counts[c.N_INFLIGHT] < tables.engines[engine, c.E_MAX_INFLIGHT])
    )


@kernel
def is_overflow(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether a request finds an engine past its overflow mark or past its wait limit."""
    if state.engines[engine, c.N_QUEUED] >= tables.engines[engine, c.E_OVERFLOW_AT]:
        return True
    limit = tables.engines[engine, c.E_WAIT_LIMIT_NS]
    return bool(limit < c.FOREVER and expected_wait_ns(now_ns, tables, state, request, engine) > limit)


@kernel
def has_spare(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether a backup can take one more without overflowing itself."""
    return bool(
        available(tables, state, request, engine)
        and has_room(tables, state, engine)
        and not is_overflow(now_ns, tables, state, request, engine)
    )


@kernel
def is_too_late(now_ns: int, tables: Tables, state: State, request: int, engine: int, ahead: int) -> bool:
    """Whether a request would miss its deadline if it were placed on an engine now."""
    if state.requests[request, c.R_DEADLINE_NS] == c.FOREVER:
        return False
    wait = expected_wait_ns(now_ns, tables, state, request, engine)
    return is_late(now_ns, tables, state, request, engine, wait, ahead)


@rare
def would_serve(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether an engine has spare room for a request that has failed elsewhere, and can still keep its deadline.

    What has failed is lost anyway: it may try an idle engine whose estimate is old.
    """
    if not has_spare(now_ns, tables, state, request, engine):
        return False
    ahead = ahead_ns(now_ns, tables, state, request) if state.requests[request, c.R_DEADLINE_NS] < c.FOREVER else 0
    return not is_too_late(now_ns, tables, state, request, engine, ahead) or may_be_tried(
        now_ns, tables, state, request, engine, 1
    )


@rare
def backup(now_ns: int, tables: Tables, state: State, request: int, engine: int, ahead: int) -> int:
    """Where this piece of overflow goes instead of ``engine``; -1: it stays.

    Error diffusion: after n pieces of overflow that the backup could have taken, |sent - share * n| < 1, whatever the
    order. Overflow that finds the backup full is no such piece, or a burst would follow once it has room again; nor is
    one that would be late there, unless it is hopeless here too: then it may show what an idle backup is worth now.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        request: Overflow.
        engine: Where it would be placed.
        ahead: Expected time at later stages.
    """
    row = state.requests[request]
    settings = tables.stages[row[c.R_STAGE]]
    target = settings[c.S_FAILOVER_TO]
    if target < 0 or target == engine or (settings[c.S_FAILOVER_CLASSES] >> row[c.R_CLASS]) & 1 == 0:
        return -1
    if not has_spare(now_ns, tables, state, request, target):
        return -1
    if is_too_late(now_ns, tables, state, request, target, ahead) and not (
        is_too_late(now_ns, tables, state, request, engine, ahead)
        and may_be_tried(now_ns, tables, state, request, target, 1)
    ):
        return -1
    counts = state.stages[row[c.R_STAGE]]
    counts[c.G_OVERFLOWS] += 1
    counts[c.G_CREDIT_PPM] += settings[c.S_SHARE_PPM]
    if counts[c.G_CREDIT_PPM] < c.PPM:
        return -1
    counts[c.G_CREDIT_PPM] -= c.PPM
    counts[c.G_SENT] += 1
    return int(target)


@kernel
def settle(now_ns: int, tables: Tables, state: State, request: int, stage: int, engine: int, reason: int) -> None:
    """Queue a request, which stands at ``stage``, on an engine that has room for it."""
    row = state.requests[request]
    row[c.R_WORK_NS] = work_ns(tables, state, stage, engine, row[c.R_BUCKET], row[c.R_ITEMS])
    row[c.R_LATEST_NS] = row[c.R_DEADLINE_NS]
    if row[c.R_DEADLINE_NS] < c.FOREVER and tables.pairs[stage, engine, c.P_BATCH_SIZE] > 1:
        row[c.R_LATEST_NS] -= rest_ns(now_ns, tables, state, request)  # asked for by company alone
    enter(now_ns, tables, state, request, stage, engine)
    push(now_ns, tables, state, request, stage, engine)
    say(state, c.PLACED, row[c.R_TAG], stage, engine, reason, request)
    state.placed[stage, engine, reason] += 1
    counts = state.engines[engine]
    if reason == FAILOVER:
        counts[c.N_FAILOVER_IN] += 1
    if counts[c.N_INFLIGHT] < tables.engines[engine, c.E_MAX_INFLIGHT]:
        mark_dirty(state, engine)
    else:
        # A full engine starts nothing: all that changes is when to look at it, for the newcomer's sake or its probe's.
        hasten(state, engine, min(row[c.R_EXPIRY_NS], counts[c.N_BREAKER_NS]))


@rare
def no_engine_reason(tables: Tables, state: State, request: int) -> int:
    """Why nobody serves a request: the engines that would are down, or there are none."""
    for order in range(tables.preference.shape[1]):
        engine = tables.preference[state.requests[request, c.R_STAGE], order]
        if engine >= 0 and accepts(tables, state, request, engine):
            return ENGINE_DOWN
    return INELIGIBLE


@kernel
def start_clock(now_ns: int, tables: Tables, state: State, request: int, stage: int) -> None:
    """Start the timeout of its stage for a request; it never outlives the deadline."""
    row = state.requests[request]
    timeout_ns = tables.stages[stage, c.S_TIMEOUT_NS]
    row[c.R_EXPIRY_NS] = min(row[c.R_DEADLINE_NS], now_ns + timeout_ns if timeout_ns < c.FOREVER else c.FOREVER)


@rare
def victim_of(tables: Tables, state: State, request: int, engine: int) -> int:
    """Who makes room on a full engine: the newest below its class, of a greedier tenant, of who did less; or -1."""
    row = state.requests[request]
    victim = newest_below(state, engine, row[c.R_CLASS])
    if victim >= 0:
        return victim
    tenant = greediest(tables, state, engine, row[c.R_CLASS], row[c.R_TENANT])
    if tenant >= 0:
        return newest(state, engine, row[c.R_CLASS], tenant)
    return newest_behind(tables, state, engine, request)


@rare
def make_room(now_ns: int, tables: Tables, state: State, request: int, engine: int, admitted: int) -> bool:
    """Displace somebody on a full engine, or refuse the newcomer; whether there is room now."""
    victim = victim_of(tables, state, request, engine)
    hint = hint_ns(now_ns, tables, state, engine)
    if victim < 0:
        refuse(tables, state, request, SHED if admitted == 1 else REJECTED, QUEUE_FULL, hint)
        return False
    unlink(tables, state, victim)
    refuse(tables, state, victim, SHED, DISPLACED, hint)
    return True


@kernel
def place(now_ns: int, tables: Tables, state: State, request: int, stage: int, admitted: int) -> None:
    """Answer the five questions for a request that stands at a stage and in no queue.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        request: Its stage's clock runs already.
        stage: Its own. At the door it is the first, and with a number in its place half of what is looked up there
            stands where the compiler knows.
        admitted: 0 at the door, where no room is a refusal; 1 inside, where it drops what was admitted.
    """
    row = state.requests[request]
    how = tables.stages[stage, c.S_PREFER]
    engine = -1
    reason = PREFERRED
    ahead = ahead_ns(now_ns, tables, state, request) if row[c.R_DEADLINE_NS] < c.FOREVER else 0
    if how == c.PREFER_FASTEST:
        engine = fastest(now_ns, tables, state, request, stage)
        reason = FASTEST
    elif how == c.PREFER_CHEAPEST:
        engine = cheapest(now_ns, tables, state, request, ahead)
        reason = CHEAPEST
    else:
        if how == c.PREFER_RULES:
            engine = rule_target(tables, state, request)
            reason = RULE
        if engine < 0 or not available(tables, state, request, engine):
            engine = first_in_order(tables, state, request)
            reason = PREFERRED
    if engine < 0:
        refuse(tables, state, request, FAILED, no_engine_reason(tables, state, request), 0)
        return
    if is_overflow(now_ns, tables, state, request, engine):
        target = backup(now_ns, tables, state, request, engine, ahead)
        if target >= 0:
            engine = target
            reason = FAILOVER
    if is_too_late(now_ns, tables, state, request, engine, ahead) and drop(now_ns, tables, state, request, engine, 1):
        return
    if not has_room(tables, state, engine) and not make_room(now_ns, tables, state, request, engine, admitted):
        return
    settle(now_ns, tables, state, request, stage, engine, reason)


@rare
def place_apart(now_ns: int, tables: Tables, state: State, request: int) -> None:
    """`place` inside, where it is not worth inlining."""
    place(now_ns, tables, state, request, state.requests[request, c.R_STAGE], 1)


@kernel
def second_choice(now_ns: int, tables: Tables, state: State, request: int, same_engine: int) -> int:
    """Where an attempt that failed may be repeated: the stage's backup, else another engine, else the same.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Read.
        request: Stands in no queue; its engine is the one that failed it.
        same_engine: Whether the same engine may be tried again when no other has spare quota.

    Returns:
        An engine with spare quota that can keep the deadline; -1 when there is none.
    """
    row = state.requests[request]
    settings = tables.stages[row[c.R_STAGE]]
    failed = row[c.R_ENGINE]
    target = settings[c.S_FAILOVER_TO]
    if target >= 0:
        allowed = (settings[c.S_FAILOVER_CLASSES] >> row[c.R_CLASS]) & 1 == 1
        if allowed and target != failed and would_serve(now_ns, tables, state, request, target):
            return int(target)
    elif same_engine:
        for order in range(tables.preference.shape[1]):
            other = tables.preference[row[c.R_STAGE], order]
            if other >= 0 and other != failed and would_serve(now_ns, tables, state, request, other):
                return int(other)
    if same_engine and would_serve(now_ns, tables, state, request, failed):
        return int(failed)
    return -1


@rare
def try_again(now_ns: int, tables: Tables, state: State, request: int, same_engine: int) -> bool:
    """Repeat a failed attempt: within the request's attempts, its deadline, the engines' quota and the retry budget.

    The request stands in no queue. Its stage timeout starts anew; its deadline does not.

    Returns:
        Whether it was placed again.
    """
    row = state.requests[request]
    leave(state, request)
    if row[c.R_ATTEMPTS] >= tables.run[c.W_ATTEMPTS] or row[c.R_DEADLINE_NS] <= now_ns:
        return False
    target = second_choice(now_ns, tables, state, request, same_engine)
    if target < 0 or not withdraw(now_ns, tables, state):
        return False
    row[c.R_ATTEMPTS] += 1
    row[c.R_EPOCH] += 1
    stage = row[c.R_STAGE]
    start_clock(now_ns, tables, state, request, stage)
    settle(now_ns, tables, state, request, stage, target, FAILOVER if target != row[c.R_ENGINE] else RETRY)
    return True
