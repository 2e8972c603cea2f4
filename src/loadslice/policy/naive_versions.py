"""Two versions side by side, for the naive twin."""

from loadslice.policy.naive_breaker import PPM
from loadslice.spec.pipeline import Pipeline

PASS, FAIL = 0, 1


class NaiveVersions:
    """Who gets the new version, and how its share moves. Without a canary, nobody."""

    def __init__(self, pipeline: Pipeline) -> None:
        has_canary = any(stage.canary is not None for stage in pipeline.stages)
        self.shares_ppm = [0, *(round(step * PPM) for step in pipeline.rollout.steps)]
        self.step = pipeline.rollout.at if has_canary else 0
        self.credit_ppm = 0

    def version_for(self, key: int) -> int:
        """0 the old, 1 the new: by the hash of a key, else the exact share of those without one."""
        share_ppm = self.shares_ppm[self.step]
        if share_ppm == 0:
            return 0
        if key >= 0:
            return int(_hash_ppm(key) < share_ppm)
        self.credit_ppm += share_ppm
        sent, self.credit_ppm = divmod(self.credit_ppm, PPM)
        return sent

    def move(self, verdict: int) -> bool:
        """An analysis has ended; whether everybody must turn back."""
        if verdict == PASS and self.step + 1 < len(self.shares_ppm):
            self.step, self.credit_ppm = self.step + 1, 0
        if verdict == FAIL:
            self.step, self.credit_ppm = 0, 0
        return verdict == FAIL


def _hash_ppm(key: int) -> int:
    """A 32-bit finaliser, scaled: two rounds of xor-shift and multiplication."""
    mixed = key % 2**32
    for factor, shift in ((0x7FEB352D, 16), (0x045D9F3B, 15)):
        mixed = (mixed ^ (mixed >> shift)) * factor % 2**32
    return (mixed ^ (mixed >> 16)) * PPM // 2**32
