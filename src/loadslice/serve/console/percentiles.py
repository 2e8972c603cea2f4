"""Percentiles of times over a sliding window, from counts by size.

Sixteen classes for each doubling: a class is 4.4 % wide, and what is said of it is its middle, so a percentile is off
by at most 2.2 %. A window is the sum of its seconds' counts, which no order of summation changes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PER_OCTAVE = 16
LEAST_LOG2, MOST_LOG2 = 10, 37
"""From a microsecond to two minutes; what lies outside counts as the nearest."""

CLASSES_MAX = (MOST_LOG2 - LEAST_LOG2) * PER_OCTAVE
PERCENTS = (50, 95, 99)

Counts = NDArray[np.int64]


def counts(times_ns: Sequence[int]) -> Counts:
    """How many times lie in each class.

    Args:
        times_ns: Anything of int64 that gives its buffer.
    """
    if not len(times_ns):
        return np.zeros(CLASSES_MAX, np.int64)
    sizes = np.log2(np.maximum(np.asarray(times_ns, np.int64), 1))
    places = ((sizes - LEAST_LOG2) * PER_OCTAVE).astype(np.int64).clip(0, CLASSES_MAX - 1)
    return np.bincount(places, minlength=CLASSES_MAX)


def percentiles_ms(found: Counts) -> list[float | None]:
    """The `PERCENTS` of what was counted, milliseconds; ``None``: nothing was."""
    sums = np.cumsum(found)
    total = int(sums[-1])
    if not total:
        return [None] * len(PERCENTS)
    # The k-th smallest of n is percentile 100 k / n: the first class that reaches it.
    ranks = [max(1, -(-total * percent // 100)) for percent in PERCENTS]
    places = np.searchsorted(sums, ranks)
    return [_round(2.0 ** (LEAST_LOG2 + (place + 0.5) / PER_OCTAVE) / 1e6) for place in places.tolist()]


def _round(value: float) -> float:
    """To three digits, which is more than a class is worth."""
    return float(f"{value:.3g}")
