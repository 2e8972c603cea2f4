import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadslice.workload import ticks

times = st.lists(st.integers(0, 10_000), min_size=1, max_size=200).map(
    lambda values: np.sort(np.array(values, np.int64))
)


@pytest.mark.parametrize("how", ["uniform", "even"])
@given(starts=times, tick_ns=st.integers(1, 5_000), seed=st.integers(0, 3))
def test_spreading_keeps_order_and_count_and_stays_inside_the_tick(how, starts, tick_ns, seed) -> None:
    spread = ticks.spread(starts, tick_ns, how, np.random.default_rng(seed))
    assert len(spread) == len(starts)
    assert (np.diff(spread) >= 0).all()
    assert (spread >= starts).all()
    assert (spread < starts + tick_ns).all()
    following = np.searchsorted(starts, starts, side="right")
    inside = following < len(starts)
    assert (spread[inside] < starts[following[inside]]).all()


def test_the_same_seed_spreads_the_same_way() -> None:
    starts = np.repeat(np.arange(10) * 1000, 10)
    first, second = (ticks.spread(starts, 1000, "uniform", np.random.default_rng(7)) for _ in range(2))
    assert (first == second).all()


def test_ticks_with_jitter_and_gaps_are_recognised() -> None:
    rng = np.random.default_rng(0)
    starts = np.cumsum(rng.choice([2999, 3000, 3001, 6000], 200))
    assert ticks.find_tick_ns(np.repeat(starts, rng.poisson(10, 200))) == 3000


def test_poisson_arrivals_have_no_tick() -> None:
    rng = np.random.default_rng(0)
    assert ticks.find_tick_ns(np.cumsum(rng.exponential(1e6, 10_000)).astype(np.int64)) is None


def test_bulk_arrivals_at_any_time_have_no_tick() -> None:
    rng = np.random.default_rng(0)
    starts = np.cumsum(rng.exponential(1e9, 500)).astype(np.int64)
    assert ticks.find_tick_ns(np.repeat(starts, 5)) is None


def test_whole_seconds_at_a_low_rate_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    seconds = np.floor(np.cumsum(rng.exponential(10.0, 1000))).astype(np.int64)
    assert ticks.find_tick_ns(seconds * 10**9) is None
