"""Times that come in ticks: recognised, and spread inside the tick.

A recorder that batches (Mooncake stamps every 3 s) or truncates (nginx stamps whole seconds) makes many requests share
one time. Replayed as they stand they are a bulk arrival per tick, and their gaps say nothing. Spreading them inside the
tick keeps every count per tick and invents the order of nothing: rows stay in file order.

"uniform" draws the places inside the tick independently, which is what a Poisson process with that count would have
done; "even" spaces them equally, which is smoother than any real traffic and therefore kind to every queue.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

Spread = Literal["uniform", "even", "none"]
Times = npt.NDArray[np.int64]

ROWS_MIN = 50
"""Fewer rows cannot show a pattern."""
TIED_SHARE_MIN = 0.2
"""A Poisson process cut to ticks of half its mean gap has 21 % of gaps at zero; a shorter tick hardly shows."""
ON_GRID_SHARE_MIN = 0.95
GRID_TOLERANCE = 0.02
"""Mooncake's ticks wander by 3 ms in 3,000."""


def find_tick_ns(times_ns: Times) -> int | None:
    """Length of the tick that times come in, or ``None``.

    Args:
        times_ns: Not falling, shape (n,).
    """
    if len(times_ns) < ROWS_MIN:
        return None
    gaps = np.diff(times_ns)
    steps = gaps[gaps > 0]
    if len(steps) < 3 or len(steps) > (1 - TIED_SHARE_MIN) * len(gaps):
        return None
    least = np.percentile(steps, 1)
    tick = float(np.median(steps[steps <= 1.5 * least]))
    ratio = steps / tick
    off_grid = np.abs(ratio - np.round(ratio)) > GRID_TOLERANCE * np.maximum(np.round(ratio), 1)
    if off_grid.mean() > 1 - ON_GRID_SHARE_MIN:
        return None
    return round(tick)


def spread(times_ns: Times, tick_ns: int, how: Spread, rng: np.random.Generator) -> Times:
    """Spread rows that share a time over the tick that begins there.

    Args:
        times_ns: Not falling, shape (n,).
        tick_ns: Length of the tick; a tick is cut short where the next begins.
        how: See the module.
        rng: Used by "uniform" only.

    Returns:
        Times not falling, each in ``[tick begin, next tick begin)``.
    """
    if how == "none" or len(times_ns) == 0:
        return times_ns
    starts, first, count = np.unique(times_ns, return_index=True, return_counts=True)
    lengths = np.full(len(starts), tick_ns, np.int64)
    lengths[:-1] = np.minimum(lengths[:-1], np.diff(starts))
    group = np.repeat(np.arange(len(starts)), count)
    if how == "even":
        place = (np.arange(len(times_ns)) - first[group] + 0.5) / count[group]
    else:
        draws = rng.random(len(times_ns))
        # Sorting (group, draw) sorts the draws inside each group and leaves the groups where they are.
        place = draws[np.lexsort((draws, group))]
    inside: Times = np.floor(place * lengths[group]).astype(np.int64)
    return starts[group] + np.minimum(inside, lengths[group] - 1)
