"""What reading and random histories found wrong in this core once, each as the claim that was broken."""

import msgspec
import numpy as np
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk, events
from loadslice.policy.breaker_test import fail_until_open, guarded, state_of
from loadslice.policy.desk_test import MS, TWIN, Desk, dispatches, entry, one_stage, outcomes, placements
from loadslice.policy.tables import fresh, lower
from loadslice.policy.watch import follow
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import (
    Accept,
    Batch,
    Breaker,
    Canary,
    ClassLimits,
    Engine,
    Pipeline,
    Queue,
    Retry,
    Rollout,
    Rule,
    Stage,
    When,
)

EVERY_CALL = Breaker(window=1, min_calls=1, failure_rate=0.5, open_ms=1000)
ONCE = Retry(attempts=1)


def test_one_event_may_move_every_request_past_every_engine() -> None:
    """Breakers that open one after the other in a sweep said more than the list of effects held."""
    names = "abcde"
    plan = one_stage(
        {name: Engine(backend="twin", queue=Queue(limit=100)) for name in names},
        prefer="rules",
        rules=[Rule(when=When(items=str(number)), to=name) for number, name in enumerate(names, 1)],
        timeout_ms=50,
        breaker=EVERY_CALL,
    )
    run = Desk(msgspec.structs.replace(plan, max_requests=24, retry=ONCE))
    for items in (1, 2, 3, 4, 5):
        run.arrive(items=items)
    run.now_ns = 10 * MS
    for _ in range(19):
        run.arrive()
    moved = placements(run.timer(50 * MS))
    assert len(moved) == 4 * 19
    assert {engine for _, engine, _ in moved[-19:]} == {4}


@pytest.mark.parametrize("floors", [(0.33, 0.33, 0.33), (0.5, 0.3, 0.2), (0.9, 0.05, 0.05), (0.25, 0.25, 0.25)])
def test_floors_of_several_classes_are_kept_together(floors: tuple[float, ...]) -> None:
    """Two classes came to a whole credit at one dispatch, and one of them had to wait."""
    names = ("critical", "sheddable_plus", "sheddable")
    limits = {name: ClassLimits(floor=floor) for name, floor in zip(names, floors, strict=True)}
    plan = one_stage({"a": Engine(backend="twin", queue=Queue(limit=2000))})
    run = Desk(msgspec.structs.replace(plan, max_requests=2000, classes=limits))
    for priority in range(4):
        for _ in range(200):
            run.arrive(priority)
    had = [0, 0, 0, 0]
    for dispatches_so_far in range(1, 190):
        run.done(0)
        had[run.members(0)[0] // 200] += 1
        for priority, floor in enumerate(floors, 1):
            assert had[priority] >= floor * dispatches_so_far - len(floors)


def test_half_open_ends_although_every_probe_is_cancelled() -> None:
    """Each probe that came after a cancelled one started the clock anew."""
    run = guarded()
    fail_until_open(run)
    run.timer(100 * MS)
    while state_of(run) == c.HALF_OPEN:
        run.arrive()
        tag = run.tag - 1
        desk.on_cancel(run.now_ns, run.tables, run.state, run.rows[tag], tag)
        run.done(0)
        run.now_ns += 60 * MS
        if desk.next_timer_ns(run.state) <= run.now_ns:
            run.timer(run.now_ns)
        assert run.now_ns <= (100 + 500 + 60) * MS


@pytest.mark.parametrize("other", [{"precision": "int8"}, {"max_items": 1}])
def test_the_last_engine_that_can_serve_a_request_is_kept(other: dict[str, object]) -> None:
    """An engine was left alone for another that takes the shape, but not the precision, or not the rows."""
    plan = one_stage({"a": TWIN, "b": TWIN}, breaker=EVERY_CALL, accept={"b": Accept(**other)})  # type: ignore[arg-type]
    run = Desk(msgspec.structs.replace(plan, retry=ONCE))
    for _ in range(4):
        run.arrive(items=4, precision=4)
        run.failed(0)
        assert state_of(run) == c.CLOSED
    assert placements(run.arrive(items=4, precision=4))[0][1] == 0


def test_company_never_costs_a_deadline() -> None:
    """A request was in time by itself, and late in the batch that it was put into."""
    latency = LatencyTable(entries=[entry("a", 10, 1), entry("a", 40, 4)])
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=4)}), latency)
    run.arrive()
    run.arrive(deadline_ns=25 * MS)
    for _ in range(3):
        run.arrive()
    run.now_ns = 10 * MS
    run.done(0)
    assert run.members(0) == [1]
    assert run.now_ns + run.state.batches[0, c.B_EXPECTED_NS] <= 25 * MS


