"""Deadlines, what the desk expects and hopes, and how long a batch waits for company. Time is a number."""

from loadslice.policy import columns as c
from loadslice.policy import desk, invariants
from loadslice.policy.desk_test import MS, TWIN, Desk, dispatches, entry, one_stage, outcomes, placements
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import (
    Batch,
    Failover,
    Pipeline,
    Stage,
)


def test_a_queued_stage_timeout_fails_over_once_and_then_expires() -> None:
    run = Desk(one_stage({"a": TWIN, "b": TWIN}, timeout_ms=50, failover=Failover(to="b")))
    run.arrive()
    run.arrive()
    assert desk.next_timer_ns(run.state) == 50 * MS
    moved = run.timer(50 * MS)
    assert placements(moved) == [(1, 1, Reason.FAILOVER), (0, 1, Reason.FAILOVER)]
    assert outcomes(run.timer(100 * MS)) == [
        (0, Outcome.EXPIRED, Reason.STAGE_TIMEOUT),
        (1, Outcome.EXPIRED, Reason.STAGE_TIMEOUT),
    ]
    # Both batches still hold their permits; their results are about nobody.
    assert run.done(0) == []
    assert run.done(1) == []
    invariants.check_idle(run.state)


def test_a_deadline_ends_a_queued_request_the_moment_it_passes() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    run.arrive(deadline_ns=30 * MS)
    assert desk.next_timer_ns(run.state) == 30 * MS
    assert outcomes(run.timer(30 * MS)) == [(1, Outcome.EXPIRED, Reason.DEADLINE)]


def test_hopeless_work_is_refused_at_the_door_and_dropped_at_the_queue_head() -> None:
    run = Desk(one_stage({"a": TWIN}), LatencyTable(entries=[entry("a", 100)]))
    run.arrive()
    assert outcomes(run.arrive(deadline_ns=150 * MS)) == [(1, Outcome.SHED, Reason.HOPELESS)]
    run.arrive(deadline_ns=210 * MS)
    run.now_ns = 130 * MS
    assert outcomes(run.done(0)) == [(0, Outcome.COMPLETED, Reason.NONE), (2, Outcome.SHED, Reason.HOPELESS)]


def test_the_estimate_is_live_a_slow_engine_makes_more_work_hopeless() -> None:
    run = Desk(one_stage({"a": TWIN}), LatencyTable(entries=[entry("a", 10)]))
    for _ in range(12):
        run.arrive()
        run.now_ns += 60 * MS
        run.done(0)
    assert outcomes(run.arrive(deadline_ns=run.now_ns + 40 * MS))[0][1:] == (Outcome.SHED, Reason.HOPELESS)


def test_one_slow_spell_does_not_lock_deadlines_out_of_an_idle_engine() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    run.now_ns += 50_000 * MS
    run.done(0)
    assert outcomes(run.arrive(deadline_ns=run.now_ns + 300 * MS))[0][2] is Reason.HOPELESS
    run.now_ns += 1000 * MS
    assert dispatches(run.arrive(deadline_ns=run.now_ns + 300 * MS)) == [0]
    # While it is tried, others are still refused by the old estimate.
    assert outcomes(run.arrive(deadline_ns=run.now_ns + 300 * MS))[0][2] is Reason.HOPELESS
    run.now_ns += 20 * MS
    run.done(0)
    assert dispatches(run.arrive(deadline_ns=run.now_ns + 300 * MS)) == [0]


def test_a_failed_batch_teaches_nothing() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    run.now_ns += 20 * MS
    run.done(0)
    run.arrive()
    run.now_ns += 60_000 * MS
    run.failed(0)
    assert run.state.learned_ns[0, 0] == 20 * MS


def test_work_that_later_stages_cannot_finish_in_time_is_refused_at_the_door() -> None:
    run = Desk(
        Pipeline(
            version=1,
            pipeline="p",
            engines={"a": TWIN, "b": TWIN},
            stages=[Stage(name="s", variant="v", engine="a"), Stage(name="t", variant="w", engine="b")],
        )
    )
    run.arrive()
    run.now_ns += 5 * MS
    run.done(0)
    run.now_ns += 200 * MS
    run.done(1)
    run.arrive()
    assert outcomes(run.arrive(deadline_ns=run.now_ns + 150 * MS))[0][2] is Reason.HOPELESS
    assert dispatches(run.arrive(deadline_ns=run.now_ns + 300 * MS)) == []
    assert run.state.counters[c.C_IN_SYSTEM] == 2


def test_what_has_begun_is_not_dropped_for_newcomers_that_would_be_served_after_it() -> None:
    """One engine serves the first and the last stage, and 70 ms of requests that have not begun wait there."""
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={"a": TWIN, "b": TWIN},
        stages=[Stage(name=name, variant="v", engine=engine) for name, engine in zip("stu", "aba", strict=True)],
    )
    run = Desk(pipeline, LatencyTable(entries=[entry("a", 10), entry("b", 10)]))
    run.arrive(deadline_ns=60 * MS)
    run.now_ns += 1 * MS
    for _ in range(8):
        run.arrive()
    run.now_ns += 9 * MS
    assert sorted(dispatches(run.done(0))) == [0, 1]
    run.now_ns += 10 * MS
    run.done(0)
    assert outcomes(run.done(1)) == []
    run.now_ns += 10 * MS
    run.done(0)
    run.now_ns += 10 * MS
    assert [(tag, outcome) for tag, outcome, _ in outcomes(run.done(0))] == [(0, Outcome.COMPLETED)]


def test_a_batch_waits_for_company_until_its_window_closes() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=4, window_ms=5)}))
    assert dispatches(run.arrive()) == []
    run.now_ns = 2 * MS
    run.arrive()
    assert desk.next_timer_ns(run.state) == 5 * MS
    assert dispatches(run.timer(5 * MS)) == [0]
    assert run.members(0) == [0, 1]


def test_a_window_never_waits_past_what_a_deadline_leaves() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=4, window_ms=50)}), LatencyTable(entries=[entry("a", 10)]))
    run.arrive(deadline_ns=30 * MS)
    assert desk.next_timer_ns(run.state) == 20 * MS
