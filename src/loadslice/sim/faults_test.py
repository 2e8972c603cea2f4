"""Engines that misbehave and clients that leave, in virtual time."""

import os
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy import invariants
from loadslice.sim import record as r
from loadslice.sim import simulate
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Clients, Fault, load_clients, load_faults
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import OUTCOMES, Outcome, Reason
from loadslice.spec.pipeline import Breaker, Engine, Failover, Pipeline, Queue, Stage, check

JIT = not os.environ.get("NUMBA_DISABLE_JIT")


def plan(**stage: object) -> Pipeline:
    return check(
        Pipeline(
            version=1,
            pipeline="two",
            engines={name: Engine(backend="twin", queue=Queue(limit=500)) for name in ("npu", "cpu")},
            stages=[Stage(name="s", variant="v", engines=["npu", "cpu"], **stage)],  # type: ignore[arg-type]
            max_requests=5000,
        ),
        "test",
    )


TIMES = LatencyTable(
    entries=[
        Entry(
            variant="v",
            engine=engine,
            batch=1,
            latency_ms=Milliseconds(mean=10.0, family="constant"),
            basis="modelled",
        )
        for engine in ("npu", "cpu")
    ]
)


def run(
    pipeline: Pipeline, faults: list[Fault], clients: Clients | None = None, *, gap_s: float = 0.02, requests: int = 500
) -> simulate.Run:
    trace = pl.DataFrame({"arrival_s": np.arange(requests) * gap_s})
    finished = simulate.run(simulate.prepare(trace, pipeline, TIMES, faults=faults, clients=clients), journal=True)
    invariants.check(finished.tables, finished.state)
    invariants.check_idle(finished.state)
    result = simulate.summarise(finished)
    assert sum(result.outcomes[name] for name in OUTCOMES) == result.attempts
    return finished


def test_a_slow_spell_stretches_what_runs_and_ends() -> None:
    finished = run(plan(), [Fault(at_s=0.005, for_s=0.03, engine="npu", kind="slow", factor=4)], requests=1)
    # 5 ms at full pace, 30 ms at a quarter of it leave 10 - 5 = 5 ms > 7.5 ms of work: done 20 ms into the spell.
    assert finished.record.end_ns[0] == pytest.approx(25_000_000, abs=2)


def test_a_hung_engine_holds_its_batch_until_it_wakes() -> None:
    finished = run(plan(), [Fault(at_s=0.004, for_s=1.0, engine="npu", kind="hang")], requests=1)
    assert finished.record.end_ns[0] == pytest.approx(1_010_000_000, abs=2)


def test_nothing_is_lost_when_an_engine_dies_and_traffic_moves() -> None:
    finished = run(plan(failover=Failover(to="cpu")), [Fault(at_s=2, for_s=3, engine="npu", kind="crash")])
    assert (finished.record.outcome == Outcome.COMPLETED).all()
    result = simulate.summarise(finished)
    assert result.engines["cpu"].batches == pytest.approx(150, abs=2)


def test_a_standing_engine_is_left_alone_once_its_breaker_opens() -> None:
    breaker = Breaker(window=10, min_calls=3, open_ms=500)
    guarded = plan(failover=Failover(to="cpu"), timeout_ms=50, breaker=breaker)
    finished = run(guarded, [Fault(at_s=1, for_s=4, engine="npu", kind="hang")])
    late = np.flatnonzero(finished.record.start_ns > 1_500_000_000)
    assert (finished.record.outcome[late] == Outcome.COMPLETED).mean() > 0.97
    assert simulate.summarise(finished).engines["npu"].breaker_transitions >= 2


def test_a_hang_is_noticed_after_a_pulse_and_what_stood_there_goes_elsewhere() -> None:
    """As a live server has it. The core was never told, and without a stage timeout all waited for the end."""
    hang = Fault(at_s=0.004, for_s=60.0, engine="npu", kind="hang")
    finished = run(plan(), [hang], requests=1)
    assert finished.record.end_ns[0] == pytest.approx(2_014_000_000, abs=2)
    sooner = msgspec.structs.replace(hang, detect_ms=500.0)
    assert run(plan(), [sooner], requests=1).record.end_ns[0] == pytest.approx(514_000_000, abs=2)


