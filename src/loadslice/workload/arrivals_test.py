import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadslice.workload import arrivals
from loadslice.workload.arrivals import Clock

UNKNOWN = Clock(0.0, known=False)
HOUR, DAY = 3600.0, 86_400.0


def poisson(rate_per_s: float, span_s: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.random(int(rate_per_s * span_s))) * span_s


def tide(days: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    candidates = np.sort(rng.random(int(days * 20_000))) * days * DAY
    return candidates[rng.random(len(candidates)) < 0.55 + 0.45 * np.sin(2 * np.pi * candidates / DAY)]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.sampled_from([60.0, 3600.0]))
def test_the_busiest_window_is_the_one_a_naive_search_finds(seconds: list[int], window_s: float) -> None:
    times = np.sort(np.array(seconds, float))
    naive = max(sum(begin <= time < begin + window_s for time in times) for begin in times)
    assert arrivals._busiest(times, window_s) == naive


def test_peaks_are_unknown_in_a_trace_shorter_than_their_window() -> None:
    rate = arrivals.rates(np.arange(0, 120.0))
    assert rate.mean == pytest.approx(120 / 119)
    assert rate.peak_1m == 1.0
    assert rate.peak_1h is None
    assert arrivals.rates(np.array([0.0])).mean is None


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        (poisson(5, HOUR), "uniform"),
        (np.arange(0, HOUR), "uniform"),
        (np.repeat(poisson(0.1, HOUR), 30) + np.tile(np.arange(30) * 1e-3, 360), "bursty"),
        (tide(3), "tidal"),
        (poisson(5, 3 * DAY), "uniform"),
        (poisson(0.002, DAY), "sparse"),
        (np.array([0.0]), "sparse"),
    ],
)
def test_the_class_follows_the_pattern_and_gives_its_reason(times: np.ndarray, kind: str) -> None:
    found = arrivals.describe(np.sort(times), UNKNOWN, None)
    assert found.class_ == kind
    assert any(character.isdigit() for character in found.why)


@pytest.mark.parametrize("times", [np.array([0.0, 0.011]), np.array([0.0, 0.0, 0.0, 0.0, 1.0])])
def test_of_a_few_requests_nothing_is_said_but_that_they_are_few(times: np.ndarray) -> None:
    found = arrivals.describe(times, UNKNOWN, None)
    assert found.class_ == "uniform"
    assert found.why == f"taken so: {len(times)} requests are too few to tell (at least 30)"


def test_bursts_show_in_the_counts_when_the_gaps_were_not_recorded() -> None:
    rng = np.random.default_rng(0)
    ticks_s = np.repeat(np.arange(1000) * 3.0, rng.choice([1, 40], 1000, p=[0.8, 0.2]))
    spread = np.sort(ticks_s + 3 * rng.random(len(ticks_s)))
    assert arrivals.describe(spread, UNKNOWN, 3000.0).class_ == "bursty"


def test_a_tide_is_not_mistaken_for_bursts_in_the_detrended_cv() -> None:
    found = arrivals.describe(tide(3), UNKNOWN, None)
    assert found.interarrival_cv is not None
    assert found.interarrival_cv > 1.3
    assert found.interarrival_cv_detrended == pytest.approx(1.0, abs=0.1)


def test_the_hour_curve_starts_at_the_wall_clock_and_is_null_where_nothing_was_seen() -> None:
    thursday_18_15 = Clock(3 * DAY + 18.25 * HOUR, known=True)
    curve = arrivals.hour_of_week(np.arange(0, HOUR, 0.5), thursday_18_15)
    assert len(curve) == 168
    assert [hour for hour, rate in enumerate(curve) if rate is not None] == [90, 91]
    assert curve[90] == pytest.approx(2.0, rel=0.01)
    assert curve[91] == pytest.approx(2.0, rel=0.01)


def test_weeks_are_folded_into_one() -> None:
    curve = arrivals.hour_of_week(np.arange(0, 15 * DAY, 100.0), Clock(6 * DAY, known=True))
    assert all(rate == pytest.approx(0.01, rel=0.05) for rate in curve)


@pytest.mark.parametrize(
    ("cv", "spread", "said"),
    [
        (1.14, 1.42, "somewhat more varied than Poisson"),
        (1.02, 1.42, "somewhat more varied than Poisson"),
        (1.02, 1.05, "near Poisson"),
        (0.2, 0.1, "more even than Poisson"),
        (None, None, "few requests"),
    ],
)
def test_uniform_arrivals_say_how_they_stand_to_poisson(cv: float | None, spread: float | None, said: str) -> None:
    kind, why = arrivals.classify(np.arange(0, HOUR), cv, spread)
    assert kind == "uniform"
    assert said in why
