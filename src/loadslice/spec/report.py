"""The report of a study: everything the HTML page shows, as one document. Unknown is null, never 0."""

from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.budget import Budget
from loadslice.spec.files import Stamp, decode_json
from loadslice.spec.inspection import Inspection
from loadslice.spec.latency import Entry
from loadslice.spec.machine import LocalMachine
from loadslice.spec.plan import Plan
from loadslice.spec.portrait import Portrait
from loadslice.spec.replay import Replay
from loadslice.spec.simulation import Simulation

SCHEMA = "report/1"

QUANTILES = (*(percent / 100 for percent in range(100)), 0.995, 1.0)
"""Where latency curves are taken."""

OUTSIDE = "front"
"""Pseudo stage: sockets, front, client and the way between stages; latency minus all waiting and all service."""


TELLING_WIDTH = 0.5
"""A 95 % interval wider than this share of the measured figure holds predictions that are off by a quarter either way
and more; that one lies inside says nothing for it."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Where a repeated measurement would fall 95 times in 100, by bootstrap."""

    low: float
    high: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, predicted and measured."""

    figure: str
    unit: str
    predicted: float | None
    """Mean over replicas of the simulation."""
    measured: float | None
    error_pct: float | None
    """``100 * (predicted - measured) / measured``; null where that says nothing (a rate of 0)."""
    predicted_95: Interval | None = None
    """Where one more run falls 95 times in 100, by the simulator's replicas."""
    measured_95: Interval | None
    inside: bool | None
    """The prediction lies inside ``measured_95``: no difference was shown. Null: it cannot be told."""
    too_wide: bool = False
    """It lies inside an interval so wide (`TELLING_WIDTH`) that most wrong predictions would: nothing was shown."""

    @property
    def told(self) -> str | None:
        """``inside`` in words; ``None``: there is no interval, or no prediction."""
        if self.too_wide:
            return f"cannot be told: the interval is wider than {TELLING_WIDTH:.0%} of what was measured"
        return None if self.inside is None else "yes" if self.inside else "no"


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Time at one stage in one run, milliseconds, over requests that passed it."""

    requests: int
    queue_ms_mean: float
    queue_ms_p95: float
    copy_ms_mean: float | None
    """Gathering and scattering of rows; null in a simulation, which knows service as a whole."""
    compute_ms_mean: float | None
    service_ms_mean: float
    """What a profile times: copy and compute."""
    service_ms_p95: float
    engine_share: dict[str, float]


class StageCompared(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, predicted and measured."""

    stage: str
    predicted: StageTimes | None
    measured: StageTimes | None
    service_error_pct: float | None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Every request that went in came out exactly once."""

    run: Literal["simulated", "live, client", "live, server"]
    submitted: int
    outcomes: dict[str, int]
    holds: bool
    note: str | None = None


class CpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time of the server process and its children over one replay; measured."""

    server_cpu_s: float
    utilisation: float
    """``server_cpu_s`` over span times usable cores, 0 to 1."""
    cpu_ms_per_request: float | None
    others_utilisation: float
    """Processor time that was neither the server's nor the generator's, over span times usable cores."""
    client_cpu_s: float
    """The load generator's own, on the same cores."""
    cores: int
    load_before_1m: float | None
    """Load average before the run: what else the machine was doing."""
    memory_bytes_peak: int | None
    """Resident memory at the end of the replay."""


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline file on the replayed stretch."""

    name: str
    title: str
    file: str
    engines: dict[str, str]
    """Engine -> how it is run."""
    precisions: dict[str, str] = {}
    """Engine that runs models -> precision that it computed in, as its runtime says; what is asked for may differ."""
    hybrid: bool
    """More than one engine can run models."""
    simulated: Simulation | None = None
    simulated_whole: Simulation | None = None
    """The whole trace at the same pace, which no measurement here covers."""
    simulated_recorded: Simulation | None = None
    """The whole trace at its recorded pace; null where traffic was played at that."""
    measured: Replay | None = None
    compared: list[Compared] = []
    stages: list[StageCompared] = []
    predicted_quantiles_ms: list[float] | None = None
    """Latency at `QUANTILES`."""
    measured_quantiles_ms: list[float] | None = None
    cpu: CpuUse | None = None
    accounts: list[Account] = []
    meets_slo: bool | None = None
    """By measurement; null without one."""
    too_close: bool = False
    """A limit lies inside the measurement's interval."""
    misses: list[str] = []
    """Which promise it breaks and by how much."""
    failed: str | None = None
    """Why there is no measurement."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the verdict that applied."""

    code: str
    text: str
    evidence: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in plain words."""

    headline: str
    action: str
    """One sentence: what to do."""
    recommended: str | None
    """Name of a plan; null when none keeps the promise."""
    sentences: list[str]
    rules: list[Rule]


class RateCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second over the trace, and what part of it was replayed."""

    bin_s: float
    rate_per_s: list[float]
    replayed_from_s: float
    replayed_to_s: float


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of requests; bin i holds values from ``edges[i]`` to below ``edges[i + 1]``."""

    column: str
    unit: str
    edges: list[float]
    requests: list[int]


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the pipeline at the shape most requests have."""

    stages: list[str]
    inspection: Inspection
    shape_note: str


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """What two plans read in the same inputs."""

    first: str
    second: str
    inputs: int
    alike: int
    """Inputs read without a single difference."""
    different_characters: int
    characters: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the study."""

    name: str
    seconds: float
    state: Literal["done", "failed"]
    detail: str


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How each number was obtained."""

    command: str
    steps: list[Step]
    speed: float
    speed_why: str
    stretch_why: str
    profile_s: float
    replay_s: float
    seed: int
    inputs_sha256: dict[str, str]
    versions: dict[str, str]
    load_before_1m: dict[str, float | None]
    """Load average before each step that measures."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole study."""

    stamp: Stamp
    created_utc: str
    pipeline: str
    budget: Budget
    verdict: Verdict
    portrait: Portrait | None
    rate_curve: RateCurve | None
    sizes: list[Histogram]
    machine: LocalMachine | None
    models: list[ModelReport]
    latency_table: list[Entry]
    latency_basis: str
    plans: list[PlanReport]
    agreements: list[Agreement]
    provenance: Provenance
    limits: list[str]
    planned: Plan | None = None
    """Which fleet to buy; ``None``: the folder holds no offers, or no plan could be made."""
    side_by_side: list[str] = []
    """The verdict, which is measured, and `planned`, which is simulated, on the same engines: whether they agree."""


def load(path: Path) -> Report:
    """Read a report written by `loadslice study`.

    Raises:
        InputError: Not a report of this version.
    """
    return decode_json(path, Report)
