"""A prediction against a measurement, figure by figure and stage by stage, beside the measurement's own noise."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.spec.replay import Replay
from loadslice.spec.report import OUTSIDE, QUANTILES, TELLING_WIDTH, Compared, Interval, StageCompared, StageTimes

Float64s = npt.NDArray[np.float64]

RESAMPLES = 1000
CONFIDENCE = 0.95


def figures(
    predicted: Mapping[str, float],
    predicted_95: Mapping[str, Interval],
    measured: Replay,
    measured_ms: Float64s,
    seed: int,
    *,
    resamples: int = RESAMPLES,
) -> list[Compared]:
    """P50, P95, P99, mean, throughput and error rate, both ways.

    Args:
        predicted: Figure -> value, from simulations of the same requests.
        predicted_95: Figure -> spread over their seeds.
        measured: Their replay.
        measured_ms: Measured latency of each completed request, in order of arrival.
        seed: Start of the bootstrap's draws.
        resamples: Draws of the bootstrap.
    """
    statistics = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "mean": None}
    intervals: dict[str, Interval | None] = dict(
        zip(statistics, bootstrap(measured_ms, list(statistics.values()), seed, resamples), strict=True)
    )
    total = sum(measured.outcomes.values())
    intervals["error rate"] = wilson(total - measured.outcomes["completed"], total)
    values = {name: getattr(measured.latency_ms, name) for name in statistics}
    values |= {"throughput": measured.throughput_per_s, "error rate": error_rate(measured.outcomes)}
    units = {"throughput": "requests/s", "error rate": "share"}
    return [
        _compared(name, units.get(name, "ms"), predicted.get(name), value, predicted_95.get(name), intervals.get(name))
        for name, value in values.items()
    ]


def error_rate(outcomes: Mapping[str, int]) -> float | None:
    """Share of requests that ended otherwise than completed; ``None`` of nothing."""
    total = sum(outcomes.values())
    return 1 - outcomes["completed"] / total if total else None


def _compared(
    figure: str,
    unit: str,
    predicted: float | None,
    measured: float | None,
    predicted_95: Interval | None,
    interval: Interval | None,
) -> Compared:
    error_pct = 100 * (predicted - measured) / measured if predicted is not None and measured else None
    inside, too_wide = None, False
    if predicted is not None and interval is not None:
        inside = interval.low <= predicted <= interval.high
        # A share has no such width: near 0 every interval is many times what was measured.
        width = interval.high - interval.low
        too_wide = inside and unit != "share" and width > TELLING_WIDTH * (measured or 0.0)
    return Compared(
        figure=figure,
        unit=unit,
        predicted=predicted,
        measured=measured,
        error_pct=error_pct,
        predicted_95=predicted_95,
        measured_95=interval,
        inside=None if too_wide else inside,
        too_wide=too_wide,
    )


def bootstrap(
    values: Float64s, shares: list[float | None], seed: int, resamples: int = RESAMPLES
) -> list[Interval | None]:
    """95 % intervals of percentiles, by a circular moving-block bootstrap.

    Requests that wait in one queue are alike, so drawing them one by one would make the interval too narrow; blocks of
    neighbours of length n^(1/3) keep the likeness (Politis and Romano 1992; length: Hall, Horowitz and Jing 1995).

    Args:
        values: One run, in order of arrival, [n].
        shares: Percentiles as shares; ``None`` stands for the mean.
        seed: Start of the draws.
        resamples: Draws.

    Returns:
        One interval per share; ``None`` for fewer than ten values.
    """
    count = len(values)
    if count < 10:
        return [None] * len(shares)
    block = max(1, round(count ** (1 / 3)))
    starts = np.random.default_rng(seed).integers(0, count, (resamples, -(-count // block)))
    index = (starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, :count] % count
    drawn = np.sort(values[index], axis=1)
    tail = (1 - CONFIDENCE) / 2
    found: list[Interval | None] = []
    for share in shares:
        statistic = drawn.mean(axis=1) if share is None else np.quantile(drawn, share, axis=1)
        low, high = np.quantile(statistic, [tail, 1 - tail])
        found.append(Interval(low=float(low), high=float(high)))
    return found


def wilson(hits: int, trials: int) -> Interval | None:
    """95 % interval of a share (Wilson 1927); it does not collapse to nothing at 0 hits."""
    if trials == 0:
        return None
    z = 1.959963984540054
    share = hits / trials
    centre = share + z * z / (2 * trials)
    spread = z * float(np.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)))
    scale = 1 + z * z / trials
    # At the ends the formula gives 0 and 1 exactly, floating point almost.
    return Interval(
        low=0.0 if hits == 0 else (centre - spread) / scale, high=1.0 if hits == trials else (centre + spread) / scale
    )


def quantiles_ms(latencies_ms: Float64s) -> list[float] | None:
    """A latency curve at `QUANTILES`; ``None`` without a single request."""
    return [float(value) for value in np.quantile(latencies_ms, QUANTILES)] if latencies_ms.size else None


def stages(order: list[str], predicted: pl.DataFrame | None, measured: pl.DataFrame | None) -> list[StageCompared]:
    """Compare stage by stage, so that a wrong prediction can be placed.

    Args:
        order: Stage names as they run.
        predicted: A simulated journal's ``stages``.
        measured: The live journal's, warm-up left out.
    """
    found = []
    for name in order:
        left, right = _stage_times(predicted, name), _stage_times(measured, name)
        error_pct = None
        if left is not None and right is not None and right.service_ms_mean > 0:
            error_pct = 100 * (left.service_ms_mean - right.service_ms_mean) / right.service_ms_mean
        found.append(StageCompared(stage=name, predicted=left, measured=right, service_error_pct=error_pct))
    return found


def _stage_times(rows: pl.DataFrame | None, stage: str) -> StageTimes | None:
    if rows is None:
        return None
    at = rows.filter(pl.col("stage") == stage)
    if at.height == 0:
        return None
    queue_ms, service_ms = _waits_ms(at), _services_ms(at)
    engines = at["engine"].value_counts(sort=True)
    return StageTimes(
        requests=at.height,
        queue_ms_mean=float(queue_ms.mean()),
        queue_ms_p95=float(np.quantile(queue_ms, 0.95)),
        copy_ms_mean=_mean_ms(at["copy_ns"]),
        compute_ms_mean=_mean_ms(at["compute_ns"]),
        service_ms_mean=float(service_ms.mean()),
        service_ms_p95=float(np.quantile(service_ms, 0.95)),
        engine_share={name: count / at.height for name, count in engines.iter_rows()},
    )


def outside(predicted: pl.DataFrame | None, measured_ms: Float64s | None) -> StageCompared:
    """Time outside queues and engines.

    Args:
        predicted: A simulated journal's ``requests``; its ``reply_ns`` is the modelled overhead.
        measured_ms: As `overhead_ms` gives it.
    """
    left = None
    if predicted is not None:
        done = predicted.filter(pl.col("outcome") == "completed")
        left = _outside_times((done["reply_ns"].fill_null(0) / 1e6).to_numpy())
    right = _outside_times(measured_ms) if measured_ms is not None else None
    return StageCompared(stage=OUTSIDE, predicted=left, measured=right, service_error_pct=None)


def _outside_times(extra_ms: Float64s) -> StageTimes | None:
    if extra_ms.size == 0:
        return None
    return StageTimes(
        requests=int(extra_ms.size),
        queue_ms_mean=0.0,
        queue_ms_p95=0.0,
        copy_ms_mean=None,
        compute_ms_mean=None,
        service_ms_mean=float(extra_ms.mean()),
        service_ms_p95=float(np.quantile(extra_ms, 0.95)),
        engine_share={},
    )


def _waits_ms(rows: pl.DataFrame) -> Float64s:
    return ((rows["dispatched_ns"] - rows["enqueued_ns"]) / 1e6).to_numpy()


def _services_ms(rows: pl.DataFrame) -> Float64s:
    """How long each passage held its slot: copy, compute, and the way to the worker and back."""
    return ((rows["done_ns"] - rows["dispatched_ns"]) / 1e6).to_numpy()


def handovers_ms(stages: pl.DataFrame) -> Float64s:
    """The way to the worker and back of each passage of a live journal, milliseconds."""
    known = stages.drop_nulls(["copy_ns", "compute_ns"])
    ways_ms: Float64s = _services_ms(known) - ((known["copy_ns"] + known["compute_ns"]) / 1e6).to_numpy()
    return np.maximum(ways_ms, 0.0)


def overhead_ms(requests: pl.DataFrame, stages: pl.DataFrame, client_ms: Mapping[int, float]) -> Float64s:
    """What each request waited beyond all waiting and all service of its stages.

    Args:
        requests: A live journal's, with the client's row in ``row``.
        stages: Of the same journal.
        client_ms: Row -> latency the client measured, of completed requests.

    Returns:
        [requests that both know], milliseconds.
    """
    spent = pl.DataFrame({"tag": stages["tag"], "ms": _waits_ms(stages) + _services_ms(stages)})
    both = requests.join(spent.group_by("tag").agg(pl.col("ms").sum()), on="tag", how="inner", maintain_order="left")
    both = both.filter(pl.col("row").is_in(list(client_ms)))
    extra_ms: Float64s = np.array([client_ms[row] for row in both["row"].to_list()]) - both["ms"].to_numpy()
    return extra_ms


def arrivals_ms(requests: pl.DataFrame, sent: pl.DataFrame) -> Float64s:
    """How much later than the quickest each request reached the core; how late that one was, two clocks do not say.

    Args:
        requests: A live journal's, with the client's row in ``row``.
        sent: ``row`` and ``arrival_s``, when each was due.

    Returns:
        [requests that both know], milliseconds.
    """
    both = sent.join(requests.select("row", "arrival_ns"), on="row", how="inner")
    late_ms: Float64s = both["arrival_ns"].to_numpy() / 1e6 - 1000 * both["arrival_s"].to_numpy()
    return late_ms - late_ms.min() if late_ms.size else late_ms


def _mean_ms(column: pl.Series) -> float | None:
    known = column.drop_nulls().to_numpy()
    return float(known.mean()) / 1e6 if known.size else None
