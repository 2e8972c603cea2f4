from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.evaluate import fidelity
from loadslice.evaluate.fidelity import Prediction
from loadslice.sim import journal as sim_journal
from loadslice.sim import simulate
from loadslice.spec import journal as journals
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Queue, Stage, check


def pipeline() -> Pipeline:
    engines = {name: Engine(backend="twin", queue=Queue(limit=2)) for name in ("a", "b")}
    stages = [
        Stage(name="s", variant="v", engines=["a", "b"], prefer="fastest"),
        Stage(name="t", variant="w", engine="b"),
    ]
    return check(Pipeline(version=1, pipeline="p", engines=engines, stages=stages), "test")


def table(between_runs: float = 0.05) -> LatencyTable:
    return LatencyTable(
        entries=[
            Entry(
                variant=variant, engine=engine, batch=1, latency_ms=Milliseconds(p50=ms, p90=1.2 * ms), basis="modelled"
            )
            for variant, engine, ms in (("v", "a", 30.0), ("v", "b", 40.0), ("w", "b", 10.0))
        ],
        drift=Drift(period_ms=500.0, likeness=0.2, between_runs=between_runs),
    )


def trace(requests: int = 1200) -> pl.DataFrame:
    draw = np.random.default_rng(3)
    return pl.DataFrame({"arrival_s": np.cumsum(draw.exponential(0.04, requests))})


def played() -> fidelity.Session:
    return fidelity.session(trace(), stretch_s=3.0, speed=1.5, count=3)


def test_stretches_come_from_the_second_half_in_order_and_do_not_overlap() -> None:
    found = played()
    end_s = float(trace()["arrival_s"][-1])
    assert found.from_s[0] >= end_s / 2
    assert all(later - earlier >= 4.5 for earlier, later in zip(found.from_s, found.from_s[1:], strict=False))
    assert found.from_s[-1] + 4.5 <= end_s
    assert found.frame["row"].is_unique().all()
    assert found.frame["arrival_s"].is_sorted()
    first = found.frame.filter(pl.col("stretch") == 0)["arrival_s"].max()
    second = found.frame.filter(pl.col("stretch") == 1)["arrival_s"].min()
    assert second - first >= fidelity.PAUSE_S


def test_a_run_that_is_another_replica_is_covered_and_one_of_a_machine_half_as_fast_is_not() -> None:
    session = fidelity.session(trace(), stretch_s=1.0, speed=1.0, count=3)
    prediction = fidelity.predict(session, pipeline(), table(), seed=0)
    rows = session.frame["row"]
    other = fidelity.predict(session, pipeline(), table(), seed=500, count=20)
    alike = fidelity.stretch("all", rows, 0.0, [prediction] * 20, other.drifting)
    assert all(figure.covered >= 17 for figure in alike.figures if figure.unit == "ms")
    assert (fidelity.coverage([alike]) or 0.0) > 0.85
    slow = [seen.with_columns(pl.col("latency_ms") * 2) for seen in other.drifting]
    (p50, *_) = fidelity.stretch("all", rows, 0.0, [prediction] * 20, slow).figures
    assert p50.covered == 0
    assert p50.error == pytest.approx(-50, abs=8)


def test_what_could_not_miss_does_not_count_as_covered() -> None:
    seen = pl.DataFrame(
        {"row": range(9), "due_s": np.arange(9.0), "outcome": ["completed"] * 9, "latency_ms": 100.0, "path": "a"}
    )
    off = Prediction(
        [seen], [seen.with_columns(latency_ms=pl.lit(ms)) for ms in (140.0, 150.0, 160.0)], pl.DataFrame(), 0.5
    )
    found = fidelity.stretch("1", seen["row"], 0.0, [off], [seen])
    rates = {one.figure: one for one in found.figures}
    assert rates["error rate"].covered == 1
    assert rates["p50"].covered == 0
    none = [one for one in found.figures if one.figure == "error rate"]
    only = msgspec.structs.replace(found, figures=none)
    assert fidelity.coverage([only]) is None
    lost = msgspec.structs.replace(none[0], measured=[0.1])
    assert fidelity.coverage([msgspec.structs.replace(found, figures=[lost])]) == 0.0


