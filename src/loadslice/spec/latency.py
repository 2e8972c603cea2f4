"""The latency table: how long each stage takes on each engine, and how that is known."""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json

MS_MAX = 1e9
"""Eleven days; a longer service time is a slip of units."""

BATCH_MAX = 1_000_000

Basis = Literal["measured", "modelled", "emulated"]


class Milliseconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A service-time distribution: percentiles, a mean with a family, or samples."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    mean: float | None = None
    family: Literal["constant", "exponential", "lognormal"] | None = None
    cv: float | None = None
    """Coefficient of variation of a lognormal."""
    samples: list[float] | None = None


class ModelError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far a modelled time may be off: standard deviations of the logarithm of (true time / modelled time).

    Errors are not drawn entry by entry: what is wrong about a device is wrong for all of its entries together, and
    what is wrong about a model on it for all batches and shapes of that model.
    """

    device: str
    """Entries of one device share the first error, whatever engines they are on."""
    device_sd: float
    """Shared by everything on that device."""
    model_sd: float
    """Shared by all entries of one variant on that device."""
    power_sd: float = 0.0
    """Of the device's power, for ``energy_j``, beside what the time's own errors do to it."""
    freedom: int
    """Degrees of freedom the deviations were found with: few make the tails of Student's t."""
    why: str
    """What it was calibrated on, and why it is as wide as it is."""


P99_RUNS_MIN = 100
"""Of fewer runs a 99th percentile is hardly more than the longest of them."""


class Pooled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a rehearsed entry owes to other runs than its own: its figures are not as many measurements."""

    rehearsed: int
    """Passages of this kind of work in the rehearsal. The entry's mean is of these and its ``n``, at one speed."""
    spread_of: Literal["stage", "engine"]
    """Whose passages gave the shape of its distribution (P50, P90, P99, samples), over all shapes and rows together."""
    spread_runs: int
    """How many passages those were."""
    contention: float
    """Of the engine in full company, fitted over all its passages; ``contended_ms`` is a product of it, never timed."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Service time of one variant on one engine, for one batch and one shape."""

    variant: str
    engine: str
    batch: int
    """Rows in the batch."""
    shape: list[int] | None = None
    """Input shape without the row dimension; ``None``: any."""
    latency_ms: Milliseconds
    contended_ms: Milliseconds | None = None
    """The same while every other engine slot of the machine was busy; ``None``: not measured."""
    energy_j: float | None = None
    n: int | None = None
    basis: Basis
    source: str | None = None
    error: ModelError | None = None
    """Of a modelled time; ``None``: measured, or nobody says. `loadslice.spec.uncertainty` draws from it."""
    pooled: Pooled | None = None
    """``None``: its figures are of its own ``n`` runs alone."""

    @property
    def p99_is(self) -> str | None:
        """What a P99 of this entry really is; ``None``: one of enough runs of its own, or a model's."""
        if self.pooled is not None:
            return "pooled"
        few = self.basis == "measured" and self.n is not None and self.n < P99_RUNS_MIN
        return f"longest of {self.n}" if few else None

    @property
    def how(self) -> str:
        """How each of its figures is known."""
        if self.basis != "measured":
            return self.basis
        runs = "measured" if self.n is None else f"measured {self.n} time{'' if self.n == 1 else 's'}"
        if self.pooled is None:
            return runs
        pooled = self.pooled
        company = (
            "" if self.contended_ms is None else f"; contended: modelled, the engine's factor {pooled.contention:.2f}"
        )
        return (
            f"mean: {runs}, {pooled.rehearsed} more in the server; P50 and P99: that mean and the spread of "
            f"{pooled.spread_runs} passages of the {pooled.spread_of}, all shapes{company}"
        )


class StageWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one example input asks of one stage."""

    stage: str
    items: int
    shape: list[int] | None = None


class InputWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one example input asks of every stage; traces name inputs by ``input``."""

    input: str
    stages: list[StageWork]

    @property
    def size(self) -> int:
        """Rows it asks of the stage that it asks most of: a page of 30 lines is 1 to find them, and 30 to read."""
        return max([1, *(work.items for work in self.stages)])


