"""The cheaper decisions, one claim per test: price, degraded replies, valleys, padding, memory."""

import msgspec

from loadslice.policy import columns as c
from loadslice.policy.desk_test import MS, Desk, dispatches, entry, one_stage, outcomes, placements
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Batch, ClassLimits, Engine, Pipeline, Queue, Stage

SLOW_AND_FRUGAL = Engine(backend="twin", active_w=2.0, cost_per_hour=3.0)
FAST_AND_HUNGRY = Engine(backend="twin", active_w=100.0, cost_per_hour=1.0)
PRICED = {"npu": SLOW_AND_FRUGAL, "gpu": FAST_AND_HUNGRY}
TIMES = LatencyTable(entries=[entry("npu", 40), entry("gpu", 10)])


def test_cheapest_takes_the_least_energy_that_meets_the_deadline() -> None:
    desk = Desk(one_stage(PRICED, prefer="cheapest"), TIMES)
    assert placements(desk.arrive(deadline_ns=50 * MS)) == [(0, 0, Reason.CHEAPEST)]
    # The NPU would need 80 ms now: 40 ms of the first, 40 ms of its own.
    assert placements(desk.arrive(deadline_ns=50 * MS)) == [(1, 1, Reason.CHEAPEST)]
    assert placements(desk.arrive()) == [(2, 0, Reason.CHEAPEST)]


def test_cheapest_may_count_money_instead() -> None:
    plan = msgspec.structs.replace(one_stage(PRICED, prefer="cheapest"), cheapest="money")
    assert placements(Desk(plan, TIMES).arrive()) == [(0, 1, Reason.CHEAPEST)]


def test_cheapest_is_the_fastest_when_no_engine_can_keep_the_deadline() -> None:
    desk = Desk(one_stage(PRICED, prefer="cheapest"), TIMES)
    desk.state.engines[:, c.N_DONE_NS] = 0  # both have just served: neither may be tried against its estimate
    assert placements(desk.arrive(deadline_ns=5 * MS)) == []
    desk.state.engines[:, c.N_DONE_NS] = -c.LONG_AGO_NS
    assert placements(desk.arrive(deadline_ns=5 * MS)) == [(1, 1, Reason.CHEAPEST)]


def full_desk(degraded: str | None) -> Desk:
    engine = Engine(backend="twin", queue=Queue(limit=1))
    desk = Desk(one_stage({"a": engine}, degraded=degraded), LatencyTable(entries=[entry("a", 10)]))
    desk.arrive(), desk.arrive()
    return desk


def test_a_degraded_reply_answers_what_would_be_refused() -> None:
    assert outcomes(full_desk(None).arrive()) == [(2, Outcome.REJECTED, Reason.QUEUE_FULL)]
    desk = full_desk("stages:sorry")
    assert outcomes(desk.arrive()) == [(2, Outcome.COMPLETED, Reason.DEGRADED)]
    hopeless = desk.arrive(deadline_ns=1 * MS)
    assert outcomes(hopeless) == [(3, Outcome.COMPLETED, Reason.DEGRADED)]
    displaced = desk.arrive(0)
    assert outcomes(displaced) == [(1, Outcome.COMPLETED, Reason.DEGRADED)]
    assert desk.state.counters[c.C_DEGRADED] == 3


def test_a_degraded_reply_does_not_revive_what_has_expired() -> None:
    desk = full_desk("stages:sorry")
    assert outcomes(desk.arrive(deadline_ns=0)) == [(2, Outcome.EXPIRED, Reason.DEADLINE)]


def test_offline_work_starts_only_while_nothing_online_waits() -> None:
    """Two slots, of which one is free: online work that waits for company keeps offline work of another lane back."""
    engine = Engine(backend="twin", max_inflight=2)
    stage = one_stage({"a": engine}, buckets=[[8], [16]], batch={"a": Batch(size=4, window_ms=20)})
    plan = msgspec.structs.replace(stage, classes={"sheddable": ClassLimits(offline=True)})
    desk = Desk(plan, LatencyTable(entries=[entry("a", 10, rows) for rows in (1, 4)]))
    desk.arrive(3, bucket=0)
    desk.now_ns = 15 * MS
    desk.arrive(1, bucket=1)
    assert dispatches(desk.timer(20 * MS)) == [], "its window is over, and an online request waits"
    started = desk.timer(35 * MS)
    assert [desk.members(slot) for slot in dispatches(started)] == [[1], [0]], "the online one first, then the valley"


def test_a_batch_is_padded_to_what_the_engine_was_built_for_and_expected_to_take_as_long() -> None:
    batch = {"a": Batch(size=8, pad_to=[1, 4, 8])}
    times = LatencyTable(entries=[entry("a", 10, 1), entry("a", 17, 8)])
    desk = Desk(one_stage({"a": Engine(backend="twin")}, batch=batch), times)
    desk.arrive(items=2)
    assert desk.state.batches[0, [c.B_ROWS, c.B_PADDED, c.B_EXPECTED_NS]].tolist() == [2, 4, 13 * MS]


def test_models_that_do_not_fit_together_are_loaded_by_turns() -> None:
    engine = Engine(backend="twin", memory_mb=100)
    stages = [Stage(name=name, variant=name, engine="a", memory_mb=60, load_ms=500) for name in ("s", "t")]
    plan = Pipeline(version=1, pipeline="p", engines={"a": engine}, stages=stages)
    times = [msgspec.structs.replace(entry("a", 10), variant=name) for name in ("s", "t")]
    desk = Desk(plan, LatencyTable(entries=times))
    desk.arrive()
    assert desk.state.batches[0, [c.B_LOAD_NS, c.B_EXPECTED_NS]].tolist() == [0, 10 * MS], "the first is there"
    desk.now_ns = 10 * MS
    desk.done(0)
    assert desk.state.batches[0, [c.B_LOAD_NS, c.B_EXPECTED_NS]].tolist() == [500 * MS, 510 * MS]
    assert desk.state.resident[0].tolist() == [-1, 10 * MS], "the other had to go"
    desk.now_ns = 520 * MS
    desk.done(0)
    assert desk.state.learned_ns[:, 0].tolist() == [10 * MS, 0], "loading is not serving"
    assert desk.state.engines[0, c.N_LOADS] == 1
