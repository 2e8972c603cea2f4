"""Draws a trace from a portrait.

Arrivals: a gamma renewal process of mean gap 1 and the portrait's detrended CV (shape 1 / CV^2; CV 1 is Poisson), run
through the inverse of the integrated rate, which follows the hour-of-week curve. Sizes: the recorded quantiles, tied
together by a Gaussian copula with the recorded rank correlations. Drawn independently of arrivals: a portrait does not
say whether long requests come in bursts.
"""

import math
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.spec.errors import InputError
from loadslice.spec.portrait import HOURS_PER_WEEK, QUANTILE_POINTS, Distribution, Portrait
from loadslice.workload import trace
from loadslice.workload.portrait import clock_at
from loadslice.workload.trace import Trace

HOUR_S = 3600.0
REQUESTS_MAX = 50_000_000

Floats = npt.NDArray[np.float64]


def draw(portrait: Portrait, hours: float, scale: float, seed: int) -> Trace:
    """Draw a trace.

    Args:
        portrait: What it should look like.
        hours: Length.
        scale: Times the recorded rate.
        seed: Of every draw.

    Raises:
        InputError: The portrait has no rate, or the trace would be absurdly long.
    """
    rng = np.random.default_rng(seed)
    rates = _rates_per_s(portrait, hours) * scale
    expected = float(_cumulative(rates, hours)[-1])
    if not 0 < expected <= REQUESTS_MAX:
        raise InputError(
            f"{portrait.trace}: {hours:g} hours at this rate are {expected:.3g} requests; 1 to {REQUESTS_MAX} can be "
            "drawn. Change --hours or --scale."
        )
    cv = portrait.arrival.interarrival_cv_detrended or portrait.arrival.interarrival_cv or 1.0
    arrivals = _arrivals_s(rates, hours, cv, rng)
    if len(arrivals) == 0:
        raise InputError(f"{portrait.trace}: no request fell into {hours:g} hours. Draw more with --hours or --scale.")
    columns = {"arrival_s": pl.Series(arrivals - arrivals[0]), **_sizes(portrait, len(arrivals), rng)}
    if portrait.class_share:
        names = list(portrait.class_share)
        columns["class"] = pl.Series(rng.choice(names, len(arrivals), p=list(portrait.class_share.values())))
    note = f"drawn from a portrait of {portrait.trace}: {hours:g} hours, rate times {scale:g}, CV {cv:.3g}, seed {seed}"
    meta: dict[str, Any] = {"format": "synthetic", "source": portrait.trace, "notes": [note]}
    if portrait.arrival.hour_of_week_origin == "monday_00_utc":
        meta["start_utc"] = _begin(portrait, float(arrivals[0])).isoformat()
    return Trace(trace.conform(pl.DataFrame(columns), portrait.trace), meta)


def _begin(portrait: Portrait, first_s: float) -> datetime:
    """Time of the first request: drawing starts on the hour in which the recording did."""
    assert portrait.start_utc is not None
    recorded = datetime.fromisoformat(portrait.start_utc)
    return recorded.replace(minute=0, second=0, microsecond=0) + timedelta(seconds=first_s)


def _rates_per_s(portrait: Portrait, hours: float) -> Floats:
    """Rate of each hour from the trace's start; hours the portrait never saw get its mean."""
    mean = portrait.rate_per_s.mean
    if mean is None:
        raise InputError(f"{portrait.trace}: the portrait has no rate (a single request or no span); record longer.")
    curve = np.array([mean if rate is None else rate for rate in portrait.arrival.hour_of_week])
    first = int(clock_at(portrait.start_utc).offset_s // HOUR_S)
    return curve[(first + np.arange(math.ceil(hours))) % HOURS_PER_WEEK]


def _cumulative(rates: Floats, hours: float) -> Floats:
    """Expected requests at each edge of `_edges_s`."""
    return np.concatenate([[0.0], np.cumsum(rates * np.diff(_edges_s(hours)))])


def _edges_s(hours: float) -> Floats:
    return np.append(np.arange(math.ceil(hours)) * HOUR_S, hours * HOUR_S)


def _arrivals_s(rates: Floats, hours: float, cv: float, rng: np.random.Generator) -> Floats:
    area = _cumulative(rates, hours)
    shape = 1.0 / max(cv, 1e-3) ** 2
    parts: list[Floats] = []
    reached = 0.0
    while reached < area[-1] and sum(map(len, parts)) <= 2 * REQUESTS_MAX:
        gaps = rng.gamma(shape, 1.0 / shape, max(1024, int(1.1 * (area[-1] - reached))))
        parts.append(reached + np.cumsum(gaps))
        reached = float(parts[-1][-1])
    points = np.concatenate(parts)
    points = points[points < area[-1]]
    # Where the rate is 0 the integrated rate is flat; `interp` steps over it.
    arrivals: Floats = np.interp(points, area, _edges_s(hours))
    return arrivals


def _sizes(portrait: Portrait, count: int, rng: np.random.Generator) -> dict[str, pl.Series]:
    recorded: dict[str, Distribution] = {
        name: sizes
        for name, sizes in (
            ("items", portrait.items),
            ("tokens_in", portrait.tokens_in),
            ("tokens_out", portrait.tokens_out),
        )
        if sizes is not None
    }
    names = list(recorded)
    if not names:
        return {}
    uniforms = _tied_uniforms(names, portrait.size_rank_correlation, count, rng)
    return {
        name: pl.Series(
            np.round(np.interp(uniforms[:, at], QUANTILE_POINTS, recorded[name].quantiles)).astype(np.int64)
        )
        for at, name in enumerate(names)
    }


def _tied_uniforms(names: list[str], ranks: dict[str, float], count: int, rng: np.random.Generator) -> Floats:
    """Uniform columns with these rank correlations, shape (count, len(names)).

    References:
        Pearson (1907): a normal pair of correlation 2 sin(pi r / 6) has Spearman correlation r.
    """
    correlation = np.eye(len(names))
    for pair, rank in ranks.items():
        first, second = pair.split(",")
        if first in names and second in names:
            value = 2 * math.sin(math.pi * rank / 6)
            correlation[names.index(first), names.index(second)] = value
            correlation[names.index(second), names.index(first)] = value
    # Ranks of the drawn normals, instead of the normal distribution function: uniform by construction.
    normals = rng.multivariate_normal(np.zeros(len(names)), correlation, count, check_valid="ignore")
    order = np.argsort(np.argsort(normals, axis=0), axis=0)
    uniforms: Floats = (order + 0.5) / count
    return uniforms