class Drift(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the machine's speed wanders: neighbouring requests are slow together, and runs differ as a whole."""

    period_ms: float
    """How long a slow or fast period lasts, milliseconds."""
    likeness: float
    """Share of the variation of service times that all work of one period has in common, 0 to below 1."""
    between_runs: float | None = None
    """Standard deviation of a whole run's speed, as a share of it; ``None``: not measured, taken as 0."""
    overhead_between_runs: float | None = None
    """The same of the time beside the engines (``overhead_ms``, ``handover_ms``); ``None``: not measured, so 0."""
    runs: int | None = None
    """Runs that these spreads were found from; few make the interval of a prediction wider."""
    level_runs: int | None = None
    """Runs that the times themselves are a mean of; ``None``: as many as ``runs``."""
    misses: float | None = None
    """Root mean square of how many standard deviations of its replicas a rehearsal's P50, P95 and P99 lay from their
    prediction, over all rehearsals; ``None``: none was predicted, and replicas differ as far as runs do."""
    missed_runs: int | None = None
    """Rehearsals that ``misses`` is of."""
    basis: Basis = "measured"


MISSES_MAX = 10.0
"""Standard deviations; a rehearsal that lay further off counts as this much."""

OTHERS = "other_processes_cpu_pct"
"""Where a table's stamp says, beside its machine, how much of the processors others took while it was measured."""

NOTICEABLE_PCT = 10
"""From here on measured times are called disturbed."""


class LatencyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A profile file."""

    entries: list[Entry]
    inputs: list[InputWork] = []
    overhead_ms: Milliseconds | None = None
    """Time a request spends outside all stages (socket, parsing, reply), measured; ``None``: taken as 0."""
    handover_ms: Milliseconds | None = None
    """Time a batch holds its slot beside its service (the way to the worker and back), measured; ``None``: 0."""
    arrival_ms: Milliseconds | None = None
    """How much later than the quickest a request reaches the core, part of ``overhead_ms``, measured; ``None``: all are
    as quick. Replicas differ in it, for who comes first may decide where requests go."""
    overhead_cpu_ms: float | None = None
    """Processor time a request costs beside its stages (front, hand-over, load generator), measured; ``None``: 0."""
    drift: Drift | None = None
    """How the machine's speed wanders; ``None``: every service time is drawn by itself."""
    pipeline: str | None = None
    stamp: Stamp | None = None

    @property
    def disturbed(self) -> str | None:
        """What whoever uses its measured times has to say; ``None``: the machine was quiet, or nobody knows."""
        percent = 0 if self.stamp is None else int(self.stamp.machine.get(OTHERS, 0))
        if percent < NOTICEABLE_PCT or all(entry.basis != "measured" for entry in self.entries):
            return None
        return (
            f"other processes took {percent} % of the machine while these times were measured, so they are too long. "
            "Run `loadslice profile` again when it is quiet."
        )


def load(path: Path) -> LatencyTable:
    """Read and check a latency table.

    Raises:
        InputError: One line that names the file, the entry and what is wrong with it: a time that is none, a
            distribution that is half stated or stated twice, a batch or a shape below 1, or two entries for one kind
            of work.
    """
    table = decode_json(path, LatencyTable)
    if not table.entries:
        raise InputError(f"{path}: entries: empty. Run `loadslice profile PIPELINE` to measure some.")
    known: dict[tuple[str, str, int, tuple[int, ...] | None], int] = {}
    for index, entry in enumerate(table.entries):
        place = f"{path}: entries[{index}] ({entry.variant} on {entry.engine}, batch {entry.batch})"
        _check_entry(entry, place)
        key = (entry.variant, entry.engine, entry.batch, None if entry.shape is None else tuple(entry.shape))
        if key in known:
            raise InputError(f"{place}: entries[{known[key]}] is of the same batch and shape. Keep one of them.")
        known[key] = index
    _check_rest(table, path)
    return table


def _check_entry(entry: Entry, place: str) -> None:
    if not 1 <= entry.batch <= BATCH_MAX:
        raise InputError(f"{place}: batch must be from 1 to {BATCH_MAX}.")
    if entry.shape is not None and any(side < 1 for side in entry.shape):
        raise InputError(f"{place}.shape: {entry.shape} has a side below 1.")
    if entry.energy_j is not None and not 0 <= entry.energy_j < math.inf:
        raise InputError(f"{place}.energy_j: {entry.energy_j:g} is not an energy.")
    if entry.error is not None:
        _check_error(entry, entry.error, f"{place}.error")
    _check(entry.latency_ms, f"{place}.latency_ms")
    if entry.contended_ms is not None:
        _check(entry.contended_ms, f"{place}.contended_ms")


ERROR_SD_MAX = 3.0
"""A factor of 20 either way; whoever knows less has no model."""


def _check_error(entry: Entry, error: ModelError, place: str) -> None:
    if entry.basis == "measured":
        raise InputError(f"{place}: a measured time has no model's error. Remove one of them.")
    for key in ("device_sd", "model_sd", "power_sd"):
        value = getattr(error, key)
        if not 0 <= value <= ERROR_SD_MAX:
            raise InputError(f"{place}.{key}: {value:g} must be from 0 to {ERROR_SD_MAX:g}.")
    if error.freedom < 1:
        raise InputError(f"{place}.freedom: {error.freedom} must be at least 1.")


def _check_rest(table: LatencyTable, path: Path) -> None:
    """What a table says beside its entries."""
    for key in ("overhead_ms", "handover_ms", "arrival_ms"):
        times: Milliseconds | None = getattr(table, key)
        if times is not None:
            _check(times, f"{path}: {key}")
    if table.overhead_cpu_ms is not None and not 0 <= table.overhead_cpu_ms < math.inf:
        raise InputError(f"{path}: overhead_cpu_ms: {table.overhead_cpu_ms} is not a time.")
    for known in table.inputs:
        for work in known.stages:
            if not 0 <= work.items <= BATCH_MAX:
                raise InputError(f"{path}: inputs '{known.input}', stage '{work.stage}': items {work.items}.")
    drift = table.drift
    if drift is None:
        return
    if not 0 < drift.period_ms <= MS_MAX:
        raise InputError(f"{path}: drift.period_ms: {drift.period_ms:g} must be above 0 and at most {MS_MAX:g} ms.")
    if not 0 <= drift.likeness < 1:
        raise InputError(f"{path}: drift.likeness: {drift.likeness:g} must be from 0 to below 1.")
    for key in ("between_runs", "overhead_between_runs"):
        share = getattr(drift, key)
        if share is not None and not 0 <= share <= 1:
            raise InputError(f"{path}: drift.{key}: {share:g} must be a share, from 0 to 1.")
    if drift.runs is not None and drift.runs < 2:
        raise InputError(f"{path}: drift.runs: {drift.runs} run cannot differ from itself; at least 2.")
    if drift.level_runs is not None and drift.level_runs < 1:
        raise InputError(f"{path}: drift.level_runs: {drift.level_runs} runs have no mean; at least 1.")
    if drift.misses is not None and not (0 <= drift.misses <= MISSES_MAX and (drift.missed_runs or 0) >= 1):
        raise InputError(
            f"{path}: drift.misses: {drift.misses:g} of {drift.missed_runs or 0} rehearsals; it must be from 0 to "
            f"{MISSES_MAX:g}, of at least one."
        )


def _check(times: Milliseconds, place: str) -> None:
    for key in ("p50", "p90", "p99", "mean", "cv"):
        _check_number(getattr(times, key), f"{place}.{key}")
    for index, value in enumerate(times.samples or []):
        _check_number(value, f"{place}.samples[{index}]")
    percentiles = [value for value in (times.p50, times.p90, times.p99) if value is not None]
    if times.mean is not None or times.family is not None or times.cv is not None:
        _check_family(times, percentiles, place)
        return
    if times.samples is not None and not times.samples:
        raise InputError(f"{place}.samples: empty.")
    if times.samples is None and times.p50 is None:
        raise InputError(f"{place}: give p50 (p90, p99), mean with a family, or samples.")
    if percentiles != sorted(percentiles):
        raise InputError(f"{place}: percentiles must not fall ({', '.join(map(str, percentiles))}).")


def _check_family(times: Milliseconds, percentiles: list[float], place: str) -> None:
    """A family has a mean, a lognormal a cv as well, and nothing else says what the times are."""
    if percentiles or times.samples is not None:
        other = "percentiles" if percentiles else "samples"
        raise InputError(f"{place}: a mean with a family and {other} say it twice. Keep one of them.")
    if times.mean is None:
        raise InputError(f"{place}: a family needs its mean. Add `mean` in ms.")
    if times.family is None:
        raise InputError(f"{place}: a mean alone is no distribution. Add `family` (constant, exponential, lognormal).")
    if times.family == "lognormal" and times.cv is None:
        raise InputError(f"{place}: a lognormal needs its coefficient of variation. Add `cv`, for instance 0.2.")
    if times.family != "lognormal" and times.cv is not None:
        raise InputError(f"{place}.cv: of a lognormal only; the family is {times.family}. Remove it.")


def _check_number(value: float | None, place: str) -> None:
    if value is not None and not 0 <= value <= MS_MAX:
        raise InputError(f"{place}: {value:g} must be finite, not negative, and at most {MS_MAX:g}.")
