"""Puts the portrait together; each part is measured by its own module."""

from dataclasses import dataclass
from datetime import UTC, datetime

from loadslice.spec.budget import Budget
from loadslice.spec.files import Stamp
from loadslice.spec.portrait import (
    ArrivalDimension,
    BatchDimension,
    Dimensions,
    Distribution,
    EnvironmentDimension,
    ModelDimension,
    Portrait,
    PrecisionClass,
    PrecisionDimension,
    Utilisation,
)
from loadslice.workload import arrivals, bound, findings, sizes, tokens, waterline
from loadslice.workload.arrivals import Clock
from loadslice.workload.trace import Trace
from loadslice.workload.utilisation import WATTS

SCHEMA = "portrait/1"


@dataclass(frozen=True)
class Context:
    """What is known beside the trace; everything may be unknown."""

    model: ModelDimension | None = None
    utilisation: Utilisation | None = None
    budget: Budget | None = None
    latency_budget_ms: float | None = None
    """Stated by the user for all requests; goes before the budget's objective."""
    answer_token_ms: float = tokens.ANSWER_TOKEN_MS
    """Pace of answers, for the KV that is held."""
    cache_tokens: int | None = None
    """A prefix cache to try."""
    precision: PrecisionClass | None = None
    """Lowest precision the user says still answers right."""


def portray(trace: Trace, name: str, stamp: Stamp, context: Context | None = None) -> Portrait:
    """Describe a load.

    Args:
        trace: A checked trace.
        name: How to call it.
        stamp: Hashes and versions, schema `SCHEMA`.
        context: What is known beside the trace.
    """
    context = context or Context()
    frame = trace.frame
    times_s = frame["arrival_s"].to_numpy()
    clock = clock_at(trace.meta.get("start_utc"), float(times_s[0]))
    arrival = arrivals.describe(times_s, clock, trace.meta.get("tick_ms"))
    rate = arrivals.rates(times_s)
    items, tokens_in, tokens_out = (sizes.distribution(frame, column) for column in sizes.SIZE_COLUMNS)
    budgets = waterline.budgets(frame, _latency_budget_ms(context))
    shares = sizes.stage_share(frame)
    model = context.model
    portrait = Portrait(
        stamp=stamp,
        trace=name,
        start_utc=trace.meta.get("start_utc"),
        requests=frame.height,
        span_s=float(times_s[-1] - times_s[0]),
        rate_per_s=rate,
        arrival=arrival,
        items=items,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        size_rank_correlation=sizes.rank_correlations(frame),
        class_share=sizes.class_share(frame),
        latency_ms=sizes.latency(frame),
        stage_share=shares,
        waterline=waterline.waterline(
            frame, clock, budgets, context.precision, model.flop_per_item if model is not None else None
        ),
        bound=bound.find(context.utilisation, shares, model.intensity_flop_per_byte if model is not None else None),
        utilisation=context.utilisation,
        dimensions=Dimensions(
            model=model,
            arrival=ArrivalDimension(
                class_=arrival.class_,
                rate_per_s_mean=rate.mean,
                peak_to_mean=rate.peak_to_mean,
                interarrival_cv=arrival.interarrival_cv,
            ),
            latency=waterline.latency_dimension(budgets),
            batch=_batch(items),
            precision=_precision(context),
            environment=_environment(context),
        ),
        findings=[],
        tokens=tokens.load_of(frame, answer_token_ms=context.answer_token_ms, cache_tokens=context.cache_tokens),
    )
    return findings.add(portrait, trace)


def clock_at(start_utc: str | None, first_s: float = 0.0) -> Clock:
    """Where a trace's first request stands in the week.

    Args:
        start_utc: Time of ``arrival_s`` = 0, ISO 8601; unknown or unreadable: counted from the first request.
        first_s: ``arrival_s`` of the first request.
    """
    try:
        start = datetime.fromisoformat(start_utc or "")
    except ValueError:
        return Clock(0.0, known=False)
    start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    in_day_s = start.hour * 3600 + start.minute * 60 + start.second + start.microsecond / 1e6
    return Clock((start.weekday() * 86_400 + in_day_s + first_s) % (7 * 86_400), known=True)


def _latency_budget_ms(context: Context) -> float | None:
    if context.latency_budget_ms is not None or context.budget is None:
        return context.latency_budget_ms
    return min(context.budget.slo.latency_limits_ms.values(), default=None)


def _batch(items: Distribution | None) -> BatchDimension | None:
    return None if items is None else BatchDimension(items_mean=items.mean, items_p99=items.p99)


def _precision(context: Context) -> PrecisionDimension | None:
    native = context.model.precision if context.model is not None else None
    if native is None and context.precision is None:
        return None
    return PrecisionDimension(native=native, tolerated=context.precision)


def _environment(context: Context) -> EnvironmentDimension | None:
    limits = context.budget
    samples = context.utilisation.series if context.utilisation is not None else {}
    watts = [series.p95 for name, series in samples.items() if name in WATTS]
    if limits is None and not watts:
        return None
    return EnvironmentDimension(
        power_w_p95=max(watts, default=None),
        power_per_box_w=limits.power.per_box_w if limits is not None else None,
        power_per_rack_w=limits.power.per_rack_w if limits is not None else None,
        cooling_factor=limits.power.cooling_factor if limits is not None else None,
        people=limits.people.count if limits is not None else None,
    )
