"""What the desk promises, one claim per test. Time is a number; nothing sleeps."""

from typing import Any

import msgspec
import numpy as np
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk, invariants
from loadslice.policy.tables import State, Tables, fresh, lower
from loadslice.policy.versions import NO_KEY
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import (
    Accept,
    Batch,
    ClassLimits,
    Engine,
    Failover,
    Pipeline,
    Queue,
    Retry,
    Rule,
    Stage,
    When,
    check,
)

MS = 1_000_000


class Desk:
    """A run in a test: feeds events, checks the state after each, and gives effects by name."""

    def __init__(self, pipeline: Pipeline, latency: LatencyTable | None = None, sources: tuple[str, ...] = ()) -> None:
        self.pipeline = check(pipeline, "test")
        self.tables: Tables = lower(self.pipeline, latency, sources)
        self.state: State = fresh(self.tables, self.pipeline.max_requests)
        self.now_ns = 0
        self.tag = 0
        self.rows: dict[int, int] = {}

    def effects(self) -> list[tuple[int, ...]]:
        invariants.check(self.tables, self.state)
        return [tuple(int(x) for x in row) for row in self.state.effects[: self.state.counters[c.C_EFFECTS]]]

    def arrive(
        self,
        priority: int = 1,
        *,
        deadline_ns: int = c.FOREVER,
        items: int = 1,
        bucket: int = 0,
        tokens: int = -1,
        source: int = -1,
        precision: int = 0,
        attempt: int = 1,
        tenant: int = 0,
        key: int = NO_KEY,
    ) -> list[tuple[int, ...]]:
        tag = self.tag
        self.tag += 1
        self.rows[tag] = desk.on_arrival(
            self.now_ns,
            self.tables,
            self.state,
            tag,
            priority,
            deadline_ns,
            items,
            bucket,
            tokens,
            source,
            precision,
            attempt,
            tenant,
            key,
        )
        return self.effects()

    def done(self, slot: int, *, items: int = 1, bucket: int = 0) -> list[tuple[int, ...]]:
        results = np.full((self.state.members.shape[1], 2), (items, bucket), np.int64)
        epoch = int(self.state.batches[slot, c.B_EPOCH])
        assert desk.on_batch_done(self.now_ns, self.tables, self.state, slot, epoch, results) == 0
        return self.effects()

    def failed(self, slot: int) -> list[tuple[int, ...]]:
        epoch = int(self.state.batches[slot, c.B_EPOCH])
        assert desk.on_batch_failed(self.now_ns, self.tables, self.state, slot, epoch) == 0
        return self.effects()

    def timer(self, now_ns: int) -> list[tuple[int, ...]]:
        self.now_ns = now_ns
        desk.on_timer(now_ns, self.tables, self.state)
        return self.effects()

    def members(self, slot: int) -> list[int]:
        return [int(tag) for tag in self.state.members[slot, : self.state.batches[slot, c.B_COUNT], c.M_TAG]]


def one_stage(engines: dict[str, Engine], **stage: object) -> Pipeline:
    names = list(engines)
    return Pipeline(
        version=1,
        pipeline="p",
        engines=engines,
        stages=[Stage(name="s", variant="v", engines=names, **stage)],  # type: ignore[arg-type]
        max_requests=64,
    )


def outcomes(effects: list[tuple[int, ...]]) -> list[tuple[int, Outcome, Reason]]:
    return [(e[c.F_TAG], Outcome(e[c.F_A]), Reason(e[c.F_B])) for e in effects if e[c.F_KIND] == c.OUTCOME]


def placements(effects: list[tuple[int, ...]]) -> list[tuple[int, int, Reason]]:
    return [(e[c.F_TAG], e[c.F_B], Reason(e[c.F_C])) for e in effects if e[c.F_KIND] == c.PLACED]


def dispatches(effects: list[tuple[int, ...]]) -> list[int]:
    return [e[c.F_TAG] for e in effects if e[c.F_KIND] == c.DISPATCH]


def entry(engine: str, ms: float, batch: int = 1) -> Entry:
    return Entry(
        variant="v", engine=engine, batch=batch, latency_ms=Milliseconds(mean=ms, family="constant"), basis="modelled"
    )


TWIN = Engine(backend="twin")