def test_a_trial_ends_with_its_batch() -> None:
    """A trial that failed left its mark, and the next ordinary batch replaced the estimate instead of moving it."""
    run = Desk(msgspec.structs.replace(one_stage({"a": TWIN}), retry=ONCE))
    run.arrive()
    run.now_ns = 50_000 * MS
    run.done(0)
    run.now_ns += 1000 * MS
    assert dispatches(run.arrive(deadline_ns=run.now_ns + 300 * MS)) == [0]
    run.failed(0)
    run.arrive()
    run.now_ns += 10 * MS
    run.done(0)
    assert run.state.learned_ns[0, 0] == 50_000 * MS - (50_000 - 10) * MS // 8


def test_a_turn_of_a_floor_is_spent_by_a_dispatch_only() -> None:
    """The turn was spent on dropping what had become hopeless, while the class still waited elsewhere."""
    plan = one_stage({"a": Engine(backend="twin", queue=Queue(limit=500))}, buckets=[[8], [16]])
    plan = msgspec.structs.replace(plan, classes={"sheddable": ClassLimits(floor=0.5)})
    run = Desk(plan, LatencyTable(entries=[entry("a", 10)]))
    run.arrive(0)
    run.arrive(3, deadline_ns=25 * MS)
    run.arrive(3, bucket=1)
    for _ in range(20):
        run.arrive(0)
    order = []
    for ms in (10, 20, 30):
        run.now_ns = ms * MS
        run.done(0)
        order += run.members(0)
    assert 2 in order


def test_a_queue_of_none_keeps_nobody_waiting_for_company() -> None:
    """With a limit of 0 one request waited for its window to end, and kept everybody else out."""
    run = Desk(one_stage({"a": Engine(backend="twin", queue=Queue(limit=0))}, batch={"a": Batch(size=4, window_ms=5)}))
    assert dispatches(run.arrive()) == [0]
    assert outcomes(run.arrive()) == [(1, Outcome.REJECTED, Reason.QUEUE_FULL)]


def test_when_the_turn_proves_hopeless_the_next_turn_is_the_highest_class_again() -> None:
    """The batch was filled from the lane of the one that was dropped, past a higher class in another lane."""
    run = Desk(one_stage({"a": TWIN}, buckets=[[8], [16]]), LatencyTable(entries=[entry("a", 10)]))
    run.arrive(1)
    run.arrive(1, deadline_ns=20 * MS)
    run.arrive(3)
    run.arrive(1, bucket=1)
    run.now_ns = 15 * MS
    assert outcomes(run.done(0))[1] == (1, Outcome.SHED, Reason.HOPELESS)
    assert run.members(0) == [3]


def test_a_lane_that_may_not_start_sets_no_timer() -> None:
    """A timer that had fired was due again at once, for an offline class whose window was over: a run stood still."""
    plan = one_stage({"a": TWIN}, buckets=[[8], [16]], batch={"a": Batch(size=4, window_ms=20)})
    run = Desk(msgspec.structs.replace(plan, classes={"sheddable": ClassLimits(offline=True)}))
    run.arrive(3)
    run.now_ns = 15 * MS
    run.arrive(1, bucket=1)
    if desk.next_timer_ns(run.state) == 20 * MS:
        run.timer(20 * MS)
    assert desk.next_timer_ns(run.state) == 35 * MS
    assert dispatches(run.timer(35 * MS)) == [0]
    assert run.members(0) == [1]


def in_turns() -> Desk:
    """Two models on an engine with memory for one, and a stage before them elsewhere."""
    engines = {"a": Engine(backend="twin", max_inflight=2, memory_mb=60), "b": TWIN}
    stages = [
        Stage(name="first", variant="first", engine="b"),
        Stage(name="s", variant="v", engine="a", memory_mb=60, load_ms=500),
        Stage(name="t", variant="w", engine="a", memory_mb=60, load_ms=500),
    ]
    return Desk(
        Pipeline(version=1, pipeline="p", engines=engines, stages=stages, max_requests=8),
        LatencyTable(entries=[entry("a", 10)]),
    )


def test_a_model_that_cannot_be_loaded_beside_another_sets_no_timer() -> None:
    """The same, for a model that has to wait until what runs gives its memory back."""
    run = in_turns()
    run.arrive()
    run.done(2)
    run.arrive()
    run.done(0)
    run.done(2)
    assert run.state.engines[0, c.N_QUEUED] == 1
    assert desk.next_timer_ns(run.state) == c.FOREVER
    assert dispatches(run.done(0)) == [0]


