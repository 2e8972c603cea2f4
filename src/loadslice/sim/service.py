"""Service times: lowers a latency table to arrays, and draws from them.

A distribution per (stage, engine, bucket, rows) is a quantile function on a fixed grid, or a family with its
parameters. Between measured row counts quantiles are interpolated; beyond the last they grow in proportion to rows.
Where the table holds a second distribution taken beside other work, the pair says how much the machine's other engines
slow this one.

Where the table knows that the machine has slow periods, all work of one period shares a part of its luck: a draw's
normal score is ``sqrt(likeness) * the period's + sqrt(1 - likeness) * its own`` (a Gaussian copula, Nelsen, An
Introduction to Copulas, sec. 2.3). Each distribution stays as it was measured; only neighbours become alike. Where it
knows how far whole runs differ, `of_run` gives a run a speed of its own.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.policy.estimate import typical_ms
from loadslice.policy.kernel import by_reference, called, kernel
from loadslice.policy.kernel import entry as called_from_python
from loadslice.policy.tables import Int64s, versions
from loadslice.sim.crowding import company, measured_crowding, shared_cores, shared_threads
from loadslice.sim.draws import NORMAL_95, normal, t_95, uniform
from loadslice.sim.gaps import accepts, gap, remedy, rows_most
from loadslice.spec.errors import InputError
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Pipeline, Stage

Float64s = NDArray[np.float64]

GRID = 65
"""Points of a quantile function, 0 and 1 included."""

QUANTILES, CONSTANT, EXPONENTIAL, LOGNORMAL = range(4)
_FAMILIES = {"constant": CONSTANT, "exponential": EXPONENTIAL, "lognormal": LOGNORMAL}

_NS_PER_MS = 1_000_000


@by_reference
class Service(NamedTuple):
    """Service-time distributions. S stages, E engines, B lanes (buckets, once per version), K row counts."""

    knots: Annotated[Int64s, "S", "E", "B", "K"]
    """Row counts that were measured, ascending; 0 marks the end"""
    family: Annotated[Int64s, "S", "E", "B", "K"]
    scale: Annotated[Float64s, "S", "E", "B", "K", 2]
    """Mean in ns; sigma of the logarithm"""
    quantile_ns: Annotated[Float64s, "S", "E", "B", "K", GRID]
    contention: Annotated[Float64s, "S", "E", "B"]
    """Slow-down beside other work on this machine, at least 1"""
    threads: Annotated[Int64s, "E"]
    """Processor threads a busy slot keeps busy on the machine that is shared"""
    cores: float
    """Processor cores that are shared; inf: engines do not share any"""
    handover_ns: Annotated[Float64s, GRID]
    """Quantiles of the time a batch holds its slot beside its service"""
    background: float
    """Threads that are busy beside all engines on average: front, hand-over and load generator"""
    company: Annotated[Int64s, "S", "E"]
    """Threads of other slots at which ``contention`` is full"""
    machine: Annotated[Int64s, "E"]
    """Whose slow periods an engine has: 0 for those of the shared processor, else its own index plus 1"""
    likeness: float
    """Share of the variation that all work of one period has in common; 0: every draw is by itself"""
    period_ns: float
    """Length of one period"""
    between_runs: Annotated[Float64s, 2]
    """Standard deviation of a whole run's speed, as a share of it: of engines, of the time beside them"""
    pace: float
    """This run's time per unit of work; 1: as measured"""


def quantile_function(times: Milliseconds) -> Float64s:
    """A distribution as GRID quantiles, in nanoseconds.

    Samples give theirs. Percentiles are joined by straight lines; nothing is known below p50 and above p99, so the
    lower half mirrors the step to p90 at half its width and the top ends at p99.
    """
    grid = np.linspace(0.0, 1.0, GRID)
    if times.samples is not None:
        from_samples: Float64s = np.quantile(np.array(times.samples, np.float64), grid) * _NS_PER_MS
        return from_samples
    p50 = typical_ms(times)
    p90 = times.p90 if times.p90 is not None else p50
    p99 = times.p99 if times.p99 is not None else p90
    low = max(0.5 * p50, p50 - 0.5 * (p90 - p50))
    joined: Float64s = np.interp(grid, [0.0, 0.5, 0.9, 0.99, 1.0], [low, p50, p90, p99, p99]) * _NS_PER_MS
    return joined


