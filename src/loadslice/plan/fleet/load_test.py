"""Traffic by time, as valleys are read from it."""

import numpy as np
import polars as pl
import pytest

from loadslice.plan.fleet import specimen
from loadslice.plan.fleet.load import load_of
from loadslice.plan.fleet.setting import set_up
from loadslice.spec.plan import Load


def load(arrival_s: np.ndarray) -> Load:
    frame = pl.DataFrame({"arrival_s": arrival_s})
    setting = set_up(frame, specimen.pipeline(), specimen.latency(), specimen.OFFERS, specimen.BUDGET)
    return load_of(setting.traffic, setting.demand)


def test_three_days_are_the_hours_of_a_mean_day_in_their_order() -> None:
    hours = np.repeat(np.arange(72), np.where(np.arange(72) % 24 < 8, 10, 40))
    found = load(np.append(hours * 3600.0, 72 * 3600.0 - 1e-6))
    assert [bucket.hour for bucket in found.buckets] == list(range(24))
    assert {bucket.seconds for bucket in found.buckets} == {3600.0}
    assert [bucket.requests for bucket in found.buckets] == [10] * 8 + [40] * 16
    assert found.rate_per_s == pytest.approx(found.requests / found.span_s)


def test_an_hour_that_the_last_day_lacks_is_not_taken_to_be_empty() -> None:
    found = load(np.arange(0, 30 * 3600, 60.0))
    assert {bucket.requests for bucket in found.buckets} <= {60, 61}


def test_less_than_a_day_is_parts_one_after_the_other() -> None:
    found = load(np.arange(0, 3600.0, 1.0))
    assert len(found.buckets) == 24
    assert sum(bucket.requests for bucket in found.buckets) == 3600
    assert sum(bucket.seconds for bucket in found.buckets) == pytest.approx(3599.0)


@pytest.mark.parametrize("arrival_s", [[0.0], [0.0, 3600.0]], ids=["one request", "an hour of silence"])
def test_a_trace_of_next_to_nothing_has_a_load(arrival_s: list[float]) -> None:
    found = load(np.array(arrival_s))
    assert found.requests == len(arrival_s)
    assert np.isfinite(found.peak_rate_per_s)
