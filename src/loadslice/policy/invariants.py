"""What must hold of the state between any two events. Plain Python over the tables; run after every event in tests."""

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
    assert (state.engines[:, : c.N_END_NS] >= 0).all(), "accounting: no gauge below zero"
    _check_free_list(state)
    seen: set[int] = set()
    for engine in range(len(state.engines)):
        seen |= _check_queues(tables, state, engine)
    assert seen == queued, "accounting: each queued request stands in exactly one queue"
    _check_batches(tables, state, running)
    _check_breakers(tables, state, queued | running)
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
    backlog_ns = 0
    rows = np.zeros(state.lane_rows.shape[1], np.int64)
    for priority, lane, tenant in np.ndindex(*state.lanes.shape[1:4]):
        head, tail, count = (int(value) for value in state.lanes[engine, priority, lane, tenant])
        previous, sequence, length, request = -1, -1, 0, head
        while request >= 0:
            row = state.requests[request]
            place = (c.QUEUED, engine, priority, tenant, previous)
            columns = (c.R_STATUS, c.R_ENGINE, c.R_CLASS, c.R_TENANT, c.R_PREVIOUS)
            assert tuple(int(row[column]) for column in columns) == place, "order: a queue holds its own, links agree"
            assert row[c.R_SEQUENCE] > sequence, "order: FIFO inside (class, stage, bucket)"
            assert row[c.R_ARRIVED_NS] <= row[c.R_ENQUEUED_NS] <= state.counters[c.C_NOW_NS], "order: causality"
            seen.add(request)
            backlog_ns += int(row[c.R_WORK_NS])
            rows[lane] += row[c.R_ITEMS]
            previous, sequence, length, request = request, int(row[c.R_SEQUENCE]), length + 1, int(row[c.R_NEXT])
        assert (length, previous) == (count, tail), "accounting: lane count and tail"
    waiting = state.lanes[engine, ..., c.L_COUNT].sum(axis=(1, 2))
    assert (waiting == state.engines[engine, c.N_WAITING :]).all(), "accounting: waiting by class"
    counts = state.engines[engine]
    assert len(seen) == counts[c.N_QUEUED], "accounting: queue length"
    assert backlog_ns == counts[c.N_BACKLOG_NS], "accounting: backlog"
    assert (rows == state.lane_rows[engine]).all(), "accounting: lane rows"
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
            if breaker[c.X_STATE] == c.OPEN:
                assert breaker[c.X_UNTIL_NS] < c.FOREVER, "breaker: from open there is a way back"
                first = tables.stages[stage, c.S_FIRST_LANE]
                waiting = state.lanes[engine, :, first : first + tables.stages[stage, c.S_LANES], :, c.L_COUNT]
                assert not waiting.any(), "breaker: nothing waits for an engine that is left alone"


def check_idle(state: State) -> None:
    """Assert that nothing is held once nothing is inside.

    Raises:
        AssertionError: A permit, a row or a queue place was not given back.
    """
    assert state.counters[c.C_IN_SYSTEM] == 0
    assert (state.engines[:, [c.N_QUEUED, c.N_INFLIGHT, c.N_BACKLOG_NS]] == 0).all(), "permits return when idle"
    assert (state.batches[:, c.B_BUSY] == 0).all()
    assert (state.lane_rows == 0).all()
