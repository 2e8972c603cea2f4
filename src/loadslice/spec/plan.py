"""The plan document: fleets that were compared, what each costs, which one is recommended and how sure that is.

Rules of this document: a figure nobody knows is ``None`` and a warning names what is missing; a fleet that lacks a
price or breaks a limit stays in the list and says so. Money is in ``currency``, power in watts at the machine's plug,
energy in joules over the trace unless the key says otherwise.
"""

from typing import Literal

import msgspec

from loadslice.spec.device import Kind
from loadslice.spec.files import Stamp
from loadslice.spec.latency import Basis
from loadslice.spec.observed import Observed
from loadslice.spec.pipeline import Precision
from loadslice.spec.plan_confidence import Confidence
from loadslice.spec.plan_money import BreakEven, Growth, PriceOf, YearCost
from loadslice.spec.simulation import LatencyMs

Objective = Literal["cost", "latency", "energy", "throughput"]

Judged = Literal["simulated", "bounded", "not judged"]
"""simulated: on the recorded traffic. bounded: it falls behind in some bucket whatever the schedule, and needed none.
not judged: it cannot be simulated at all (a stage runs on none of its engines)."""


class PlannedBox(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one type that carry engines. Figures are of one machine."""

    count: int
    cores: int
    cards: int
    """Places for accelerators."""
    price_purchase: float | None
    price_per_hour: float | None
    """Where it is rented instead of bought."""
    idle_w: float | None
    """Without its engines: fans, memory, disks, idle processor."""
    rack_units: float
    count_max: int | None = None
    """How many are offered."""


class PlannedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Engines of one type. Figures are of one engine."""

    kind: Kind
    device: str | None
    """Name in the catalogue; ``None``: the processor of the machine the profile was taken on."""
    count: int
    box: str
    """Key of `PlannedFleet.boxes`."""
    cores: float = 0.0
    """Of its box that one takes."""
    cards: int = 0
    """The same of its places for accelerators."""
    count_max: int | None = None
    """How many are offered."""
    precision: Precision
    batch_rows: int
    """Rows of the largest batch any stage forms here."""
    price_purchase: float | None
    """``None``: unknown. A part of a machine (cores) costs 0 beside its machine."""
    price_per_hour: float | None
    idle_w: float | None
    active_w: float | None
    times: Basis
    """How its service times are known; the weakest where they differ. What was measured on another machine than it
    stands on is modelled."""
    utilisation: float | None
    """Busy share of its time over the trace, 0 to 1, mean over the engines of the type; ``None``: not simulated."""
    utilisation_peak_hour: float | None = None
    """The same in the busiest hour, by the flow that the mix was planned for."""
    utilisation_over_time: list[tuple[float, float]] = []
    """Share of the time, and `utilisation` in it, by the traffic of each bucket; empty: the mean stands for all."""
    times_taken_from: str | None = None
    """Engine of the latency table that was measured on another machine and whose times it is taken to have; ``None``:
    its times are of its own kind of machine."""
    memory_bytes: float | None = None
    models: bool = True
    """It runs a model; False: Python stages alone, which processors run whatever the models run on."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the budget that a fleet meets or not."""

    name: Literal[
        "p95_ms",
        "p99_ms",
        "error_rate",
        "purchase_max",
        "per_box_w",
        "per_rack_w",
        "capacity",
        "devices",
        "memory",
        "operators",
        "precision",
    ]
    limit: float | None
    value: float | None
    """``None``: unknown, or not a number (a stage that no engine of the fleet can run)."""
    met: bool | None
    """``None``: cannot be told, `evidence` says what is missing."""
    evidence: str


class PlannedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet: what stands there, whether it keeps the promise on the recorded traffic, and what it costs."""

    name: str
    """``cpu-only``, ``gpu-only``, ``npu-only``, ``hybrid`` for the reference plans, else what it consists of."""
    label: str
    """What it consists of, for instance ``2 x l4 + 3 x cpu``."""
    engines: dict[str, PlannedEngine]
    boxes: dict[str, PlannedBox]
    meets_slo: bool | None
    """``None``: not simulated."""
    limits: list[Limit]
    """Every limit of the budget, met or not; the first that is not met binds."""
    judged: Judged
    latency_ms: LatencyMs
    throughput_per_s: float | None
    goodput_per_s: float | None
    error_rate: float | None
    """Share of requests that ended otherwise than completed."""
    energy_j: float | None
    """Of engines and boxes over the trace."""
    power_w: float | None
    """Everything busy at once."""
    power_per_box_w: float | None
    """The same of the box that draws most."""
    racks_needed: int | None
    utilisation: dict[str, float]
    """By engine type."""
    cost_per_hour: float | None
    """What the mix was chosen by: price over the horizon and energy at the tariff, in the plan's currency."""
    tco: list[YearCost] | None
    cost_per_1000: float | None
    """Over the budget's horizon, for 1000 completed requests."""
    missing_prices: list[str]
    dominated_by: str | None
    """A fleet that is no worse in cost, P99 and energy and better in one; ``None``: on the front, or not comparable."""
    policy: dict[str, str]
    """Policy numbers that were found around it, by key of the pipeline file."""
    basis: Basis
    """The weakest kind of knowledge among the times it was judged by."""
    interval_95: dict[str, tuple[float, float]] | None
    """Figure -> bounds that hold one more run 19 times of 20, by replicas and by what modelled times may be wrong."""
    warnings: list[str] = []
    unchecked: str | None = None
    """What its promise hangs on that no simulation sees and nobody checked: whether an NPU runs the operators."""


class PathStep(msgspec.Struct, frozen=True, kw_only=True):
    """One question of the decision, as it was answered."""

    question: str
    answer: str
    evidence: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """How far the search went, and what it may claim."""

    cheapest_proven: bool
    """No cheaper mix of the offered engines keeps the promise, by bounds and simulations under `assumes`."""
    cost_per_hour: float | None
    """Of the cheapest fleet found."""
    lower_bound_per_hour: float | None
    """No mix below this can keep the promise."""
    solved: int
    """Mixed-integer programs."""
    solve_s: float
    simulated: int
    """Candidate fleets."""
    bounded: int
    """Candidates settled by a bound without simulating them."""
    dominated: int
    """Candidates settled by one that was simulated: smaller than one that failed, or dearer than one that held."""
    requests_simulated: int
    seconds: float
    assumes: list[str]
    estimated: int = 0
    """Candidates settled by a sample of the traffic, on which a fleet that holds was no worse."""
    front_tolerance: float | None = None
    """No candidate betters a fleet of the front that costs no more by a larger share, in P99 and in energy at once;
    ``None``: none was looked for."""
    sample_error: float | None = None
    """By how much samples were seen to flatter, at most; ``None``: nothing was estimated."""
    searched_out: bool = False
    """Every search settled all mixes that it might have had to: the least of each kind is proven, in what it sought."""

    @property
    def claim(self) -> str:
        """What is proven of the recommended fleet, and why no more."""
        if self.cheapest_proven:
            return "the cheapest mix, proven, before the hours of its kinds are counted"
        if not self.searched_out:
            return "not proven to be the cheapest: a search stopped before it had settled every mix"
        if self.cost_per_hour is None:
            return "the smallest mix, proven; whether it is the cheapest is open, for a price is not known"
        return "proven is the least of each kind in the objective; the cheapest was not sought"


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What another way to plan would have chosen, judged by the same simulation."""

    planner: Literal["fluid", "greedy"]
    label: str | None
    """Its fleet; ``None``: it found none."""
    meets_slo: bool | None
    cost_per_hour: float | None
    saves_pct: float | None
    """How much less the recommended fleet costs than the cheapest of its fleets that keeps the promise."""
    added: int = 0
    """Engines that had to be added to its first answer until the simulation held the promise."""


class CheckItem(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the cheapest way to validate the plan."""

    step: str
    state: Literal["done", "open", "failed", "not needed"]
    """failed: it was tried, and the answer speaks against that way."""
    evidence: str


class Valley(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of the trace against the fleet."""

    hour: int
    demand_per_s: float
    utilisation: float | None
    spare_per_s: float | None
    """Requests of the same mix that would fit below the utilisation cap."""


class ValleyFill(msgspec.Struct, frozen=True, kw_only=True):
    """How much offline work fits into the valleys of a mean day, and what that saves against machines of its own."""

    fleet: str
    fill_max: float
    """Share of an engine's time that may be filled."""
    engine_hours_per_day: dict[str, float]
    """Free below that, by kind."""
    requests_per_day: float | None
    """Of the same mix as the trace."""
    fits: bool | None
    """The budget's offline work, within its window; ``None``: there is none, or it is unknown."""
    fits_in_window: float | None
    """Of its requests."""
    years: int
    separate: str | None
    """Machines that it would need of its own."""
    separate_total: float | None
    power_total: float | None
    """What the filled valleys draw more over the years."""
    saved: float | None
    evidence: str


class HourLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic in one bucket of the trace, or of its mean day where it is longer than one."""

    hour: int
    """Index of the bucket from the trace's beginning; an hour from one day of traffic on."""
    seconds: float
    requests: int
    """Of a mean day: the mean."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic that was planned for."""

    requests: int
    span_s: float
    rate_per_s: float
    peak_rate_per_s: float
    """Of the busiest bucket."""
    buckets: list[HourLoad]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `loadslice plan`."""

    decision: str | None
    decision_path: list[PathStep]
    fleets: list[PlannedFleet]
    recommended: str | None
    """Name of a fleet; ``None``: none keeps the promise within the budget."""
    nearest: str | None
    """The fleet that misses least, where none is recommended."""
    saves_vs_gpu_only_pct: float | None
    """``None``: there is no GPU-only fleet that keeps the promise, or a price is unknown."""
    objective: Objective
    currency: str
    horizon_years: int = 3
    """The budget's, over which fleets are compared."""
    load: Load
    proof: Proof | None
    compared_with: list[Compared]
    confidence: Confidence | None
    valleys: list[Valley]
    valley_fill: ValleyFill | None = None
    prices: list[PriceOf] = []
    """Of every offered part, with who said so."""
    break_even: list[BreakEven] = []
    """Of the recommended fleet against what is there, and renting against buying."""
    growth: Growth | None = None
    """``None``: traffic does not grow, or no fleet is recommended."""
    checklist: list[CheckItem]
    warnings: list[str]
    pipelines: list[str] = []
    """Files beside this document that `loadslice serve` takes."""
    seed: int = 0
    observed: Observed | None = None
    """What the study it belongs to was wrong by, drawn into `confidence`; ``None``: made without a study."""
    stamp: Stamp | None = None

    @property
    def claim(self) -> str | None:
        """What the search proves, and of which fleet, where another is recommended; ``None``: none was made."""
        if self.proof is None:
            return None
        least = self.proof.cost_per_hour
        of = next((one.name for one in self.fleets if least is not None and one.cost_per_hour == least), None)
        if not self.proof.cheapest_proven or self.recommended is None or of in (None, self.recommended):
            return self.proof.claim
        return f"{self.proof.claim}: that is {of}, which hours or growth make dearer, or rules and limits put aside"

    def doubt(self, fleet: PlannedFleet) -> str | None:
        """Why a fleet that keeps the promise as simulated may not keep it; ``None``: nothing that was seen says so."""
        if not fleet.meets_slo:
            return None
        found = [self._off(fleet), fleet.unchecked]
        return "; ".join(one for one in found if one is not None) or None

    def _off(self, fleet: PlannedFleet) -> str | None:
        """It breaks the promise when its tail is as far above its simulation as this study saw."""
        seen = self.observed
        factor = 1.0 if seen is None else seen.tail_factor_max
        limits = [one for one in fleet.limits if one.name in ("p95_ms", "p99_ms")]
        over = [one for one in limits if one.value is not None and one.limit and one.value * factor > one.limit]
        if seen is None or not over:
            return None
        worst = max(seen.tail_seen, key=lambda title: seen.tail_seen[title])
        return f"not if {seen.tail.upper()} is {factor:.2g} times what is simulated, as it was for {worst}"