def test_a_deadline_that_loading_a_model_would_miss_is_hopeless() -> None:
    """A request was dispatched with its model still to be loaded, for longer than its deadline left."""
    run = in_turns()
    run.arrive(deadline_ns=10_000 * MS)
    run.done(2)
    run.now_ns = 9_600 * MS
    assert outcomes(run.done(0)) == [(0, Outcome.SHED, Reason.HOPELESS)]


def test_nobody_joins_a_batch_that_ends_past_their_own_deadline() -> None:
    """A batch that would end too late for a newcomer anyway took it all the same."""
    latency = LatencyTable(entries=[entry("a", 10, 1), entry("a", 40, 4)])
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=4)}), latency)
    run.arrive()
    run.arrive(items=3)
    run.arrive(deadline_ns=45 * MS)
    run.now_ns = 10 * MS
    run.done(0)
    assert run.members(0) == [1]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_burst_of_the_lowest_class_makes_nobody_above_it_hopeless(slots: int) -> None:
    """The wait that a deadline was held against counted work that the newcomer would have overtaken."""
    plan = one_stage({"a": Engine(backend="twin", max_inflight=slots, queue=Queue(limit=200, wait_limit_ms=50))})
    run = Desk(msgspec.structs.replace(plan, max_requests=200))
    run.arrive(0)
    run.now_ns = 10 * MS
    run.done(0)  # it is known now that one takes 10 ms
    for _ in range(100):
        run.arrive(3)
    top = run.arrive(0, deadline_ns=run.now_ns + 40 * MS)
    assert outcomes(top) == []
    assert placements(top)
    # The lowest class itself does wait for all of them.
    assert outcomes(run.arrive(3, deadline_ns=run.now_ns + 40 * MS)) == [(102, Outcome.SHED, Reason.HOPELESS)]
    # And what waits above counts.
    for _ in range(5 * slots):
        run.arrive(0)
    assert outcomes(run.arrive(0, deadline_ns=run.now_ns + 40 * MS))[0][1:] == (Outcome.SHED, Reason.HOPELESS)


@pytest.mark.parametrize("quiet_s", [3_600, 100_000, 10_000_000])
def test_a_retry_budget_is_refilled_however_long_nobody_drew_from_it(quiet_s: int) -> None:
    """Time since the last grant, times the rate, was more than an integer holds: a quiet night emptied it."""
    plan = one_stage({"a": TWIN})
    run = Desk(msgspec.structs.replace(plan, retry=Retry(budget=0, attempts=2, per_s=1000, reserve=1)))
    run.arrive()
    run.failed(0)  # spends what there was at the start
    run.done(0)
    run.now_ns = quiet_s * 1_000 * MS
    run.arrive()
    assert placements(run.failed(0)), "it may try again"


def test_times_that_are_long_and_slow_do_not_wrap_around() -> None:
    """Buckets of 1 ms and 12 s; the small one became a thousand times slower, and the large one -6447 s."""
    times = [
        Entry(
            variant="v",
            engine="a",
            batch=1,
            shape=[side],
            latency_ms=Milliseconds(mean=mean_ms, family="constant"),
            basis="modelled",
        )
        for side, mean_ms in ((8, 1.0), (4096, 12_000.0))
    ]
    run = Desk(one_stage({"a": TWIN}, buckets=[[8], [4096]]), LatencyTable(entries=times))
    for _ in range(80):
        run.arrive(bucket=0)
        run.now_ns += 1100 * MS
        run.done(0)
    assert run.state.live[0, 1, 0, c.V_ROW_NS] > 10_000_000 * MS


def test_a_batch_that_took_hours_is_learned_from_as_it_was() -> None:
    run = Desk(one_stage({"a": TWIN}), LatencyTable(entries=[entry("a", 3_600_000)]))
    run.arrive()
    run.now_ns += 3 * 3_600_000 * MS
    run.done(0)
    assert run.state.scale_ppm[0, 0] == 1_000_000 + 2_000_000 // 8


@pytest.mark.parametrize(("per_s", "hint_ms"), [(0.0, 60_000), (0.5, 2000), (1.0, 1000), (100.0, 50)])
def test_who_finds_no_retry_budget_is_told_when_there_will_be_some(*, per_s: float, hint_ms: int) -> None:
    """The hint was 50 ms whatever the rate, and brought the storm back 20 times a second."""
    retry = Retry(budget=0.0, per_s=per_s, reserve=1)
    run = Desk(msgspec.structs.replace(one_stage({"a": TWIN}), retry=retry))
    run.arrive(attempt=2)
    assert run.arrive(attempt=2)[0][c.F_C] == hint_ms * MS


