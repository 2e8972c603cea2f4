"""Choosing a calibration set: by coverage of what was recorded, long and rare inputs included, or plainly at random.

Which of the two is better is measured for every model (`calibration` in `squeeze`), because on the models measured so
far that real inputs were used mattered much, and which of them hardly at all.
"""

import numpy as np
import numpy.typing as npt

from loadslice.variants.recorded import Recorded


def features(recorded: Recorded) -> npt.NDArray[np.float64]:
    """What tells inputs apart, standardised: size, mean, spread, extremes, and for ids how rare their rarest are.

    Returns:
        [inputs, features].
    """
    rows = []
    occurrences = _occurrences(recorded)
    for feeds in recorded.feeds:
        row: list[float] = []
        for name, tensor in feeds.items():
            row += [float(np.log(side)) for side in tensor.shape[1:] if side > 0]
            values = tensor.astype(np.float64)
            row += [values.mean(), values.std(), values.min(), values.max()]
            if name in occurrences:
                row.append(float(np.mean([-np.log(occurrences[name][token]) for token in np.unique(tensor).tolist()])))
        rows.append(row)
    table = np.array(rows)
    deviation = table.std(axis=0)
    standardised: npt.NDArray[np.float64] = (table - table.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return standardised


def by_coverage(recorded: Recorded, count: int) -> list[int]:
    """Indices of inputs that leave no recorded input far from a chosen one (greedy k-centre).

    The first is the most ordinary one, each next the input farthest from all chosen so far; so extremes come early.

    References:
        Gonzalez, Clustering to minimize the maximum intercluster distance, 1985: at most twice the best radius.
    """
    table = features(recorded)
    first = int(np.argmin((table**2).sum(axis=1)))
    chosen = [first]
    distance = ((table - table[first]) ** 2).sum(axis=1)
    while len(chosen) < min(count, len(recorded)):
        # Inputs that are all the same distance away come in the order recorded.
        distance[chosen] = -1.0
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((table - table[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


def at_random(recorded: Recorded, count: int, seed: int) -> list[int]:
    """Indices of inputs drawn as often as traffic brings them, without repeats."""
    draw = np.random.default_rng(seed)
    share = recorded.counts / recorded.counts.sum()
    return [int(index) for index in draw.choice(len(recorded), min(count, len(recorded)), replace=False, p=share)]


def _occurrences(recorded: Recorded) -> dict[str, dict[int, int]]:
    """Inputs of ids (whole numbers) -> id -> times it was recorded."""
    found: dict[str, dict[int, int]] = {}
    for name, tensor in recorded.feeds[0].items():
        if tensor.dtype.kind in "iu":
            flat = np.concatenate([feeds[name].ravel() for feeds in recorded.feeds])
            values, counts = np.unique(flat, return_counts=True)
            found[name] = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return found
