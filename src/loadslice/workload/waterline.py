"""Waterline: how much work each hour of the week asks for, by latency class.

A request's latency class comes from, in this order: a budget the user states for all, the deadline the request carries,
the latency it got. The last is an upper bound on what was wanted (a user who waited 3 s may have wanted 300 ms).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from loadslice.spec.portrait import HOURS_PER_WEEK, LatencyClass, LatencyDimension, PrecisionClass, Water
from loadslice.workload.arrivals import MINUTE_S, Clock, Floats, covered_s, hour_index

INTERACTIVE_MS, ONLINE_MS = 500.0, 5000.0
CLASSES: tuple[LatencyClass, ...] = ("interactive", "online", "offline")


@dataclass(frozen=True)
class Budgets:
    """What each request may take.

    Attributes:
        basis: Where the budgets come from.
        values_ms: One per request; NaN where unknown. Shape (n,).
    """

    basis: Literal["stated", "deadline_ms", "latency_ms"]
    values_ms: Floats


def budgets(frame: pl.DataFrame, stated_ms: float | None) -> Budgets | None:
    """Find the latency budget of every request; ``None`` when nothing tells."""
    if stated_ms is not None:
        return Budgets("stated", np.full(frame.height, stated_ms))
    for column in ("deadline_ms", "latency_ms"):
        if column in frame.columns:
            values = frame[column].fill_null(float("nan")).to_numpy()
            return Budgets("deadline_ms" if column == "deadline_ms" else "latency_ms", values)
    return None


def latency_dimension(found: Budgets | None) -> LatencyDimension | None:
    """Shares of the latency classes among requests whose budget is known."""
    if found is None:
        return None
    known = found.values_ms[~np.isnan(found.values_ms)]
    codes = np.searchsorted([INTERACTIVE_MS, ONLINE_MS], known, side="left")
    share = np.bincount(codes, minlength=3) / len(known)
    return LatencyDimension(
        basis=found.basis,
        budget_ms_p50=float(np.median(known)),
        share=dict(zip(CLASSES, map(float, share), strict=True)),
    )


def waterline(
    frame: pl.DataFrame,
    clock: Clock,
    found: Budgets | None,
    precision: PrecisionClass | None,
    flop_per_item: float | None,
) -> list[Water]:
    """Work per hour of the week and latency class.

    Args:
        frame: Requests.
        clock: Where the first stands in the week.
        found: Latency budgets.
        precision: Lowest precision that is known to do.
        flop_per_item: Of the inspected model; then work is FLOP/s (modelled), else tokens/s, else unknown.

    Returns:
        Rows by hour, then class; hours without requests have none.
    """
    times_s = frame["arrival_s"].to_numpy()
    span_s = float(times_s[-1] - times_s[0])
    if span_s <= 0:
        return []
    hour = hour_index(times_s, clock)
    code = np.full(frame.height, 3)
    if found is not None:
        known = ~np.isnan(found.values_ms)
        code[known] = np.searchsorted([INTERACTIVE_MS, ONLINE_MS], found.values_ms[known], side="left")
    cell = hour * 4 + code
    seen_s = covered_s(span_s, clock)
    counts = np.bincount(cell, minlength=HOURS_PER_WEEK * 4)
    work, key = _work(frame, flop_per_item)
    sums = None if work is None else np.bincount(cell, weights=work, minlength=HOURS_PER_WEEK * 4)
    peaks = _peak_minutes(times_s, clock)
    rows = []
    for index in np.flatnonzero(counts):
        at, kind = divmod(int(index), 4)
        if seen_s[at] <= 0:
            continue
        rate = None if sums is None else float(sums[index] / seen_s[at])
        rows.append(
            Water(
                hour=at,
                latency_class=CLASSES[kind] if kind < 3 else None,
                precision_class=precision,
                requests_per_s=float(counts[index] / seen_s[at]),
                requests_per_s_peak_1m=peaks.get(at),
                work_flop_per_s=rate if key == "flop" else None,
                work_tokens_per_s=rate if key == "tokens" else None,
            )
        )
    return rows


def _work(frame: pl.DataFrame, flop_per_item: float | None) -> tuple[Floats | None, str | None]:
    """Work of each request; unknown sizes of single rows count as the mean of the known ones."""
    if flop_per_item is not None:
        # One item where the trace says nothing: `portrait` warns about that.
        items = _filled(frame, "items") if "items" in frame.columns else np.ones(frame.height)
        return items * flop_per_item, "flop"
    present = [name for name in ("tokens_in", "tokens_out") if name in frame.columns]
    if not present:
        return None, None
    return np.sum([_filled(frame, name) for name in present], axis=0), "tokens"


def _filled(frame: pl.DataFrame, column: str) -> Floats:
    values = frame[column].cast(pl.Float64)
    return values.fill_null(values.mean()).to_numpy()


def _peak_minutes(times_s: Floats, clock: Clock) -> dict[int, float]:
    """Busiest whole clock minute of each hour of the week, requests per second."""
    minute = ((times_s - times_s[0] + clock.offset_s) // MINUTE_S).astype(np.int64)
    counts = np.bincount(minute - minute[0])
    hours = (np.arange(len(counts)) + minute[0]) // 60 % HOURS_PER_WEEK
    best = np.zeros(HOURS_PER_WEEK)
    np.maximum.at(best, hours, counts)
    return {hour: float(best[hour]) / MINUTE_S for hour in np.flatnonzero(best).tolist()}
