"""What must hold of the state between any two events. Plain Python over the tables; run after every event in tests.

The promises of the core, and where each is held. *state*: `check`, *step*: `check_step`, *idle*: `check_idle`, all
here; *watch*: `watch.Watch`, which also runs over live and simulated journals; *twin*: `naive_test`; *run*: `Run` in
`histories_test`, after every event of random histories. `watch_test` breaks 6, 13 and 24 on purpose, and sees that the
watch notices.

    Accounting
     1 submitted = waiting + running + outcomes                             state, watch against state
     2 one outcome per request, once                                        watch, run (at the end)
     3 no gauge below zero, nothing held when idle                          state, idle
     4 a refused event leaves the state bit-identical                       run
     5 arrive <= enqueue <= dispatch <= finish, the clock goes forward      watch, state, step
    Order
     6 no priority inversion on an engine but for a floor, f * n at most    watch
     7 first in, first out inside a class and a lane, whatever leaves it    watch, state
     8 the newest of the lowest class lower than the newcomer is displaced  watch
     9 of n dispatches while it waits a floor f gets f * n - m at least,
       m being the classes that have one                                    watch
    10 max-min fairness between tenants, within requests of an oracle       guarantees_test, twin
    Bounds
    11 queue length within its limit, requests within max_requests          watch (every instant), state
    12 in flight within the quota                                           watch (every instant), state
    13 abs(sent - share * overflows) < 1; only overflow, only to the backup state, twin, watch (by queue lengths)
    14 a hint is finite, not negative, and does not grow while it drains    watch, run
    15 further attempts in any window within the budget                     watch
    16 attempts within their cap, none past the deadline                    watch, state
    17 bytes that wait within their limit                                   the live store's, not the core's
    Breakers
    18 legal transitions only, each a new epoch                             step, twin
    19 probes out + ended within the permits, every permit comes back       state, idle
    20 an old epoch changes nothing                                         run, watch
    21 half-open comes, and with traffic it ends                            state, machine_test
    22 the last engine that is well is never ejected                        step
    Deadlines, batches, crashes
    23 a stage's time ends no later than the deadline; a cancel ends one    state, watch
    24 nothing hopeless is dispatched but a trial; what could not take so
       long by the table and by any batch so far is not hopeless            run, watch
    25 rows within the batch size, one lane, nobody past a deadline         watch, state
    26 no free slot beside work that could start                            watch, state
    27 a lost engine loses nobody and holds nothing                         watch
    Rollout, determinism
    28 abs(canary - share * n) < 1, only a pass promotes, a failure empties watch, guarantees_test
    29 the same events, the same decisions, byte for byte                   run (at the end), tests/same_core
"""

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.layout import State, Tables


def check(tables: Tables, state: State) -> None:
    """Assert every state invariant.

    Raises:
        AssertionError: Names the invariant of the policy page that is broken.
    """
    status = state.requests[:, c.R_STATUS]
    counters = state.counters
    queued = {int(row) for row in np.flatnonzero(status == c.QUEUED)}
    running = {int(row) for row in np.flatnonzero(status == c.RUNNING)}
    ended = int(counters[c.C_OUTCOMES :].sum())
    assert counters[c.C_SUBMITTED] == len(queued) + len(running) + ended, "accounting: submitted = inside + outcomes"
    assert counters[c.C_IN_SYSTEM] == len(queued) + len(running), "accounting: in system"
    assert (state.engines[:, : c.N_QUEUE_EXPIRY_NS] >= 0).all(), "accounting: no gauge below zero"
    _check_free_list(state)
    seen: set[int] = set()
    for engine in range(len(state.engines)):
        seen |= _check_queues(tables, state, engine)
    assert seen == queued, "accounting: each queued request stands in exactly one queue"
    _check_batches(tables, state, running)
    _check_breakers(tables, state, queued | running)
    _check_times(tables, state, queued | running)
    assert 0 <= counters[c.C_BUDGET_PPM] <= tables.run[c.W_RETRY_RESERVE_PPM], "bounds: retry budget"
    for stage, counts in enumerate(state.stages):
        exact = int(counts[c.G_OVERFLOWS]) * int(tables.stages[stage, c.S_SHARE_PPM])
        assert abs(int(counts[c.G_SENT]) * c.PPM - exact) < c.PPM, "bounds: |sent - share * overflows| < 1"


def _check_free_list(state: State) -> None:
    free = []
    row = int(state.counters[c.C_FREE_HEAD])
    while row >= 0:
        assert state.requests[row, c.R_STATUS] == c.FREE, "accounting: a row in use is on the free list"
        free.append(row)
        assert len(free) <= len(state.requests), "accounting: the free list has a loop"
        row = int(state.requests[row, c.R_NEXT])
    assert len(free) == int((state.requests[:, c.R_STATUS] == c.FREE).sum()), (
        "accounting: every free row is on the list"
    )


