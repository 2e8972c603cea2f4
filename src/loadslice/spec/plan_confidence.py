"""The part of a plan that says how sure the recommendation is, and what would settle it."""

import msgspec

GAIN = 0.01
"""Of all worlds; less is luck of the draw."""


class Swing(msgspec.Struct, frozen=True, kw_only=True):
    """One assumption moved alone, everything else as assumed. Factors are on today's figure."""

    assumption: str
    """For instance ``price of l4`` or ``traffic``."""
    low: float
    """Factors that 95 of 100 worlds lie between."""
    high: float
    margin_low: float | None
    """Money by which the recommended fleet is ahead of the best other one at ``low``; negative: it is behind."""
    margin_high: float | None
    turns_at: float | None
    """Nearest factor at which another fleet is better; ``None``: none between a tenth and ten times."""
    turns_to: str | None = None
    """That other fleet."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that one could make before deciding."""

    name: str
    settles: list[str]
    """Assumptions that would be known after it."""
    hours: float
    cost: float | None
    """``None``: a price is missing."""
    survives_after: float
    """Probability that the fleet chosen after it stays the best."""
    gain: float = 0.0
    """By how much that is above the same without a result, for the fleet of least expected cost."""
    worth: float | None
    """Money that knowing the result would save on average; an experiment that costs more is not worth it."""

    @property
    def tells(self) -> bool:
        """Its result would change the choice often enough, or for money enough, to be looked at."""
        return self.gain >= GAIN or (self.worth or 0.0) >= 1.0


class Confidence(msgspec.Struct, frozen=True, kw_only=True):
    """How sure the recommendation is."""

    survives: float | None
    """Probability that the recommended fleet stays the cheapest that keeps the promise."""
    draws: int
    rivals: dict[str, float]
    """Fleet -> probability that it would have been the better choice."""
    varied: dict[str, str]
    """What was varied -> by how much."""
    experiment: str | None
    """The cheapest measurement that would settle it; ``None``: it is settled, or none would."""
    experiment_cost: float | None = None
    tornado: list[Swing] = []
    """The assumption that moves the margin most comes first."""
    experiments: list[Experiment] = []
    """The cheapest first."""
    expected_loss: float | None = None
    """Money that deciding now costs on average over knowing everything."""
    left_out: dict[str, str] = {}
    """Fleets that were not compared, and why."""
    safer: str | None = None
    """The fleet of least expected cost, failing included, where it stays the best more often; ``None``: none does."""
    safer_survives: float | None = None
