"""Finds in repeated measurements how the machine's speed wanders.

Within a run: each time becomes the normal score of its rank among the times of its own kind of work, so that long and
short work say the same thing the same way. What the scores of two kinds of work have in common when they follow each
other closely, and no longer when they lie further apart, is the machine's slow periods. Periods of one length give a
correlation that falls in a straight line to zero over that length, so it has halved after half a period.

Between runs: several tables of the same work say how far whole runs differ.
"""

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadslice.profiles.jobs import Key
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds

Float64s = npt.NDArray[np.float64]

LAGS_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)
"""Bounds of the distances in time that correlation is taken over."""
TIMES_MIN, PAIRS_MIN = 5, 100
"""Fewer times of one kind of work rank nothing; fewer pairs at one distance say nothing."""
NEIGHBOURS_MAX = 400
"""How many later times each time is paired with."""
LIKENESS_MAX = 0.95


class Timing(NamedTuple):
    """One run of one kind of work."""

    key: Key
    start_ns: int
    took_ns: int


def within(timings: Sequence[Timing]) -> Drift | None:
    """Slow periods of one run.

    Args:
        timings: In order of time.

    Returns:
        ``None`` when too little was measured to tell, or when close neighbours are no more alike than chance.
    """
    scores, start_s, kinds = _scores(timings)
    if len(scores) < PAIRS_MIN:
        return None
    correlation = _correlation(scores, start_s, kinds)
    near = correlation[0]
    # Two standard errors of a correlation between neighbours that have nothing in common.
    if near is None or near < 2 / math.sqrt(len(scores)):
        return None
    half_s = _half(correlation)
    return Drift(period_ms=round(2000 * half_s, 1), likeness=round(min(near, LIKENESS_MAX), 4))


def speeds(tables: Sequence[LatencyTable]) -> Float64s | None:
    """How much longer each of several runs took than they do on average, as the logarithm of the ratio.

    Args:
        tables: Of the same machine, one per run.

    Returns:
        [runs]; ``None`` where they have no work in common.
    """
    medians = [{kind(entry): _median(entry.latency_ms) for entry in table.entries} for table in tables]
    common = set(medians[0]).intersection(*medians[1:]) if medians else set()
    if not common:
        return None
    order = sorted(common, key=repr)
    logs = np.log([[of_run[which] for which in order] for of_run in medians])
    # The median over kinds of work: one kind that was disturbed in one run is not the machine.
    longer: Float64s = np.median(logs - logs.mean(axis=0), axis=1)
    return longer


def kind(entry: Entry) -> tuple[str, str, int, tuple[int, ...] | None]:
    """What tells entries of one table apart."""
    return entry.variant, entry.engine, entry.batch, None if entry.shape is None else tuple(entry.shape)


def _median(times: Milliseconds) -> float:
    assert times.p50 is not None, "what was measured has a median"
    return max(times.p50, 1e-6)


def _scores(timings: Sequence[Timing]) -> tuple[Float64s, Float64s, npt.NDArray[np.int64]]:
    """Normal scores of the times, seconds they began at, and a number for their kind; rare kinds are left out."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(timing.key for timing in timings))}
    kinds = np.array([numbers[timing.key] for timing in timings], np.int64)
    took = np.array([timing.took_ns for timing in timings], np.float64)
    start_s = np.array([timing.start_ns for timing in timings], np.float64) / 1e9
    scores = np.full(len(timings), np.nan)
    normal = NormalDist()
    for number in numbers.values():
        own = np.flatnonzero(kinds == number)
        if len(own) >= TIMES_MIN:
            rank = np.argsort(np.argsort(took[own], kind="stable"), kind="stable")
            scores[own] = [normal.inv_cdf((place + 0.5) / len(own)) for place in rank.tolist()]
    known = ~np.isnan(scores)
    return scores[known], start_s[known], kinds[known]


def _correlation(scores: Float64s, start_s: Float64s, kinds: npt.NDArray[np.int64]) -> list[float | None]:
    """Correlation of times of different kinds of work by their distance, per interval of `LAGS_S`."""
    sums, counts = np.zeros(len(LAGS_S)), np.zeros(len(LAGS_S))
    for apart in range(1, min(NEIGHBOURS_MAX, len(scores))):
        other = kinds[apart:] != kinds[:-apart]
        products = (scores[apart:] * scores[:-apart])[other]
        lag = np.searchsorted(LAGS_S, (start_s[apart:] - start_s[:-apart])[other], side="right") - 1
        sums += np.bincount(lag, products, len(LAGS_S))
        counts += np.bincount(lag, minlength=len(LAGS_S))
    variance = float(np.mean(scores**2))
    return [
        float(total / count / variance) if count >= PAIRS_MIN else None
        for total, count in zip(sums, counts, strict=True)
    ]


def _half(correlation: Sequence[float | None]) -> float:
    """Distance in seconds at which the correlation has halved; the longest that was seen if it does not."""
    near = correlation[0]
    assert near is not None
    middles = [(low + high) / 2 for low, high in itertools.pairwise((*LAGS_S, 2 * LAGS_S[-1]))]
    before_s, before = middles[0], near
    for middle_s, value in zip(middles[1:], correlation[1:], strict=True):
        if value is None:
            break
        if value <= near / 2:
            return before_s + (middle_s - before_s) * (before - near / 2) / (before - value)
        before_s, before = middle_s, value
    return before_s
