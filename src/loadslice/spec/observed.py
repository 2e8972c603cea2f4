"""What a study saw its own profile and predictions be off by: uncertainty that a plan made on them has to bear."""

import msgspec


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Errors as they were seen on one machine, in one study."""

    times_sd: dict[str, float]
    """Engine of the latency table -> root mean square of the logarithm of (time in the server / profiled, or predicted
    time)."""
    times_seen: dict[str, list[float]]
    """Those factors, one of each rehearsal and each replay that ran models on the engine."""
    tail: str
    """The latency that is promised, for instance ``p95``."""
    tail_seen: dict[str, float]
    """Plan -> measured tail over its prediction."""
    disturbed: str | None = None
    """What else ran on the machine meanwhile; ``None``: it was quiet."""

    @property
    def tail_factor_max(self) -> float:
        """How many times its prediction the tail was at worst, at least 1."""
        return max([1.0, *self.tail_seen.values()])
