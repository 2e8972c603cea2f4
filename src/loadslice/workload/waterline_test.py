import numpy as np
import polars as pl
import pytest

from loadslice.workload import waterline
from loadslice.workload.arrivals import Clock

MONDAY_9 = Clock(9 * 3600.0, known=True)


def frame(**columns: object) -> pl.DataFrame:
    return pl.DataFrame({"arrival_s": np.arange(0, 7200.0, 2.0)}).with_columns(
        **{k: pl.lit(v) for k, v in columns.items()}
    )


def test_work_is_flops_with_a_model_and_tokens_without() -> None:
    rows = frame(items=4, tokens_in=100, tokens_out=20)
    with_model = waterline.waterline(rows, MONDAY_9, None, "int8", 1e9)
    without = waterline.waterline(rows, MONDAY_9, None, None, None)
    assert [row.hour for row in with_model] == [9, 10]
    assert with_model[0].requests_per_s == pytest.approx(0.5)
    assert with_model[0].requests_per_s_peak_1m == pytest.approx(0.5)
    assert with_model[0].work_flop_per_s == pytest.approx(2e9)
    assert with_model[0].work_tokens_per_s is None
    assert with_model[0].precision_class == "int8"
    assert without[0].work_tokens_per_s == pytest.approx(60)
    assert without[0].work_flop_per_s is None
    assert without[0].latency_class is None


def test_work_is_unknown_without_sizes() -> None:
    (first, _) = waterline.waterline(frame(), MONDAY_9, None, None, None)
    assert first.work_flop_per_s is None
    assert first.work_tokens_per_s is None


def test_classes_split_an_hour_and_sum_to_it() -> None:
    rows = frame().with_columns(deadline_ms=pl.Series(np.resize([500.0, 501.0, 5000.0, 5001.0], 3600)))
    budgets = waterline.budgets(rows, None)
    found = waterline.waterline(rows, MONDAY_9, budgets, None, None)
    assert [row.latency_class for row in found[:3]] == ["interactive", "online", "offline"]
    assert sum(row.requests_per_s for row in found if row.hour == 9) == pytest.approx(0.5)
    dimension = waterline.latency_dimension(budgets)
    assert dimension is not None
    assert dimension.share == {"interactive": 0.25, "online": 0.5, "offline": 0.25}


def test_a_stated_budget_goes_before_deadlines_before_observed_latency() -> None:
    rows = frame(deadline_ms=100.0, latency_ms=9000.0)
    bases = [
        waterline.budgets(rows, 700.0),
        waterline.budgets(rows, None),
        waterline.budgets(rows.drop("deadline_ms"), None),
    ]
    assert [found.basis for found in bases if found is not None] == ["stated", "deadline_ms", "latency_ms"]
    assert waterline.budgets(frame(), None) is None
