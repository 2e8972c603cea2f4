from array import array

import numpy as np
import pytest

from loadslice.policy import columns as c
from loadslice.serve.console.history import POINTS_MAX, History, Reading
from loadslice.spec.outcome import Outcome

SECOND_NS = 1_000_000_000


def reading(at_s: float, *, completed: int = 0, submitted: int = 0, busy_s: tuple[float, ...] = (0.0, 0.0)) -> Reading:
    outcomes = [0] * len(Outcome)
    outcomes[Outcome.COMPLETED] = completed
    engines = np.zeros((len(busy_s), c.ENGINE_COLUMNS), np.int64)
    engines[:, c.N_QUEUED] = 3
    return Reading(
        round(at_s * SECOND_NS),
        outcomes,
        submitted,
        0,
        np.array([round(busy * SECOND_NS) for busy in busy_s], np.int64),
        engines,
        np.zeros((1, c.STAGE_COLUMNS), np.int64),
        np.zeros((1, len(busy_s)), np.int64),
        np.zeros((1, 4), np.int64),
        [0] * len(busy_s),
        {"others": [0] * len(Outcome)},
    )


def test_points_are_differences_of_counters() -> None:
    history = History([1, 1])
    history.add(reading(0, completed=100, submitted=100), array("q"), 50.0)
    history.add(reading(0.5, completed=140, submitted=150), array("q", [8_000_000] * 40), 51.0)
    points = history.since(0)
    assert points["span_s"] == [0.5]
    assert (points["arrived"], points["completed"], points["inside"], points["queued"]) == ([50], [40], [10], [6])
    assert points["p50_ms"] == [pytest.approx(8, rel=0.03)]


def test_a_viewer_gets_what_it_has_not_and_never_more_than_is_kept() -> None:
    history = History([1])
    for second in range(POINTS_MAX + 50):
        history.add(reading(second, completed=second, busy_s=(0.0,)), array("q"), float(second))
    assert history.seconds == POINTS_MAX + 49
    assert len(history.since(0)["at_s"]) == POINTS_MAX
    assert history.since(history.seconds - 2)["at_s"] == [POINTS_MAX + 48, POINTS_MAX + 49]
    assert history.since(history.seconds)["at_s"] == []


def test_capacity_follows_from_the_busiest_engine() -> None:
    history = History([1, 2])
    history.add(reading(0), array("q"), 0.0)
    # 50 requests a second keep the first engine busy for half the time, and one of the other's two slots for a fifth.
    history.add(reading(2, completed=100, submitted=100, busy_s=(1.0, 0.4)), array("q"), 2.0)
    assert history.utilisation() == [0.5, 0.1]
    per_s, busiest, spread_per_s = history.capacity_per_s()
    assert (per_s, busiest) == (100.0, 0)
    assert spread_per_s == pytest.approx(50 / (1.4 / 6), rel=0.01)


def test_with_too_little_load_no_capacity_is_claimed() -> None:
    history = History([1, 1])
    assert history.capacity_per_s() == (None, None, None)
    history.add(reading(0), array("q"), 0.0)
    history.add(reading(10, completed=10, busy_s=(0.2, 0.0)), array("q"), 10.0)
    assert history.capacity_per_s() == (None, None, None)


def test_another_generation_begins_its_counters_anew_and_charts_go_on() -> None:
    history = History([1, 1])
    for second in range(3):
        history.add(reading(second, completed=10 * second), array("q"), float(second))
    history.restart([1])
    assert history.window(10) is None
    assert history.utilisation() == [None]
    history.add(reading(3, busy_s=(0.0,)), array("q"), 3.0)
    history.add(reading(4, completed=7, submitted=7, busy_s=(0.0,)), array("q"), 4.0)
    assert history.since(0)["completed"] == [10, 10, 7]
