from loadslice.serve.metrics import BOUNDS_S, Histogram


def test_a_histogram_counts_up_to_each_bound_and_sums_seconds() -> None:
    histogram = Histogram()
    for seconds in (0.00005, 0.0001, 0.00011, 0.3, 100.0):
        histogram.observe_ns(round(seconds * 1e9))
    counts = dict(histogram.cumulative())
    assert counts["0.0001"] == 2, "a bound holds what equals it"
    assert counts["0.00025"] == 3
    assert counts["0.5"] == 4
    assert counts["10.0"] == 4
    assert counts["+Inf"] == 5
    assert len(counts) == len(BOUNDS_S) + 1
    assert abs(histogram.sum_s - 100.30026) < 1e-9