def test_who_finds_no_place_inside_is_told_when_it_will_have_drained() -> None:
    plan = msgspec.structs.replace(one_stage({"a": TWIN}), max_requests=2)
    run = Desk(plan, LatencyTable(entries=[entry("a", 400)]))
    run.arrive(), run.arrive()
    run.now_ns = 100 * MS
    assert run.arrive()[0][c.F_B : c.F_D] == (Reason.TABLE_FULL, 700 * MS)


@pytest.mark.parametrize("per_s", [1.0, 100.0, 1000.0])
def test_a_quiet_day_fills_the_retry_budget_once(per_s: float) -> None:
    """Time past what the product holds was kept for the next withdrawal, and each one filled the reserve again."""
    day_ns = 24 * 3600 * 1_000 * MS
    plan = msgspec.structs.replace(one_stage({"a": TWIN}), retry=Retry(budget=0.1, per_s=per_s, reserve=10))
    log = np.array(
        [[events.ARRIVAL, day_ns, tag, 1, c.FOREVER, 1, 0, -1, -1, 0, 2, 0, -1] for tag in range(40)], np.int64
    )
    tables = lower(plan)
    state = fresh(tables, plan.max_requests)
    assert follow(log, plan, tables, state, look_every=10) == ""
    assert state.counters[c.C_RETRIES] == 10


def test_when_a_failed_version_takes_its_requests_back_who_waited_behind_them_starts() -> None:
    """The engine of a request that was turned back, and ended by it, was looked at again at the next timer only."""
    stage = Stage(
        name="s", variant="v", engine="a", canary=Canary(variant="w"), batch={"a": Batch(size=4, window_ms=900)}
    )
    plan = Pipeline(
        version=1,
        pipeline="p",
        engines={"a": TWIN},
        stages=[stage],
        classes={"sheddable": ClassLimits(offline=True)},
        rollout=Rollout(steps=[0.5], at=1),
    )
    old, new = entry("a", 600), entry("a", 1)
    run = Desk(plan, LatencyTable(entries=[old, msgspec.structs.replace(new, variant="w")]))
    run.arrive()
    run.timer(900 * MS)
    assert run.members(0) == [0]
    run.now_ns += 600 * MS
    run.done(0)
    run.arrive(key=5, deadline_ns=run.now_ns + 300 * MS)  # a canary's, by its key
    assert run.state.requests[run.rows[1], c.R_VERSION] == c.CANARY
    for _ in range(4):
        run.arrive(3, key=77)
    desk.on_rollout(run.now_ns, run.tables, run.state, c.FAIL)
    assert outcomes(run.effects()) == [(1, Outcome.SHED, Reason.HOPELESS)]
    assert dispatches(run.effects()) == [0]


def test_lanes_that_fill_no_batch_are_each_waited_for_in_full() -> None:
    """Nine shapes on batches of 32, 101 ms for one row: nine that wait took 36 ms by what was expected, and 0.9 s."""
    lanes = [Engine(backend="twin", queue=Queue(limit=64)) for _ in range(2)]
    plan = one_stage(
        {"a": lanes[0], "b": lanes[1]},
        buckets=[[8 * (number + 1)] for number in range(9)],
        batch={"a": Batch(size=32)},
        prefer="fastest",
    )
    times = [entry("a", 101, 1), entry("a", 132, 32), entry("b", 150)]
    run = Desk(plan, LatencyTable(entries=times))
    engines = [placements(run.arrive(bucket=number % 9))[0][1] for number in range(10)]
    # a is expected to end at 101, then b at 150, then a again at 202, and so on by turns.
    assert engines == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]


def test_who_shares_a_batch_with_those_that_wait_does_not_wait_for_its_base() -> None:
    plan = one_stage({"a": Engine(backend="twin")}, buckets=[[8], [16]], batch={"a": Batch(size=32)})
    times = LatencyTable(entries=[entry("a", 101, 1), entry("a", 132, 32)])
    run = Desk(plan, times)
    run.arrive(bucket=0)
    run.arrive(bucket=0)
    # 101 ms of the batch that runs; a batch of the two lanes each, or one of two rows of the same.
    assert outcomes(run.arrive(bucket=0, deadline_ns=210 * MS)) == []
    assert outcomes(run.arrive(bucket=1, deadline_ns=290 * MS))[0][2] is Reason.HOPELESS
