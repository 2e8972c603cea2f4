"""How requests arrive: rates, burstiness, the curve over the week, and a class with its reason.

Classes, first that holds; of fewer than 30 requests only "sparse" can be told, and the others are called uniform:

- **sparse**: at least half of all minutes are empty. An engine kept warm for this load mostly waits.
- **tidal**: over at least a day, the busy hours (90th percentile) carry twice the quiet ones (10th) or more, and
  neighbouring hours are alike (lag-1 autocorrelation of hourly counts at least 0.5): a slow swing, not noise. Capacity
  for the flood stands idle at the ebb.
- **bursty**: gaps vary at least 1.5 times as much as in a Poisson process (CV >= 1.5), or counts in windows of about
  ten requests do (dispersion >= 1.5 squared). A queue sized for the mean overflows.
- **uniform**: none of these; smoother than Poisson, near it, or somewhat more varied: which, its reason says.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadslice.spec.portrait import HOURS_PER_WEEK, Arrival, ArrivalClass, Rate

Floats = npt.NDArray[np.float64]

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
SPARSE_EMPTY_SHARE = 0.5
TIDAL_SWING = 2.0
TIDAL_AUTOCORRELATION = 0.5
BURSTY_CV = 1.5
POISSON_BAND = 0.1
"""Nearer to 1 than this is near Poisson."""
REQUESTS_MIN = 30
"""Of fewer even a Poisson process seems bursty in one trace of many, and a mean rate is off by a third or more."""
DISPERSION_WINDOW_REQUESTS = 10
"""Large enough for a stable ratio, small enough that a drift of the rate does not look like bursts."""
COVERED_S_MIN = MINUTE_S
"""An hour of the week of which less was seen says nothing, unless the whole trace is shorter."""
DISPERSION_WINDOWS_MAX = 20_000_000


@dataclass(frozen=True)
class Clock:
    """Where the trace's zero stands in the week."""

    offset_s: float
    """Seconds from Monday 00:00 UTC to the first request; 0 when the wall-clock time is unknown."""
    known: bool


def rates(times_s: Floats) -> Rate:
    """Mean and peak rates; a peak is null when the trace is shorter than its window.

    Args:
        times_s: Arrivals, not falling, shape (n,), n >= 1.
    """
    span_s = float(times_s[-1] - times_s[0])
    mean = len(times_s) / span_s if span_s > 0 else None
    minute = _busiest(times_s, MINUTE_S) / MINUTE_S if span_s >= MINUTE_S else None
    hour = _busiest(times_s, HOUR_S) / HOUR_S if span_s >= HOUR_S else None
    return Rate(
        mean=mean,
        peak_1m=minute,
        peak_1h=hour,
        peak_to_mean=minute / mean if minute is not None and mean else None,
    )


def _busiest(times_s: Floats, window_s: float) -> int:
    """Most arrivals in any half-open window of that length, wherever it begins."""
    return int((np.searchsorted(times_s, times_s + window_s, side="left") - np.arange(len(times_s))).max())


def describe(times_s: Floats, clock: Clock, tick_ms: float | None) -> Arrival:
    """Everything about the arrival pattern.

    Args:
        times_s: Arrivals, not falling, shape (n,), n >= 1.
        clock: Where the first arrival stands in the week.
        tick_ms: Length of the ticks inside which arrivals were spread.
    """
    gaps = np.diff(times_s)
    cv = variation(gaps)
    spread = dispersion(times_s, tick_ms)
    kind, why = classify(times_s, None if tick_ms else cv, spread)
    curve = hour_of_week(times_s, clock)
    return Arrival(
        class_=kind,
        why=why,
        interarrival_cv=cv,
        interarrival_cv_detrended=_detrended(times_s, gaps),
        dispersion=spread,
        hour_of_week=curve,
        hour_of_week_origin="monday_00_utc" if clock.known else "first_request",
        tick_ms=tick_ms,
    )


def variation(gaps: Floats) -> float | None:
    """Coefficient of variation (population) of gaps; ``None`` below two gaps or when all are zero."""
    mean = float(gaps.mean()) if len(gaps) >= 2 else 0.0
    return float(gaps.std()) / mean if mean > 0 else None


