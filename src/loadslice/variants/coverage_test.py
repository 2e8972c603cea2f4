import numpy as np

from loadslice.variants.coverage import at_random, by_coverage, features
from loadslice.variants.recorded import Recorded


def recorded(lengths: list[int], counts: list[float] | None = None) -> Recorded:
    feeds = [{"ids": np.arange(1, length + 1)[None]} for length in lengths]
    return Recorded([str(i) for i in range(len(lengths))], feeds, np.array(counts or [1.0] * len(lengths)), None)


def test_coverage_takes_the_one_long_input_early_where_chance_rarely_does() -> None:
    few_long = recorded([10] * 50 + [12] * 49 + [400])
    assert 99 in by_coverage(few_long, 3)
    assert sum(99 in at_random(few_long, 3, seed) for seed in range(50)) < 10


def test_coverage_chooses_each_input_once_and_no_more_than_there_are() -> None:
    chosen = by_coverage(recorded([3, 3, 3, 5]), 10)
    assert sorted(chosen) == [0, 1, 2, 3]


def test_random_draws_follow_traffic_and_their_seed() -> None:
    busy = recorded([4, 5, 6, 7], [1000.0, 1.0, 1.0, 1.0])
    assert sum(at_random(busy, 1, seed) == [0] for seed in range(50)) > 45
    assert at_random(busy, 2, 7) == at_random(busy, 2, 7)


def test_rare_ids_set_an_input_apart() -> None:
    feeds = [{"ids": np.array([[1, 2, 3, 4]])} for _ in range(9)] + [{"ids": np.array([[1, 2, 3, 9]])}]
    table = features(Recorded([str(i) for i in range(10)], feeds, np.ones(10), None))
    assert np.abs(table[9]).max() > 2
    assert np.isfinite(table).all()
