"""The dispatch desk: one call per fact, one question. Both shells call these and nothing else.

Every call takes ``now_ns`` first and leaves its effects, in order, in ``state.effects[:state.counters[C_EFFECTS]]``.
An event that does not apply (an old epoch, a row that is free) answers ``REFUSED`` and leaves the state bit-identical,
the effects of the event before included.
"""

from loadslice.policy import columns as c
from loadslice.policy.batch_end import evacuate, fail_members, is_running, record_members, release
from loadslice.policy.batching import start_all, wake
from loadslice.policy.breaker import is_quiet, on_time, remember_well
from loadslice.policy.deadlines import HINT_FLOOR_NS, hint_ns
from loadslice.policy.ends import COMPLETED, finish, mark_dirty, say, set_admission
from loadslice.policy.expiry import sweep_batches, sweep_queue
from loadslice.policy.kernel import entry, kernel, rare
from loadslice.policy.layout import Int64s, State, Tables
from loadslice.policy.live import learn
from loadslice.policy.queues import unlink
from loadslice.policy.retries import deposit, refill_ns, withdraw
from loadslice.policy.routing import FAILED, REJECTED, place, place_apart, start_clock
from loadslice.policy.versions import lane_for, set_step, turn_back, version_for
from loadslice.spec.outcome import Outcome, Reason

CANCELLED = int(Outcome.CANCELLED)
TABLE_FULL, STAGE_FAILED, CLIENT_GONE = int(Reason.TABLE_FULL), int(Reason.STAGE_FAILED), int(Reason.CLIENT_GONE)
DRAINING, NO_REASON, RETRY_BUDGET = int(Reason.DRAINING), int(Reason.NONE), int(Reason.RETRY_BUDGET)


@kernel
def begin(now_ns: int, state: State) -> None:
    """Open an event: time goes forward, effects start anew."""
    assert now_ns >= state.counters[c.C_NOW_NS]
    state.counters[c.C_NOW_NS] = now_ns
    state.counters[c.C_EFFECTS] = 0


@kernel
def close(now_ns: int, tables: Tables, state: State) -> None:
    """Close an event: engines it touched start what they may; then the next timer is known."""
    done = 0
    while done < state.counters[c.C_DIRTY]:
        engine = state.dirty[done]
        state.engines[engine, c.N_DIRTY] = 0
        if state.engines[engine, c.N_QUEUED] > 0:
            start_all(now_ns, tables, state, engine)
        else:  # nothing may start, and the call for it would take longer than this
            wake(now_ns, tables, state, engine)
        done += 1
    state.counters[c.C_DIRTY] = 0
    state.counters[c.C_NEXT_TIMER_NS] = state.timers[1]


@rare
def close_apart(now_ns: int, tables: Tables, state: State) -> None:
    """The same, where it is not worth inlining."""
    close(now_ns, tables, state)


@rare
def door_hint_ns(now_ns: int, tables: Tables, state: State, refusal: int) -> int:
    """When to come back to a door that lets nobody in: when the budget has an attempt, or what is inside has drained.

    Told to come back at once, clients without budget would bring the storm back that it holds off.
    """
    if refusal == RETRY_BUDGET:
        return max(HINT_FLOOR_NS, refill_ns(tables, state))
    longest = HINT_FLOOR_NS
    for engine in range(state.engines.shape[0]):
        longest = max(longest, hint_ns(now_ns, tables, state, engine))
    return longest


