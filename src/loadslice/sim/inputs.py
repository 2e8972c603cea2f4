"""Which input stands for a row of a trace that names none: one rule, for simulated and for replayed traffic."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


def have_sizes(trace: pl.DataFrame, sizes: Int64s) -> bool:
    """Whether rows say how large they are, and inputs differ in that."""
    return "items" in trace.columns and int(sizes.min()) < int(sizes.max())


def draw_inputs(trace: pl.DataFrame, sizes: Int64s, draws: np.random.Generator) -> Int64s:
    """An input for each row: one of its size, or of the nearest there is; any, where it says none.

    Args:
        trace: Rows; ``items`` is their size, where the trace has it.
        sizes: [inputs] rows that each asks of the stage that it asks most of (`InputWork.size`).
        draws: Gone on with from part to part, so that a trace in parts is given the same as one that comes whole.

    Returns:
        [rows] places among ``sizes``.
    """
    if not have_sizes(trace, sizes):
        return draws.integers(0, len(sizes), trace.height)
    wanted = trace["items"].cast(pl.Float64).to_numpy()
    is_known = np.isfinite(wanted)
    known = np.unique(sizes)
    nearest = known[np.abs(np.where(is_known, wanted, 0.0)[:, None] - known).argmin(axis=1)]
    # One draw a row whatever its size: what a row is given does not hang on the rows before.
    share = draws.random(trace.height)
    drawn = (share * len(sizes)).astype(np.int64)
    for size in known:
        rows = is_known & (nearest == size)
        own = np.flatnonzero(sizes == size)
        drawn[rows] = own[(share[rows] * len(own)).astype(np.int64)]
    return drawn
