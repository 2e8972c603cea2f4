"""How faithful predictions were: the same held-out traffic simulated and served, the serving repeated."""

from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.files import Stamp, decode_json
from loadslice.spec.latency import Drift
from loadslice.spec.report import Interval

SCHEMA = "fidelity/3"

FIGURES = {"p50": "ms", "p95": "ms", "p99": "ms", "throughput": "requests/s", "error rate": "share"}
"""What is compared, and its unit."""
GOALS = {"p50": 2.0, "p95": 2.0, "p99": 2.0, "throughput": 1.0, "error rate": 0.2}
"""Largest error that is wanted: percent, of the error rate points."""
AGREEMENT_GOAL, COVERAGE_GOAL = 0.999, 0.95


class FigureFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one stretch."""

    figure: str
    unit: str
    predicted: list[float | None]
    """For each repeat: mean over the simulator's replicas at the speed that its rehearsal found."""
    predicted_95: list[Interval | None]
    """Where that repeat falls 95 times in 100, by replicas whose machine differs as its runs do."""
    measured: list[float | None]
    """Of each repeat."""
    error: float | None
    """Predicted less measured, mean over the repeats: percent of what was measured, of the error rate points."""
    error_size: float | None
    """Mean size of the repeats' errors, in the unit of ``error``: too high once and too low once is not right."""
    noise: float | None
    """Standard deviation of the repeats among themselves, in the unit of ``error``; null for a single repeat."""
    covered: int
    """Repeats that lie in their ``predicted_95``."""


class StretchFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of traffic, or all of them together."""

    name: str
    from_s: float
    """In the trace."""
    requests: int
    figures: list[FigureFidelity]


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What else the machine did during one live run."""

    load_before_1m: float | None
    others_utilisation: float
    """Processor time that was neither the server's nor the load generator's, over span times usable cores."""
    send_lag_ms_p99: float | None
    """How late the load generator was."""


class StageFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """Mean times at one stage, so that an error can be placed; milliseconds over all stretches and repeats."""

    stage: str
    queue_ms_predicted: float | None
    queue_ms_measured: float | None
    service_ms_predicted: float | None
    service_ms_measured: float | None


class PlanFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline, predicted and served several times."""

    name: str
    title: str
    kind: Literal["real engines", "twins"]
    speed: float
    """Pace against the recording."""
    busy: float
    """Predicted utilisation of its busiest engine over the session, pauses between stretches included, 0 to 1."""
    repeats: int
    profile_sessions: int
    drift: Drift | None
    stretches: list[StretchFidelity]
    whole: StretchFidelity
    """All stretches together."""
    stages: list[StageFidelity]
    agreement: float
    """Share of requests, over all repeats, whose outcome and engine at every stage were as predicted."""
    agreement_live: float | None
    """The same between every two live repeats: what the machine's noise leaves of it."""
    coverage: float | None
    """Share of measured figures that lie in the predicted interval, those aside that could not miss: both the same
    single value, as no errors at all."""
    noise: list[Noise]
    """Of each repeat."""


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run of the fidelity benchmark found."""

    stamp: Stamp
    created_utc: str
    command: str
    trace: str
    took_s: float
    stretch_s: float
    """Length of a stretch as served, seconds."""
    replicas: int
    plans: list[PlanFidelity]


def load(path: Path) -> Fidelity:
    """Read ``fidelity.json``.

    Raises:
        InputError: Not such a document.
    """
    return decode_json(path, Fidelity)
