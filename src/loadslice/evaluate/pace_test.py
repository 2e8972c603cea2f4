import numpy as np
import polars as pl
import pytest

from loadslice.evaluate import pace, payloads, predict
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Stage


def plan(service_ms: float) -> tuple[Pipeline, LatencyTable]:
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={"e": Engine(backend="twin")},
        stages=[Stage(name="s", variant="v", engine="e")],
    )
    times = Milliseconds(mean=service_ms, family="constant")
    return pipeline, LatencyTable(entries=[Entry(variant="v", engine="e", batch=1, latency_ms=times, basis="modelled")])


def arrivals(rate_per_s: float, count: int = 2000) -> pl.DataFrame:
    gaps = np.random.default_rng(1).exponential(1 / rate_per_s, count)
    return pl.DataFrame({"arrival_s": np.cumsum(gaps)})


def test_a_recorded_pace_that_loads_the_plan_sensibly_is_kept() -> None:
    chosen = pace.choose_pace(arrivals(5.0), {"a": plan(100.0)}, cores=1, seed=0, given=None)
    assert chosen.speed == 1.0
    assert chosen.busy["a"] == pytest.approx(0.5, abs=0.05)


def test_another_pace_is_scaled_until_the_slowest_plan_is_busy_enough() -> None:
    chosen = pace.choose_pace(arrivals(0.5), {"fast": plan(20.0), "slow": plan(100.0)}, cores=1, seed=0, given=None)
    assert chosen.speed == pytest.approx(10, rel=0.1)
    assert chosen.busy["slow"] == pytest.approx(pace.BUSY_GOAL, abs=0.05)
    assert "slow" in chosen.why
    overloaded = pace.choose_pace(arrivals(50.0), {"slow": plan(100.0)}, cores=1, seed=0, given=None)
    assert overloaded.speed == pytest.approx(0.10, rel=0.1)


def test_a_pace_that_was_asked_for_is_taken_as_it_is() -> None:
    assert pace.choose_pace(arrivals(5.0), {"a": plan(100.0)}, cores=1, seed=0, given=7.0).speed == 7.0


def test_the_window_is_an_ordinary_stretch_of_the_second_half() -> None:
    frame = arrivals(5.0)
    end_s = frame["arrival_s"].max()
    window = pace.choose_window(frame, real_s=10.0, speed=2.0)
    assert window.for_s == 20.0
    assert window.from_s >= end_s / 2
    assert window.from_s + window.for_s <= end_s
    cut = payloads.cut(frame, from_s=window.from_s, for_s=window.for_s, speed=2.0, limit=None)
    assert cut.height == window.requests
    assert cut["arrival_s"].max() < 10.0


def test_a_rehearsal_that_takes_the_whole_half_fits_into_it_whatever_the_clock() -> None:
    frame = arrivals(5.0, count=20).with_columns(pl.col("arrival_s") + 1.7e9)
    from_s, for_s = pace.rehearsal_window(frame, real_s=1000.0, speed=1.0)
    times_s = frame["arrival_s"].to_numpy()
    assert from_s == times_s[0]
    assert for_s == pytest.approx((times_s[-1] - times_s[0]) / 2)


def test_a_trace_shorter_than_the_replay_is_taken_whole() -> None:
    frame = arrivals(5.0, count=20)
    window = pace.choose_window(frame, real_s=1000.0, speed=1.0)
    cut = payloads.cut(frame, from_s=window.from_s, for_s=window.for_s, speed=1.0, limit=None)
    assert cut.height == window.requests == 20


def test_a_prediction_is_the_mean_over_seeds_and_shows_their_spread() -> None:
    pipeline, _ = plan(0)
    times = Milliseconds(mean=100.0, family="exponential")
    table = LatencyTable(entries=[Entry(variant="v", engine="e", batch=1, latency_ms=times, basis="modelled")])
    found = predict.predict(arrivals(2.0, 300), pipeline, table, seed=3, replicas=8)
    assert found.intervals["p95"].low < found.figures["p95"] < found.intervals["p95"].high
    assert found.figures["error rate"] == 0
    assert len(found.latencies_ms) == 8 * 300
    assert found.requests.height == 300
    assert found.figures == predict.predict(arrivals(2.0, 300), pipeline, table, seed=3, replicas=8).figures
