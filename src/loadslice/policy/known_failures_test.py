"""What went wrong in other schedulers, routers and breakers, each as a claim about this core. Time is a number."""

import itertools

import msgspec
import numpy as np
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk, invariants
from loadslice.policy.desk_test import MS, TWIN, Desk, dispatches, entry, one_stage, outcomes, placements
from loadslice.policy.versions import NO_KEY
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Accept, Batch, Breaker, ClassLimits, Engine, Failover, Pipeline, Queue, Retry, Stage

BREAKER = Breaker(failure_rate=0.5, window=8, min_calls=4, open_ms=100, open_ms_max=100, permits=2, half_open_ms=500)


def long_queue(limit: int = 60, slots: int = 1) -> Engine:
    return Engine(backend="twin", max_inflight=slots, queue=Queue(limit=limit))


def two_stages(**second: Engine) -> Pipeline:
    (name,) = second
    return Pipeline(
        version=1,
        pipeline="p",
        engines={"a": long_queue(), **second},
        stages=[Stage(name="s", variant="v", engine="a"), Stage(name="t", variant="w", engine=name)],
        max_requests=64,
    )


def guarded(**engines: Engine) -> Desk:
    plan = one_stage(engines or {"a": long_queue(slots=4), "b": long_queue(slots=4)}, breaker=BREAKER)
    return Desk(msgspec.structs.replace(plan, retry=Retry(attempts=1)))


def keep_timers(run: Desk, until_ns: int) -> None:
    while (due_ns := desk.next_timer_ns(run.state)) <= until_ns:
        run.timer(due_ns)
    run.now_ns = until_ns


def busy(run: Desk) -> list[int]:
    return [int(slot) for slot in np.flatnonzero(run.state.batches[:, c.B_BUSY])]


def leave(run: Desk, tag: int) -> None:
    assert desk.on_cancel(run.now_ns, run.tables, run.state, run.rows[tag], tag) == 0
    run.effects()


# Counters and queues


def test_time_alone_never_gives_a_permit_back() -> None:
    """A reaper of old entries took live work for dead, saw room that was not there, and the backlog never drained."""
    run = Desk(one_stage({"a": long_queue()}, timeout_ms=50))
    for _ in range(4):
        run.arrive()
    for minute in range(1, 6):
        keep_timers(run, minute * 60_000 * MS)
        run.arrive()
        assert busy(run) == [0]
        assert run.state.engines[0, c.N_INFLIGHT] == 1
    run.done(0)
    while busy(run):
        run.done(0)
    invariants.check_idle(run.state)


def test_an_old_estimate_never_halts_dispatch() -> None:
    """Measurements that had gone stale read as saturation, and everything stood still beside idle engines."""
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    run.now_ns += 60_000 * MS
    run.done(0)
    served = []
    for step in range(30):
        run.now_ns += 100 * MS
        if dispatches(run.arrive(deadline_ns=run.now_ns + 80 * MS)):
            served.append(step)
            run.now_ns += 10 * MS
            run.done(0)
    assert served[0] <= 10
    assert served == list(range(served[0], 30))
    assert dispatches(run.arrive()) == [0], "without a deadline no estimate keeps anybody out"


def test_who_waits_is_owned_until_the_end_whatever_becomes_of_the_queue() -> None:
    """A lease ended with the enqueue, the queue was collected, and its waiters were left to nobody."""
    run = Desk(one_stage({"a": long_queue(), "b": long_queue()}))
    for _ in range(12):
        run.arrive()
    ended: list[int] = []
    for engine, change in itertools.product((0, 1), (desk.on_engine_down, desk.on_engine_up)):
        assert change(run.now_ns, run.tables, run.state, engine) == 0
        ended += [tag for tag, _, _ in outcomes(run.effects())]
    while busy(run):
        ended += [tag for tag, _, _ in outcomes(run.done(busy(run)[0]))]
    assert sorted(ended) == list(range(12))


def test_two_limits_have_two_counters() -> None:
    """One counter served what runs and what waits, so that either limit could trip the other."""
    run = Desk(one_stage({"a": Engine(backend="twin", max_inflight=2, queue=Queue(limit=3))}))
    for _ in range(5):
        assert not outcomes(run.arrive())
    assert outcomes(run.arrive())[0][1:] == (Outcome.REJECTED, Reason.QUEUE_FULL)
    assert (run.state.engines[0, c.N_INFLIGHT], run.state.engines[0, c.N_QUEUED]) == (2, 3)
    leave(run, 4)
    assert not outcomes(run.arrive())
    assert outcomes(run.arrive())[0][1:] == (Outcome.REJECTED, Reason.QUEUE_FULL)


