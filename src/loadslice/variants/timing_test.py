import time

import numpy as np
import pytest

from loadslice.backends.base import TensorInfo
from loadslice.variants.timing import Contender, Speed, in_turns, items_per_s


class Spin:
    """A session that computes for a known time."""

    def __init__(self, ms: float) -> None:
        self.inputs: list[TensorInfo] = []
        self.ms, self.runs = ms, 0

    def run(self, feeds: dict, slot: int = 0) -> dict:
        self.runs += 1
        end = time.process_time_ns() + self.ms * 1e6
        while time.process_time_ns() < end:
            pass
        return {}


FEEDS = {"x": np.ones((2, 1))}


def test_a_model_of_half_the_work_is_twice_as_fast_in_processor_time() -> None:
    slow, fast = Contender("slow", Spin(4), [FEEDS]), Contender("fast", Spin(2), [FEEDS])
    assert in_turns([slow, fast], 0.1) >= 5
    assert 1.8 < fast.speedup(slow, slow).cpu < 2.2


def test_every_contender_is_timed_once_in_every_round() -> None:
    both = [Contender(name, Spin(0.1), [FEEDS]) for name in "ab"]
    rounds = in_turns(both, 0.01)
    assert [len(one.wall_ns) for one in both] == [rounds, rounds]


def test_a_round_in_which_others_held_the_processor_counts_for_nothing() -> None:
    both = [Contender(name, Spin(0.1), [FEEDS]) for name in "ab"]
    base, one = both
    base.wall_ns, one.wall_ns = [200, 200, 200, 9000], [100, 100, 100, 100]
    base.cpu_ns, one.cpu_ns = [200] * 4, [150] * 4
    base.clean, one.clean = [True, True, True, False], [True] * 4
    assert one.speedup(base, base) == Speed(wall=2.0, cpu=pytest.approx(4 / 3), clean_rounds=3)


def test_without_clean_rounds_the_ratio_of_processor_time_stands() -> None:
    base, one = (Contender(name, Spin(0.1), [FEEDS]) for name in "ab")
    base.wall_ns, one.wall_ns, base.clean, one.clean = [900] * 5, [100] * 5, [False] * 5, [True] * 5
    base.cpu_ns, one.cpu_ns = [200] * 5, [100] * 5
    assert one.speedup(base, base).best == (2.0, "processor")


def test_throughput_counts_rows_of_finished_runs() -> None:
    session = Spin(1)
    rate = items_per_s(session, [FEEDS], 1, 0.1, one_slot=True)
    assert 0 < rate <= 2 * 1000
