"""A portrait and a trace as lines of text."""

from collections.abc import Iterator
from typing import Any

from loadslice.spec.portrait import Distribution, Portrait
from loadslice.spec.trace import META_KEYS
from loadslice.workload import tokens
from loadslice.workload.arrivals import REQUESTS_MIN
from loadslice.workload.findings import duration
from loadslice.workload.trace import Trace

_BARS = "▁▂▃▄▅▆▇█"
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def portrait_lines(portrait: Portrait) -> Iterator[str]:
    """The portrait for a person: figures, the curve, the verdicts, then what to know."""
    rate, arrival = portrait.rate_per_s, portrait.arrival
    yield f"{portrait.trace}: {portrait.requests:,} requests over {duration(portrait.span_s)}"
    yield (
        f"  rate        mean {_per_s(rate.mean)}, busiest minute {_per_s(rate.peak_1m)}"
        + (f" ({rate.peak_to_mean:.1f} x mean)" if rate.peak_to_mean is not None else "")
        + (f", of only {portrait.requests} requests" if portrait.requests < REQUESTS_MIN else "")
    )
    yield f"  arrivals    {arrival.class_}: {arrival.why}"
    for name, sizes in (
        ("items", portrait.items),
        ("tokens in", portrait.tokens_in),
        ("tokens out", portrait.tokens_out),
    ):
        if sizes is not None:
            yield f"  {name:<11} {_sizes(sizes)}"
    if portrait.tokens is not None:
        yield from tokens.lines(portrait.tokens, counts_items=portrait.items is not None)
    if portrait.latency_ms is not None:
        latency = portrait.latency_ms
        yield f"  latency     p50 {latency.p50:.4g} ms, p95 {latency.p95:.4g} ms, p99 {latency.p99:.4g} ms"
    yield from _wanted(portrait)
    if portrait.stage_share is not None:
        shares = sorted(portrait.stage_share.items(), key=lambda pair: -pair[1])
        yield "  stages      " + ", ".join(f"{name} {share:.0%}" for name, share in shares)
    model = portrait.dimensions.model
    if model is not None:
        flop = "unknown" if model.flop_per_item is None else f"{model.flop_per_item / 1e9:.3g} GFLOP per item"
        yield f"  model       {model.model}: {_number(model.parameters)} parameters, {flop}"
    yield f"  bound by    {portrait.bound.class_}: {portrait.bound.evidence}"
    yield from _curve(portrait)
    for finding in portrait.findings:
        yield f"  - {finding.text}"


_BASES = {
    "stated": "stated for every request",
    "deadline_ms": "by the deadlines that requests carry",
    "latency_ms": "by the latency that they got, an upper bound",
}


def _wanted(portrait: Portrait) -> Iterator[str]:
    """How fast answers are wanted, and the waterline: what each latency class asks of its highest hour."""
    wanted = portrait.dimensions.latency
    if wanted is None:
        return
    median = "" if wanted.basis == "stated" else " in the median"
    shares = ", ".join(f"{name} {share:.0%}" for name, share in wanted.share.items() if share > 0)
    yield f"  wanted      {wanted.budget_ms_p50:.4g} ms{median}, {_BASES[wanted.basis]}: {shares}"
    for name in wanted.share:
        hours = [water for water in portrait.waterline if water.latency_class == name]
        if hours:
            highest = max(hours, key=lambda water: water.requests_per_s)
            work = ""
            if highest.work_flop_per_s is not None:
                work = f", {highest.work_flop_per_s / 1e9:,.3g} GFLOP/s"
            elif highest.work_tokens_per_s is not None:
                work = f", {_number(highest.work_tokens_per_s)} tokens/s"
            count = f"{len(hours)} hour{'' if len(hours) == 1 else 's'} of the week"
            yield f"  waterline   {name}: highest hour {_number(highest.requests_per_s)}/s{work}, in {count}"


def _curve(portrait: Portrait) -> Iterator[str]:
    hours = portrait.arrival.hour_of_week
    top = max((value for value in hours if value is not None), default=0.0)
    if sum(value is not None for value in hours) < 2 or top <= 0:
        return
    known = portrait.arrival.hour_of_week_origin == "monday_00_utc"
    yield f"  hours       {'UTC' if known else 'since the first request'}, full bar {_number(top)}/s, blank: not seen"
    for day in range(7):
        values = hours[day * 24 : day * 24 + 24]
        if any(value is not None for value in values):
            bars = "".join(" " if v is None else _BARS[min(7, int(v / top * 8))] for v in values)
            yield f"    {DAYS[day] if known else f'day {day + 1}':<8}{bars}".rstrip()


def _sizes(sizes: Distribution) -> str:
    return f"mean {_number(sizes.mean)}, p50 {_number(sizes.p50)}, p99 {_number(sizes.p99)}, max {_number(sizes.max)}"


def _per_s(value: float | None) -> str:
    return "unknown" if value is None else f"{_number(value)}/s"


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def trace_lines(trace: Trace, name: str) -> Iterator[str]:
    """What a trace holds."""
    frame = trace.frame
    span_s = float(frame["arrival_s"][-1] - frame["arrival_s"][0])
    yield f"{name}: {frame.height:,} requests over {duration(span_s)}"
    for key in ("format", "source", "start_utc", "tick_ms", "licence"):
        if trace.meta.get(key) is not None:
            yield f"  {key:<10} {trace.meta[key]}"
    yield "  columns"
    for column in frame:
        missing = column.null_count()
        known = "" if not missing else f", unknown in {missing:,} rows"
        yield f"    {column.name:<14} {column.dtype}{known}"
    for note in trace.notes:
        yield f"  - {note}"


def trace_info(trace: Trace, name: str) -> dict[str, Any]:
    """What a trace holds, as one JSON document."""
    frame = trace.frame
    return {
        "trace": name,
        "requests": frame.height,
        "span_s": float(frame["arrival_s"][-1] - frame["arrival_s"][0]),
        "columns": [{"name": c.name, "type": str(c.dtype), "unknown_rows": c.null_count()} for c in frame],
        **{key: trace.meta.get(key) for key in META_KEYS},
        "notes": trace.notes,
    }
