"""What a watch hands to a rollout. It can ask and tell; it cannot start, promote, abort or roll back.

Drift says that something is not as it was: the world may have changed, and the version before would answer no better.
Whether the new version is to blame shows only beside the old one on the same minutes. That comparison is the rollout's
(`serve.rollout_analysis`), with its own tests and its own right to go back; a watch gives it one more metric, the mean
of a signal by version, which counts only where the rollout's plan names it.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from loadslice.spec.watch import Contrast, Sample, WatchPlan

KEPT = 20_000
"""Samples by version since the step began; older ones are of other minutes."""


class VersionMeans:
    """Means of signals by version, over samples of the same minutes.

    Args:
        plan: Says which value is which, and how many samples are needed of each version.
    """

    def __init__(self, plan: WatchPlan) -> None:
        self._plan = plan
        self._kept: deque[Sample] = deque(maxlen=KEPT)

    def feed(self, samples: Sequence[Sample]) -> None:
        """Take in samples; those without a version say nothing here."""
        self._kept.extend(sample for sample in samples if sample.version is not None)

    def begin(self) -> None:
        """Forget: another rollout, or another step of it, has begun."""
        self._kept.clear()

    def means(self, signal: str) -> dict[str, float] | None:
        """Mean of a signal by version; ``None`` below the minimum sample of either.

        Only samples since both versions have served count, so that an hour of the old one is not held against
        a minute of the new.
        """
        place = next(place for place, one in enumerate(self._plan.signals) if one.name == signal)
        # By their order, not their times: a server that was started again counts those from nought.
        first = [self._first(version) for version in ("stable", "canary")]
        found: dict[str, list[float]] = {"stable": [], "canary": []}
        for sample in islice(self._kept, max(first), None):
            value = sample.values[place]
            if value is not None and sample.version is not None:
                found[sample.version].append(value)
        if min(len(values) for values in found.values()) < self._plan.minimum:
            return None
        return {version: sum(values) / len(values) for version, values in found.items()}

    def _first(self, version: str) -> int:
        """Where its first sample stands, the end where it has none."""
        return next((place for place, one in enumerate(self._kept) if one.version == version), len(self._kept))


def advice(firing: Sequence[str], contrast: Contrast | None, *, quiet: bool, samples: int, minimum: int) -> str:
    """What somebody who reads the alerts may do.

    Args:
        firing: What stands, by name.
        contrast: What the rollout says; ``None``: it was not asked, or does not run.
        quiet: Whether answers are too few to judge.
        samples: Seen.
        minimum: Needed.
    """
    if contrast is not None and contrast.decision == "fail":
        return (
            f"the rollout found the new version to be worse beside the old one ({contrast.why}); it goes back by itself"
        )
    if not firing:
        return f"{samples} of {minimum} samples: nothing is said yet" if quiet else "as in the baseline"
    if contrast is not None and contrast.state == "running":
        return (
            f"not as in the baseline, and the rollout compares both versions on the same minutes: {contrast.decision} "
            f"({contrast.why}). Nothing goes back on drift alone."
        )
    return (
        "not as in the baseline. Look at what arrives first: if inputs have changed, record a new baseline or adapt "
        "the model. To learn whether the version is to blame, let the one before serve a part: "
        "`loadslice rollout start --to PREVIOUS`, which compares both on the same minutes and goes back only on that."
    )