def test_a_request_passes_every_stage_and_completes_once() -> None:
    run = Desk(
        Pipeline(
            version=1,
            pipeline="p",
            engines={"a": TWIN, "b": TWIN},
            stages=[Stage(name="s", variant="v", engine="a"), Stage(name="t", variant="w", engine="b")],
        )
    )
    assert dispatches(run.arrive()) == [0]
    run.now_ns = 5 * MS
    assert dispatches(run.done(0)) == [1]
    assert outcomes(run.done(1)) == [(0, Outcome.COMPLETED, Reason.NONE)]
    invariants.check_idle(run.state)


def test_higher_classes_start_first_and_each_class_is_first_in_first_out() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive(0)
    for priority in (3, 1, 3, 0, 1):
        run.arrive(priority)
    order = []
    for _ in range(5):
        run.done(0)
        order += run.members(0)
    assert order == [4, 2, 5, 1, 3]


def test_what_has_begun_is_finished_before_what_has_not() -> None:
    run = Desk(
        Pipeline(
            version=1,
            pipeline="p",
            engines={"a": TWIN},
            stages=[Stage(name="s", variant="v", engine="a"), Stage(name="t", variant="w", engine="a")],
        )
    )
    for _ in range(3):
        run.now_ns += MS
        run.arrive()
    order = []
    for _ in range(6):
        order.append((int(run.state.batches[0, c.B_STAGE]), run.members(0)[0]))
        run.done(0)
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_a_full_queue_gives_the_newest_of_the_lowest_class_up_for_a_higher_one() -> None:
    run = Desk(one_stage({"a": Engine(backend="twin", queue=Queue(limit=3))}))
    for priority in (1, 2, 3, 3):
        run.arrive(priority)
    assert outcomes(run.arrive(1)) == [(3, Outcome.SHED, Reason.DISPLACED)]
    assert outcomes(run.arrive(3)) == [(5, Outcome.REJECTED, Reason.QUEUE_FULL)]
    assert outcomes(run.arrive(0)) == [(2, Outcome.SHED, Reason.DISPLACED)]


def one_engine_two_stages(limit: int, **more: Any) -> Pipeline:
    stages = [Stage(name=name, variant=name, engine="a") for name in ("s", "t")]
    engines = {"a": Engine(backend="twin", queue=Queue(limit=limit))}
    return Pipeline(version=1, pipeline="p", engines=engines, stages=stages, **more)


def test_what_has_begun_takes_the_place_of_the_newest_that_has_not() -> None:
    run = Desk(one_engine_two_stages(limit=2))
    for ms in range(3):
        run.now_ns = ms * MS
        run.arrive()
    done = run.done(0)
    assert outcomes(done) == [(2, Outcome.SHED, Reason.DISPLACED)]
    assert run.members(0) == [0]


def test_what_has_begun_makes_room_among_lower_classes_first_and_not_among_higher_ones() -> None:
    run = Desk(one_engine_two_stages(limit=2))
    for priority in (1, 1, 2):
        run.arrive(priority)
    assert outcomes(run.done(0)) == [(2, Outcome.SHED, Reason.DISPLACED)]
    run = Desk(one_engine_two_stages(limit=2))
    for priority in (1, 0, 0):
        run.arrive(priority)
    assert outcomes(run.done(0)) == [(0, Outcome.SHED, Reason.QUEUE_FULL)]


def test_of_what_has_begun_nobody_displaces_an_equal() -> None:
    stages = [Stage(name=name, variant=name, engine=name) for name in ("s", "t")]
    engines = {"s": Engine(backend="twin", max_inflight=4), "t": Engine(backend="twin", queue=Queue(limit=1))}
    run = Desk(Pipeline(version=1, pipeline="p", engines=engines, stages=stages))
    for _ in range(3):
        run.arrive()
    assert [outcomes(run.done(slot)) for slot in range(2)] == [[], []]
    assert outcomes(run.done(2)) == [(2, Outcome.SHED, Reason.QUEUE_FULL)]


def test_a_refusal_carries_a_finite_hint_that_falls_while_the_backlog_drains() -> None:
    latency = LatencyTable(entries=[entry("a", 200)])
    run = Desk(one_stage({"a": Engine(backend="twin", queue=Queue(limit=4))}), latency)
    for _ in range(5):
        run.arrive()
    hints = []
    for ms in (0, 50, 100, 150):
        run.now_ns = ms * MS
        refused = run.arrive()
        assert outcomes(refused)[0][1] is Outcome.REJECTED
        hints.append(refused[0][c.F_C])
    assert hints == sorted(hints, reverse=True)
    assert hints[0] == 1000 * MS


