"""A small sample of a trace that keeps what breaks a service.

Of n requests: 5 % are the longest, 5 % the most complex, 40 % the burstiest stretch (consecutive, so that its gaps stay
true), and the rest is a fair draw, stratified by hour and by size so that rare hours and rare sizes keep their share.

- longest: by recorded latency, else by tokens out.
- most complex: by the best rank a request reaches in items, tokens in or bytes in.
- burstiest: the stretch of that many consecutive requests that took the least time.

Arrivals keep their true times, so rates of a sample are not the service's; its notes say so.
"""

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.workload.trace import Trace

LONGEST_SHARE = COMPLEX_SHARE = 0.05
BURST_SHARE = 0.4
SIZE_STRATA = 5
HOUR_S = 3600.0

Rows = npt.NDArray[np.int64]


def representative(trace: Trace, n: int, seed: int) -> Trace:
    """Draw a sample as the module says.

    Args:
        trace: Any trace; one of at most n requests is returned whole.
        n: Requests to keep.
        seed: Of the fair draw.
    """
    frame = trace.frame
    if frame.height <= n:
        return trace
    longest = _top(_length(frame), round(LONGEST_SHARE * n))
    complex_ = _top(_complexity(frame), round(COMPLEX_SHARE * n))
    burst = _burst(frame["arrival_s"].to_numpy(), round(BURST_SHARE * n))
    kept = np.unique(np.concatenate([longest, complex_, burst]))
    rest = _stratified(frame, kept, n - len(kept), np.random.default_rng(seed))
    rows = np.sort(np.concatenate([kept, rest]))
    sampled = frame[rows]
    note = (
        f"a representative sample of {n} of {frame.height} requests (longest {len(longest)}, "
        f"most complex {len(complex_)}, burstiest {len(burst)} in a row, {len(rest)} drawn fairly, seed {seed}): "
        "its rates are not the service's"
    )
    return Trace(sampled, {**trace.meta, "notes": [*trace.notes, note]})


def _length(frame: pl.DataFrame) -> npt.NDArray[np.float64] | None:
    for column in ("latency_ms", "tokens_out"):
        if column in frame.columns:
            return frame[column].cast(pl.Float64).fill_null(-1.0).to_numpy()
    return None


def _complexity(frame: pl.DataFrame) -> npt.NDArray[np.float64] | None:
    ranks = [
        frame[column].rank("average").fill_null(0.0).to_numpy()
        for column in ("items", "tokens_in", "bytes_in")
        if column in frame.columns
    ]
    return np.max(ranks, axis=0) if ranks else None


def _top(score: npt.NDArray[np.float64] | None, count: int) -> Rows:
    if score is None or count == 0:
        return np.empty(0, np.int64)
    # Stable, so that equal scores are taken in arrival order whatever the seed.
    return np.argsort(-score, kind="stable")[:count]


def _burst(times_s: npt.NDArray[np.float64], count: int) -> Rows:
    if count < 2:
        return np.empty(0, np.int64)
    begin = int(np.argmin(times_s[count - 1 :] - times_s[: len(times_s) - count + 1]))
    return np.arange(begin, begin + count)


def _stratified(frame: pl.DataFrame, kept: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Draw from what is not kept: strata in order, rows shuffled inside, every k-th taken from a random start."""
    free = np.setdiff1d(np.arange(frame.height), kept)
    hour = (frame["arrival_s"].to_numpy()[free] // HOUR_S).astype(np.int64)
    score = _complexity(frame)
    size = np.zeros(len(free)) if score is None else score[free]
    stratum = np.minimum(
        np.argsort(np.argsort(size, kind="stable")) * SIZE_STRATA // max(1, len(free)), SIZE_STRATA - 1
    )
    order = np.lexsort((rng.random(len(free)), stratum, hour))
    picks = ((np.arange(count) + rng.random()) * len(free) / count).astype(np.int64) if count else np.empty(0, np.int64)
    return free[order[picks]]
