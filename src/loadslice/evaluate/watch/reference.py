"""What answers were when all was well, made ready to be compared with; and how such a baseline is made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadslice.evaluate.watch import compare
from loadslice.spec.watch import Baseline, Range, Reading, Sample, Signal, WatchPlan

Floats = npt.NDArray[np.float64]

ROWS_MAX = 5000
"""Answers that a baseline keeps; more would make windows of some thousand answers no sharper."""
STABLE = (None, "stable")
"""Versions that are watched for drift; a canary is compared with them on the same minutes by its rollout."""
OPERATING = ("rate_per_s", "error_share", "latency_ms_p95", "temperature_c", "power_w", "memory_bytes")
NEEDS_REQUESTS = ("latency_ms_p95", "error_share")
"""Figures that a few requests say nothing about."""


@dataclass(frozen=True, slots=True)
class NumberReference:
    """One signal of numbers."""

    signal: Signal
    ordered: Floats
    """Sorted, what the answers had."""
    cuts: Floats
    absent: int
    """Abstentions, answers without the value among them."""
    rows: int
    clumping: float

    def ranks(self, values: Floats) -> Floats:
        """Where values lie in the baseline, from 0 to 1; uniform there, whatever the signal's own scale.

        Ties get the middle of their ranks.
        """
        low = np.searchsorted(self.ordered, values, side="left")
        high = np.searchsorted(self.ordered, values, side="right")
        found: Floats = (low + high) / (2 * len(self.ordered))
        return found

    def abstained(self, values: Floats) -> int:
        """Of a window's values, NaN where an answer has none."""
        return int((~abstained_not(self.signal, values)).sum())


def abstained_not(signal: Signal, values: Floats) -> npt.NDArray[np.bool_]:
    """Which answers commit themselves."""
    if signal.abstains_below is None:
        return np.isfinite(values)
    return np.isfinite(values) & (np.nan_to_num(values, nan=-np.inf) >= signal.abstains_below)


def table(rows: Sequence[Sequence[float | None]], signals: int) -> Floats:
    """Rows of values as an array, NaN where there is none."""
    return np.array([[np.nan if one is None else one for one in row] for row in rows], np.float64).reshape(-1, signals)


def numbers(baseline: Baseline) -> dict[int, NumberReference]:
    """References of the signals of numbers, by their place in the plan; none for one that no answer had."""
    values = table(baseline.rows, len(baseline.plan.signals))
    found = {}
    for place, signal in enumerate(baseline.plan.signals):
        column = values[:, place]
        ordered = np.sort(column[np.isfinite(column)])
        if signal.take != "class" and len(ordered):
            commits = abstained_not(signal, column)
            found[place] = NumberReference(
                signal=signal,
                ordered=ordered,
                cuts=compare.edges(ordered),
                absent=int((~commits).sum()),
                rows=len(column),
                clumping=baseline.clumping[place],
            )
    return found


def class_place(plan: WatchPlan) -> int | None:
    """Where the signal stands that takes a class."""
    return next((place for place, signal in enumerate(plan.signals) if signal.take == "class"), None)


def counted(values: Floats) -> Counter[float]:
    """How often each class was the answer; NaN is none."""
    return Counter(values[np.isfinite(values)].tolist())


def make(
    plan: WatchPlan,
    pipeline: str,
    basis: Literal["measured", "emulated"],
    samples: Sequence[Sample],
    readings: Sequence[Reading],
) -> Baseline:
    """A baseline from what was seen while all was well.

    Args:
        plan: Says what the samples' values are.
        pipeline: Its name.
        basis: Of the engines.
        samples: In order; those of a canary are left out.
        readings: Of operation, in order.
    """
    rows = [sample.values for sample in samples if sample.version in STABLE]
    values = table(rows, len(plan.signals))
    step = max(1, -(-len(rows) // ROWS_MAX))
    ranges = _ranges(readings, plan.operating.requests_min)
    return Baseline(
        plan=plan,
        pipeline=pipeline,
        basis=basis,
        taken=len(rows),
        rows=rows[::step],
        clumping=[_clumping(signal, values[:, place]) for place, signal in enumerate(plan.signals)],
        operating=ranges,
        absent=_absent(readings, ranges, plan.operating.requests_min),
    )


def _clumping(signal: Signal, column: Floats) -> float:
    finite = column[np.isfinite(column)]
    if signal.take != "class":
        return compare.clumping(finite)
    common = [name for name, _ in counted(finite).most_common(3)]
    return max((compare.clumping((finite == name).astype(np.float64)) for name in common), default=1.0)


def _ranges(readings: Sequence[Reading], requests_min: int) -> dict[str, Range]:
    found = {}
    for figure in OPERATING:
        known = [
            value
            for reading in readings
            if (value := getattr(reading, figure)) is not None
            and (figure not in NEEDS_REQUESTS or (reading.requests or 0) >= requests_min)
        ]
        if known:
            found[figure] = Range(low=float(min(known)), high=float(max(known)), readings=len(known))
    return found


def _absent(readings: Sequence[Reading], ranges: Mapping[str, Range], requests_min: int) -> dict[str, str]:
    """Figures without a range, and why."""
    few = f"fewer than {requests_min} requests between any two looks; look less often with --every-s"
    missing = dict(readings[-1].absent) if readings else {}
    return missing | {figure: few for figure in NEEDS_REQUESTS if readings and figure not in ranges}