def test_a_limit_of_zero_admits_only_what_starts_at_once() -> None:
    run = Desk(one_stage({"a": Engine(backend="twin", queue=Queue(limit=0))}))
    assert dispatches(run.arrive()) == [0]
    assert outcomes(run.arrive()) == [(1, Outcome.REJECTED, Reason.QUEUE_FULL)]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_exactly_the_share_of_overflow_is_sent_to_the_backup(share: float) -> None:
    engines = {
        "a": Engine(backend="twin", queue=Queue(limit=64, overflow_at=0)),
        "b": Engine(backend="twin", max_inflight=64),
    }
    run = Desk(one_stage(engines, failover=Failover(to="b", share=share)))
    sent = 0
    for n in range(1, 50):
        sent += placements(run.arrive())[0][1] == 1
        assert abs(sent - share * n) < 1


def test_overflow_that_finds_the_backup_full_stays_and_builds_up_no_debt() -> None:
    engines = {
        "a": Engine(backend="twin", queue=Queue(limit=40, overflow_at=0)),
        "b": Engine(backend="twin", queue=Queue(limit=0)),
    }
    run = Desk(one_stage(engines, failover=Failover(to="b", share=0.5)))
    to_backup = [placements(run.arrive())[0][1] for _ in range(20)]
    assert to_backup == [0, 1] + [0] * 18
    run.done(1)
    assert [placements(run.arrive())[0][1] for _ in range(4)] == [0, 1, 0, 0]


def test_failover_may_be_kept_to_lower_classes() -> None:
    engines = {"a": Engine(backend="twin", queue=Queue(overflow_at=0)), "b": TWIN}
    run = Desk(one_stage(engines, failover=Failover(to="b", classes=["sheddable"])))
    assert placements(run.arrive(0))[0][1] == 0
    assert placements(run.arrive(3))[0][1:] == (1, Reason.FAILOVER)


def test_a_wait_past_the_limit_is_overflow_too() -> None:
    engines = {"a": Engine(backend="twin", queue=Queue(wait_limit_ms=150)), "b": Engine(backend="twin", max_inflight=9)}
    latency = LatencyTable(entries=[entry("a", 100), entry("b", 100)])
    run = Desk(one_stage(engines, failover=Failover(to="b")), latency)
    assert [placements(run.arrive())[0][1] for _ in range(4)] == [0, 0, 1, 1]


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


@pytest.mark.parametrize(
    ("choice", "reason"),
    [({"prefer": "fastest"}, Reason.FASTEST), ({"failover": Failover(to="c")}, Reason.PREFERRED)],
)
def test_what_has_begun_is_sent_nowhere_else_for_newcomers_that_would_be_served_after_it(
    choice: dict[str, object], reason: Reason
) -> None:
    """Of what waits where it is to end, 60 ms came after it: it would be served in 7 ms, and elsewhere after 30."""
    last = Stage(name="u", variant="v", engines=["a", "c"], **choice)  # type: ignore[arg-type]
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={"a": Engine(backend="twin", queue=Queue(wait_limit_ms=20)), "b": TWIN, "c": TWIN},
        stages=[Stage(name="s", variant="v", engine="a"), Stage(name="t", variant="v", engine="b"), last],
    )
    run = Desk(pipeline, LatencyTable(entries=[entry("a", 10), entry("b", 13), entry("c", 30)]))
    run.arrive()
    run.now_ns += 1 * MS
    for _ in range(8):
        run.arrive()
    run.now_ns += 9 * MS
    run.done(0)
    run.now_ns += 10 * MS
    run.done(0)
    run.now_ns += 3 * MS
    assert placements(run.done(1)) == [(0, 0, reason)]


def test_a_batch_waits_for_company_until_its_window_closes() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=4, window_ms=5)}))
    assert dispatches(run.arrive()) == []
    run.now_ns = 2 * MS
    run.arrive()
    assert desk.next_timer_ns(run.state) == 5 * MS
    assert dispatches(run.timer(5 * MS)) == [0]
    assert run.members(0) == [0, 1]


def test_a_full_batch_does_not_wait_and_takes_higher_classes_first() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=3, window_ms=5)}))
    run.arrive(3)
    run.arrive(1)
    assert dispatches(run.arrive(0)) == [0]
    assert run.members(0) == [2, 1, 0]


