"""Whether something grows: a slope with its interval, from samples that depend on their neighbours.

Samples of a server's memory seconds apart say nearly the same, so a line through all of them is far surer of itself
than it may be. The samples are cut into `BLOCKS` stretches, and the line goes through the medians of these.
"""

import statistics
from dataclasses import dataclass
from typing import Literal

BLOCKS = 10
STUDENT_T = 2.306
"""Two-sided 95 % of Student's t with `BLOCKS` - 2 degrees of freedom."""

Verdict = Literal["flat", "grows", "falls", "undecided"]


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through blocks of samples.

    Attributes:
        level: Median of all samples.
        per_hour: Slope, in the samples' unit an hour.
        low: Lower end of the slope's 95 % interval.
        high: Upper end.
    """

    level: float
    per_hour: float
    low: float
    high: float

    def verdict(self, share_per_hour: float) -> Verdict:
        """What the interval lets one say.

        Args:
            share_per_hour: Of the level; a slope of less, either way, is flat.
        """
        bound = share_per_hour * self.level
        if -bound <= self.low and self.high <= bound:
            return "flat"
        if self.low > 0:
            return "grows"
        return "falls" if self.high < 0 else "undecided"


def trend(times_s: list[float], values: list[float]) -> Trend:
    """Fit it.

    Args:
        times_s: When each sample was taken, ascending; at least two for each block.
        values: The samples.

    Raises:
        ValueError: Too few samples.
    """
    if len(values) < 2 * BLOCKS:
        raise ValueError(f"{len(values)} samples; a trend needs {2 * BLOCKS} or more")
    edges = [index * len(values) // BLOCKS for index in range(BLOCKS + 1)]
    parts = [slice(edges[index], edges[index + 1]) for index in range(BLOCKS)]
    hours = [statistics.fmean(times_s[part]) / 3600 for part in parts]
    medians = [statistics.median(values[part]) for part in parts]
    slope, start = statistics.linear_regression(hours, medians)
    left = [median - start - slope * hour for hour, median in zip(hours, medians, strict=True)]
    middle = statistics.fmean(hours)
    spread = sum((hour - middle) ** 2 for hour in hours)
    error = (sum(one * one for one in left) / (BLOCKS - 2) / spread) ** 0.5
    return Trend(statistics.median(values), slope, slope - STUDENT_T * error, slope + STUDENT_T * error)