def test_a_full_table_and_a_full_queue_are_told_apart() -> None:
    """Operators raised the wrong limit, because two of them were refused under one name."""
    plan = msgspec.structs.replace(one_stage({"a": Engine(backend="twin", queue=Queue(limit=2))}), max_requests=3)
    run = Desk(plan)
    for _ in range(3):
        run.arrive()
    assert outcomes(run.arrive(0))[0][2] is Reason.TABLE_FULL
    plan = msgspec.structs.replace(plan, max_requests=4)
    run = Desk(plan)
    for _ in range(3):
        run.arrive()
    assert outcomes(run.arrive())[0][2] is Reason.QUEUE_FULL


def test_a_refused_enqueue_leaves_no_rows_behind() -> None:
    """The size of the batch to come was counted up before an enqueue that failed, and stayed."""
    run = Desk(one_stage({"a": Engine(backend="twin", queue=Queue(limit=2))}, batch={"a": Batch(size=8, window_ms=50)}))
    run.arrive(items=8)
    run.arrive(items=3)
    run.arrive(items=3)
    kept = {name: getattr(run.state, name).copy() for name in ("lane_rows", "lanes", "engines", "batches", "dirty")}
    for _ in range(5):
        assert outcomes(run.arrive(items=4))[0][2] is Reason.QUEUE_FULL
    for name, before in kept.items():
        assert (getattr(run.state, name) == before).all(), name
    assert dispatches(run.done(0)) == [], "six rows of eight wait for company as they did"


@pytest.mark.parametrize("others", [0, 5])
def test_a_limit_of_nothing_admits_nothing_also_when_idle(others: int) -> None:
    """A limit of 0 was only looked at when something else was there already."""
    engines = {"a": Engine(backend="twin", queue=Queue(overflow_at=0)), "b": long_queue()}
    plan = one_stage(engines, failover=Failover(to="b", share=0.0))
    run = Desk(msgspec.structs.replace(plan, retry=Retry(attempts=3, budget=0, per_s=0, reserve=0)))
    for _ in range(others + 1):
        assert placements(run.arrive())[0][1] == 0, "a share of 0 sends nothing"
    keep_timers(run, 60_000 * MS)
    assert outcomes(run.failed(0))[0][1:] == (Outcome.FAILED, Reason.ENGINE_FAILED), "a budget of 0 repeats nothing"


def test_a_limit_that_is_merely_reached_is_no_failure() -> None:
    """A limit that adapts was halved when it was reached, as if that were an error."""
    run = guarded(a=Engine(backend="twin", queue=Queue(limit=1)), b=TWIN)
    run.arrive()
    run.now_ns = 10 * MS
    run.done(0)
    run.arrive()
    run.arrive()
    kept = run.state.breakers.copy(), run.state.learned_ns.copy(), run.state.engines.copy()
    for _ in range(50):
        assert outcomes(run.arrive())[0][2] is Reason.QUEUE_FULL
    assert all(
        (now == before).all()
        for now, before in zip((run.state.breakers, run.state.learned_ns, run.state.engines), kept, strict=True)
    )


def test_a_queue_timeout_fires_while_another_request_still_runs() -> None:
    """A timeout of 10 s was seen only when the running request had ended, after 90 s."""
    run = Desk(one_stage({"a": TWIN}, timeout_ms=10_000))
    run.arrive()
    run.now_ns = 1000 * MS
    run.arrive(deadline_ns=2000 * MS)
    run.arrive()
    assert desk.next_timer_ns(run.state) == 2000 * MS
    assert outcomes(run.timer(2000 * MS)) == [(1, Outcome.EXPIRED, Reason.DEADLINE)]
    assert desk.next_timer_ns(run.state) == 10_000 * MS
    run.timer(10_000 * MS)
    assert outcomes(run.timer(desk.next_timer_ns(run.state))) == [(2, Outcome.EXPIRED, Reason.STAGE_TIMEOUT)]
    assert run.now_ns == 11_000 * MS
    assert busy(run) == [0]


def test_the_quota_is_hard_when_everything_comes_back_at_once() -> None:
    """A limit on running requests was kept only by best effort, and overshot in bursts."""
    run = Desk(one_stage({"a": long_queue(slots=3), "b": long_queue(slots=3)}))
    for _ in range(30):
        run.arrive()
    for _ in range(4):
        for change in (desk.on_engine_down, desk.on_engine_up):
            change(run.now_ns, run.tables, run.state, 0)
            run.effects()
            assert (run.state.engines[:, c.N_INFLIGHT] <= 3).all()
    assert run.state.engines[:, c.N_INFLIGHT].sum() == 3 + (run.state.engines[0, c.N_QUEUED] > 0) * 3


