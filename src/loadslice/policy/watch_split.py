"""Who must get the new version, by books of the watch's own."""

from loadslice.policy import columns as c
from loadslice.spec.pipeline import Pipeline


def hash_ppm(key: int) -> int:
    """A key's place between 0 and a million: a 32-bit finaliser, as the page on versions has it."""
    mixed = key % 2**32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x045D9F3B)):
        mixed = (mixed ^ (mixed >> shift)) * factor % 2**32
    return ((mixed ^ (mixed >> 16)) * c.PPM) >> 32


class Split:
    """Who gets the new version, (28)."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._shares = [0.0, *pipeline.rollout.steps]
        has_canary = any(stage.canary is not None for stage in pipeline.stages)
        self.step = pipeline.rollout.at if has_canary else 0
        self._seen = 0
        self._sent = 0

    def version_for(self, key: int) -> int:
        """Of n requests without a key, the whole part of share * n; with one, its hash decides."""
        share_ppm = round(self._shares[self.step] * c.PPM)
        if key >= 0:
            return int(share_ppm > 0 and hash_ppm(key) < share_ppm)
        self._seen += 1
        sent, self._sent = self._sent, self._seen * share_ppm // c.PPM
        return self._sent - sent

    def move(self, verdict: int) -> None:
        """One step up at a pass, to nothing at a failure, and nowhere at anything else."""
        if verdict == c.PASS and self.step + 1 < len(self._shares):
            self.step += 1
            self._seen = self._sent = 0
        elif verdict == c.FAIL:
            self.step = self._seen = self._sent = 0
