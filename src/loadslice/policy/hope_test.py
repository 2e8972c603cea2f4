"""Deadlines: what is begun, what waits for company, what is tried and where, each as a claim that was broken once."""

import msgspec
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.breaker_test import guarded, state_of
from loadslice.policy.desk_test import MS, TWIN, Desk, dispatches, entry, one_stage, outcomes, placements
from loadslice.spec.latency import LatencyTable, Milliseconds
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Batch, Engine, Failover, Pipeline, Queue, Retry, Rule, Stage, When

ONCE = Retry(attempts=1)


def on_one_engine(*ms: float, engines: str = "a", deadline_ms: int = 200, **stage: object) -> Desk:
    """A stage for each service time; the last is on ``engines``, in this order, and all others on the first."""
    stages = [Stage(name=f"s{n}", variant=f"v{n}", engine=engines[0]) for n in range(len(ms) - 1)]
    last = Stage(name="last", variant="last", engines=list(engines), **stage)  # type: ignore[arg-type]
    plan = Pipeline(
        version=1,
        pipeline="p",
        engines={name: Engine(backend="twin", queue=Queue(limit=64)) for name in engines},
        stages=[*stages, last],
        deadline_ms=deadline_ms,
    )
    names = [*(stage.name.replace("s", "v") for stage in stages), "last"]
    entries = [
        msgspec.structs.replace(entry(engine, took), variant=name)
        for name, took in zip(names, ms, strict=True)
        for engine in engines
    ]
    return Desk(plan, LatencyTable(entries=entries))


def test_nothing_is_begun_that_the_stages_ahead_would_not_finish() -> None:
    """At the head of a batch only this stage's service was asked about: half of the work was for nothing."""
    run = on_one_engine(3, 10)
    run.arrive()
    run.now_ns = 1 * MS
    run.arrive(deadline_ns=25 * MS)
    run.now_ns = 3 * MS
    assert placements(run.done(0)) == [(0, 0, Reason.PREFERRED)]
    run.now_ns = 13 * MS
    assert outcomes(run.done(0)) == [(0, Outcome.COMPLETED, Reason.NONE), (1, Outcome.SHED, Reason.HOPELESS)]


@pytest.mark.parametrize("failover", [None, Failover(to="b", share=0.0)])
def test_an_engine_that_only_stands_second_at_a_later_stage_hides_no_queue(failover: Failover | None) -> None:
    """The door looked at the shortest wait of any engine of a later stage, and at the least service of another."""
    run = on_one_engine(3, 10, engines="ab", failover=failover)
    for _ in range(8):
        run.arrive()
    assert outcomes(run.arrive(deadline_ns=55 * MS)) == [(8, Outcome.SHED, Reason.HOPELESS)]


def test_a_later_stage_that_never_ran_takes_what_the_table_says() -> None:
    """Nothing was learned of it yet, and so it was thought to take nothing."""
    run = on_one_engine(5, 500)
    run.arrive()
    assert outcomes(run.arrive(deadline_ns=400 * MS)) == [(1, Outcome.SHED, Reason.HOPELESS)]


@pytest.mark.parametrize(("priority", "to"), [(0, Outcome.SHED), (1, None)])
def test_of_a_later_stage_with_rules_only_engines_count_that_a_rule_could_name(priority: int, to: object) -> None:
    """Class critical_plus goes to the slow engine, whatever its rows and shape will be there; all others do not."""
    rule = Rule(when=When(class_="critical_plus"), to="b")
    run = on_one_engine(3, 10, engines="ab", prefer="rules", rules=[rule])
    run.tables.row_ns[1, 1, 0] = 300 * MS
    run.state.live[1, 0, 1, c.V_ROW_NS] = 300 * MS
    run.arrive(3)
    said = [outcome for _, outcome, _ in outcomes(run.arrive(priority, deadline_ns=200 * MS))]
    assert said == ([to] if to is not None else [])


def test_failover_takes_nothing_from_the_primary_that_only_the_primary_can_finish_in_time() -> None:
    """A piece of overflow went to a backup that could not keep its deadline, and was shed there or expired."""
    engines = {"a": Engine(backend="twin", queue=Queue(overflow_at=1)), "b": TWIN}
    latency = LatencyTable(entries=[entry("a", 10), entry("b", 300)])
    run = Desk(one_stage(engines, failover=Failover(to="b")), latency)
    for tag in range(6):
        assert placements(run.arrive(deadline_ns=200 * MS)) == [(tag, 0, Reason.PREFERRED)]
    assert run.state.stages[0, c.G_OVERFLOWS] == 0
    assert placements(run.arrive()) == [(6, 1, Reason.FAILOVER)]