@entry(inlined=True)
def on_arrival(
    now_ns: int,
    tables: Tables,
    state: State,
    tag: int,
    priority: int,
    deadline_ns: int,
    items: int,
    bucket: int,
    tokens: int,
    source: int,
    precision: int,
    attempt: int,
    tenant: int,
    key: int,
) -> int:
    """A request has arrived.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        tag: The shell's own number for the request; comes back in every effect about it.
        priority: Class index, 0 highest.
        deadline_ns: Absolute; FOREVER for none.
        items: Rows at the first stage, at least 1.
        bucket: Shape bucket at the first stage.
        tokens: Prompt tokens, -1 when unknown.
        source: Index into the rule sources, -1 for any other.
        precision: Lowest precision that will do, index into PRECISIONS.
        attempt: Which attempt the client says this is, 1 the first; a repeated one spends from the retry budget.
        tenant: Index into the tables' tenants, 0 for whoever has no guarantee.
        key: Requests of one key get the same version while a canary's share grows; `versions.NO_KEY`: each on its own.

    Returns:
        Row of the request, or REFUSED when it was refused at the door (its OUTCOME is among the effects).
    """
    begin(now_ns, state)
    counters = state.counters
    counters[c.C_SUBMITTED] += 1
    request = counters[c.C_FREE_HEAD]
    refusal = NO_REASON
    if counters[c.C_DRAINING] == 1:
        refusal = DRAINING
    elif request < 0:
        refusal = TABLE_FULL
    elif attempt > 1 and not withdraw(now_ns, tables, state):
        refusal = RETRY_BUDGET
    if refusal != NO_REASON:
        counters[c.C_OUTCOMES + REJECTED] += 1
        say(state, c.OUTCOME, tag, REJECTED, refusal, door_hint_ns(now_ns, tables, state, refusal), 0)
        return c.REFUSED
    version = c.STABLE
    if counters[c.C_STEP] > 0:
        version = version_for(tables, state, key)
        counters[c.C_CANARY_INSIDE] += version
    row = state.requests[request]
    counters[c.C_FREE_HEAD] = row[c.R_NEXT]
    counters[c.C_IN_SYSTEM] += 1
    row[c.R_TAG] = tag
    row[c.R_CLASS] = priority
    row[c.R_STAGE] = 0
    row[c.R_TENANT] = tenant
    row[c.R_VERSION] = version
    row[c.R_BUCKET] = lane_for(tables, 0, bucket, version)
    row[c.R_ITEMS] = items
    row[c.R_TOKENS] = tokens
    row[c.R_SOURCE] = source
    row[c.R_PRECISION] = precision
    row[c.R_ARRIVED_NS] = now_ns
    row[c.R_DEADLINE_NS] = deadline_ns
    row[c.R_ATTEMPTS] = 1
    row[c.R_TRIAL] = 0
    if attempt <= 1:
        deposit(tables, state)
    epoch = row[c.R_EPOCH]
    start_clock(now_ns, tables, state, request, 0)
    place(now_ns, tables, state, request, 0, 0)
    close(now_ns, tables, state)
    return int(request) if row[c.R_EPOCH] == epoch else c.REFUSED


