"""Valley filling: by hour, how much of the fleet the traffic leaves, and how much offline work fits in.

An engine is filled up to `FILL_MAX` of its time and never more: offline work starts only on an engine where nobody
waits (`classes.*.offline` of the pipeline), so what it costs the others is one batch in progress. A day is the mean of
the hours that the trace holds; hours that it does not hold are not assumed to be empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from loadslice.spec.budget import Offline
from loadslice.spec.device import Kind
from loadslice.spec.plan import Load, PlannedFleet, Valley

FILL_MAX = 0.8
"""Share of an engine's time that may be filled: the rest keeps the wait for a batch in progress short."""
HOURS_PER_DAY = 24
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Filling:
    """What fits into a day's valleys."""

    engine_s_per_day: dict[Kind, float]
    """Free engine time by kind, below `FILL_MAX`."""
    requests_per_day: float | None
    """Of the same mix as the trace; ``None``: the fleet was not simulated."""
    fits: bool | None
    """The budget's offline work fits, within its window; ``None``: there is none, or it is unknown."""
    window_requests: float | None
    """Of the offline work, what fits into its window at the emptiest time of the day."""
    evidence: str


@dataclass(frozen=True, slots=True)
class Saving:
    """Against machines bought for the offline work alone."""

    separate_total: float | None
    """What a fleet for the offline work alone costs over the years; ``None``: unknown."""
    power_total: float
    """What the filled valleys draw more."""
    saved: float | None
    evidence: str


def valleys(fleet: PlannedFleet, load: Load) -> list[Valley]:
    """Every hour of the trace against the fleet.

    Engines of a type are as busy in an hour as its demand is to the mean, times their mean utilisation; the busiest
    type limits what fits.
    """
    busiest = _busiest(fleet)
    found = []
    for bucket in load.buckets:
        demand = bucket.requests / bucket.seconds if bucket.seconds else 0.0
        utilisation = None
        spare = None
        if busiest is not None and load.rate_per_s > 0:
            utilisation = busiest * demand / load.rate_per_s
            spare = max(0.0, FILL_MAX / busiest * load.rate_per_s - demand) if busiest > 0 else None
        found.append(Valley(hour=bucket.hour, demand_per_s=demand, utilisation=utilisation, spare_per_s=spare))
    return found


def over_time(fleet: PlannedFleet, load: Load) -> PlannedFleet:
    """A fleet with how its engines' utilisation is spread over the traffic's buckets."""
    seconds = sum(bucket.seconds for bucket in load.buckets)
    mean = sum(bucket.requests for bucket in load.buckets) / seconds if seconds else 0.0
    if not mean:
        return fleet
    day = [
        (bucket.seconds / seconds, bucket.requests / bucket.seconds / mean) for bucket in load.buckets if bucket.seconds
    ]
    engines = {
        name: engine
        if engine.utilisation is None
        else msgspec.structs.replace(
            engine, utilisation_over_time=[(part, engine.utilisation * demand) for part, demand in day]
        )
        for name, engine in fleet.engines.items()
    }
    return msgspec.structs.replace(fleet, engines=engines)


def filling(fleet: PlannedFleet, load: Load, offline: Offline | None = None) -> Filling:
    """How much offline work fits into a day.

    Args:
        fleet: Simulated.
        load: The traffic it was simulated on.
        offline: The budget's offline work, taken to ask per request what a recorded request asks.
    """
    hours = valleys(fleet, load)
    free = _free_s_per_day(fleet, load)
    if not hours or any(hour.spare_per_s is None for hour in hours):
        return Filling(free, None, None, None, "unknown: the fleet was not simulated, or nothing ran on it")
    spare = [hour.spare_per_s or 0.0 for hour in hours]
    seconds = [bucket.seconds for bucket in load.buckets]
    covered_s = sum(seconds)
    per_day = sum(rate * span for rate, span in zip(spare, seconds, strict=True)) * 86_400 / covered_s
    held = f"the trace covers {load.span_s / SECONDS_PER_HOUR:.3g} h; engines are filled to {FILL_MAX:.0%}"
    if offline is None:
        return Filling(free, per_day, None, None, held)
    within = _in_window(spare, seconds, offline.window_minutes * 60.0)
    fits = within >= offline.requests_per_day
    asked = f"{offline.requests_per_day:,.0f} are to be done"
    evidence = f"{within:,.0f} fit into {offline.window_minutes:g} minutes, {asked}; {held}"
    return Filling(free, per_day, fits, within, evidence)