def test_too_high_once_and_too_low_once_is_an_error_of_its_size() -> None:
    seen = pl.DataFrame(
        {"row": range(9), "due_s": np.arange(9.0), "outcome": ["completed"] * 9, "latency_ms": 100.0, "path": "a"}
    )
    both = [
        Prediction([one], [one, one], pl.DataFrame(), 0.5)
        for one in (seen.with_columns(latency_ms=pl.lit(ms)) for ms in (80.0, 120.0))
    ]
    p50 = fidelity.stretch("1", seen["row"], 0.0, both, [seen, seen]).figures[0]
    assert (p50.error, p50.error_size) == (pytest.approx(0.0), pytest.approx(20.0))


def test_errors_are_percent_and_of_the_error_rate_points() -> None:
    seen = pl.DataFrame(
        {
            "row": range(100),
            "due_s": np.arange(100) / 10,
            "outcome": ["completed"] * 95 + ["rejected"] * 5,
            "latency_ms": [100.0] * 100,
            "path": ["a"] * 100,
        }
    )
    slower = seen.with_columns(latency_ms=pl.lit(110.0), outcome=pl.lit("completed"))
    prediction = Prediction([slower], [slower, slower], pl.DataFrame(), 0.5)
    found = fidelity.stretch("1", seen["row"], 0.0, [prediction] * 2, [seen, seen])
    by_name = {figure.figure: figure for figure in found.figures}
    assert by_name["p50"].error == pytest.approx(10.0)
    assert by_name["p50"].noise == 0.0
    assert by_name["error rate"].error == pytest.approx(-5.0)
    assert by_name["throughput"].measured[0] == pytest.approx(95 / (9.4 + 0.1))


def test_every_repeat_is_held_to_its_own_prediction() -> None:
    seen = pl.DataFrame(
        {
            "row": range(50),
            "due_s": np.arange(50) / 10,
            "outcome": ["completed"] * 50,
            "latency_ms": [100.0] * 50,
            "path": ["a"] * 50,
        }
    )
    slow = seen.with_columns(latency_ms=pl.lit(200.0))
    fast, late = (Prediction([one], [one, one], pl.DataFrame(), 0.5) for one in (seen, slow))
    right, swapped = (
        fidelity.stretch("1", seen["row"], 0.0, each, [seen, slow]) for each in ([fast, late], [late, fast])
    )
    assert (right.figures[0].covered, right.figures[0].error) == (2, 0.0)
    assert right.figures[0].predicted == [100.0, 200.0]
    assert swapped.figures[0].covered == 0


def test_agreement_counts_outcome_and_every_engine() -> None:
    seen = pl.DataFrame({"row": [1, 2, 3, 4], "outcome": ["completed"] * 4, "path": ["a,b", "b,b", "a,b", "-,-"]})
    moved = seen.with_columns(path=pl.Series(["a,b", "a,b", "a,b", "-,-"]))
    refused = seen.with_columns(outcome=pl.Series(["completed"] * 3 + ["shed"]))
    assert fidelity.agreement(seen, seen.reverse()) == 1.0
    assert fidelity.agreement(seen, moved) == 0.75
    assert fidelity.agreement_live([seen, moved, refused]) == pytest.approx((0.75 + 0.75 + 0.5) / 3)
    assert fidelity.agreement_live([seen]) is None


def test_a_journal_read_as_if_it_were_live_gives_what_the_simulation_saw(tmp_path: Path) -> None:
    session = played()
    run = simulate.run(simulate.prepare(session.frame, pipeline(), table()), seed=0, journal=True)
    sim_journal.write(run, tmp_path / "j", "")
    journal = journals.load(tmp_path / "j")
    numbered = journal.requests.with_columns(id=session.frame["row"].cast(pl.String))
    expected = fidelity.predict(session, pipeline(), table(), seed=0, count=2).typical[0]
    rows = expected.select("row", "due_s", "outcome", "latency_ms")
    live = journals.Journal(head=journal.head, requests=numbered, stages=journal.stages, events=journal.events)
    assert fidelity.of_live(rows, live, pipeline()).equals(expected)
    assert set(expected["outcome"]) > {"completed"}, "some were refused"
    stages = fidelity.stages(pipeline(), [fidelity.predict(session, pipeline(), table(), seed=0, count=2)], [journal])
    assert [stage.service_ms_predicted for stage in stages] == pytest.approx(
        [stage.service_ms_measured for stage in stages]
    )