def lower_service(
    pipeline: Pipeline,
    latency: LatencyTable,
    *,
    rate_per_s: float = 0.0,
    path: str = "latency table",
    pipeline_path: str = "PIPELINE",
) -> tuple[Service, list[str]]:
    """Lower a latency table for one pipeline.

    Args:
        pipeline: Stages in execution order.
        latency: Checked by `spec.latency.load`.
        rate_per_s: Mean rate of the traffic, for what each request costs the processor outside engines.
        path: Named in errors.
        pipeline_path: The pipeline's file, for the command that would measure what is missing.

    Returns:
        The arrays, and one warning for each shape and each number of rows that had to be scaled from another.

    Raises:
        InputError: A stage has no time at all on one of its engines.
    """
    stages, engines = pipeline.stages, list(pipeline.engines)
    lanes = max((len(stage.buckets) + 1) * versions(stage) for stage in stages)
    found: dict[tuple[int, int, int], list[Entry]] = {}
    factor: dict[tuple[int, int, int], float] = {}
    warnings: list[str] = []
    for s, stage in enumerate(stages):
        for name in stage.engine_names:
            entries = [entry for entry in latency.entries if (entry.variant, entry.engine) == (stage.variant_id, name)]
            if not entries:
                raise InputError(
                    f"{path}: stage '{stage.name}' has no time on engine '{name}' (variant '{stage.variant_id}'). "
                    + remedy(pipeline, stage, name, pipeline_path)
                )
            newer = [entry for entry in latency.entries if (entry.variant, entry.engine) == (stage.canary_id, name)]
            if stage.canary is not None and not newer:
                raise InputError(
                    f"{path}: the canary of stage '{stage.name}' has no time on engine '{name}' (variant "
                    f"'{stage.canary_id}'). Add an entry, or a copy of the old version's if it is to be as fast."
                )
            for lane in range((len(stage.buckets) + 1) * versions(stage)):
                version, bucket = divmod(lane, len(stage.buckets) + 1)
                key = (s, engines.index(name), lane)
                found[key], factor[key] = _nearest(newer if version else entries, stage, name, bucket)
                if not accepts(stage, name, bucket) or version:
                    continue
                lacking = gap(stage, name, bucket, found[key], factor[key], rows_most(latency, stage, name, bucket))
                if lacking is not None:
                    warnings.append(f"{lacking} {remedy(pipeline, stage, name, pipeline_path)}")
    cores = shared_cores(latency)
    knots = max(len(entries) for entries in found.values())
    shape = (len(stages), len(engines), lanes, knots)
    service = Service(
        knots=np.zeros(shape, np.int64),
        family=np.zeros(shape, np.int64),
        scale=np.zeros((*shape, 2)),
        quantile_ns=np.zeros((*shape, GRID)),
        contention=np.ones(shape[:3]),
        threads=np.array([shared_threads(pipeline, name) for name in engines], np.int64),
        cores=cores,
        handover_ns=np.zeros(GRID) if latency.handover_ms is None else quantile_function(latency.handover_ms),
        background=rate_per_s * (latency.overhead_cpu_ms or 0.0) / 1000,
        company=company(pipeline, cores),
        machine=np.array([0 if shared_threads(pipeline, name) else e + 1 for e, name in enumerate(engines)], np.int64),
        likeness=0.0 if latency.drift is None else latency.drift.likeness,
        period_ns=1.0 if latency.drift is None else latency.drift.period_ms * _NS_PER_MS,
        between_runs=np.array(_between_runs(latency.drift)),
        pace=1.0,
    )
    for key, entries in found.items():
        _fill(service, key, entries, factor[key], measured_crowding(pipeline, engines[key[1]], cores))
    return service, warnings


