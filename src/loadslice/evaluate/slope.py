"""Is something rising? A slope that a few wild values do not move, with its 95 % interval."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]

POINTS_MAX = 400
"""Pairs grow with the square; more points are averaged in bins first."""


class Slope(NamedTuple):
    """Units of the values per unit of time."""

    slope: float
    low: float
    high: float


def robust(times: Float64s, values: Float64s) -> Slope | None:
    """Theil-Sen slope with Sen's interval from the variance of Kendall's statistic.

    Neighbours that are alike make the interval too narrow, so values are averaged in at most `POINTS_MAX` bins, and
    the interval is widened by the likeness of neighbouring residuals (effective sample size of a first-order process).

    Args:
        times: Rising, [n].
        values: [n].

    Returns:
        ``None`` for fewer than eight points or a span of nothing.

    References:
        Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968);
        Hamed and Rao, A modified Mann-Kendall trend test for autocorrelated data, J. Hydrology 204 (1998).
    """
    if len(times) > POINTS_MAX:
        bins = list(pairwise(np.linspace(0, len(times), POINTS_MAX + 1).astype(int)))
        times = np.array([times[start:end].mean() for start, end in bins])
        values = np.array([values[start:end].mean() for start, end in bins])
    count = len(times)
    if count < 8 or times[-1] <= times[0]:
        return None
    first, second = np.triu_indices(count, 1)
    spans = times[second] - times[first]
    usable = spans > 0
    slopes = np.sort((values[second] - values[first])[usable] / spans[usable])
    slope = float(np.median(slopes))
    residuals = values - slope * times
    residuals = residuals - residuals.mean()
    power = float((residuals**2).sum())
    likeness = float((residuals[1:] * residuals[:-1]).sum()) / power if power > 0 else 0.0
    wider = np.sqrt((1 + max(0.0, likeness)) / (1 - min(max(0.0, likeness), 0.95)))
    spread = 1.959963984540054 * wider * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    pairs = len(slopes)
    low = int(np.clip(round((pairs - spread) / 2), 0, pairs - 1))
    high = int(np.clip(round((pairs + spread) / 2), 0, pairs - 1))
    return Slope(slope, float(slopes[low]), float(slopes[high]))
