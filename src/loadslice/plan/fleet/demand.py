"""What the traffic asks of engine types: slot seconds by time bucket and class of work.

A class is (stage, shape bucket, size); sizes are grouped where there are many. Times are means of the profile's own
distributions, at the row count that is cheapest per row within the batch the type may form: no schedule needs less.
"""

from dataclasses import dataclass

import numpy as np

from loadslice.plan.fleet.problem import Float64s, Int64s
from loadslice.sim.course import Prepared
from loadslice.sim.record import Traffic
from loadslice.sim.service import CONSTANT, EXPONENTIAL, QUANTILES, Service

BUCKETS = 24
"""Time buckets of a plan."""
BUCKET_S_MIN = 60.0
"""A shorter stretch may well ask for more than the fleet can do: that is what queues are for."""
SPAN_S_MIN = 1.0
"""A single request, or many at one instant, are taken to have come within this."""
SIZES_MAX = 8
"""Classes of size at one stage and shape."""
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Kind:
    """One class of work."""

    stage: int
    bucket: int
    rows_least: int
    rows_most: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The traffic, added up."""

    seconds: Float64s
    """[T]"""
    requests: Int64s
    """[T]"""
    grouped: bool
    """Buckets are hours of like traffic together; otherwise one after the other"""
    kinds: tuple[Kind, ...]
    work_s: Float64s
    """[T, J, E] for each engine of the pipeline that the demand was taken with"""


def mean_ns(service: Service, stage: int, engine: int, lane: int) -> tuple[Int64s, Float64s]:
    """Row counts of the profile, ascending, and the mean time of each with the machine to itself, ns."""
    knots = service.knots[stage, engine, lane]
    used = int(np.count_nonzero(knots))
    means = np.zeros(used)
    for place in range(used):
        if service.family[stage, engine, lane, place] == QUANTILES:
            means[place] = np.trapezoid(service.quantile_ns[stage, engine, lane, place], dx=1.0) / (
                service.quantile_ns.shape[-1] - 1
            )
        else:
            assert service.family[stage, engine, lane, place] >= min(CONSTANT, EXPONENTIAL)
            means[place] = service.scale[stage, engine, lane, place, 0]
    return knots[:used], means + np.trapezoid(service.handover_ns, dx=1.0) / (len(service.handover_ns) - 1)


def rows_ns(service: Service, stage: int, engine: int, lane: int, rows: Int64s, batch: int) -> Float64s:
    """Least mean slot time that requests of so many rows cost each, ns.

    A request of at least ``batch`` rows runs alone; a smaller one shares a batch and costs its part of the best.
    """
    knots, means = mean_ns(service, stage, engine, lane)
    alone = np.interp(rows, knots, means)
    beyond = rows > knots[-1]
    alone[beyond] = means[-1] * rows[beyond] / knots[-1]
    sizes = np.unique(np.concatenate([knots[knots <= batch], [batch]]))
    times = np.interp(sizes, knots, means)
    times[sizes > knots[-1]] = means[-1] * sizes[sizes > knots[-1]] / knots[-1]
    each = float((times / sizes).min())
    shared = rows < batch
    return np.where(shared, np.minimum(alone, rows * each), alone)


def demand(prepared: Prepared, runs: tuple[tuple[str, ...], ...], *, patience_s: float = 0.0) -> Demand:
    """Add the traffic up.

    Args:
        prepared: Traffic and times of a pipeline whose engines are the types, one of each.
        runs: By stage, names of engines that can run it.
        patience_s: How long an answer may take: traffic of an instant is worked through in that time.

    Returns:
        The demand on each engine of the pipeline.
    """
    traffic, pipeline = prepared.traffic, prepared.pipeline
    which, seconds, grouped = _buckets(traffic, patience_s)
    count = len(seconds)
    works = len(traffic.items)
    per_kind = np.bincount(which * works + traffic.work, minlength=count * works).reshape(count, works)
    kinds: list[Kind] = []
    work: list[Float64s] = []
    for s in range(len(pipeline.stages)):
        for lane in np.unique(traffic.bucket[:, s]):
            for members in _sizes(traffic.items[:, s], np.flatnonzero(traffic.bucket[:, s] == lane)):
                rows = traffic.items[members, s]
                asked = per_kind[:, members]
                if asked.sum() == 0:
                    continue
                kinds.append(Kind(s, int(lane), int(rows.min()), int(rows.max())))
                work.append(_work_s(prepared, s, int(lane), rows, asked, runs[s]))
    return Demand(
        seconds=seconds,
        requests=per_kind.sum(axis=1),
        grouped=grouped,
        kinds=tuple(kinds),
        work_s=np.stack(work, axis=1),
    )


def _work_s(prepared: Prepared, stage: int, lane: int, rows: Int64s, asked: Int64s, runs: tuple[str, ...]) -> Float64s:
    """[T, E] seconds of a class on each engine."""
    engines = list(prepared.pipeline.engines)
    seconds = np.full((len(asked), len(engines)), np.inf)
    for name in runs:
        e = engines.index(name)
        batch = prepared.pipeline.stages[stage].batch.get(name)
        ns = rows_ns(prepared.service, stage, e, lane, rows, batch.size if batch is not None else 1)
        seconds[:, e] = asked @ ns / _NS_PER_S
    return seconds


def _sizes(items: Int64s, members: Int64s) -> list[Int64s]:
    """Work of one stage and shape by size: each its own class, or neighbours together where there are many."""
    order = members[np.argsort(items[members], kind="stable")]
    sizes = np.unique(items[order])
    groups = np.array_split(sizes, min(SIZES_MAX, len(sizes)))
    return [order[(items[order] >= group[0]) & (items[order] <= group[-1])] for group in groups]


def _buckets(traffic: Traffic, patience_s: float) -> tuple[Int64s, Float64s, bool]:
    """Bucket of each request, seconds of each bucket, and whether a bucket is hours of like traffic.

    Up to a day: equal parts of at least a minute. Longer: hours, of which those with like traffic stand together.
    """
    arrival_s = traffic.arrival_ns / _NS_PER_S
    span_s = float(arrival_s[-1])
    if span_s < BUCKET_S_MIN:
        span_s = max(span_s, patience_s, SPAN_S_MIN)
    if span_s <= BUCKETS * 3600:
        count = max(1, min(BUCKETS, int(span_s / BUCKET_S_MIN)))
        which = np.minimum((arrival_s / span_s * count).astype(np.int64), count - 1)
        return which, np.full(count, span_s / count), False
    hours = int(np.ceil(span_s / 3600))
    of_hour = np.minimum((arrival_s / 3600).astype(np.int64), hours - 1)
    busiest_first = np.argsort(-np.bincount(of_hour, minlength=hours), kind="stable")
    group = np.empty(hours, np.int64)
    # The busiest hour stands alone: it is what a fleet is sized by.
    group[busiest_first[0]] = 0
    for number, together in enumerate(np.array_split(busiest_first[1:], BUCKETS - 1)):
        group[together] = number + 1
    lengths = np.full(hours, 3600.0)
    lengths[-1] = max(span_s - 3600 * (hours - 1), 1.0)
    seconds: Float64s = np.bincount(group, weights=lengths, minlength=BUCKETS).astype(np.float64)
    return group[of_hour], seconds, True
