"""Whether what a runtime computed, and what it was told to compute, can be right: a wrong token is never silent.

What is looked at costs nothing beside a step: the likeliest token of each row is sought anyway, and of a row with a NaN
that is the NaN.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadslice.backends.language.base import Float32s

UNTRUE_STEPS_MAX = 3
"""Steps in a row of which no row can be true: its engine is not to be trusted any more."""


def fault_of_step(rows: Sequence[tuple[int, int, bool]], known: dict[int, tuple[int, int]]) -> str:
    """Why rows of a step cannot be computed; empty: they can.

    Args:
        rows: As `messages.Step` has them.
        known: Of each sequence that is here, tokens with KV and tokens in all.
    """
    if len({row for row, _, _ in rows}) < len(rows):
        return "a sequence stands in the step twice"
    for row, upto, _ in rows:
        if row not in known:
            return f"sequence {row} is not here"
        has, whole = known[row]
        if not has < upto <= whole:
            return f"sequence {row} has KV of {has} of its {whole} tokens; {upto} cannot be next"
    return ""


def fault_of_shape(logits: Float32s, rows: int, vocabulary: int) -> str:
    """Why these are no logits of so many rows; empty: they are."""
    if logits.shape == (rows, vocabulary):
        return ""
    return f"the runtime gave {logits.shape} numbers for {rows} rows of {vocabulary}"


def untrue_rows(logits: Float32s, likeliest: NDArray[np.int64]) -> dict[int, str]:
    """Rows whose numbers cannot be a model's, and why.

    Args:
        logits: [rows, vocabulary].
        likeliest: [rows] where each has its most; of a row with a NaN, where that is.
    """
    most = logits[np.arange(len(logits)), likeliest]
    # A row that nobody has written is the same everywhere.
    same = (logits[:, 0] == most) & (logits[:, -1] == most) & (logits[:, logits.shape[1] // 2] == most)
    found = dict.fromkeys(np.flatnonzero(same).tolist(), "the engine computed nothing")
    return found | dict.fromkeys(np.flatnonzero(~np.isfinite(most)).tolist(), "the engine computed NaN or infinity")