def test_a_crash_may_be_noticed_late_and_no_later_than_the_return() -> None:
    crash = Fault(at_s=0.004, for_s=60.0, engine="npu", kind="crash", detect_ms=1000.0)
    assert run(plan(), [crash], requests=1).record.end_ns[0] == pytest.approx(1_014_000_000, abs=2)
    brief = msgspec.structs.replace(crash, for_s=0.1)
    assert run(plan(), [brief], requests=1).record.end_ns[0] == pytest.approx(114_000_000, abs=2)


def test_wrong_answers_are_counted_and_only_in_their_spell() -> None:
    finished = run(plan(), [Fault(at_s=2, for_s=1, engine="npu", kind="wrong")])
    assert simulate.summarise(finished).wrong_answers == pytest.approx(50, abs=1)


def test_clients_that_leave_are_cancelled_and_never_come_back() -> None:
    leaving = Clients(timeout_ms=100, attempts=3, disconnect_share=1.0, states_deadline=False)
    finished = run(plan(), [Fault(at_s=0, for_s=30, engine="npu", kind="slow", factor=100)], leaving)
    assert simulate.summarise(finished).attempts == 500
    assert (finished.record.outcome[:500] == Outcome.CANCELLED).all()


def test_a_client_comes_back_after_a_refusal_no_sooner_than_the_hint_says() -> None:
    tight = check(
        Pipeline(
            version=1,
            pipeline="tight",
            engines={"npu": Engine(backend="twin", queue=Queue(limit=0)), "cpu": Engine(backend="twin")},
            stages=[Stage(name="s", variant="v", engine="npu")],
        ),
        "test",
    )
    finished = run(tight, [], Clients(timeout_ms=1000, attempts=3), gap_s=0.001, requests=3)
    record = finished.record
    refused = np.flatnonzero(record.reason == Reason.QUEUE_FULL)
    assert len(refused)
    for tag in refused:
        if tag + 3 < len(record.start_ns) and record.start_ns[tag + 3] >= 0:
            assert record.start_ns[tag + 3] >= record.end_ns[tag] + record.hint_ns[tag]


def test_a_request_that_succeeds_at_a_later_attempt_has_taken_the_time_since_its_first() -> None:
    """The latency of its last attempt alone made clients that come back look quick."""
    alone = check(
        Pipeline(
            version=1,
            pipeline="alone",
            engines={"npu": Engine(backend="twin", queue=Queue(limit=0)), "cpu": Engine(backend="twin")},
            stages=[Stage(name="s", variant="v", engine="npu")],
        ),
        "test",
    )
    finished = run(alone, [], Clients(timeout_ms=1000, attempts=2), gap_s=0.001, requests=2)
    record = finished.record
    assert record.outcome[3] == Outcome.COMPLETED, "the second request, at its second attempt"
    taken_ms = (record.end_ns[3] - record.start_ns[1]) / 1e6
    assert taken_ms > 50
    assert simulate.latency_ms(finished).tolist() == pytest.approx([10.0, taken_ms])
    assert simulate.summarise(finished).latency_ms.mean == pytest.approx((10.0 + taken_ms) / 2)


def test_long_queues_are_told_as_long_as_they_are() -> None:
    """Of 3000 requests at once the queue's p99 was told as 1023."""
    long = check(
        Pipeline(
            version=1,
            pipeline="long",
            engines={"npu": Engine(backend="twin", queue=Queue(limit=3000))},
            stages=[Stage(name="s", variant="v", engine="npu")],
            max_requests=4000,
        ),
        "test",
    )
    result = simulate.summarise(run(long, [], gap_s=0.0, requests=3000))
    assert result.engines["npu"].queue_p99 == pytest.approx(0.99 * 3000, rel=1 / 500)


def test_every_queue_length_is_counted_within_a_five_hundredth() -> None:
    for waiting in [*range(1024, 5000), 65_535, 65_536, 1_000_000]:
        told = r.queue_of_cell(r.cell_of_queue(waiting))
        assert waiting * (1 - 1 / 512) < told <= waiting
    assert r.cell_of_queue(10**9) == r.QUEUE_SEEN - 1


