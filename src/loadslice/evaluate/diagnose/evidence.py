"""What rules read: the same for a live server, a journal and a folder of results. What is not known is not there."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.spec.diagnosis import DiagnosisBasis
from loadslice.spec.evaluation_report import EvaluationReport
from loadslice.spec.inspection import Inspection
from loadslice.spec.variant import Precision, Variant

Floats = npt.NDArray[np.float64]


class NotSeenError(Exception):
    """A rule cannot be asked; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class StageSeen:
    """One stage on one engine."""

    stage: str
    engine: str
    position: int
    """In the pipeline, from 0."""
    requests: int
    rows_mean: float | None
    """Of its batches."""
    wait_ms_p50: float | None
    wait_ms_p95: float | None
    service_ms_p50: float | None
    service_ms_p99: float | None
    gap_variation: float | None = None
    """Standard deviation over mean of the gaps between requests that reach it; ``None``: not known."""
    bunch: float | None = None
    """Requests that reach it at one moment, mean."""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """One engine over the whole time."""

    name: str
    backend: str | None
    device: str | None
    slots: int
    utilisation: float
    """Busy slot time over slot time, 0 to 1."""
    rows_mean: float | None
    batch_size: int | None
    """Most rows that it may be given at once; ``None``: unknown."""
    alone: bool = True
    """Whether it runs models, not only Python stages."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened when, in bins of equal length; E engines, B bins. NaN: unknown there."""

    step_s: float
    begin_s: float
    engines: list[str]
    queue: Floats
    """[E, B] most that waited."""
    errors: Floats
    """[E, B] requests that ended badly there."""
    placed: Floats
    """[E, B] requests that were queued there."""
    service_ms: Floats
    """[E, B] median of batches."""
    busy: Floats
    """[E, B] share of slot time."""
    arrivals: Floats
    """[B] first attempts and further ones."""
    retries: Floats
    """[B] further attempts among them, of clients and of ours."""
    completed: Floats
    """[B]"""


@dataclass(frozen=True, slots=True)
class PowerSeen:
    """Power of a device, or of a box, against its limit."""

    name: str
    drawn_w: float
    """While it was busy."""
    limit_w: float
    limit_source: str
    busy_share: float
    """Of the time, that it was at work."""
    slowed: float | None
    """Service time against the profile's, or against that of its coolest hours; ``None``: not known."""
    basis: DiagnosisBasis


@dataclass(frozen=True, slots=True)
class EndedSeen:
    """Requests that ended in one way."""

    outcome: str
    """One of `spec.outcome.OUTCOMES`; ``refused``: at the door, before the core knew of them."""
    reason: str | None
    """One of `spec.outcome.REASONS`, or a status of HTTP; ``None``: not known."""
    requests: int
    first_s: float | None = None
    last_s: float | None = None
    """When the first and the last of them ended; ``None``: not known."""


@dataclass(frozen=True, slots=True)
class OutageSeen:
    """One engine's absences."""

    engine: str
    downs: int
    """Times that it was lost."""
    is_down: bool
    """At the end."""
    down_s: float | None
    """Seconds that it was absent, together; ``None``: not known."""
    has_process: bool | None = None
    """Whether it runs in a process of its own, which is started anew; ``None``: not known."""


@dataclass(slots=True)
class Evidence:
    """Everything that was found."""

    basis: DiagnosisBasis = "measured"
    requests: int = 0
    stages: list[StageSeen] = field(default_factory=list)
    engines: list[EngineSeen] = field(default_factory=list)
    timeline: Timeline | None = None
    batches: pl.DataFrame | None = None
    """stage, engine, start_ns, service_ms, bucket, rows, shape: one row per batch, in order of start."""
    powers: list[PowerSeen] = field(default_factory=list)
    ended: list[EndedSeen] | None = None
    """By outcome and reason, completed ones among them; ``None``: not known."""
    ended_over: str = ""
    """Which time these were counted in, as words after a figure."""
    outages: list[OutageSeen] | None = None
    """Of engines that were lost; ``None``: not known."""
    without_engine_s: dict[str, float] = field(default_factory=dict)
    """Seconds in which no engine of a stage was up, by stage, where there were any."""
    power_absent: str = "no power of an accelerator, and no limit, is known"
    inspections: list[tuple[str, Inspection]] = field(default_factory=list)
    """Where each stands, and what it says."""
    variants: list[tuple[str, Variant, str]] = field(default_factory=list)
    """Where, which, and the floor it was held to."""
    precision: list[tuple[str, Precision]] = field(default_factory=list)
    evaluations: list[tuple[str, EvaluationReport]] = field(default_factory=list)
    rollout: dict[str, Any] | None = None
    read: list[str] = field(default_factory=list)