def _between_runs(drift: Drift | None) -> tuple[float, float]:
    """How far one more run may lie from those measured, as a standard deviation.

    A spread found from few runs is uncertain itself, and so is the mean that times are: a prediction interval for one
    more value is ``t * s * sqrt(1 + 1 / n)``, with ``t`` of the runs that ``s`` was found from and ``n`` of the runs in
    the mean; what is drawn is normal, so that ``t`` counts by its ratio to the normal point.
    """
    if drift is None:
        return 0.0, 0.0
    wider = 1.0
    if drift.runs is not None:
        wider = t_95(drift.runs - 1) / NORMAL_95 * math.sqrt(1 + 1 / (drift.level_runs or drift.runs))
    return (drift.between_runs or 0.0) * wider, (drift.overhead_between_runs or 0.0) * wider


def of_run(service: Service, seed: int) -> tuple[Service, float]:
    """The same machine in one of its runs: somewhat faster or slower as a whole, by the seed.

    One run alone is simulated at the typical speed; several, which are to show what may happen, each take theirs.

    Returns:
        The machine, and how much longer its time beside the engines is, hand-over among it.
    """
    if not service.between_runs.any():
        return service, 1.0
    engines, beside = service.between_runs
    pace = math.exp(engines * normal(seed, 0, RUN) - 0.5 * engines * engines)
    longer = math.exp(beside * normal(seed, 1, RUN) - 0.5 * beside * beside)
    return service._replace(pace=pace, handover_ns=service.handover_ns * longer), longer


def _nearest(entries: list[Entry], stage: Stage, engine: str, bucket: int) -> tuple[list[Entry], float]:
    """Entries of a bucket, or of the shape nearest in elements with the factor their times are scaled by.

    An engine of one static shape pads every bucket to it, and takes as long as that.
    """
    accept = stage.accept.get(engine)
    shape = stage.buckets[bucket] if bucket < len(stage.buckets) else None
    if shape is not None and accept is not None and accept.shape is not None:
        shape = accept.shape[1:]
    own = [entry for entry in entries if entry.shape == shape] or [entry for entry in entries if entry.shape is None]
    if own or shape is None:
        return sorted(own or entries, key=lambda entry: entry.batch), 1.0
    elements = math.prod(shape)
    nearest = min(
        (entry.shape for entry in entries if entry.shape is not None),
        key=lambda other: abs(math.log(math.prod(other) / elements)),
    )
    near = [entry for entry in entries if entry.shape == nearest]
    return sorted(near, key=lambda entry: entry.batch), elements / math.prod(nearest)


def _fill(
    service: Service, key: tuple[int, int, int], entries: list[Entry], factor: float, measured_crowding: float
) -> None:
    ratios = []
    for knot, entry in enumerate(entries):
        place = (*key, knot)
        times = entry.latency_ms
        service.knots[place] = entry.batch
        if times.family is None or times.mean is None:
            service.quantile_ns[place] = quantile_function(times) * factor
        else:
            service.family[place] = _FAMILIES[times.family]
            cv = times.cv if times.cv is not None else 1.0
            sigma = math.sqrt(math.log(1.0 + cv * cv)) if times.family == "lognormal" else 0.0
            service.scale[place] = times.mean * _NS_PER_MS * factor, sigma
        if entry.contended_ms is not None:
            ratios.append(typical_ms(entry.contended_ms) / max(typical_ms(times), 1e-9))
    if ratios:
        service.contention[key] = max(1.0, float(np.median(ratios)) / measured_crowding)


@kernel
def on_grid(quantile_ns: Float64s, share: float) -> float:
    """A quantile function at ``share``, 0 to 1."""
    position = share * (GRID - 1)
    below = int(position)
    return float(quantile_ns[below] + (position - below) * (quantile_ns[below + 1] - quantile_ns[below]))