def _detrended(times_s: Floats, gaps: Floats) -> float | None:
    """CV of gaps measured in units of their own hour's mean gap."""
    if len(gaps) < 2 or times_s[-1] - times_s[0] < 2 * HOUR_S:
        return variation(gaps)
    hour = ((times_s[:-1] - times_s[0]) // HOUR_S).astype(np.int64)
    count = np.bincount(hour)
    total = np.bincount(hour, weights=gaps)
    crowded = (count >= 10) & (total > 0)
    kept = crowded[hour]
    if kept.sum() < 2:
        return variation(gaps)
    scale = np.divide(count, total, out=np.zeros(len(count)), where=crowded)
    return variation((gaps * scale[hour])[kept])


def dispersion(times_s: Floats, tick_ms: float | None) -> float | None:
    """Variance over mean of counts in windows of about ten requests, and never shorter than a tick.

    Returns:
        ``None`` with fewer than ten whole windows.
    """
    span_s = float(times_s[-1] - times_s[0])
    if span_s <= 0:
        return None
    window_s = max(DISPERSION_WINDOW_REQUESTS * span_s / len(times_s), (tick_ms or 0.0) / 1000)
    windows = int(span_s // window_s)
    if not 10 <= windows <= DISPERSION_WINDOWS_MAX:
        return None
    counts = np.bincount(((times_s - times_s[0]) // window_s).astype(np.int64), minlength=windows)[:windows]
    return float(counts.var() / counts.mean())


BURSTY = f"1 is Poisson; bursty is a CV of {BURSTY_CV:g} or a dispersion of {BURSTY_CV**2:g}"


def classify(times_s: Floats, cv: float | None, spread: float | None) -> tuple[ArrivalClass, str]:
    """Apply the rules of this module.

    Args:
        times_s: Arrivals.
        cv: Of the gaps, ``None`` when the gaps were not recorded.
        spread: Dispersion of counts.

    Returns:
        The class and the rule with its numbers.
    """
    span_s = float(times_s[-1] - times_s[0])
    empty = _empty_minutes_share(times_s)
    if len(times_s) < 2 or empty >= SPARSE_EMPTY_SHARE:
        return "sparse", f"{empty:.0%} of minutes have no request (at least {SPARSE_EMPTY_SHARE:.0%})"
    if len(times_s) < REQUESTS_MIN:
        return "uniform", f"taken so: {len(times_s)} requests are too few to tell (at least {REQUESTS_MIN})"
    if span_s >= DAY_S:
        swing, alike = _tide(times_s)
        if swing >= TIDAL_SWING and alike >= TIDAL_AUTOCORRELATION:
            return "tidal", (
                f"busy hours carry {swing:.3g} times the quiet ones (at least {TIDAL_SWING:g}), "
                f"neighbouring hours correlate {alike:.2f} (at least {TIDAL_AUTOCORRELATION:g})"
            )
    if cv is not None and cv >= BURSTY_CV:
        return "bursty", f"inter-arrival CV {cv:.3g} (at least {BURSTY_CV:g}; 1 is Poisson)"
    if spread is not None and spread >= BURSTY_CV**2:
        return "bursty", f"dispersion of counts {spread:.3g} (at least {BURSTY_CV**2:g}; 1 is Poisson)"
    shown = [f"inter-arrival CV {cv:.3g}" if cv is not None else "", f"dispersion {spread:.3g}" if spread else ""]
    figures = " and ".join(text for text in shown if text) or "few requests"
    return "uniform", f"{figures}: {_against_poisson(cv, spread)} ({BURSTY})"


def _against_poisson(cv: float | None, spread: float | None) -> str:
    """How arrivals that are not bursty stand to a Poisson process, by the larger of the two as a deviation."""
    known = [value for value in (cv, None if spread is None else spread**0.5) if value is not None]
    most = max(known, default=1.0)
    if most > 1 + POISSON_BAND:
        return "somewhat more varied than Poisson"
    return "near Poisson" if most >= 1 - POISSON_BAND else "more even than Poisson"


def _empty_minutes_share(times_s: Floats) -> float:
    minute = ((times_s - times_s[0]) // MINUTE_S).astype(np.int64)
    return float((np.bincount(minute) == 0).mean())


def _tide(times_s: Floats) -> tuple[float, float]:
    hour = ((times_s - times_s[0]) // HOUR_S).astype(np.int64)
    # The last hour is cut short and would look like an ebb.
    counts = np.bincount(hour)[:-1].astype(np.float64)
    low, high = np.percentile(counts, [10, 90])
    swing = float(high / max(low, 1.0))
    if counts[:-1].std() == 0 or counts[1:].std() == 0:
        return swing, 0.0
    return swing, float(np.corrcoef(counts[:-1], counts[1:])[0, 1])


def covered_s(span_s: float, clock: Clock) -> Floats:
    """Seconds of the trace that fall into each hour of the week, shape (168,)."""
    begin, end = clock.offset_s, clock.offset_s + span_s
    first, last = int(begin // HOUR_S), int(end // HOUR_S)
    hours = np.arange(first, last + 1)
    seen = np.minimum(end, (hours + 1) * HOUR_S) - np.maximum(begin, hours * HOUR_S)
    return np.bincount(hours % HOURS_PER_WEEK, weights=seen, minlength=HOURS_PER_WEEK).astype(np.float64)


def hour_index(times_s: Floats, clock: Clock) -> npt.NDArray[np.int64]:
    """Hour of the week of each arrival, 0 to 167, shape (n,)."""
    hours: npt.NDArray[np.int64] = ((times_s - times_s[0] + clock.offset_s) // HOUR_S).astype(np.int64)
    return hours % np.int64(HOURS_PER_WEEK)


def hour_of_week(times_s: Floats, clock: Clock) -> list[float | None]:
    """Mean requests per second in each hour of the week; null where too little of it was seen."""
    span_s = float(times_s[-1] - times_s[0])
    seen = covered_s(span_s, clock)
    counts = np.bincount(hour_index(times_s, clock), minlength=HOURS_PER_WEEK)
    # A trace inside one hour covers its whole span, up to rounding.
    enough = (seen >= min(COVERED_S_MIN, span_s * (1 - 1e-6))) & (seen > 0)
    return [
        float(count / seconds) if known else None for count, seconds, known in zip(counts, seen, enough, strict=True)
    ]
