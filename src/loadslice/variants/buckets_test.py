import numpy as np
import pytest

from loadslice.variants.buckets import bucket_of, choose, padded, shape_of

LENGTHS = [((n,),) for n in (8, 16, 17, 100, 128)]


def waste(shapes: list, counts: list[float], buckets: list) -> float:
    return sum((buckets[bucket_of(s, buckets)][0][0] - s[0][0]) * c for s, c in zip(shapes, counts, strict=True))


def test_lengths_that_are_close_share_a_bucket() -> None:
    assert choose(LENGTHS, [1] * 5, 3) == [((17,),), ((100,),), ((128,),)]


def test_a_frequent_shape_keeps_a_bucket_of_its_own() -> None:
    assert ((16,),) in choose(LENGTHS, [1, 1000, 1, 1, 1], 3)


@pytest.mark.parametrize("seed", range(5))
def test_merging_wastes_at_most_a_half_more_than_the_best_choice_of_two(seed: int) -> None:
    draw = np.random.default_rng(seed)
    shapes = [((int(n),),) for n in draw.choice(np.arange(1, 300), 12, replace=False)]
    counts = draw.integers(1, 20, 12).tolist()
    largest = max(shapes)
    best = min(waste(shapes, counts, sorted({other, largest})) for other in shapes)
    assert waste(shapes, counts, choose(shapes, counts, 2)) <= 1.5 * best


def test_every_recorded_shape_fits_a_bucket_in_two_dimensions() -> None:
    draw = np.random.default_rng(0)
    shapes = [((3, int(h), int(w)),) for h, w in draw.integers(10, 90, (40, 2))]
    chosen = choose(shapes, [1.0] * 40, 4)
    assert len(chosen) <= 4
    assert all(bucket_of(shape, chosen) < len(chosen) for shape in shapes)


def test_padding_is_zeros_at_the_end() -> None:
    feeds = {"x": np.ones((1, 2), np.float32), "m": np.ones((1, 2), np.int64)}
    assert shape_of(feeds) == ((2,), (2,))
    assert padded(feeds, ((3,), (3,)))["m"].tolist() == [[1, 1, 0]]
