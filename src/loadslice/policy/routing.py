"""Where a request goes: eligibility, preference, overflow with an exact failover share, and the hard bound.

Order of the questions, as a request meets them:

1. Which engines may serve it (up, breaker, shape bucket, rows, precision floor)?
2. Which of them is preferred (static order, first rule that holds, least expected completion)?
3. Is it overflow there? Exactly the configured share of overflow goes to the backup, while that has spare quota.
4. Can it still meet its deadline, there and at the stages ahead? If not, it is hopeless and refused at once; but for
   one at a time that tries an idle engine whose estimate is old.
5. Is there room? Otherwise it displaces the newest of a lower class, or is refused with a hint.
"""

from loadslice.policy import columns as c
from loadslice.policy.breaker import admits, enter
from loadslice.policy.ends import finish, leave, mark_dirty, say
from loadslice.policy.kernel import kernel
from loadslice.policy.queues import newest_below, push, unlink
from loadslice.policy.retries import withdraw
from loadslice.policy.tables import State, Tables
from loadslice.spec.outcome import Outcome, Reason

FAILED, REJECTED, SHED, EXPIRED = (int(o) for o in (Outcome.FAILED, Outcome.REJECTED, Outcome.SHED, Outcome.EXPIRED))
PREFERRED, FAILOVER, RETRY = int(Reason.PREFERRED), int(Reason.FAILOVER), int(Reason.RETRY)
INELIGIBLE = int(Reason.INELIGIBLE)
QUEUE_FULL, DISPLACED, HOPELESS = int(Reason.QUEUE_FULL), int(Reason.DISPLACED), int(Reason.HOPELESS)
ENGINE_DOWN, DEADLINE = int(Reason.ENGINE_DOWN), int(Reason.DEADLINE)

HINT_FLOOR_NS = 50_000_000
"""A client told to come back sooner than 50 ms would rather wait; the hint of an unknown drain rate is this too."""


