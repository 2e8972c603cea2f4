"""What a breaker promises: legal transitions, permits that come back, epochs that mean something."""

import msgspec
import numpy as np
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk, invariants
from loadslice.policy.desk_test import MS, TWIN, Desk, entry, one_stage, outcomes, placements
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Batch, Breaker, Engine, Pipeline, Queue, Retry

BREAKER = Breaker(failure_rate=0.5, window=8, min_calls=4, open_ms=100, open_ms_max=350, permits=2, half_open_ms=500)


def guarded(**engines: Engine) -> Desk:
    plan = one_stage(engines or {"a": TWIN, "b": TWIN}, breaker=BREAKER)
    return Desk(msgspec.structs.replace(plan, retry=Retry(attempts=1)))


def state_of(run: Desk, engine: int = 0) -> int:
    return int(run.state.breakers[0, engine, c.X_STATE])


def fail_until_open(run: Desk) -> None:
    for _ in range(4):
        run.arrive()
        run.failed(0)
    assert state_of(run) == c.OPEN


def test_it_opens_at_the_rate_and_not_before_min_calls() -> None:
    run = guarded()
    for _ in range(3):
        run.arrive()
        run.failed(0)
        assert state_of(run) == c.CLOSED
    run.arrive()
    run.failed(0)
    assert state_of(run) == c.OPEN


def test_calls_well_below_the_rate_keep_it_closed() -> None:
    run = guarded()
    for number in range(60):
        run.arrive()
        run.failed(0) if number % 3 == 2 else run.done(0)
        assert state_of(run) == c.CLOSED


def test_while_open_everything_goes_elsewhere_and_what_waits_is_moved() -> None:
    run = guarded()
    for _ in range(5):
        run.arrive()
    for _ in range(3):
        run.failed(0)
    moved = run.failed(0)
    assert placements(moved) == [(4, 1, Reason.PREFERRED)]
    assert placements(run.arrive())[0][1] == 1


def test_the_last_engine_that_is_well_is_never_opened() -> None:
    run = guarded(a=TWIN)
    for _ in range(12):
        run.arrive()
        run.failed(0)
        assert state_of(run) == c.CLOSED
    assert run.state.breakers[0, 0, c.X_WITHHELD] == 3


def test_of_two_that_fail_only_one_is_ejected() -> None:
    run = guarded()
    fail_until_open(run)
    for _ in range(12):
        run.arrive()
        run.failed(1)
    assert state_of(run, 1) == c.CLOSED


def test_half_open_lets_exactly_its_permits_through_and_closes_on_good_probes() -> None:
    run = guarded(a=Engine(backend="twin", max_inflight=4), b=Engine(backend="twin", max_inflight=9))
    fail_until_open(run)
    run.timer(100 * MS)
    assert state_of(run) == c.HALF_OPEN
    assert [placements(run.arrive())[0][1] for _ in range(4)] == [0, 0, 1, 1]
    run.done(0)
    assert state_of(run) == c.HALF_OPEN
    run.done(1)
    assert state_of(run) == c.CLOSED
    assert placements(run.arrive())[0][1] == 0


def test_bad_probes_open_it_again_for_twice_as_long_up_to_the_bound() -> None:
    run = guarded()
    fail_until_open(run)
    for open_ms in (100, 200, 350, 350):
        due_ns = int(run.state.breakers[0, 0, c.X_UNTIL_NS])
        assert due_ns - run.now_ns == open_ms * MS
        run.timer(due_ns)
        for _ in range(2):
            run.arrive()
            run.failed(0)
        assert state_of(run) == c.OPEN


def test_a_permit_comes_back_from_a_cancelled_probe() -> None:
    run = guarded()
    fail_until_open(run)
    run.timer(100 * MS)
    for _ in range(6):
        run.arrive()
        tag = run.tag - 1
        assert run.state.breakers[0, 0, c.X_PROBES] == 1
        desk.on_cancel(run.now_ns, run.tables, run.state, run.rows[tag], tag)
        assert run.state.breakers[0, 0, c.X_PROBES] == 0
        run.done(0)
    assert state_of(run) == c.HALF_OPEN
    assert placements(run.arrive())[0][1] == 0


def test_half_open_with_a_probe_that_never_ends_ends_itself() -> None:
    run = guarded()
    fail_until_open(run)
    run.timer(100 * MS)
    run.arrive()
    assert desk.next_timer_ns(run.state) == 600 * MS
    run.timer(600 * MS)
    assert state_of(run) == c.OPEN


def test_a_probe_that_runs_for_longer_than_half_open_lasts_is_waited_for_and_closes_it() -> None:
    """A well engine whose batches take 2 s would never get past a half-open time of 500 ms."""
    slow = LatencyTable(entries=[entry("a", 2000), entry("b", 2000)])
    run = Desk(
        msgspec.structs.replace(one_stage({"a": TWIN, "b": TWIN}, breaker=BREAKER), retry=Retry(attempts=1)), slow
    )
    fail_until_open(run)
    run.timer(100 * MS)
    run.arrive()
    run.timer(600 * MS)
    assert state_of(run) == c.HALF_OPEN
    run.timer(2100 * MS)
    run.done(0)
    run.timer(desk.next_timer_ns(run.state))
    assert state_of(run) == c.CLOSED