@entry(inlined=True)
def on_batch_done(now_ns: int, tables: Tables, state: State, slot: int, epoch: int, results: Int64s) -> int:
    """A batch has ended and its engine is well.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        slot: As in DISPATCH.
        epoch: As in DISPATCH.
        results: [members, 2], in the order of ``state.members[slot]``: rows at the next stage (at least 1; -1: this
            member's input was refused by the stage) and shape bucket there. At the last stage only the -1 matters.

    Returns:
        0, or REFUSED for a batch that no longer runs.
    """
    if not is_running(state, slot, epoch):
        return c.REFUSED
    begin(now_ns, state)
    release(now_ns, state, slot)
    learn(now_ns, tables, state, slot)
    stage = state.batches[slot, c.B_STAGE]
    engine = state.batches[slot, c.B_ENGINE]
    quiet = is_quiet(now_ns, tables, state, slot)
    if not quiet:
        record_members(now_ns, tables, state, slot, c.WELL)
    breaker_epoch = state.breakers[stage, engine, c.X_EPOCH] * 1
    well = 0
    last = stage + 1 == tables.stages.shape[0]
    for index in range(state.batches[slot, c.B_COUNT]):
        request = state.members[slot, index, c.M_REQUEST]
        row = state.requests[request]
        if row[c.R_EPOCH] != state.members[slot, index, c.M_EPOCH]:
            continue  # cancelled, expired or moved meanwhile: its outcome has been said
        well += 1 if row[c.R_BREAKER_EPOCH] == breaker_epoch else 0
        failed = results[index, 0] < 0
        if failed or last:
            outcome, reason = (FAILED, STAGE_FAILED) if failed else (COMPLETED, NO_REASON)
            finish(state, request, outcome, reason, 0)
        else:
            row[c.R_PROBE] = 0
            row[c.R_STAGE] += 1
            row[c.R_ITEMS] = results[index, 0]
            row[c.R_BUCKET] = lane_for(tables, row[c.R_STAGE], results[index, 1], row[c.R_VERSION])
            start_clock(now_ns, tables, state, request, row[c.R_STAGE])
            place_apart(now_ns, tables, state, request)
    if quiet:
        remember_well(tables, state, stage, engine, well)
    close(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_batch_failed(now_ns: int, tables: Tables, state: State, slot: int, epoch: int) -> int:
    """A batch has failed on its engine; its members are tried again within the retry budget, or fail.

    Returns:
        0, or REFUSED for a batch that no longer runs.
    """
    if not is_running(state, slot, epoch):
        return c.REFUSED
    begin(now_ns, state)
    release(now_ns, state, slot)
    record_members(now_ns, tables, state, slot, c.FAILED_CALL)
    fail_members(now_ns, tables, state, slot)
    close_apart(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_cancel(now_ns: int, tables: Tables, state: State, request: int, tag: int) -> int:
    """The client has gone. A running batch goes on; its result for this request is ignored.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        request: Row, as `on_arrival` returned it.
        tag: The tag it arrived with; another one stands there if that request has ended.

    Returns:
        0, or REFUSED when the request has ended already.
    """
    if (
        not 0 <= request < state.requests.shape[0]
        or state.requests[request, c.R_STATUS] == c.FREE
        or state.requests[request, c.R_TAG] != tag
    ):
        return c.REFUSED
    begin(now_ns, state)
    if state.requests[request, c.R_STATUS] == c.QUEUED:
        unlink(tables, state, request)
        mark_dirty(state, state.requests[request, c.R_ENGINE])
    finish(state, request, CANCELLED, CLIENT_GONE, 0)
    close_apart(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_timer(now_ns: int, tables: Tables, state: State) -> int:
    """Time has passed: close windows, expire what is due. Harmless when nothing is."""
    begin(now_ns, state)
    leaves = state.timers.shape[0] // 2
    for engine in range(state.engines.shape[0]):
        if state.timers[leaves + engine] <= now_ns:
            if state.engines[engine, c.N_QUEUE_EXPIRY_NS] <= now_ns:
                sweep_queue(now_ns, tables, state, engine)
            sweep_batches(now_ns, tables, state, engine)
            if state.engines[engine, c.N_BREAKER_NS] <= now_ns:
                on_time(now_ns, tables, state, engine)
            for stage in range(tables.stages.shape[0]):
                if state.breakers[stage, engine, c.X_STATE] == c.OPEN:
                    evacuate(now_ns, tables, state, stage, engine)
            mark_dirty(state, engine)
    close_apart(now_ns, tables, state)
    return 0


def next_timer_ns(state: State) -> int:
    """When `on_timer` must be called at the latest; FOREVER when nothing waits for time."""
    return int(state.counters[c.C_NEXT_TIMER_NS])


@kernel
def set_up(state: State, engine: int, up: int) -> None:
    """Note whether an engine takes work."""
    state.engines[engine, c.N_UP] = up
    for stage in range(state.breakers.shape[0]):
        set_admission(state, stage, engine)


@entry(inlined=False)
def on_engine_down(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """An engine is lost: running batches fail, waiting requests go to another engine that accepts them, or fail.

    Returns:
        0, or REFUSED when it was down already.
    """
    if not 0 <= engine < state.engines.shape[0] or state.engines[engine, c.N_UP] == 0:
        return c.REFUSED
    begin(now_ns, state)
    set_up(state, engine, 0)
    first = tables.engines[engine, c.E_FIRST_SLOT]
    for slot in range(first, first + tables.engines[engine, c.E_MAX_INFLIGHT]):
        if state.batches[slot, c.B_BUSY] == 1:
            release(now_ns, state, slot)
            # A result that still comes from the lost engine is of an old epoch.
            state.batches[slot, c.B_EPOCH] += 1
            fail_members(now_ns, tables, state, slot)
    for stage in range(tables.stages.shape[0]):
        evacuate(now_ns, tables, state, stage, engine)
    close_apart(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_engine_up(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """An engine is back.

    Returns:
        0, or REFUSED when it was up already.
    """
    if not 0 <= engine < state.engines.shape[0] or state.engines[engine, c.N_UP] == 1:
        return c.REFUSED
    begin(now_ns, state)
    set_up(state, engine, 1)
    mark_dirty(state, engine)
    close_apart(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_drain(now_ns: int, tables: Tables, state: State) -> int:
    """From now on nothing is admitted; what is inside runs to its end."""
    begin(now_ns, state)
    state.counters[c.C_DRAINING] = 1
    close_apart(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_rollout(now_ns: int, tables: Tables, state: State, verdict: int) -> int:
    """An analysis of the canary has ended.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        verdict: PASS: the next step, if there is one. FAIL: no traffic to the canary any more. INCONCLUSIVE, and any
            number that is none of the three: the share stays what it is, and the look is counted.

    Returns:
        0, or REFUSED when there is no canary with traffic.
    """
    step = state.counters[c.C_STEP]
    if step == 0:
        return c.REFUSED
    begin(now_ns, state)
    if verdict == c.PASS:
        if step + 1 < tables.steps.shape[0]:
            set_step(state, step + 1)
    elif verdict == c.FAIL:
        set_step(state, 0)
        turn_back(now_ns, tables, state)
    else:
        state.counters[c.C_INCONCLUSIVE] += 1
    close_apart(now_ns, tables, state)
    return 0