@kernel
def accepts(tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether an engine, were it up, may serve the request at its stage."""
    row = state.requests[request]
    stage = row[c.R_STAGE]
    pair = tables.pairs[stage, engine]
    return bool(
        tables.eligible[stage, engine, row[c.R_BUCKET]] == 1
        and row[c.R_ITEMS] <= pair[c.P_MAX_ITEMS]
        and row[c.R_PRECISION] <= pair[c.P_PRECISION]
    )


@kernel
def available(tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether an engine may serve the request now."""
    return bool(
        state.engines[engine, c.N_UP] == 1
        and admits(state, state.requests[request, c.R_STAGE], engine)
        and accepts(tables, state, request, engine)
    )


@kernel
def service_ns(tables: Tables, state: State, stage: int, engine: int, bucket: int, rows: int) -> int:
    """Live estimate of a batch's service time: the table's curve at the speed the engine shows now.

    Without a table it is the mean of what was seen; 0 as long as nothing was.
    """
    expected = tables.base_ns[stage, engine, bucket] + rows * tables.row_ns[stage, engine, bucket]
    if expected == 0:
        return int(state.learned_ns[stage, engine])
    return int(expected * state.engines[engine, c.N_SCALE_PPM] // c.PPM)


@kernel
def wait_ns(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """Expected wait of a newcomer on an engine: queued work, and what is left of running batches, over its slots."""
    first = tables.engines[engine, c.E_FIRST_SLOT]
    width = tables.engines[engine, c.E_MAX_INFLIGHT]
    if state.engines[engine, c.N_INFLIGHT] < width and state.engines[engine, c.N_QUEUED] == 0:
        return 0
    left = state.engines[engine, c.N_BACKLOG_NS] * 1
    for slot in range(first, first + width):
        if state.batches[slot, c.B_BUSY] == 1:
            remaining = state.batches[slot, c.B_STARTED_NS] + state.batches[slot, c.B_EXPECTED_NS] - now_ns
            if remaining > 0:
                left += remaining
    return int(left // width)


@kernel
def has_room(tables: Tables, state: State, engine: int) -> bool:
    """Whether one more may join: the queue has room, or nothing waits and a batch slot is free."""
    counts = state.engines[engine]
    return bool(
        counts[c.N_QUEUED] < tables.engines[engine, c.E_QUEUE_LIMIT]
        or (counts[c.N_QUEUED] == 0 and counts[c.N_INFLIGHT] < tables.engines[engine, c.E_MAX_INFLIGHT])
    )


@kernel
def is_overflow(now_ns: int, tables: Tables, state: State, engine: int) -> bool:
    """Whether an arrival finds an engine past its overflow mark or past its wait limit."""
    if state.engines[engine, c.N_QUEUED] >= tables.engines[engine, c.E_OVERFLOW_AT]:
        return True
    limit = tables.engines[engine, c.E_WAIT_LIMIT_NS]
    return bool(limit < c.FOREVER and wait_ns(now_ns, tables, state, engine) > limit)


@kernel
def has_spare(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether a backup can take one more without overflowing itself."""
    return bool(
        available(tables, state, request, engine)
        and has_room(tables, state, engine)
        and not is_overflow(now_ns, tables, state, engine)
    )


@kernel
def rule_target(tables: Tables, state: State, request: int) -> int:
    """Engine named by the first rule of the request's stage that holds; -1 when none does."""
    row = state.requests[request]
    for index in range(tables.rules.shape[0]):
        rule = tables.rules[index]
        if (
            rule[c.U_STAGE] == row[c.R_STAGE]
            and rule[c.U_ITEMS_MIN] <= row[c.R_ITEMS] <= rule[c.U_ITEMS_MAX]
            and rule[c.U_TOKENS_MIN] <= row[c.R_TOKENS] <= rule[c.U_TOKENS_MAX]
            and (rule[c.U_CLASSES] >> row[c.R_CLASS]) & 1 == 1
            and (rule[c.U_SOURCE] == c.ANY or rule[c.U_SOURCE] == row[c.R_SOURCE])
            and (rule[c.U_BUCKET] == c.ANY or rule[c.U_BUCKET] == row[c.R_BUCKET])
        ):
            return int(rule[c.U_TO])
    return -1


@kernel
def preferred(now_ns: int, tables: Tables, state: State, request: int) -> int:
    """The engine a request would rather have.

    Returns:
        An engine that is up and accepts it; -1 when none does.
    """
    row = state.requests[request]
    stage = row[c.R_STAGE]
    how = tables.stages[stage, c.S_PREFER]
    if how == c.PREFER_RULES:
        target = rule_target(tables, state, request)
        if target >= 0 and available(tables, state, request, target):
            return target
    best = -1
    best_ns = c.FOREVER
    for order in range(tables.preference.shape[1]):
        engine = tables.preference[stage, order]
        if engine < 0:
            break
        if not available(tables, state, request, engine):
            continue
        if how != c.PREFER_FASTEST:
            return int(engine)
        ready_ns = wait_ns(now_ns, tables, state, engine) + service_ns(
            tables, state, stage, engine, row[c.R_BUCKET], row[c.R_ITEMS]
        )
        # Strictly less: equal engines are taken in the order of the file.
        if ready_ns < best_ns:
            best = engine
            best_ns = ready_ns
    return int(best)


@kernel
def backup(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> int:
    """Where this piece of overflow goes instead of ``engine``; -1: it stays.

    Error diffusion: after n pieces of overflow that the backup could have taken, |sent - share * n| < 1, whatever the
    order. Overflow that finds the backup full is no such piece, or a burst would follow once it has room again.
    """
    row = state.requests[request]
    settings = tables.stages[row[c.R_STAGE]]
    target = settings[c.S_FAILOVER_TO]
    if target < 0 or target == engine or (settings[c.S_FAILOVER_CLASSES] >> row[c.R_CLASS]) & 1 == 0:
        return -1
    if not has_spare(now_ns, tables, state, request, target):
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
def hint_ns(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """When to come back: how long the engine needs to drain what it has. Finite, and falls as the backlog falls."""
    return max(HINT_FLOOR_NS, wait_ns(now_ns, tables, state, engine))


TRIAL_NS = 1_000_000_000
"""An idle engine whose last batch ended this long ago, or one expected service ago, may be tried all the same."""


@kernel
def ahead_ns(now_ns: int, tables: Tables, state: State, stage: int) -> int:
    """What the stages after one are expected to take: their batches as seen, and the longest of their waits.

    Waits are not added up: an engine serves first what arrived first, so that a request waits for its elders once.
    """
    service = 0
    longest_wait = 0
    for later in range(stage + 1, tables.stages.shape[0]):
        quickest = c.FOREVER
        shortest_wait = c.FOREVER
        for order in range(tables.preference.shape[1]):
            engine = tables.preference[later, order]
            if engine < 0:
                break
            if state.engines[engine, c.N_UP] == 1:
                quickest = min(quickest, state.learned_ns[later, engine])
                shortest_wait = min(shortest_wait, wait_ns(now_ns, tables, state, engine))
        if quickest < c.FOREVER:
            service += quickest
            longest_wait = max(longest_wait, shortest_wait)
    return int(service + longest_wait)


@kernel
def may_be_tried(now_ns: int, state: State, engine: int, needed_ns: int) -> bool:
    """Whether an engine is idle and its estimate old, so that one request may show what it is worth now.

    Estimates learn from batches alone. After one slow spell they would otherwise refuse every deadline, and with it
    every batch that could teach them better.
    """
    counts = state.engines[engine]
    return bool(
        counts[c.N_INFLIGHT] == 0
        and counts[c.N_QUEUED] == 0
        and now_ns - counts[c.N_DONE_NS] >= min(needed_ns, TRIAL_NS)
    )


@kernel
def dropped(now_ns: int, tables: Tables, state: State, request: int, engine: int, wait: int, ahead: int) -> bool:
    """End a request that cannot meet its deadline: expired already, or hopeless by what is expected of it.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        request: Stands in no queue.
        engine: Where it would be served.
        wait: Expected wait there.
        ahead: Expected time at later stages.

    Returns:
        Whether it was ended.
    """
    row = state.requests[request]
    if row[c.R_DEADLINE_NS] <= now_ns:
        finish(state, request, EXPIRED, DEADLINE, 0)
        return True
    needed_ns = service_ns(tables, state, row[c.R_STAGE], engine, row[c.R_BUCKET], row[c.R_ITEMS])
    if now_ns + wait + needed_ns + ahead <= row[c.R_DEADLINE_NS]:
        return False
    if may_be_tried(now_ns, state, engine, needed_ns):
        state.engines[engine, c.N_TRIAL] = 1
        return False
    finish(state, request, SHED, HOPELESS, hint_ns(now_ns, tables, state, engine))
    return True


@kernel
def settle(now_ns: int, tables: Tables, state: State, request: int, engine: int, reason: int) -> None:
    """Queue a request on an engine that has room for it."""
    row = state.requests[request]
    row[c.R_ESTIMATE_NS] = service_ns(tables, state, row[c.R_STAGE], engine, row[c.R_BUCKET], row[c.R_ITEMS])
    enter(now_ns, tables, state, request, engine)
    push(now_ns, tables, state, request, engine)
    say(state, c.PLACED, row[c.R_TAG], row[c.R_STAGE], engine, reason, request)
    if reason == FAILOVER:
        state.engines[engine, c.N_FAILOVER_IN] += 1
    mark_dirty(state, engine)


@kernel
def no_engine_reason(tables: Tables, state: State, request: int) -> int:
    """Why nobody serves a request: the engines that would are down, or there are none."""
    for order in range(tables.preference.shape[1]):
        engine = tables.preference[state.requests[request, c.R_STAGE], order]
        if engine >= 0 and accepts(tables, state, request, engine):
            return ENGINE_DOWN
    return INELIGIBLE


@kernel
def start_clock(now_ns: int, tables: Tables, state: State, request: int) -> None:
    """Start the stage's timeout for a request; it never outlives the deadline."""
    row = state.requests[request]
    timeout_ns = tables.stages[row[c.R_STAGE], c.S_TIMEOUT_NS]
    row[c.R_EXPIRY_NS] = min(row[c.R_DEADLINE_NS], now_ns + timeout_ns if timeout_ns < c.FOREVER else c.FOREVER)


@kernel
def place(now_ns: int, tables: Tables, state: State, request: int, admitted: int) -> None:
    """Answer the five questions for a request that stands at a stage and in no queue.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        request: Its stage's clock runs already.
        admitted: 0 at the door, where no room is a refusal; 1 inside, where it drops what was admitted.
    """
    row = state.requests[request]
    engine = preferred(now_ns, tables, state, request)
    if engine < 0:
        finish(state, request, FAILED, no_engine_reason(tables, state, request), 0)
        return
    reason = PREFERRED
    if is_overflow(now_ns, tables, state, engine):
        target = backup(now_ns, tables, state, request, engine)
        if target >= 0:
            engine = target
            reason = FAILOVER
    if row[c.R_DEADLINE_NS] < c.FOREVER:
        wait = wait_ns(now_ns, tables, state, engine)
        if dropped(now_ns, tables, state, request, engine, wait, ahead_ns(now_ns, tables, state, row[c.R_STAGE])):
            return
    if not has_room(tables, state, engine):
        victim = newest_below(state, engine, row[c.R_CLASS])
        hint = hint_ns(now_ns, tables, state, engine)
        if victim < 0:
            finish(state, request, SHED if admitted == 1 else REJECTED, QUEUE_FULL, hint)
            return
        unlink(tables, state, victim)
        finish(state, victim, SHED, DISPLACED, hint)
    settle(now_ns, tables, state, request, engine, reason)


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
        An engine with spare quota; -1 when there is none.
    """
    row = state.requests[request]
    settings = tables.stages[row[c.R_STAGE]]
    failed = row[c.R_ENGINE]
    target = settings[c.S_FAILOVER_TO]
    if target >= 0:
        allowed = (settings[c.S_FAILOVER_CLASSES] >> row[c.R_CLASS]) & 1 == 1
        if allowed and target != failed and has_spare(now_ns, tables, state, request, target):
            return int(target)
    elif same_engine:
        for order in range(tables.preference.shape[1]):
            other = tables.preference[row[c.R_STAGE], order]
            if other >= 0 and other != failed and has_spare(now_ns, tables, state, request, other):
                return int(other)
    if same_engine and has_spare(now_ns, tables, state, request, failed):
        return int(failed)
    return -1


@kernel
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
    start_clock(now_ns, tables, state, request)
    settle(now_ns, tables, state, request, target, FAILOVER if target != row[c.R_ENGINE] else RETRY)
    return True