def test_a_window_never_waits_past_what_a_deadline_leaves() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=4, window_ms=50)}), LatencyTable(entries=[entry("a", 10)]))
    run.arrive(deadline_ns=30 * MS)
    assert desk.next_timer_ns(run.state) == 20 * MS


def test_rows_decide_how_many_fit_and_nobody_overtakes() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=4, window_ms=0)}))
    run.arrive(items=9)
    for items in (3, 2, 1):
        run.arrive(items=items)
    run.done(0)
    assert run.members(0) == [1]
    run.done(0)
    assert run.members(0) == [2, 3]


def test_a_batch_holds_one_shape_bucket() -> None:
    run = Desk(one_stage({"a": TWIN}, buckets=[[3, 32, 32], [3, 64, 64]], batch={"a": Batch(size=4)}))
    run.arrive()
    for bucket in (0, 1, 0):
        run.arrive(bucket=bucket)
    run.done(0)
    assert run.members(0) == [1, 3]


def test_a_static_shape_takes_the_buckets_that_fit_into_it() -> None:
    run = Desk(
        one_stage(
            {"npu": TWIN, "cpu": TWIN},
            buckets=[[3, 32, 32], [3, 64, 64]],
            accept={"npu": Accept(shape=[1, 3, 32, 32])},
        )
    )
    assert [placements(run.arrive(bucket=bucket))[0][1] for bucket in (0, 1, 2)] == [0, 1, 1]


def test_precision_and_rows_decide_who_may_serve() -> None:
    engines = {"npu": Engine(backend="twin", precision="int8"), "cpu": TWIN}
    run = Desk(one_stage(engines, accept={"npu": Accept(max_items=2)}))
    assert placements(run.arrive(precision=1))[0][1] == 0
    assert placements(run.arrive(precision=4))[0][1] == 1
    assert placements(run.arrive(items=3))[0][1] == 1


def test_what_nobody_may_serve_fails_and_says_so() -> None:
    run = Desk(one_stage({"npu": Engine(backend="twin", precision="int8")}))
    assert outcomes(run.arrive(precision=4)) == [(0, Outcome.FAILED, Reason.INELIGIBLE)]


def test_the_first_rule_that_holds_names_the_engine() -> None:
    rules = [
        Rule(when=When(items=">8", class_="sheddable"), to="b"),
        Rule(when=When(source="api"), to="b"),
        Rule(when=When(tokens_in="<=512"), to="a"),
        Rule(when=When(), to="b"),
    ]
    run = Desk(one_stage({"a": TWIN, "b": TWIN}, prefer="rules", rules=rules), sources=("api",))
    assert placements(run.arrive(3, items=9, tokens=1))[0][1] == 1
    assert placements(run.arrive(1, items=9, tokens=1))[0][1] == 0
    assert placements(run.arrive(1, tokens=1, source=0))[0][1] == 1
    assert placements(run.arrive(1, tokens=513))[0][1] == 1


def test_fastest_is_the_least_queue_plus_service() -> None:
    latency = LatencyTable(entries=[entry("a", 10), entry("b", 25)])
    run = Desk(one_stage({"a": TWIN, "b": TWIN}, prefer="fastest"), latency)
    assert [placements(run.arrive())[0][1] for _ in range(5)] == [0, 0, 1, 0, 0]


def test_a_lost_engine_moves_what_waits_and_fails_over_what_runs() -> None:
    run = Desk(one_stage({"a": TWIN, "b": TWIN}, failover=Failover(to="b")))
    for _ in range(3):
        run.arrive()
    assert desk.on_engine_down(0, run.tables, run.state, 0) == 0
    lost = run.effects()
    assert {tag for tag, engine, _ in placements(lost) if engine == 1} == {0, 1, 2}
    assert desk.on_batch_done(0, run.tables, run.state, 0, 1, np.ones((1, 2), np.int64)) == c.REFUSED
    assert desk.on_engine_down(0, run.tables, run.state, 0) == c.REFUSED
    assert placements(run.arrive())[0][1] == 1
    assert desk.on_engine_up(0, run.tables, run.state, 0) == 0
    assert placements(run.arrive())[0][1] == 0


def test_without_another_engine_a_failed_batch_is_repeated_where_it_failed_and_then_fails() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    assert placements(run.failed(0)) == [(0, 0, Reason.RETRY)]
    assert outcomes(run.failed(0)) == [(0, Outcome.FAILED, Reason.ENGINE_FAILED)]