def test_everybody_leaving_at_once_gives_everything_back() -> None:
    """After many clients had dropped, the router waited for answers that nobody wanted, and stood still."""
    run = Desk(one_stage({"a": long_queue(slots=2)}, batch={"a": Batch(size=4, window_ms=5)}))
    for _ in range(40):
        run.arrive()
    for tag in range(40):
        leave(run, tag)
    assert run.state.counters[c.C_IN_SYSTEM] == run.state.engines[0, c.N_QUEUED] == 0
    assert not run.state.backlog_ns.any()
    for slot in busy(run):
        assert run.done(slot) == []
    invariants.check_idle(run.state)
    for _ in range(4):
        run.arrive()
    assert busy(run) == [0]


# Stages


def test_a_full_queue_of_a_later_stage_answers_at_once_and_frees_the_stage_before() -> None:
    """A pipeline waited for ever on the step whose queue was full, and held what it had taken before."""
    run = Desk(two_stages(b=Engine(backend="twin", queue=Queue(limit=1))))
    for _ in range(6):
        run.arrive()
    fates = [outcomes(run.done(0)) for _ in range(6)]
    assert fates == [[], [], *([(tag, Outcome.SHED, Reason.QUEUE_FULL)] for tag in (2, 3, 4, 5))]
    assert run.state.engines[0, c.N_INFLIGHT] == 0


def test_failures_of_one_batch_are_counted_once_each() -> None:
    """Several parallel failures of one request's steps left a counter that no longer matched."""
    plan = two_stages(b=long_queue())
    plan = msgspec.structs.replace(
        plan, stages=[msgspec.structs.replace(plan.stages[0], batch={"a": Batch(size=4, window_ms=1)}), plan.stages[1]]
    )
    run = Desk(plan)
    for _ in range(4):
        run.arrive()
    leave(run, 1)
    results = np.array([[-1, 0], [1, 0], [-1, 0], [1, 0]], np.int64)
    desk.on_batch_done(run.now_ns, run.tables, run.state, 0, int(run.state.batches[0, c.B_EPOCH]), results)
    said = run.effects()
    assert outcomes(said) == [(tag, Outcome.FAILED, Reason.STAGE_FAILED) for tag in (0, 2)]
    assert [tag for tag, _, _ in placements(said)] == [3]
    assert run.state.counters[c.C_IN_SYSTEM] == 1


def test_a_request_that_its_stage_refused_is_never_repeated() -> None:
    """A fault of the input was treated as a fault of the runtime, and tried everywhere."""
    run = Desk(one_stage({"a": TWIN, "b": TWIN}))
    run.arrive()
    epoch = int(run.state.batches[0, c.B_EPOCH])
    desk.on_batch_done(0, run.tables, run.state, 0, epoch, np.array([[-1, 0]], np.int64))
    assert outcomes(run.effects()) == [(0, Outcome.FAILED, Reason.STAGE_FAILED)]
    assert run.state.counters[c.C_RETRIES] == 0


def test_a_batch_that_is_repeated_where_it_failed_is_repeated_once_per_member() -> None:
    """A loop over a batch that changed under it preempted the same work 100,000 times and completed nothing."""
    plan = one_stage({"a": long_queue()}, batch={"a": Batch(size=4, window_ms=1)})
    run = Desk(msgspec.structs.replace(plan, retry=Retry(attempts=2, reserve=50)))
    for _ in range(4):
        run.arrive()
    assert [(tag, reason) for tag, _, reason in placements(run.failed(0))] == [(tag, Reason.RETRY) for tag in range(4)]
    assert run.members(0) == [0, 1, 2, 3]
    assert [outcome for _, outcome, _ in outcomes(run.done(0))] == [Outcome.COMPLETED] * 4


# Retries


def test_requests_that_come_back_pay_for_themselves_only_once() -> None:
    """Requests in backoff counted as retries but not as requests, so that even a budget of 100 % overflowed."""
    plan = one_stage({"a": long_queue()})
    run = Desk(msgspec.structs.replace(plan, retry=Retry(budget=1.0, attempts=2, per_s=0, reserve=20)))
    for _ in range(20):
        run.arrive()
    repeated = []
    while busy(run):
        repeated += placements(run.failed(0))
    assert len(repeated) == 20, "at 100 % each of them may be repeated once"
    assert run.state.counters[c.C_RETRIES_DENIED] == 0


