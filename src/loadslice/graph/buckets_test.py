from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.graph import buckets
from loadslice.graph.buckets import Recorded, Wanted, choices, traffic, use
from loadslice.spec.inspection import DynamicInput


def padded(sizes: list[int], bounds: list[int]) -> int:
    return sum(min(bound for bound in bounds if bound >= size) - size for size in sizes)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=25), st.integers(1, 4))
def test_no_set_of_buckets_pads_less(sizes: list[int], count: int) -> None:
    found = choices(np.array(sizes), Wanted(count_max=count, cover=1.0))[-1]
    distinct = sorted(set(sizes))
    least = min(
        padded(sizes, [*some, distinct[-1]]) for some in combinations(distinct[:-1], min(count, len(distinct)) - 1)
    )
    assert padded(sizes, found.buckets) == least
    assert found.padding_share == pytest.approx(least / sum(sizes))


def test_the_fewest_buckets_within_the_allowed_padding_are_chosen() -> None:
    """One bucket pads 100 and 100 to 200; two pad nothing."""
    sizes = np.array([100, 200, 100, 200])
    result = use(Recorded("x", 1, "n", "a test", sizes), Wanted(cover=1.0))
    assert [one.buckets for one in result.choices] == [[200], [100, 200]]
    assert [one.padding_share for one in result.choices] == [pytest.approx(1 / 3), 0]
    assert result.chosen.buckets == [100, 200]
    loose = use(Recorded("x", 1, "n", "a test", sizes), Wanted(cover=1.0, padding_max=0.5))
    assert loose.chosen.buckets == [200]


def test_what_the_cover_leaves_out_is_the_share_outside() -> None:
    sizes = np.array([10] * 98 + [500, 5000])
    result = use(Recorded("x", 0, None, "a test", sizes), Wanted(cover=0.98))
    assert (result.chosen.buckets, result.outside_share) == ([10], 0.02)
    assert (result.p50, result.p99, result.max, result.distinct) == (10, 500, 5000, 3)
    assert result.outside_share_later == 0.04


def test_a_request_is_outside_when_any_dimension_is() -> None:
    height, width = np.array([1] * 9 + [7]), np.array([7] + [1] * 9)
    dims = [Recorded("x", 2, None, "t", height), Recorded("x", 3, None, "t", width)]
    dynamic = [DynamicInput(name="x", dtype="float", shape=[None, 3, None, None])]
    result = traffic("t", dims, dynamic, Wanted(cover=0.9))
    assert (result.outside_share, result.shapes, result.unread) == (0.2, 1, ["x[0]"])


def test_inputs_of_one_symbol_share_their_buckets() -> None:
    sizes = np.array([1, 1, 9, 9])
    dims = [Recorded(name, 0, "n", "t", sizes) for name in ("a", "b")]
    assert traffic("t", dims, [], Wanted(cover=1.0)).shapes == 2


def test_very_many_sizes_are_rounded_up_and_the_largest_stays() -> None:
    sizes = np.arange(1, 3 * buckets.DISTINCT_MAX)
    found = choices(sizes, Wanted(count_max=2, cover=1.0))
    assert found[-1].buckets[-1] == sizes[-1]
    assert found[-1].buckets[0] == pytest.approx(sizes[-1] / 2, rel=0.01)