HANDOVER = 100
"""Purpose of the draws of hand-over times, apart from those of service times; plus the stage."""
PERIOD, RUN = 10_000, 10_001
"""Purposes of the draws that a period's and a run's work have in common."""


@called
def score(service: Service, seed: int, now_ns: int, tag: int, stage: int, engine: int) -> float:
    """A draw's standard normal score, alike within one period of the machine."""
    own = normal(seed, tag, stage)
    if service.likeness == 0.0:
        return own
    common = normal(seed, int(now_ns / service.period_ns), PERIOD + 2 * service.machine[engine])
    return math.sqrt(service.likeness) * common + math.sqrt(1.0 - service.likeness) * own


@kernel
def luck(service: Service, seed: int, now_ns: int, tag: int, stage: int, engine: int) -> float:
    """Which quantile of its distribution a batch gets, 0 to 1."""
    if service.likeness == 0.0:
        return uniform(seed, tag, stage)
    return 0.5 * math.erfc(-score(service, seed, now_ns, tag, stage, engine) / math.sqrt(2.0))


@kernel
def draw_at(
    service: Service, seed: int, now_ns: int, tag: int, stage: int, engine: int, bucket: int, knot: int, share: float
) -> float:
    """One service time in ns at a measured row count; ``share`` is the batch's `luck`."""
    family = service.family[stage, engine, bucket, knot]
    if family == QUANTILES:
        return on_grid(service.quantile_ns[stage, engine, bucket, knot], share)
    mean_ns = service.scale[stage, engine, bucket, knot, 0]
    if family == CONSTANT:
        return float(mean_ns)
    if family == EXPONENTIAL:
        # Without slow periods either end may be the slow one; with them a high quantile must be a long time.
        return float(mean_ns * -math.log(share if service.likeness == 0.0 else max(1.0 - share, 1e-12)))
    sigma = service.scale[stage, engine, bucket, knot, 1]
    return float(mean_ns * math.exp(sigma * score(service, seed, now_ns, tag, stage, engine) - 0.5 * sigma * sigma))


@called_from_python(inlined=True)
def draw_ns(
    service: Service, seed: int, now_ns: int, tag: int, stage: int, engine: int, bucket: int, rows: int
) -> float:
    """Service time in ns of a batch that has the machine to itself.

    Args:
        service: Distributions.
        seed: The run's.
        now_ns: When it starts; says in which period.
        tag: The batch's first member.
        stage: Stage index.
        engine: Engine index.
        bucket: Shape bucket.
        rows: Rows in the batch, at least 1.

    Returns:
        Nanoseconds, at least 1.
    """
    knots = service.knots[stage, engine, bucket]
    upper = 0
    while upper + 1 < knots.shape[0] and knots[upper] < rows and knots[upper + 1] > 0:
        upper += 1
    share = luck(service, seed, now_ns, tag, stage, engine)
    at_upper = draw_at(service, seed, now_ns, tag, stage, engine, bucket, upper, share)
    if knots[upper] < rows:
        return max(1.0, float(at_upper * rows / knots[upper]))
    if knots[upper] == rows or upper == 0:
        return max(1.0, at_upper)
    at_lower = draw_at(service, seed, now_ns, tag, stage, engine, bucket, upper - 1, share)
    way = (rows - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
    return max(1.0, float(at_lower + way * (at_upper - at_lower)))


@kernel
def slot_ns(
    service: Service, seed: int, now_ns: int, tag: int, stage: int, engine: int, bucket: int, rows: int
) -> float:
    """How long a batch holds its slot when it has the machine to itself: its service and the way there and back.

    Arguments as `draw_ns`.
    """
    took_ns = service.pace * draw_ns(service, seed, now_ns, tag, stage, engine, bucket, rows)
    if service.handover_ns[GRID - 1] == 0.0:
        return took_ns
    return took_ns + on_grid(service.handover_ns, uniform(seed, tag, HANDOVER + stage))
