"""What a study was asked to do and what it found so far."""

from dataclasses import dataclass, field

import polars as pl

from loadslice.app.study_folder import Folder
from loadslice.app.study_journey import Journey
from loadslice.app.study_models import Models
from loadslice.app.study_plan import Studied
from loadslice.evaluate import pace, payloads
from loadslice.evaluate.rehearsed import Rehearsed
from loadslice.spec.machine import LocalMachine
from loadslice.spec.plan import Plan
from loadslice.spec.portrait import Portrait
from loadslice.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Options:
    """How long and how fast."""

    profile_s: float
    """For all plans together."""
    replay_s: float
    """For each plan."""
    speed: float | None
    """``None``: chosen."""
    seed: int
    command: str
    dilate: float = 1.0
    """Seconds of a replay for one on emulated devices."""


@dataclass(slots=True)
class Findings:
    """Everything a study found out; absent where a step failed."""

    folder: Folder
    options: Options
    journey: Journey
    trace: Trace
    frame: pl.DataFrame
    """The whole trace, inputs named."""
    inputs: payloads.Inputs
    studied: list[Studied]
    portrait: Portrait | None = None
    machine: LocalMachine | None = None
    models: Models | None = None
    chosen: pace.Pace | None = None
    window: pace.Window | None = None
    front_cpu_ms: float | None = None
    """Processor time of a request beside its engines, once a rehearsal has found it."""
    rehearsed: list[Rehearsed] = field(default_factory=list)
    """What rehearsals said, plan by plan."""
    planned: Plan | None = None
    """Which fleet to buy, where the folder holds offers."""
    not_planned: str | None = None
    """Why there is no plan although there are offers."""
