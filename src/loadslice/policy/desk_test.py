"""What the desk promises, one claim per test. Time is a number; nothing sleeps."""

from typing import Any

import msgspec
import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import desk, invariants
from loadslice.policy.tables import State, Tables, fresh, lower
from loadslice.policy.versions import NO_KEY
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import (
    Batch,
    ClassLimits,
    Engine,
    Pipeline,
    Queue,
    Stage,
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


def test_a_full_batch_does_not_wait_and_takes_higher_classes_first() -> None:
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=3, window_ms=5)}))
    run.arrive(3)
    run.arrive(1)
    assert dispatches(run.arrive(0)) == [0]
    assert run.members(0) == [2, 1, 0]


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
