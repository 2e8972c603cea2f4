"""Which engine the desk chooses, and where a request goes when that one is full, slow, lost or fails."""

import msgspec
import numpy as np
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.desk_test import MS, TWIN, Desk, entry, one_stage, outcomes, placements
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import (
    Accept,
    Engine,
    Failover,
    Pipeline,
    Queue,
    Retry,
    Rule,
    Stage,
    When,
)


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