def _check_queues(tables: Tables, state: State, engine: int) -> set[int]:
    seen: set[int] = set()
    backlog_ns = np.zeros(c.CLASSES, np.int64)
    rows = np.zeros(len(state.lane_rows), np.int64)
    waiting = np.zeros(c.CLASSES, np.int64)
    for lane, tenant, priority in np.ndindex(*state.lanes.shape[:2], c.CLASSES):
        head, tail = (int(value) for value in state.lanes[lane, tenant, engine, priority])
        previous, sequence, request = -1, -1, head
        while request >= 0:
            row = state.requests[request]
            place = (c.QUEUED, engine, priority, tenant, previous)
            columns = (c.R_STATUS, c.R_ENGINE, c.R_CLASS, c.R_TENANT, c.R_PREVIOUS)
            assert tuple(int(row[column]) for column in columns) == place, "order: a queue holds its own, links agree"
            assert row[c.R_SEQUENCE] > sequence, "order: FIFO inside (class, stage, bucket)"
            assert row[c.R_ARRIVED_NS] <= row[c.R_ENQUEUED_NS] <= state.counters[c.C_NOW_NS], "order: causality"
            seen.add(request)
            backlog_ns[priority:] += row[c.R_WORK_NS]
            rows[lane] += row[c.R_ITEMS]
            waiting[priority] += 1
            previous, sequence, request = request, int(row[c.R_SEQUENCE]), int(row[c.R_NEXT])
        assert previous == tail, "accounting: a lane's tail is its last"
    counts = state.engines[engine]
    assert (waiting == counts[c.N_WAITING :]).all(), "accounting: waiting by class"
    assert len(seen) == counts[c.N_QUEUED], "accounting: queue length"
    assert (backlog_ns == state.backlog_ns[:, engine]).all(), "accounting: backlog by class"
    assert (rows == state.lane_rows[:, engine]).all(), "accounting: lane rows"
    limit = int(tables.engines[engine, c.E_QUEUE_LIMIT])
    # With a limit of 0 one request passes through the queue on its way to a free slot within the same event.
    assert len(seen) <= max(limit, 1 if counts[c.N_INFLIGHT] < tables.engines[engine, c.E_MAX_INFLIGHT] else 0), (
        "bounds: queue length within its limit"
    )
    return seen


def _check_batches(tables: Tables, state: State, running: set[int]) -> None:
    in_batches: set[int] = set()
    for engine in range(len(state.engines)):
        slots = state.batches[:, c.B_ENGINE] == engine
        busy = int(state.batches[slots, c.B_BUSY].sum())
        assert busy == state.engines[engine, c.N_INFLIGHT], "accounting: permits"
        assert busy <= tables.engines[engine, c.E_MAX_INFLIGHT], "bounds: in flight within quota"
    for slot, batch in enumerate(state.batches):
        if batch[c.B_BUSY] == 0:
            continue
        size = int(tables.pairs[batch[c.B_STAGE], batch[c.B_ENGINE], c.P_BATCH_SIZE])
        assert batch[c.B_COUNT] >= 1, "batches: never empty"
        assert batch[c.B_ROWS] <= size or batch[c.B_COUNT] == 1, "batches: rows within size"
        for request, epoch, _tag in state.members[slot, : batch[c.B_COUNT]]:
            if state.requests[request, c.R_EPOCH] == epoch:
                assert state.requests[request, c.R_STATUS] == c.RUNNING, "batches: members run"
                in_batches.add(int(request))
    assert in_batches == running, "accounting: each running request is in exactly one batch"


def _check_breakers(tables: Tables, state: State, inside: set[int]) -> None:
    probes = np.zeros(state.breakers.shape[:2], np.int64)
    for request in inside:
        row = state.requests[request]
        assert row[c.R_ATTEMPTS] <= tables.run[c.W_ATTEMPTS], "bounds: attempts within their cap"
        breaker = state.breakers[row[c.R_STAGE], row[c.R_ENGINE]]
        if row[c.R_PROBE] and row[c.R_BREAKER_EPOCH] == breaker[c.X_EPOCH]:
            probes[row[c.R_STAGE], row[c.R_ENGINE]] += 1
    assert (probes == state.breakers[..., c.X_PROBES]).all(), "breaker: every permit out is held by someone inside"
    for stage in range(len(state.breakers)):
        for engine, breaker in enumerate(state.breakers[stage]):
            window = int(tables.breakers[stage, c.K_WINDOW])
            remembered = state.calls[stage, engine, : breaker[c.X_CALLS]]
            assert breaker[c.X_CALLS] <= window, "breaker: window"
            assert breaker[c.X_FAILURES] == (remembered & c.FAILED_CALL).sum(), "breaker: failures add up"
            assert breaker[c.X_PROBES] + breaker[c.X_PROBED] <= tables.breakers[stage, c.K_PERMITS], "breaker: permits"
            if breaker[c.X_STATE] == c.HALF_OPEN and breaker[c.X_PROBES] + breaker[c.X_PROBED] > 0:
                assert breaker[c.X_UNTIL_NS] < c.FOREVER, "breaker: half-open with traffic ends"
            if breaker[c.X_STATE] == c.OPEN:
                assert breaker[c.X_UNTIL_NS] < c.FOREVER, "breaker: from open there is a way back"
                first = tables.stages[stage, c.S_FIRST_LANE]
                heads = state.lanes[first : first + tables.stages[stage, c.S_LANES], :, engine, :, c.L_HEAD]
                assert (heads == -1).all(), "breaker: nothing waits for an engine that is left alone"