def test_a_probe_that_runs_for_twice_as_long_as_expected_is_waited_for_no_longer() -> None:
    slow = LatencyTable(entries=[entry("a", 2000), entry("b", 2000)])
    run = Desk(
        msgspec.structs.replace(one_stage({"a": TWIN, "b": TWIN}, breaker=BREAKER), retry=Retry(attempts=1)), slow
    )
    fail_until_open(run)
    run.timer(100 * MS)
    run.arrive()
    run.timer(600 * MS)
    run.timer(4100 * MS)
    assert state_of(run) == c.OPEN


def test_a_probe_that_waits_when_half_open_ends_is_moved() -> None:
    run = guarded()
    for _ in range(5):
        run.arrive()
    for _ in range(4):
        run.failed(0)
    run.timer(100 * MS)
    run.arrive()
    run.arrive()
    assert placements(run.timer(600 * MS)) == [(6, 1, Reason.PREFERRED)]


def test_half_open_without_traffic_waits() -> None:
    run = guarded()
    fail_until_open(run)
    run.timer(100 * MS)
    assert desk.next_timer_ns(run.state) == c.FOREVER
    run.timer(10_000 * MS)
    assert state_of(run) == c.HALF_OPEN


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_call_of_an_old_epoch_says_nothing(*, ends_well: bool) -> None:
    run = guarded(a=Engine(backend="twin", max_inflight=5), b=Engine(backend="twin", max_inflight=9))
    for _ in range(5):
        run.arrive()
    for slot in range(4):
        run.failed(slot)
    assert state_of(run) == c.OPEN
    before = run.state.breakers.copy()
    run.done(4) if ends_well else run.failed(4)
    assert (run.state.breakers == before).all()


def test_slow_calls_open_it_too() -> None:
    breaker = msgspec.structs.replace(BREAKER, slow_ms=20.0, slow_rate=0.5)
    run = Desk(one_stage({"a": TWIN, "b": TWIN}, breaker=breaker))
    for _ in range(4):
        run.arrive()
        run.now_ns += 30 * MS
        run.done(0)
    assert state_of(run) == c.OPEN


def test_a_stage_timeout_of_a_running_call_is_a_failed_call() -> None:
    run = Desk(one_stage({"a": Engine(backend="twin", max_inflight=4), "b": TWIN}, breaker=BREAKER, timeout_ms=50))
    for _ in range(4):
        run.arrive()
    run.timer(50 * MS)
    assert state_of(run) == c.OPEN


def test_a_hung_engine_of_one_slot_opens_it_by_what_waits_behind() -> None:
    run = Desk(one_stage({"a": TWIN, "b": TWIN}, breaker=BREAKER, timeout_ms=50))
    for _ in range(4):
        run.arrive()
    run.timer(50 * MS)
    assert state_of(run) == c.OPEN
    assert placements(run.arrive())[0][1] == 1


def test_a_queue_that_is_merely_long_does_not_open_it() -> None:
    run = Desk(one_stage({"a": TWIN, "b": TWIN}, breaker=BREAKER, timeout_ms=50))
    for _ in range(6):
        run.arrive()
    run.now_ns = 30 * MS
    run.done(0)
    run.timer(50 * MS)
    assert state_of(run) == c.CLOSED


def test_a_flapping_engine_changes_state_a_bounded_number_of_times() -> None:
    """Down for 5 s, up for 5 s, for ten minutes, one call every 50 ms."""
    run = guarded()
    for step in range(12_000):
        run.now_ns = max(run.now_ns, step * 50 * MS)
        while (due_ns := desk.next_timer_ns(run.state)) <= run.now_ns:
            desk.on_timer(due_ns if due_ns > run.state.counters[c.C_NOW_NS] else run.now_ns, run.tables, run.state)
        effects = run.arrive()
        engine = placements(effects)[0][1]
        sick = engine == 0 and (step * 50 // 5000) % 2 == 0
        run.failed(engine) if sick else run.done(engine)
    # Each sick spell can cost: open, then at most 5 s / 0.35 s of half-open and open again.
    assert run.state.breakers[0, 0, c.X_TRANSITIONS] < 60 * (2 + 2 * 15)
    invariants.check_idle(run.state)


def test_members_of_one_failed_batch_count_each() -> None:
    plan: Pipeline = one_stage({"a": TWIN, "b": TWIN}, breaker=BREAKER, batch={"a": Batch(size=4, window_ms=5)})
    run = Desk(msgspec.structs.replace(plan, retry=Retry(attempts=1)))
    for _ in range(4):
        run.arrive()
    failed = run.failed(0)
    assert [outcome for _, outcome, _ in outcomes(failed)] == [Outcome.FAILED] * 4
    assert state_of(run) == c.OPEN


def test_traffic_that_moves_is_bounded_by_the_backups_queue_lowest_class_shed_first() -> None:
    engines = {"a": TWIN, "b": Engine(backend="twin", queue=Queue(limit=2))}
    run = guarded(**engines)
    for _ in range(5):
        run.arrive(0)
    for _ in range(3):
        run.failed(0)
    for _ in range(3):
        run.arrive(3)
    assert np.flatnonzero(run.state.batches[:, c.B_BUSY]).tolist() == [0]
    moved = run.failed(0)
    assert state_of(run) == c.OPEN
    assert {tag for tag, engine, _ in placements(moved) if engine == 1} == {4, 5}
    assert outcomes(moved) == [
        (6, Outcome.SHED, Reason.QUEUE_FULL),
        (7, Outcome.SHED, Reason.QUEUE_FULL),
        (3, Outcome.FAILED, Reason.ENGINE_FAILED),
    ]