def test_a_failed_batch_is_repeated_on_another_engine_first() -> None:
    run = Desk(one_stage({"a": TWIN, "b": TWIN}))
    run.arrive()
    assert placements(run.failed(0)) == [(0, 1, Reason.FAILOVER)]


def test_extra_attempts_never_exceed_the_budget() -> None:
    plan = one_stage({"a": Engine(backend="twin", queue=Queue(limit=60))})
    plan = msgspec.structs.replace(plan, retry=Retry(budget=0.1, attempts=9, per_s=0, reserve=3))
    run = Desk(plan)
    retries = 0
    for arrivals in range(1, 200):
        run.arrive()
        while run.state.batches[0, c.B_BUSY]:
            retries += bool(placements(run.failed(0)))
        assert retries <= 0.1 * arrivals + 3
    assert retries == 22
    assert run.state.counters[c.C_RETRIES] == retries
    assert run.state.counters[c.C_RETRIES_DENIED] == 199


def test_a_request_has_no_more_attempts_than_its_cap() -> None:
    plan = msgspec.structs.replace(one_stage({"a": TWIN, "b": TWIN}), retry=Retry(attempts=3, reserve=50))
    run = Desk(plan)
    run.arrive()
    engines = []
    while run.state.counters[c.C_IN_SYSTEM]:
        slot = int(np.flatnonzero(run.state.batches[:, c.B_BUSY])[0])
        engines.append(slot)
        run.failed(slot)
    assert engines == [0, 1, 0]


def test_a_class_gets_its_floor_while_it_waits_and_not_more() -> None:
    plan = one_stage({"a": Engine(backend="twin", queue=Queue(limit=1000))})
    plan = msgspec.structs.replace(plan, max_requests=600, classes={"sheddable": ClassLimits(floor=0.1)})
    run = Desk(plan)
    for _ in range(300):
        run.arrive(0)
    for _ in range(100):
        run.arrive(3)
    low = 0
    for dispatched in range(1, 200):
        run.done(0)
        low += run.members(0)[0] >= 300
        assert 0.1 * dispatched - 1 <= low <= 0.1 * dispatched + 1


def test_a_member_whose_input_a_stage_refuses_fails_alone() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=2)}))
    run.arrive()
    run.arrive()
    run.arrive()
    run.done(0)
    results = np.array([[-1, 0], [1, 0]], np.int64)
    desk.on_batch_done(0, run.tables, run.state, 0, int(run.state.batches[0, c.B_EPOCH]), results)
    assert outcomes(run.effects()) == [
        (1, Outcome.FAILED, Reason.STAGE_FAILED),
        (2, Outcome.COMPLETED, Reason.NONE),
    ]


def test_a_cancelled_request_leaves_its_queue_or_its_batch() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    run.arrive()
    for tag in (1, 0):
        assert desk.on_cancel(0, run.tables, run.state, run.rows[tag], tag) == 0
        assert outcomes(run.effects()) == [(tag, Outcome.CANCELLED, Reason.CLIENT_GONE)]
    assert run.done(0) == []
    invariants.check_idle(run.state)


def test_a_refused_event_leaves_the_state_bit_identical() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    before = [array.tobytes() for array in run.state]
    results = np.ones((1, 2), np.int64)
    assert desk.on_batch_done(9, run.tables, run.state, 0, 7, results) == c.REFUSED
    assert desk.on_batch_failed(9, run.tables, run.state, 5, 1) == c.REFUSED
    assert desk.on_cancel(9, run.tables, run.state, 0, 99) == c.REFUSED
    assert desk.on_cancel(9, run.tables, run.state, 63, 0) == c.REFUSED
    assert desk.on_engine_up(9, run.tables, run.state, 0) == c.REFUSED
    assert [array.tobytes() for array in run.state] == before


def test_a_full_table_is_a_named_refusal() -> None:
    run = Desk(one_stage({"a": Engine(backend="twin", queue=Queue(limit=100))}))
    for _ in range(64):
        run.arrive()
    assert outcomes(run.arrive()) == [(64, Outcome.REJECTED, Reason.TABLE_FULL)]


def test_a_draining_desk_admits_nothing_and_finishes_what_is_inside() -> None:
    run = Desk(one_stage({"a": TWIN}))
    run.arrive()
    desk.on_drain(0, run.tables, run.state)
    assert outcomes(run.arrive()) == [(1, Outcome.REJECTED, Reason.DRAINING)]
    assert outcomes(run.done(0)) == [(0, Outcome.COMPLETED, Reason.NONE)]
