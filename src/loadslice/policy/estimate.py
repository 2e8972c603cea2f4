"""Expected service times: a straight line in rows per stage, engine and shape, fitted to what was measured."""

from typing import NamedTuple

import numpy as np

from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Pipeline

_NS_PER_MS = 1_000_000


class ServiceCurve(NamedTuple):
    """Service time of a batch of n rows = base + n * row, nanoseconds."""

    base_ns: int
    row_ns: int


def typical_ms(times: Milliseconds) -> float:
    """The middle of a distribution, in milliseconds: its median, or its mean where that is all that is known."""
    if times.p50 is not None:
        return times.p50
    if times.samples is not None:
        return float(np.median(times.samples))
    assert times.mean is not None, "spec.latency.load admits no entry without a centre"
    return times.mean


def service_curves(pipeline: Pipeline, latency: LatencyTable) -> dict[tuple[int, int, int], ServiceCurve]:
    """Fit a curve for each (stage, engine, bucket) that the table knows something about.

    A bucket without entries of its own takes those of every shape, scaled by nothing: it is an estimate for choosing an
    engine, and the simulator draws its times from the entries themselves.

    Args:
        pipeline: Stages in execution order.
        latency: Entries name stages by `Stage.variant_id`.

    Returns:
        Curve by (stage index, engine index, bucket index); absent where nothing is known.
    """
    curves: dict[tuple[int, int, int], ServiceCurve] = {}
    by_pair: dict[tuple[str, str], list[Entry]] = {}
    for entry in latency.entries:
        by_pair.setdefault((entry.variant, entry.engine), []).append(entry)
    for s, stage in enumerate(pipeline.stages):
        for e, engine in enumerate(pipeline.engines):
            entries = by_pair.get((stage.variant_id, engine), [])
            if not entries:
                continue
            for bucket in range(len(stage.buckets) + 1):
                shape = stage.buckets[bucket] if bucket < len(stage.buckets) else None
                own = [entry for entry in entries if entry.shape == shape] or [
                    entry for entry in entries if entry.shape is None
                ]
                curves[s, e, bucket] = _fit(own or entries)
    return curves


def _fit(entries: list[Entry]) -> ServiceCurve:
    """Least squares through (rows, typical time); one size alone is taken as proportional to rows."""
    rows = np.array([entry.batch for entry in entries], np.float64)
    times_ns = np.array([typical_ms(entry.latency_ms) for entry in entries]) * _NS_PER_MS
    if len(set(rows.tolist())) == 1:
        return ServiceCurve(0, max(1, round(float(times_ns.mean() / rows[0]))))
    slope, base = np.polyfit(rows, times_ns, 1)
    if slope < 0:
        return ServiceCurve(max(1, round(float(times_ns.mean()))), 0)
    if base < 0:
        return ServiceCurve(0, max(1, round(float(times_ns.sum() / rows.sum()))))
    return ServiceCurve(round(float(base)), max(1, round(float(slope))))
