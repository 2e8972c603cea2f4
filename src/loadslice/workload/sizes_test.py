import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadslice.spec.portrait import QUANTILE_POINTS
from loadslice.workload import sizes


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_quantiles_are_those_of_numpy(values: list[int]) -> None:
    found = sizes.quantiles(np.sort(np.array(values, np.int32)), QUANTILE_POINTS)
    assert found == pytest.approx(list(np.quantile(values, QUANTILE_POINTS)))


def test_a_column_that_is_not_recorded_is_unknown() -> None:
    frame = pl.DataFrame({"arrival_s": [0.0], "items": [2]})
    assert sizes.distribution(frame, "tokens_in") is None
    assert sizes.latency(frame) is None
    assert sizes.stage_share(frame) is None
    assert sizes.class_share(frame) is None
    items = sizes.distribution(frame, "items")
    assert items is not None
    assert (items.mean, items.p50, items.max) == (2.0, 2.0, 2.0)


def test_time_outside_the_stages_has_its_own_share() -> None:
    frame = pl.DataFrame(
        {"latency_ms": [10.0, 10.0, 99.0], "stage_ms.a": [2.0, 4.0, None], "stage_ms.b": [4.0, None, None]}
    )
    assert sizes.stage_share(frame) == {"a": 0.3, "b": 0.2, sizes.OUTSIDE: 0.5}


def test_stages_side_by_side_share_their_sum() -> None:
    frame = pl.DataFrame({"latency_ms": [10.0], "stage_ms.a": [9.0], "stage_ms.b": [9.0]})
    assert sizes.stage_share(frame) == {"a": 0.5, "b": 0.5}


def test_rank_correlation_is_of_pairs_that_vary() -> None:
    frame = pl.DataFrame({"items": [1, 1, 1], "tokens_in": [1, 2, 3], "tokens_out": [9, 4, 1]})
    assert sizes.rank_correlations(frame) == {"tokens_in,tokens_out": pytest.approx(-1.0)}
