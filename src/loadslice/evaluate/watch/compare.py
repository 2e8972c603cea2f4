"""Two samples compared: a distance that says how much, and a probability that says whether it may be chance.

Every test takes ``clumping``: answers that come in clumps (the same sender, the same kind of document) are worth fewer
independent ones, and evidence is divided by it. Tails of 1e-6 are used here, so tests with heavy ones are avoided: the
probability beside a population stability index is Pearson's, whose statistic does not run away where a bin is empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadslice.spec.errors import MissingExtraError

try:
    from scipy import special, stats  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtraError("watch", "comparing distributions") from error

Floats = npt.NDArray[np.float64]

MANY = 100
"""Values below which nothing can be said of how they clump."""
WINDOWS_MIN = 20
BINS = 10
EXPECTED_MIN = 5.0
"""Smaller expected counts are pooled: Pearson's approximation wants that many (Cochran 1954)."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a test found."""

    distance: float
    p: float
    """Probability of so much evidence, or more, by chance."""


def ks(reference: Floats, window: Floats, clumping: float) -> Compared:
    """Two-sample Kolmogorov-Smirnov.

    Args:
        reference: Sorted.
        window: Any order.
        clumping: At least 1.

    References:
        Kolmogorov's limit distribution; with ties it says too much rather than too little.
    """
    ordered = np.sort(window)
    points = np.concatenate([reference, ordered])
    below = np.searchsorted(reference, points, side="right") / len(reference)
    other = np.searchsorted(ordered, points, side="right") / len(ordered)
    distance = float(np.abs(below - other).max())
    size = len(reference) * len(ordered) / (len(reference) + len(ordered)) / clumping
    return Compared(distance, float(special.kolmogorov(np.sqrt(size) * distance)))


def edges(reference: Floats) -> Floats:
    """Inner edges of bins that hold a tenth of the reference each; fewer where values repeat.

    Args:
        reference: Sorted.
    """
    found: Floats = np.unique(np.quantile(reference, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    return found


def psi(reference: Floats, window: Floats, cuts: Floats, clumping: float) -> Compared:
    """Population stability index over quantile bins of the reference, and Pearson's test of the same counts.

    ``sum (q - p) ln(q / p)``; half a count is added everywhere, so that an empty bin is no infinity.

    Args:
        reference: [n] figures, in any order.
        window: [m] figures to compare.
        cuts: From `edges`.
        clumping: At least 1.
    """
    bins = len(cuts) + 1
    first = np.bincount(np.searchsorted(cuts, reference, side="left"), minlength=bins).astype(np.float64)
    second = np.bincount(np.searchsorted(cuts, window, side="left"), minlength=bins).astype(np.float64)
    p = (first + 0.5) / (first.sum() + 0.5 * bins)
    q = (second + 0.5) / (second.sum() + 0.5 * bins)
    return Compared(float(((q - p) * np.log(q / p)).sum()), homogeneity(first, second, clumping))


def homogeneity(first: Floats, second: Floats, clumping: float) -> float:
    """Pearson's test that two rows of counts come from one distribution; rare columns are pooled."""
    table = _pooled(np.stack([first, second]))
    if table.shape[1] < 2:
        return 1.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum()) / clumping
    return float(special.chdtrc(table.shape[1] - 1, statistic))


def _pooled(table: Floats) -> Floats:
    """Columns whose smaller expected count is too small, put together."""
    total = table.sum()
    expected = table.sum(axis=0) * table.sum(axis=1).min() / total
    rare = expected < EXPECTED_MIN
    if not rare.any():
        return table
    pooled = np.concatenate([table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)], axis=1)
    kept: Floats = pooled[:, pooled.sum(axis=0) > 0]
    return kept


def classes(first: Mapping[float, int], second: Mapping[float, int], clumping: float) -> Compared:
    """Mixes of classes: total variation distance, and Pearson's test."""
    names = sorted(first.keys() | second.keys())
    a = np.array([first.get(name, 0) for name in names], np.float64)
    b = np.array([second.get(name, 0) for name in names], np.float64)
    distance = 0.5 * float(np.abs(a / a.sum() - b / b.sum()).sum())
    return Compared(distance, homogeneity(a, b, clumping))


def shares(first: tuple[int, int], second: tuple[int, int], clumping: float) -> Compared:
    """Two shares, each as hits of how many: their difference, and Fisher's exact test."""
    (hits_a, all_a), (hits_b, all_b) = first, second
    distance = abs(hits_b / all_b - hits_a / all_a)
    counts = [
        [round(hits_a / clumping), round((all_a - hits_a) / clumping)],
        [round(hits_b / clumping), round((all_b - hits_b) / clumping)],
    ]
    return Compared(distance, float(stats.fisher_exact(counts)[1]))


def more(hits: int, of: int, share: float) -> float:
    """Probability of so many hits, or more, where each has this chance."""
    if hits == 0:
        return 1.0
    return float(special.bdtrc(hits - 1, of, min(max(share, 0.0), 1.0)))


def holm(probabilities: Sequence[float], alpha: float) -> list[bool]:
    """Which tests of one look count, if any of them is to be wrong with probability ``alpha`` at most (Holm 1979)."""
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    found = [False] * len(probabilities)
    for rank, index in enumerate(order):
        if probabilities[index] > alpha / (len(order) - rank):
            break
        found[index] = True
    return found


def clumping(values: Floats) -> float:
    """How many answers are worth one independent one: at least 1.

    Variance of window means over what it would be for independent values, of the values and of the share in each of
    their bins (a mix may come in clumps though its mean does not), the worst over several widths. A ratio that one in a
    hundred series of independent values would show is taken for 1.

    Args:
        values: In the order they came.
    """
    if len(values) < MANY or values.var() == 0:
        return 1.0
    cuts = edges(np.sort(values))
    bins = np.searchsorted(cuts, values, side="left")
    series = [values, *((bins == one).astype(np.float64) for one in range(len(cuts) + 1))]
    return max(_inflation(one) for one in series)


def _inflation(values: Floats) -> float:
    spread = float(values.var())
    worst = 1.0
    for width in {10, 50, len(values) // WINDOWS_MIN}:
        windows = len(values) // width if width > 1 else 0
        if spread == 0 or windows < WINDOWS_MIN:
            continue
        means = values[: windows * width].reshape(windows, width).mean(axis=1)
        ratio = float(means.var(ddof=1)) * width / spread
        if ratio * (windows - 1) > special.chdtri(windows - 1, 0.01):
            worst = max(worst, ratio)
    return worst