def test_the_same_faults_and_clients_give_the_same_journal() -> None:
    faults = [Fault(at_s=1, for_s=2, engine="npu", kind="slow", factor=9)]
    clients = Clients(timeout_ms=60, attempts=3, disconnect_share=0.1)
    digests = {simulate.digest(run(plan(failover=Failover(to="cpu")), faults, clients)) for _ in range(2)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[{at_s: 1, for_s: 1, engine: gpu9, kind: down}]", "'gpu9' is not an engine here"),
        ("[{at_s: -1, for_s: 1, engine: npu, kind: down}]", "at_s -1"),
        ("[{at_s: 1, for_s: .nan, engine: npu, kind: down}]", "for_s nan"),
        ("[{at_s: 1, for_s: 1, engine: npu, kind: tired}]", "kind"),
        ("[{at_s: 1, for_s: 1, engine: npu, kind: slow, factor: 0}]", "factor: 0"),
        ("[{at_s: 1, for_s: 1, engine: npu, kind: slow, factor: .nan}]", "factor: nan"),
        ("[{at_s: 1, for_s: 1, engine: npu, kind: slow}]", "[0].factor: missing"),
        ("[{at_s: 1, for_s: 1, engine: npu, kind: down, factor: 4}]", "factor: 4 says nothing of kind 'down'"),
        ("[{at_s: .nan, for_s: 1, engine: npu, kind: down}]", "at_s nan"),
        (
            "[{at_s: 5, for_s: 1, engine: npu, kind: hang}, {at_s: 1, for_s: 5, engine: npu, kind: slow, factor: 2}]",
            "[0]: engine 'npu' is 'slow' until 6 s by [1], so 'hang' cannot begin at 5 s",
        ),
        (
            "[{at_s: 1, for_s: 5, engine: npu, kind: hang}, {at_s: 2, for_s: 1, engine: npu, kind: crash}]",
            "[1]: engine 'npu' is 'hang' until 6 s by [0], so 'crash' cannot begin at 2 s",
        ),
        ("[{at_s: 1, for_s: 1, engine: npu, kind: wrong, detect_ms: 4}]", "detect_ms: 4 says nothing of kind 'wrong'"),
        ("[{at_s: 1, for_s: 1, engine: npu, kind: crash, detect_ms: -1}]", "detect_ms: -1 is not between 0 and"),
    ],
)
def test_a_fault_that_cannot_be_is_one_readable_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_faults(path, plan())
    assert says in str(caught.value)


def test_faults_that_do_not_meet_may_stand_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        """
        - {at_s: 2, for_s: 1, engine: npu, kind: hang}
        - {at_s: 1, for_s: 1, engine: npu, kind: slow, factor: 2}
        - {at_s: 1, for_s: 5, engine: npu, kind: wrong}
        - {at_s: 1, for_s: 5, engine: cpu, kind: down}
        """,
        encoding="utf-8",
    )
    assert len(load_faults(path, plan())) == 4


def test_a_million_requests_of_one_instant_are_all_answered() -> None:
    frame = pl.DataFrame({"arrival_s": np.full(1_000_000 if JIT else 20_000, 5.0)})
    shared = msgspec.structs.replace(TIMES, overhead_cpu_ms=1.0)
    finished = simulate.run(simulate.prepare(frame, plan(), shared))
    result = simulate.summarise(finished)
    assert sum(result.outcomes.values()) == frame.height
    assert result.outcomes["rejected"] == frame.height - result.outcomes["completed"] > 0


def test_a_single_request_is_a_trace() -> None:
    result = simulate.summarise(run(plan(), [], requests=1))
    assert result.outcomes["completed"] == 1
    assert result.latency_ms.p99 == 10.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e12])
def test_a_time_that_is_none_is_named_with_its_row(value: float) -> None:
    with pytest.raises(InputError, match=r"trace row 2: arrival_s .* is not a time"):
        simulate.prepare(pl.DataFrame({"arrival_s": [0.0, value]}), plan(), TIMES)


def test_an_empty_trace_is_one_readable_line() -> None:
    with pytest.raises(InputError, match="the trace is empty"):
        simulate.prepare(pl.DataFrame({"arrival_s": []}), plan(), TIMES)


def test_clients_whose_patience_has_no_end_are_one_readable_line(tmp_path: Path) -> None:
    path = tmp_path / "clients.yaml"
    path.write_text("{timeout_ms: 100, attempts: 100, backoff: {factor: 100}}", encoding="utf-8")
    with pytest.raises(InputError, match=r"grows to .* over a day"):
        load_clients(path)


def test_clients_out_of_range_are_one_readable_line(tmp_path: Path) -> None:
    path = tmp_path / "clients.yaml"
    path.write_text("{timeout_ms: 100, attempts: 0}", encoding="utf-8")
    with pytest.raises(InputError, match="attempts: 0"):
        load_clients(path)
