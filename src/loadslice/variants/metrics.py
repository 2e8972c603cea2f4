"""How good a variant's answers are, and in which way they differ from the source's.

Three comparisons with the source model need no labels (``cosine``, ``top1``, ``sqnr_db``); with labels ``top1`` is
accuracy; a function of the user's own is any other. All are means over inputs, higher is better.

The median over inputs of the signal-to-noise ratio is used, never the pooled one: on a model whose error differs much
between inputs a pooled figure is the figure of its worst few.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadslice.spec.errors import InputError
from loadslice.spec.variant import Difference
from loadslice.spec.work import Tensor
from loadslice.variants.recorded import Recorded

Outputs = Mapping[str, Tensor]

Score = Callable[[list[Outputs], list[Any]], float]
"""A metric of the user's own: outputs of all inputs, and labels (or the source's outputs where there are none)."""

BUILT_IN = ("cosine", "top1", "sqnr_db")
SQNR_DB_EQUAL = 200.0
"""Stands for "equal" where a number is needed; float32 cannot resolve more than about 150 dB."""

LABELLED_LOSS_MAX = 0.005
"""Default floor with labels or a function: half a point below the source."""
COSINE_MIN = 0.99
"""Default floor without: the least that cost no task metric in what was measured (see docs)."""

_FLOOR = re.compile(r"\s*([A-Za-z_]\w*)\s*>=\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*")


@dataclass(frozen=True, slots=True)
class Floor:
    """The least a variant must reach."""

    metric: str
    least: float

    def __str__(self) -> str:
        return f"{self.metric}>={self.least:.6g}"


def parse_floor(text: str) -> Floor:
    """Read ``metric>=x``.

    Raises:
        InputError: Not of that form, or not a finite number.
    """
    match = _FLOOR.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        least = float(match[2])
    except ValueError:
        raise InputError(f"--floor '{text[:80]}' is not like 'cosine>=0.99'.") from None
    if not math.isfinite(least):
        raise InputError(f"--floor '{text[:80]}': not a finite number.")
    return Floor(match[1], least)


class Judge:
    """Marks a variant's answers on one fixed set of inputs.

    Args:
        name: One of `BUILT_IN`, or what ``score`` is called.
        source: The source model's outputs.
        labels: What is right, per input; ``None``: the source is.
        counts: How often each input occurs in traffic: the weight of its mark.
        score: The user's function, when ``name`` is its name.

    Raises:
        InputError: Unknown metric.
    """

    def __init__(self, name: str, source: Sequence[Outputs], recorded: Recorded, score: Score | None = None) -> None:
        if score is None and name not in BUILT_IN:
            raise InputError(
                f"--floor: metric '{name}' is not known (there are {', '.join(BUILT_IN)}). "
                "Give a function of your own with --metric FILE.py:FUNCTION."
            )
        self.name = name
        self.inputs = len(recorded)
        self._source = list(source)
        self._labels = recorded.labels
        self._weights = recorded.counts / recorded.counts.sum()
        self._score = score
        self.labelled = recorded.labels is not None and (score is not None or name == "top1")

    def mark(self, outputs: Sequence[Outputs]) -> float:
        """One number for all inputs.

        Raises:
            InputError: The user's function fails, or gives no finite number.
        """
        if self._score is not None:
            return self._own(list(outputs))
        marks = [
            self._one(given, source, None if self._labels is None else self._labels[index])
            for index, (given, source) in enumerate(zip(outputs, self._source, strict=True))
        ]
        return float(np.dot(marks, self._weights))

    def sqnr_db(self, outputs: Sequence[Outputs]) -> float | None:
        """Median over inputs against the source model; ``None``: equal."""
        values = [sqnr_db(source, given) for source, given in zip(self._source, outputs, strict=True)]
        median = float(np.median(values))
        return None if median >= SQNR_DB_EQUAL else median

    def _own(self, outputs: list[Outputs]) -> float:
        assert self._score is not None
        try:
            value = float(self._score(outputs, list(self._labels if self._labels is not None else self._source)))
        except (Exception, SystemExit) as error:
            raise InputError(f"--metric {self.name}: fails: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise InputError(f"--metric {self.name}: gives {value}, not a finite number.")
        return value

    def _one(self, given: Outputs, source: Outputs, label: Any) -> float:
        if self.name == "cosine":
            return cosine(source, given)
        if self.name == "sqnr_db":
            return min(sqnr_db(source, given), SQNR_DB_EQUAL)
        answer = _first(given)
        found = answer.argmax(axis=-1)
        wanted = _first(source).argmax(axis=-1) if label is None else np.asarray(label)
        if wanted.size != found.size:
            raise InputError(
                f"metric top1: label {str(label)[:40]} has {wanted.size} values where the model's first output has "
                f"{found.size} answers. Give one class number per row, or a function with --metric."
            )
        if answer.dtype.kind == "f" and not np.isfinite(answer).all():
            return 0.0  # the largest of numbers that are none is no answer
        return float((found.ravel() == wanted.ravel()).mean())


def default_floor(judge: Judge, source: float) -> Floor:
    """The floor where none is given; see `LABELLED_LOSS_MAX` and `COSINE_MIN`."""
    if judge.name == "cosine":
        return Floor("cosine", COSINE_MIN)
    if judge.name == "sqnr_db":
        return Floor("sqnr_db", 20.0)
    return Floor(judge.name, source - LABELLED_LOSS_MAX)


def sqnr_db(source: Outputs, given: Outputs) -> float:
    """Signal-to-noise ratio of the worst output: 10 log10(sum s^2 / sum (s - g)^2).

    Of whole numbers, which have no near and far, signal is their number and noise how many of them differ.

    Returns:
        dB; `SQNR_DB_EQUAL` at most; minus infinity never: a NaN or a wrong shape counts as -100.
    """
    worst = SQNR_DB_EQUAL
    for name, wanted in source.items():
        if not wanted.size:
            continue
        found = given.get(name)
        if found is None or found.shape != wanted.shape or not _is_finite(found):
            return -100.0
        if wanted.dtype.kind == "f":
            signal = float(np.square(wanted, dtype=np.float64).sum())
            noise = float(np.square(wanted.astype(np.float64) - found).sum())
        else:
            signal, noise = float(wanted.size), float((wanted != found).sum())
        if noise > 0:
            worst = min(worst, 10 * math.log10(signal / noise) if signal > 0 else -100.0)
    return max(worst, -100.0)


def cosine(source: Outputs, given: Outputs) -> float:
    """Cosine between outputs, each flattened; the worst output counts. NaN counts as -1.

    Of whole numbers (classes, places) and texts it is the share of those that are equal.
    """
    worst = 1.0
    for name, wanted in source.items():
        if not wanted.size:
            continue
        found = given.get(name)
        if found is None or found.shape != wanted.shape or not _is_finite(found):
            return -1.0
        if wanted.dtype.kind != "f":
            worst = min(worst, float((wanted == found).mean()))
            continue
        left, right = wanted.astype(np.float64).ravel(), found.astype(np.float64).ravel()
        norms = float(np.linalg.norm(left) * np.linalg.norm(right))
        worst = min(worst, float(left @ right) / norms if norms > 0 else float(not (left - right).any()))
    return worst


def _is_finite(values: Tensor) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def differences(source: Sequence[Outputs], given: Sequence[Outputs], recorded: Recorded) -> list[Difference]:
    """How outputs differ, per output and shape of the inputs (the eight most frequent shapes)."""
    groups: dict[str, list[int]] = {}
    for index, feeds in enumerate(recorded.feeds):
        category = " ".join(f"{name}={'x'.join(map(str, tensor.shape))}" for name, tensor in feeds.items())
        groups.setdefault(category, []).append(index)
    found = []
    for category, members in sorted(groups.items(), key=lambda group: -len(group[1]))[:8]:
        for name, tensor in source[members[0]].items():
            if tensor.dtype.kind == "f":
                pairs = [(source[index][name], given[index][name]) for index in members]
                found.append(_difference(name, category, pairs))
    return found


def _difference(name: str, category: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> Difference:
    """A shift can be corrected by a bias, outliers by a wider or per-channel range; what is spread, by more bits."""
    values = np.sort([sqnr_db({"": wanted}, {"": found}) for wanted, found in pairs])
    worst = float(values[: max(1, len(values) // 10)].mean())
    errors = np.concatenate(
        [(found.astype(np.float64) - wanted).ravel() for wanted, found in pairs if found.shape == wanted.shape]
    )
    squared = np.square(errors)
    total = float(squared.sum())
    if not total or not math.isfinite(total):
        kind = "none" if total == 0 else "outliers"
        return Difference(
            output=name, category=category, inputs=len(pairs), sqnr_db=None if total == 0 else worst,
            bias_share=0.0, outlier_share=0.0 if total == 0 else 1.0, kind=kind,  # type: ignore[arg-type]
        )  # fmt: skip
    bias_share = float(errors.mean() ** 2 * errors.size / total)
    count = max(1, errors.size // 100)
    outlier_share = float(np.partition(squared, errors.size - count)[-count:].sum() / total)
    return Difference(
        output=name,
        category=category,
        inputs=len(pairs),
        sqnr_db=worst,
        bias_share=bias_share,
        outlier_share=outlier_share,
        kind="shift" if bias_share > 0.25 else "outliers" if outlier_share > 0.5 else "spread",
    )


def _first(outputs: Outputs) -> Tensor:
    return next(iter(outputs.values()))
