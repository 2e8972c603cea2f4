"""Expected service times: a straight line in rows per stage, engine and shape, fitted to what was measured."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Pipeline, Stage

_NS_PER_MS = 1_000_000
_PPM = 1_000_000
_NORMAL_95 = 1.6449

SLOW_UNKNOWN_PPM = 1_500_000
"""A batch's 95th percentile by its typical time, where no table says how its times spread."""


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


def slow_ppm(stage: Stage, engine: str, latency: LatencyTable | None) -> int:
    """How much longer than typical one batch in twenty of a stage takes on an engine, as the widest entry has it."""
    names = {stage.variant_id, stage.canary_id}
    entries = [] if latency is None else latency.entries
    ratios = [slow_ratio(entry.latency_ms) for entry in entries if entry.variant in names and entry.engine == engine]
    return round(max(ratios) * _PPM) if ratios else SLOW_UNKNOWN_PPM


def slow_ratio(times: Milliseconds) -> float:
    """The 95th percentile of a distribution by its `typical_ms`; straight between percentiles that are known."""
    typical = typical_ms(times)
    slow = typical
    if times.p50 is not None:
        p90 = times.p90 if times.p90 is not None else typical
        slow = p90 + (times.p99 - p90) * 5 / 9 if times.p99 is not None else p90
    elif times.samples is not None:
        slow = float(np.quantile(times.samples, 0.95))
    elif times.family == "exponential":
        slow = typical * math.log(20)
    elif times.family == "lognormal" and times.cv is not None:
        variance = math.log(1.0 + times.cv**2)
        slow = typical * math.exp(_NORMAL_95 * math.sqrt(variance) - variance / 2)
    return max(1.0, slow / typical) if typical > 0 else 1.0


def service_curves(pipeline: Pipeline, latency: LatencyTable) -> dict[tuple[int, int, int], ServiceCurve]:
    """Fit a curve for each (stage, engine, bucket) that the table knows something about.

    A bucket without entries of its own takes those of every shape, scaled by nothing: it is an estimate for choosing an
    engine, and the simulator draws its times from the entries themselves.

    Args:
        pipeline: Stages in execution order.
        latency: Entries name stages by `Stage.variant_id`.

    Returns:
        Curve by (stage index, engine index, lane index); absent where nothing is known. A stage with a canary has its
        lanes twice, the second half for the new version: those of its own entries if it has any, else the old ones'.
    """
    curves: dict[tuple[int, int, int], ServiceCurve] = {}
    by_pair: dict[tuple[str, str], list[Entry]] = {}
    for entry in latency.entries:
        by_pair.setdefault((entry.variant, entry.engine), []).append(entry)
    for s, stage in enumerate(pipeline.stages):
        for e, engine in enumerate(pipeline.engines):
            old = by_pair.get((stage.variant_id, engine), [])
            new = by_pair.get((stage.canary_id, engine), old)
            buckets = len(stage.buckets) + 1
            for version, entries in enumerate([old] if stage.canary is None else [old, new]):
                if not entries:
                    continue
                for bucket in range(buckets):
                    shape = stage.buckets[bucket] if bucket < len(stage.buckets) else None
                    own = [entry for entry in entries if entry.shape == shape] or [
                        entry for entry in entries if entry.shape is None
                    ]
                    curves[s, e, bucket + version * buckets] = _fit(own or entries)
    return curves


_NS_PER_HOUR = 3_600_000_000_000


def row_prices(
    pipeline: Pipeline, stage: Stage, engine: str, base_ns: NDArray[np.int64], row_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """What one row costs on an engine when its batches are full.

    Args:
        pipeline: Says whether energy or money counts.
        stage: Its batch size on the engine is what full means.
        engine: Name.
        base_ns: [B] of the service curve.
        row_ns: [B]

    Returns:
        [B] nJ (active power x time), or 1e-12 of the currency (price of an hour x time); 0 where it is unknown.
    """
    batch = stage.batch.get(engine)
    size = 1 if batch is None else batch.size
    row_share_ns = base_ns / size + row_ns
    settings = pipeline.engines[engine]
    if pipeline.cheapest == "energy":
        prices = row_share_ns * (settings.active_w or 0.0)
    else:
        prices = row_share_ns / _NS_PER_HOUR * (settings.cost_per_hour or 0.0) * 1e12
    return np.rint(prices).astype(np.int64)


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
