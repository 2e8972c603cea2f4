"""What an evaluation found: verdict, dimensions, layers, placements, rules that fired, limits. Unknown is null."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from loadslice.spec.environment import Environment
from loadslice.spec.evaluation import LayerName
from loadslice.spec.files import Stamp, decode_json
from loadslice.spec.report import Interval

SCHEMA = "evaluation/1"

Verdict = Literal["pass", "regression", "incomplete"]
"""pass: every placement ran and none is worse than its floors. regression: at least one is. incomplete: none is worse
as far as it was seen, but a placement or a layer did not run to its end; that is never a pass."""

Effect = Literal["regression", "warning", "note"]
State = Literal["run", "not_run", "died"]
Alike = Literal["identical", "slightly", "clearly"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """An interpretation rule that fired."""

    code: str
    placement: str
    text: str
    evidence: str
    effect: Effect


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """One of the seven."""

    name: str
    score: float | None
    """0 to 1, the worst placement's beside the reference; ``None``: nothing was measured that says it."""
    weight: float
    evidence: list[str]
    by_placement: dict[str, float | None] = {}


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer over all placements."""

    name: LayerName
    passed: bool | None
    """``None``: it could not be judged."""
    figures: dict[str, dict[str, Any]]
    """Placement -> figure -> value; units stand last in the names."""
    notes: list[str] = []


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one placement."""

    name: str
    state: State
    why: str | None
    """Of one that did not run to its end."""
    basis: Literal["measured", "emulated"] | None
    reference: bool
    fixed: dict[str, str | None]
    """Every fixed variable; ``None``: it cannot be read here."""
    overall: float | None
    """Weighted mean of its scores, 0 to 1."""
    advice: str


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """``evaluation.json``."""

    verdict: Verdict
    headline: str
    dimensions: list[Dimension]
    layers: list[Layer]
    placements: list[Placed]
    rules_fired: list[Rule]
    limits: list[str]
    scenario: str
    varied: str
    environment: Environment
    baseline: dict[str, Any] | None = None
    """What a baseline said, where one was given."""
    wall_s: float | None = None
    stamp: Stamp | None = None


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where a ramp bends."""

    clients: float
    """Saturation point (Kleinrock): most throughput times the latency of a lone request."""
    throughput_per_s: float
    """Of the plateau."""
    clients_most_power: int
    """The step with most throughput over latency."""
    throughput_range: Interval | None = None
    """Least and most of the rounds that it is the median of."""
    clients_range: Interval | None = None
    rounds: int = 0


def load(path: Path) -> EvaluationReport:
    """Read an evaluation's document.

    Raises:
        InputError: Unreadable or not one.
    """
    return decode_json(path, EvaluationReport)
