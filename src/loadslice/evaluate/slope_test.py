import numpy as np

from loadslice.evaluate.slope import robust

TIMES = np.arange(100.0)


def test_a_rising_line_is_found_through_noise_and_wild_values() -> None:
    rng = np.random.default_rng(0)
    values = 0.5 * TIMES + rng.normal(0, 1, 100)
    values[::10] += 500
    found = robust(TIMES, values)
    assert found is not None
    assert found.low < 0.5 < found.high
    assert found.low > 0.4


def test_noise_alone_has_zero_inside_its_interval_19_times_of_20() -> None:
    rng = np.random.default_rng(1)
    found = [robust(TIMES, rng.normal(10, 2, 100)) for _ in range(100)]
    assert sum(one is not None and one.low <= 0 <= one.high for one in found) >= 90


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    alone = rng.normal(0, 1, 100)
    alike = np.convolve(rng.normal(0, 1, 110), np.ones(10) / 10, "same")[:100] * np.sqrt(10)
    wide, narrow = robust(TIMES, alike), robust(TIMES, alone)
    assert wide is not None
    assert narrow is not None
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_long_series_are_binned_and_few_points_say_nothing() -> None:
    many = np.arange(5000.0)
    found = robust(many, 2 * many)
    assert found is not None
    assert abs(found.slope - 2) < 1e-9
    assert robust(TIMES[:7], TIMES[:7]) is None
    assert robust(np.zeros(20), TIMES[:20]) is None
