import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.evaluate import compare
from loadslice.evaluate.report.specimen import specimen
from loadslice.spec.outcome import OUTCOMES
from loadslice.spec.report import OUTSIDE, Compared
from loadslice.spec.simulation import LatencyMs


def test_a_bootstrap_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    # Exponential latencies: the true median is ln 2. 95 % of 200 intervals should hold it; allow four sigma.
    draw = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        (interval,) = compare.bootstrap(draw.exponential(1.0, 200), [0.5], seed=1, resamples=300)
        assert interval is not None
        held += interval.low <= np.log(2) <= interval.high
    assert held >= 175


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    independent = np.random.default_rng(2).normal(100, 10, 400)
    alike = np.repeat(independent[::8], 8)
    narrow = compare.bootstrap(independent, [None], seed=3)[0]
    wide = compare.bootstrap(alike, [None], seed=3)[0]
    assert narrow is not None
    assert wide is not None
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_the_same_seed_gives_the_same_interval_and_few_values_give_none() -> None:
    values = np.arange(50.0)
    assert compare.bootstrap(values, [0.95], seed=1) == compare.bootstrap(values, [0.95], seed=1)
    assert compare.bootstrap(values[:9], [0.95, None], seed=1) == [None, None]


def test_no_error_in_a_hundred_requests_is_not_a_rate_of_zero() -> None:
    interval = compare.wilson(0, 100)
    assert interval is not None
    assert interval.low == 0
    assert interval.high == pytest.approx(0.037, abs=0.001)
    assert compare.wilson(0, 0) is None


def test_error_rate_counts_everything_that_did_not_complete() -> None:
    assert compare.error_rate({"completed": 9, "shed": 1}) == pytest.approx(0.1)
    assert compare.error_rate({"completed": 0}) is None


def stage_rows(service_ms: list[float], copy_ns: int | None) -> pl.DataFrame:
    count = len(service_ms)
    return pl.DataFrame(
        {
            "stage": ["detect"] * count,
            "engine": ["ov"] * count,
            "enqueued_ns": [0] * count,
            "dispatched_ns": [2_000_000] * count,
            "done_ns": [2_000_000 + int(ms * 1e6) for ms in service_ms],
            "copy_ns": pl.Series([copy_ns] * count, dtype=pl.Int64),
            "compute_ns": pl.Series([copy_ns] * count, dtype=pl.Int64),
        }
    )


def test_a_prediction_error_is_placed_at_its_stage() -> None:
    detect, absent = compare.stages(["detect", "absent"], stage_rows([1.1, 1.1], None), stage_rows([1.0, 1.0], 500_000))
    assert detect.service_error_pct == pytest.approx(10.0)
    assert detect.predicted is not None
    assert detect.measured is not None
    assert detect.predicted.copy_ms_mean is None
    assert detect.measured.copy_ms_mean == pytest.approx(0.5)
    assert detect.measured.queue_ms_mean == pytest.approx(2.0)
    assert absent.predicted is None
    assert absent.measured is None


def test_overhead_is_what_the_client_waited_beyond_all_waiting_and_service() -> None:
    requests = pl.DataFrame({"tag": [0, 1], "row": [7, 8]})
    # Both passed one stage: 2 ms of waiting, 1 ms of copy and compute, and 9 ms on the way to the worker and back.
    stages = stage_rows([10.0, 10.0], 500_000).with_columns(tag=pl.Series([0, 1]))
    assert compare.handovers_ms(stages).tolist() == pytest.approx([9.0, 9.0])
    extra_ms = compare.overhead_ms(requests, stages, {7: 22.5, 9: 1.0})
    assert extra_ms.tolist() == pytest.approx([10.5])
    found = compare.outside(None, extra_ms)
    assert found.stage == OUTSIDE
    assert found.measured is not None
    assert found.measured.service_ms_mean == pytest.approx(10.5)


def _p50(latencies_ms: list[float], predicted_ms: float) -> Compared:
    times = LatencyMs(p50=float(np.median(latencies_ms)), p95=None, p99=None, mean=None)
    outcomes = dict.fromkeys(OUTCOMES, 0) | {"completed": len(latencies_ms)}
    measured = specimen().plans[0].measured
    assert measured is not None
    replay = msgspec.structs.replace(measured, latency_ms=times, outcomes=outcomes)
    return compare.figures({"p50": predicted_ms}, {}, replay, np.array(latencies_ms), seed=0)[0]


def test_an_interval_that_holds_everything_passes_nothing() -> None:
    # Half of the requests waited in a queue: one run does not say where the median is.
    split = [200.0] * 40 + [1600.0] * 40
    told = _p50(split, predicted_ms=300.0)
    assert told.inside is None
    assert told.too_wide
    assert told.told == "cannot be told: the interval is wider than 50% of what was measured"


def test_a_short_interval_passes_and_fails() -> None:
    even = [100.0 + number % 7 for number in range(80)]
    assert _p50(even, predicted_ms=103.0).told == "yes"
    assert _p50(even, predicted_ms=300.0).told == "no"


def test_a_prediction_outside_a_wide_interval_is_outside() -> None:
    assert _p50([200.0] * 40 + [1600.0] * 40, predicted_ms=20_000.0).told == "no"


def test_how_late_a_request_is_counts_from_the_quickest_for_two_clocks_have_no_common_zero() -> None:
    requests = pl.DataFrame({"row": [7, 8, 9], "arrival_ns": [5_000_000_000, 5_103_000_000, 5_250_000_000]})
    sent = pl.DataFrame({"row": [6, 7, 8, 9], "arrival_s": [0.9, 1.0, 1.1, 1.25]})
    assert compare.arrivals_ms(requests, sent) == pytest.approx([0.0, 3.0, 0.0], abs=1e-6)