def _check_times(tables: Tables, state: State, inside: set[int]) -> None:
    for request in inside:
        row = state.requests[request]
        assert row[c.R_EXPIRY_NS] <= row[c.R_DEADLINE_NS], "deadlines: a stage's time ends no later than the deadline"
    for engine, counts in enumerate(state.engines):
        is_free = counts[c.N_INFLIGHT] < tables.engines[engine, c.E_MAX_INFLIGHT]
        # A model may wait for the memory of one that runs; its batch's end is an event of its own.
        for_memory = tables.engines[engine, c.E_MEMORY_BYTES] < c.FOREVER and counts[c.N_INFLIGHT] > 0
        if counts[c.N_UP] and is_free and counts[c.N_QUEUED] and not for_memory:
            look_ns = state.timers[len(state.timers) // 2 + engine]
            assert look_ns < c.FOREVER, "batches: idle beside work only while a window is open"
        if not counts[c.N_UP]:
            assert counts[c.N_QUEUED] == counts[c.N_INFLIGHT] == 0, "crashes: a lost engine holds nothing"


LEGAL = {(c.CLOSED, c.OPEN), (c.OPEN, c.HALF_OPEN), (c.HALF_OPEN, c.CLOSED), (c.HALF_OPEN, c.OPEN)}


def copy(state: State) -> State:
    """The state as it is now, for `check_step`."""
    return State(*(array.copy() for array in state))


def check_step(tables: Tables, before: State, after: State) -> None:
    """Assert what must hold between the states before and after one event.

    Raises:
        AssertionError: Names the invariant that is broken.
    """
    assert after.counters[c.C_NOW_NS] >= before.counters[c.C_NOW_NS], "order: the clock never goes back"
    for counted in (c.C_SUBMITTED, c.C_RETRIES, c.C_RETRIES_DENIED, *range(c.C_OUTCOMES, c.COUNTERS)):
        assert after.counters[counted] >= before.counters[counted], "accounting: what is counted never falls"
    assert (after.batches[:, c.B_EPOCH] >= before.batches[:, c.B_EPOCH]).all(), "epochs: a slot's never falls"
    assert (after.requests[:, c.R_EPOCH] >= before.requests[:, c.R_EPOCH]).all(), "epochs: a row's never falls"
    for stage in range(len(after.breakers)):
        for engine in range(len(after.engines)):
            old, new = before.breakers[stage, engine], after.breakers[stage, engine]
            change = (int(old[c.X_STATE]), int(new[c.X_STATE]))
            steps = int(new[c.X_EPOCH] - old[c.X_EPOCH])
            assert steps == int(change[0] != change[1]), "breaker: an epoch for every change, and no other"
            assert change[0] == change[1] or change in LEGAL, "breaker: legal transitions only"
            if change == (c.CLOSED, c.OPEN):
                _check_left_well(tables, after, stage, engine)


def _check_left_well(tables: Tables, state: State, stage: int, engine: int) -> None:
    others = [other for other in tables.preference[stage] if other >= 0 and other != engine]
    well = [o for o in others if state.engines[o, c.N_UP] and state.breakers[stage, o, c.X_STATE] == c.CLOSED]
    for bucket in np.flatnonzero(tables.eligible[stage, engine]):
        takers = [other for other in well if tables.eligible[stage, other, bucket]]
        assert takers, "breaker: the last engine that is well is never ejected"


def check_idle(state: State) -> None:
    """Assert that nothing is held once nothing is inside.

    Raises:
        AssertionError: A permit, a row or a queue place was not given back.
    """
    assert state.counters[c.C_IN_SYSTEM] == 0
    assert (state.engines[:, [c.N_QUEUED, c.N_INFLIGHT]] == 0).all(), "permits return when idle"
    assert (state.engines[:, c.N_WAITING :] == 0).all(), "permits return when idle"
    assert (state.batches[:, c.B_BUSY] == 0).all()
    assert (state.lane_rows == 0).all()
    assert (state.backlog_ns == 0).all()
    assert (state.breakers[..., c.X_PROBES] == 0).all(), "permits return when idle"
    assert (state.lanes == -1).all()