def saving(
    filled: Filling,
    separate_total: float | None,
    *,
    extra_w: float,
    tariff_per_kwh: float,
    cooling_factor: float,
    years: int,
) -> Saving:
    """What filling valleys saves over machines of its own.

    Args:
        filled: From `filling`, with the offline work of the budget.
        separate_total: Cost of the cheapest fleet for the offline work alone over the years; ``None``: unknown.
        extra_w: Mean watts that the offline work adds to the fleet.
        tariff_per_kwh: In the budget's currency.
        cooling_factor: PUE.
        years: How long.
    """
    kwh = extra_w / 1000.0 * 365.25 * HOURS_PER_DAY * years
    power = kwh * tariff_per_kwh * cooling_factor
    if not filled.fits:
        return Saving(separate_total, power, None, f"it does not fit, or that is unknown: {filled.evidence}")
    if separate_total is None:
        return Saving(None, power, None, "unknown what a fleet for the offline work alone would cost")
    return Saving(separate_total, power, separate_total - power, filled.evidence)


def extra_w(fleet: PlannedFleet, load: Load, offline: Offline) -> float | None:
    """Mean watts that offline work of the same mix adds: busy instead of idle for the time that it takes."""
    if load.rate_per_s <= 0:
        return None
    added = 0.0
    for engine in fleet.engines.values():
        if engine.utilisation is None or engine.active_w is None or engine.idle_w is None:
            return None
        share = engine.utilisation * offline.requests_per_day / 86_400 / load.rate_per_s
        added += engine.count * share * (engine.active_w - engine.idle_w)
    return added


def _busiest(fleet: PlannedFleet) -> float | None:
    """Mean utilisation of the type that limits what fits."""
    known = [engine.utilisation for engine in fleet.engines.values() if engine.count]
    if not known or any(value is None for value in known):
        return None
    return max(value for value in known if value is not None)


def _free_s_per_day(fleet: PlannedFleet, load: Load) -> dict[Kind, float]:
    """Engine seconds below `FILL_MAX`, by kind, over a mean day of the trace."""
    covered_s = sum(bucket.seconds for bucket in load.buckets)
    free: dict[Kind, float] = {}
    for engine in fleet.engines.values():
        if engine.utilisation is None or not engine.count or not covered_s or load.rate_per_s <= 0:
            continue
        for bucket in load.buckets:
            demand = bucket.requests / bucket.seconds if bucket.seconds else 0.0
            used = engine.utilisation * demand / load.rate_per_s
            left = max(0.0, FILL_MAX - used) * bucket.seconds * engine.count
            free[engine.kind] = free.get(engine.kind, 0.0) + left * 86_400 / covered_s
    return free


def _in_window(spare_per_s: Sequence[float], seconds: Sequence[float], window_s: float) -> float:
    """Most requests that fit into one window of the day, wherever in the trace it lies (it may start at any bucket)."""
    if window_s >= sum(seconds):
        # A trace shorter than the window says nothing about the rest: its mean is taken to go on.
        total = sum(rate * span for rate, span in zip(spare_per_s, seconds, strict=True))
        return total * window_s / sum(seconds)
    hours = list(zip(spare_per_s, seconds, strict=True))
    # A whole day comes round again: a night that the trace's beginning cuts in two is one.
    round_again = hours if sum(seconds) >= 86_400 - 1 else []
    best = 0.0
    for first in range(len(hours)):
        left, fits = window_s, 0.0
        for rate, span in (hours + round_again)[first:]:
            used = min(span, left)
            fits += rate * used
            left -= used
            if left <= 0:
                break
        best = max(best, fits)
    return best


def by_kind(filled: Filling) -> Mapping[str, float]:
    """Free engine hours a day, by kind."""
    return {kind: seconds / SECONDS_PER_HOUR for kind, seconds in sorted(filled.engine_s_per_day.items())}
