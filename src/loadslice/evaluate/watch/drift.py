"""Drift of answers: samples in, alerts out. No clock, no draws, and no way to act.

Each window of ``minimum`` samples is one look; windows four and sixteen times as long are looked at too, because a
small drift is visible only in them. All tests of a look are corrected for their number (Holm), and a look's share of
the chance of a false alarm is its share of 100,000 samples. Beside that a detector of changing means (ADWIN) sees each
sample; it looks at ranks in the baseline, so that every signal has one scale, and has seen the baseline first, so that
a drift that is there from the first sample on is one. Evidence alone is no alarm: the distance must matter too.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadslice.evaluate.watch import compare
from loadslice.evaluate.watch.reference import STABLE, NumberReference, class_place, counted, numbers, table
from loadslice.spec.errors import MissingExtraError
from loadslice.spec.watch import HORIZON_SAMPLES, Alert, Baseline, Sample, Signal

try:
    from river.drift import ADWIN
except ImportError as error:
    raise MissingExtraError("watch", "watching for drift") from error

Floats = npt.NDArray[np.float64]

SCALES = (1, 4, 16)
"""Windows, in minimum samples."""
CLASS_SAMPLES_MIN = 50
CALM_LOOKS = 2
"""In a row without evidence, after which an alert is resolved."""
CALM_P = 0.01
"""What is above is no evidence; an alert that stands needs less to stand on than one that begins."""
SURE_Z = 4.5
"""Standard errors that a mean rank must be off once a change was found: 7e-6 by chance, and changes are few."""
RANK_VARIANCE = 1 / 12
"""Of ranks that are uniform."""
WARM_SAMPLES = 2000
"""Of the baseline that a detector sees first."""


@dataclass(frozen=True, slots=True)
class _Test:
    what: str
    name: str
    distance: float
    least: float
    p: float
    text: str


@dataclass(slots=True)
class _Means:
    """A detector of one signal, and what it waits for."""

    detector: ADWIN
    bundle: int
    """Answers whose mean is one value for it: as many as come in a clump."""
    held: list[float] = field(default_factory=list)
    fed: int = 0
    changed_at: int | None = None
    """Answers fed when the last change was found."""

    def feed(self, rank: float) -> None:
        self.fed += 1
        self.held.append(rank)
        if len(self.held) >= self.bundle:
            self.detector.update(sum(self.held) / len(self.held))  # type: ignore[no-untyped-call]
            self.held.clear()
            if self.detector.drift_detected:
                self.changed_at = self.fed


class DriftWatch:
    """Watches samples of one server.

    Args:
        baseline: Checked.
    """

    def __init__(self, baseline: Baseline) -> None:
        plan = baseline.plan
        self._plan = plan
        self._numbers = numbers(baseline)
        self._class = class_place(plan)
        self._clumping = baseline.clumping
        self._rows = table(baseline.rows, len(plan.signals))
        self._classes = None if self._class is None else counted(self._rows[:, self._class])
        self._kept: deque[list[float | None]] = deque(maxlen=max(SCALES) * plan.minimum)
        self._means = {place: self._warm(one) for place, one in self._numbers.items()}
        self._firing: dict[tuple[str, str], int] = {}
        """Alerts that stand, and in how many looks in a row they were not found again."""
        self._scale: dict[tuple[str, str], int] = {}
        self.samples = 0
        """Seen, without those of a canary."""
        self.looks = 0

    @property
    def quiet(self) -> bool:
        """Whether too little has been seen to say anything."""
        return self.samples < self._plan.minimum

    @property
    def firing(self) -> list[tuple[str, str]]:
        """Alerts that stand: signal and test."""
        return list(self._firing)

    def _warm(self, reference: NumberReference) -> _Means:
        detector = ADWIN(delta=self._plan.adwin_delta)  # type: ignore[no-untyped-call]
        means = _Means(detector, bundle=math.ceil(reference.clumping))
        place = next(place for place, one in self._numbers.items() if one is reference)
        column = self._rows[:, place]
        for rank in reference.ranks(column[np.isfinite(column)])[-WARM_SAMPLES:].tolist():
            means.feed(rank)
        means.changed_at = None
        return means

    def feed(self, samples: Sequence[Sample]) -> list[Alert]:
        """Take in samples.

        Args:
            samples: In order.

        Returns:
            What began and what ended with them.
        """
        alerts: list[Alert] = []
        for sample in samples:
            if sample.version not in STABLE:
                continue
            self.samples += 1
            self._kept.append(sample.values)
            alerts.extend(self._feed_means(sample))
            if self.samples % self._plan.minimum == 0:
                alerts.extend(self._look(sample.at_s))
        return alerts

    def _feed_means(self, sample: Sample) -> Iterator[Alert]:
        for place, means in self._means.items():
            value = sample.values[place]
            if value is None:
                continue
            reference = self._numbers[place]
            means.feed(float(reference.ranks(np.array([value]))[0]))
            key = (reference.signal.name, "adwin")
            if self.quiet or means.changed_at is None:
                continue
            width = int(means.detector.width) * means.bundle
            shift = float(means.detector.estimation) - 0.5
            error = math.sqrt(RANK_VARIANCE * reference.clumping * (1 / max(width, 1) + 1 / len(reference.ordered)))
            if abs(shift) >= max(self._plan.least.shift, SURE_Z * error):
                if key not in self._firing:
                    self._firing[key] = 0
                    yield self._alert(
                        key,
                        f"its mean rank in the baseline has moved from 0.5 to {shift + 0.5:.3f}, over the last {width} "
                        "answers",
                        {"mean_rank": shift + 0.5, "window": width},
                        sample.at_s,
                    )
            elif abs(shift) < self._plan.least.shift / 2 and means.fed - means.changed_at >= self._plan.minimum:
                # Not sooner: right after a change its window still holds answers from before.
                means.changed_at = None
                if self._firing.pop(key, None) is not None:
                    yield self._resolved(key, sample.at_s)

    def _look(self, at_s: float) -> Iterator[Alert]:
        base = self.samples // self._plan.minimum
        for scale in SCALES:
            rows = scale * self._plan.minimum
            if base % scale or len(self._kept) < rows:
                continue
            self.looks += 1
            window = table(list(self._kept)[-rows:], len(self._plan.signals))
            tests = list(self._tests(window))
            alpha = self._plan.false_alarm * rows / HORIZON_SAMPLES / len(SCALES)
            counts = compare.holm([test.p for test in tests], alpha)
            for test, counted_in in zip(tests, counts, strict=True):
                yield from self._found((test.what, test.name), test, scale, rows, at_s, counted_in)

    def _found(
        self, key: tuple[str, str], test: _Test, scale: int, rows: int, at_s: float, counts: bool
    ) -> Iterator[Alert]:
        if counts and test.distance >= test.least:
            if key not in self._firing:
                figures: dict[str, float | int | None] = {"distance": test.distance, "least": test.least, "p": test.p}
                self._scale[key] = scale
                yield self._alert(key, test.text, figures | {"window": rows}, at_s)
            self._firing[key] = 0
        elif key in self._firing and self._scale.get(key) == scale:
            self._firing[key] = self._firing[key] + 1 if test.p > CALM_P else 0
            if self._firing[key] >= CALM_LOOKS:
                del self._firing[key]
                yield self._resolved(key, at_s)

    def _tests(self, window: Floats) -> Iterator[_Test]:
        least = self._plan.least
        for place, reference in self._numbers.items():
            name, column = reference.signal.name, window[:, place]
            finite = column[np.isfinite(column)]
            if len(finite):
                found = compare.ks(reference.ordered, finite, reference.clumping)
                text = f"its distribution differs by {found.distance:.3f} (KS)"
                yield _Test(name, "ks", found.distance, least.ks, found.p, text)
                found = compare.psi(reference.ordered, finite, reference.cuts, reference.clumping)
                text = f"its distribution has moved by {found.distance:.3f} (PSI over the baseline's deciles)"
                yield _Test(name, "psi", found.distance, least.psi, found.p, text)
            absent = reference.abstained(column)
            if absent or reference.absent:
                yield self._abstention(name, reference, absent, len(column))
        if self._class is not None and self._classes:
            yield from self._by_class(window, self._class)

    def _abstention(self, name: str, reference: NumberReference, absent: int, rows: int) -> _Test:
        found = compare.shares((reference.absent, reference.rows), (absent, rows), reference.clumping)
        was, now = reference.absent / reference.rows, absent / rows
        text = f"{now:.1%} of the answers abstain, or lack it; {was:.1%} did in the baseline"
        return _Test(name, "abstention", found.distance, self._plan.least.share, found.p, text)

    def _by_class(self, window: Floats, place: int) -> Iterator[_Test]:
        assert self._classes is not None
        signal: Signal = self._plan.signals[place]
        now = counted(window[:, place])
        if not now:
            return
        found = compare.classes(self._classes, now, self._clumping[place])
        text = f"{found.distance:.1%} of the answers have moved to other classes"
        yield _Test(signal.name, "classes", found.distance, self._plan.least.share, found.p, text)
        enough = max(CLASS_SAMPLES_MIN, self._plan.minimum // 10)
        for one, count in sorted(now.items()):
            if min(count, self._classes.get(one, 0)) < enough:
                continue
            old, new = self._rows[self._rows[:, place] == one], window[window[:, place] == one]
            for other, reference in self._numbers.items():
                before, after = old[:, other], new[:, other]
                before, after = np.sort(before[np.isfinite(before)]), after[np.isfinite(after)]
                if min(len(before), len(after)) < enough:
                    continue
                found = compare.ks(before, after, reference.clumping)
                what = f"{reference.signal.name} of {signal.name} {one:g}"
                text = f"its distribution differs by {found.distance:.3f} (KS)"
                yield _Test(what, "ks", found.distance, self._plan.least.ks, found.p, text)

    def _alert(self, key: tuple[str, str], text: str, figures: dict[str, float | int | None], at_s: float) -> Alert:
        return Alert(
            what=key[0], test=key[1], state="firing", text=f"{key[0]}: {text}", samples=self.samples,
            figures=figures, at_s=at_s,
        )  # fmt: skip

    def _resolved(self, key: tuple[str, str], at_s: float) -> Alert:
        return Alert(
            what=key[0], test=key[1], state="resolved", text=f"{key[0]}: as in the baseline again ({key[1]})",
            samples=self.samples, figures={}, at_s=at_s,
        )  # fmt: skip
