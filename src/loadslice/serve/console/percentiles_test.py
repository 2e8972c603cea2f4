from array import array

import numpy as np
import pytest

from loadslice.serve.console.percentiles import CLASSES_MAX, counts, percentiles_ms


def test_percentiles_are_within_half_a_class_of_the_exact_ones() -> None:
    times_ns = np.random.default_rng(5).lognormal(16, 1, 20_000).astype(np.int64)
    exact = np.percentile(times_ns, (50, 95, 99), method="inverted_cdf") / 1e6
    assert percentiles_ms(counts(array("q", times_ns.tolist()))) == pytest.approx(exact, rel=0.03)


def test_a_window_is_the_sum_of_its_seconds() -> None:
    first, second = [1_000_000] * 10, [80_000_000] * 10
    assert (counts(first) + counts(second) == counts(first + second)).all()


def test_of_nothing_nothing_is_said() -> None:
    assert percentiles_ms(counts([])) == [None, None, None]


def test_what_is_out_of_range_counts_as_the_nearest() -> None:
    found = counts([-5, 0, 1, 2**62])
    assert found[0] == 3
    assert found[CLASSES_MAX - 1] == 1