def test_a_further_attempt_that_would_be_late_is_not_made_and_not_paid_for() -> None:
    engines = {"a": TWIN, "b": TWIN}
    latency = LatencyTable(entries=[entry("a", 10), entry("b", 300)])
    plan = one_stage(engines, failover=Failover(to="b", share=0.0))
    run = Desk(msgspec.structs.replace(plan, retry=Retry(attempts=2)), latency)
    run.state.engines[1, c.N_DONE_NS] = 0  # it is not long that it was idle
    run.arrive(deadline_ns=12 * MS)
    run.now_ns = 5 * MS
    assert outcomes(run.failed(0)) == [(0, Outcome.FAILED, Reason.ENGINE_FAILED)]
    assert run.state.counters[c.C_RETRIES] == 0
    run.arrive(deadline_ns=200 * MS)
    run.now_ns = 10 * MS
    assert placements(run.failed(0)) == [(1, 0, Reason.RETRY)]


def test_company_that_waits_with_the_oldest_is_counted_in_its_slack() -> None:
    """Slack was of the oldest's own rows: at its end any company made it late, and whoever waited was left behind."""
    latency = LatencyTable(entries=[entry("a", 20, 1), entry("a", 34, 8)])
    run = Desk(one_stage({"a": TWIN}, batch={"a": Batch(size=8, window_ms=100)}), latency)
    for ms in (0, 5, 10):
        run.now_ns = ms * MS
        assert dispatches(run.arrive(deadline_ns=(60 + ms) * MS)) == []
    assert desk.next_timer_ns(run.state) == (60 - 24) * MS
    run.timer(36 * MS)
    assert run.members(0) == [0, 1, 2]


def test_slack_is_kept_for_one_batch_in_twenty_and_for_the_stages_ahead() -> None:
    slow = Milliseconds(mean=20.0, family="lognormal", cv=0.2)
    entries = [
        msgspec.structs.replace(entry("a", 20), latency_ms=slow),
        msgspec.structs.replace(entry("b", 30), variant="w"),
    ]
    first = Stage(name="s", variant="v", engine="a", batch={"a": Batch(size=8, window_ms=500)})
    last = Stage(name="t", variant="w", engine="b")
    plan = Pipeline(version=1, pipeline="p", engines={"a": TWIN, "b": TWIN}, stages=[first, last])
    run = Desk(plan, LatencyTable(entries=entries))
    run.arrive(deadline_ns=200 * MS)
    assert desk.next_timer_ns(run.state) == pytest.approx((200 - 30 - 20 * 1.358) * MS, rel=1e-3)


def test_what_an_engine_never_was_quick_enough_for_seldom_tries_it() -> None:
    """Any hopeless request took an idle engine one service after its last batch: half of its time was wasted."""
    run = Desk(one_stage({"a": TWIN}), LatencyTable(entries=[entry("a", 100)]))
    run.arrive()
    run.now_ns = 100 * MS
    run.done(0)
    for ms in range(100, 1100, 50):
        run.now_ns = ms * MS
        assert dispatches(run.arrive(deadline_ns=run.now_ns + 50 * MS)) == []
    run.now_ns = 1100 * MS
    assert dispatches(run.arrive(deadline_ns=run.now_ns + 50 * MS)) == [0]


def test_a_deadline_shorter_than_its_batch_is_no_failure_of_the_engine() -> None:
    """Clients with short deadlines opened the breaker of an engine that was well."""
    plan = msgspec.structs.replace(guarded().pipeline, retry=ONCE)
    run = Desk(plan, LatencyTable(entries=[entry("a", 100), entry("b", 100)]))
    for _ in range(6):
        run.arrive(deadline_ns=run.now_ns + 50 * MS)
        assert outcomes(run.timer(run.now_ns + 50 * MS))[0][1] is Outcome.EXPIRED
        run.now_ns += 50 * MS
        run.done(0)
        run.now_ns += 1000 * MS  # long enough for another trial
    assert state_of(run) == c.CLOSED
    # That it hangs shows all the same.
    for tag in range(6, 10):
        assert state_of(run) == c.CLOSED
        run.arrive(deadline_ns=run.now_ns + 500 * MS)
        assert run.members(0) == [tag]
        run.timer(run.now_ns + 500 * MS)
        run.state.scale_ppm[0, 0] = c.PPM
        run.done(0)
        run.state.scale_ppm[0, 0] = c.PPM
        run.state.live[0, 0, 0] = run.state.live[0, 0, 1]
    assert state_of(run) == c.OPEN