def test_a_client_that_comes_back_pays_nothing_in() -> None:
    """The budget was measured by what was in flight, and grew with the retries themselves."""
    plan = one_stage({"a": long_queue()})
    run = Desk(msgspec.structs.replace(plan, retry=Retry(budget=1.0, per_s=0, reserve=3)))
    refused = []
    for number in range(50):
        desk.on_arrival(0, run.tables, run.state, number, 1, c.FOREVER, 1, 0, -1, -1, 0, 2, 0, NO_KEY)
        refused += outcomes(run.effects())
    assert [tag for tag, _, _ in refused] == list(range(3, 50))
    assert {reason for _, _, reason in refused} == {Reason.RETRY_BUDGET}


def test_a_denied_retry_ends_the_request_at_once() -> None:
    """A throttled attempt with no other left in flight hung until its deadline."""
    plan = one_stage({"a": TWIN, "b": TWIN})
    run = Desk(msgspec.structs.replace(plan, retry=Retry(budget=0, per_s=0, reserve=0)))
    run.arrive(deadline_ns=60_000 * MS)
    assert outcomes(run.failed(0)) == [(0, Outcome.FAILED, Reason.ENGINE_FAILED)]
    invariants.check_idle(run.state)


# Routing


def test_nothing_is_sent_to_a_lost_engine_however_short_its_queue_looks() -> None:
    """Cached queue lengths made a dead replica look idle for 10 s, and it was sent everything."""
    latency = LatencyTable(entries=[entry("a", 1), entry("b", 500)])
    run = Desk(one_stage({"a": TWIN, "b": long_queue()}, prefer="fastest"), latency)
    run.arrive()
    desk.on_engine_down(0, run.tables, run.state, 0)
    run.effects()
    assert {placements(run.arrive())[0][1] for _ in range(20)} == {1}


def test_the_processor_serves_when_the_accelerator_was_never_there() -> None:
    """The fallback to the CPU did not happen when the accelerator was absent or busy from the start."""
    engines = {"npu": Engine(backend="twin", precision="int8"), "cpu": long_queue()}
    run = Desk(one_stage(engines, accept={"npu": Accept(max_items=4)}, failover=Failover(to="cpu", share=0.1)))
    desk.on_engine_down(0, run.tables, run.state, 0)
    run.effects()
    assert {placements(run.arrive())[0][1] for _ in range(20)} == {1}
    assert run.state.counters[c.C_IN_SYSTEM] == 20, "all of it, and not the failover share"


def test_what_a_lost_engine_leaves_never_overwhelms_those_that_remain() -> None:
    """Traffic was taken back to a set that had been shrunk, and drowned it."""
    run = Desk(one_stage({"a": long_queue(), "b": Engine(backend="twin", queue=Queue(limit=3))}))
    run.arrive(1)
    for priority in (3, 3, 2, 2, 1, 1, 0, 0):
        run.arrive(priority)
    desk.on_engine_down(0, run.tables, run.state, 0)
    said = run.effects()
    assert run.state.engines[1, c.N_QUEUED] + run.state.engines[1, c.N_INFLIGHT] == 3
    shed = [tag for tag, outcome, _ in outcomes(said) if outcome is Outcome.SHED]
    assert {1, 2, 3, 4} <= set(shed), "the lowest classes first"
    assert not {7, 8} & set(shed), "and none of the highest"


# Estimates and fairness


def test_waiting_never_inflates_what_a_service_is_thought_to_take() -> None:
    """A limit learned its base time under load, took queueing for service, and stopped limiting."""
    run = Desk(one_stage({"a": long_queue()}))
    for _ in range(50):
        run.arrive()
    for _ in range(50):
        run.now_ns += 10 * MS
        run.done(0)
    assert run.state.learned_ns[0, 0] == 10 * MS


def test_a_class_that_was_away_has_saved_up_no_turns() -> None:
    """A share that lagged while its owner was idle was paid out at once, and starved the others for minutes."""
    plan = one_stage({"a": Engine(backend="twin", queue=Queue(limit=2000))})
    plan = msgspec.structs.replace(plan, max_requests=1000, classes={"sheddable": ClassLimits(floor=0.1)})
    run = Desk(plan)
    for _ in range(600):
        run.arrive(0)
    for _ in range(400):
        run.done(0)
    for _ in range(50):
        run.arrive(3)
    turns = []
    for _ in range(100):
        run.done(0)
        turns.append(run.members(0)[0] >= 600)
    assert all(sum(turns[start : start + 10]) <= 1 for start in range(90))
