"""What to know before believing or using a portrait. Each rule: a condition, one sentence, the numbers behind it."""

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import polars as pl

from loadslice.spec.portrait import Distribution, Finding, Portrait
from loadslice.workload import tokens
from loadslice.workload.trace import Trace, stage_columns

DAY_S = 86_400.0
SHORT_DAYS, WEEK_DAYS = 3, 7
PEAK_HIGH = 3.0
"""Above it, capacity for the peak is idle most of the time."""
VALLEY_SHARE = 0.5
VALLEY_HOURS_MIN = 12
TAIL_HIGH = 4.0
CEILING_SHARE = 0.01
CEILING_BAND = 0.01
CEILING_RATIO = 3.0
TAIL_MIN = 1.5
"""Sizes that hardly vary all stand near the largest; that is no limit."""
CEILING_ROWS_MIN = 20
FAILED_SHARE = 0.01


def add(portrait: Portrait, trace: Trace) -> Portrait:
    """Return the portrait with its findings, the gravest kind (is it enough to go by?) first."""
    found = [
        *_length(portrait),
        *_times(portrait),
        *_missing(portrait, trace.frame),
        *_shape(portrait),
        *_sizes(portrait, trace.frame),
        *(_tokens(portrait) if portrait.tokens is not None else ()),
        *_failures(trace.frame),
        *(Finding(code="note", text=note, evidence={}) for note in trace.notes),
    ]
    return msgspec.structs.replace(portrait, findings=found)


def _finding(code: str, text: str, **evidence: Any) -> Finding:
    return Finding(code=code, text=text, evidence=evidence)


def _length(portrait: Portrait) -> list[Finding]:
    found = []
    span = duration(portrait.span_s)
    if portrait.span_s < SHORT_DAYS * DAY_S:
        text = f"The trace spans {span}; record at least {SHORT_DAYS} days before sizing hardware by it."
        found.append(_finding("short_trace", text, span_s=portrait.span_s, needed_s=SHORT_DAYS * DAY_S))
    if portrait.span_s < WEEK_DAYS * DAY_S:
        covered = sum(rate is not None for rate in portrait.arrival.hour_of_week)
        text = f"The hour-of-week curve rests on {covered} of 168 hours; it takes a week to fill."
        found.append(_finding("short_week", text, span_s=portrait.span_s, hours_covered=covered))
    return found


def _times(portrait: Portrait) -> list[Finding]:
    found = []
    arrival = portrait.arrival
    if arrival.tick_ms is not None:
        text = (
            f"Recorded times come in ticks of {arrival.tick_ms:g} ms and were spread inside them, so gaps shorter "
            "than a tick (and the inter-arrival CV) come from the spreading, not from the record."
        )
        found.append(_finding("ticks", text, tick_ms=arrival.tick_ms))
    if arrival.hour_of_week_origin == "first_request":
        text = "The trace has no wall-clock time; hours count from the first request, not from Monday."
        found.append(_finding("no_wall_clock", text))
    return found


def _missing(portrait: Portrait, frame: pl.DataFrame) -> list[Finding]:
    rules = (
        ("latency_ms", "no_latency", "No latency was recorded: today's P50/P95/P99 are unknown."),
        ("status", "no_status", "No status was recorded: the error rate is unknown."),
    )
    found = [_finding(code, text, column=column) for column, code, text in rules if column not in frame.columns]
    if not any(name in frame.columns for name in ("items", "tokens_in", "tokens_out", "bytes_in")):
        text = "No sizes were recorded (items, tokens, bytes): every request counts the same, batches cannot be judged."
        found.append(_finding("no_sizes", text))
    elif portrait.items is None and portrait.dimensions.model is not None:
        text = "No items per request were recorded: the waterline counts one item for each."
        found.append(_finding("no_items", text))
    model = portrait.dimensions.model
    if model is not None and model.flop_per_item is None:
        text = "The model's work is unknown while an input has no shape; give it with --shape."
        found.append(_finding("no_model_work", text, model=model.model))
    if not stage_columns(frame.columns):
        text = "No stage times were recorded: pre, model and post cannot be told apart (see loadslice.record)."
        found.append(_finding("no_stages", text))
    latency = portrait.dimensions.latency
    if latency is None:
        text = "Nothing says how fast answers are wanted; state it with --latency-ms."
        found.append(_finding("no_latency_budget", text))
    elif latency.basis == "latency_ms":
        text = "Latency classes come from the latency requests got, an upper bound on what they want."
        found.append(_finding("latency_class_observed", text, budget_ms_p50=latency.budget_ms_p50))
    if portrait.utilisation is None:
        text = "No utilisation was given: what the service is bound by is a guess at best."
        found.append(_finding("no_utilisation", text))
    return found


def _shape(portrait: Portrait) -> list[Finding]:
    found = []
    rate, curve = portrait.rate_per_s, [value for value in portrait.arrival.hour_of_week if value is not None]
    if rate.peak_to_mean is not None and rate.peak_to_mean >= PEAK_HIGH:
        text = f"The busiest minute carries {rate.peak_to_mean:.1f} times the mean: capacity for it mostly waits."
        found.append(_finding("peak_to_mean", text, peak_to_mean=rate.peak_to_mean, high_from=PEAK_HIGH))
    if len(curve) >= VALLEY_HOURS_MIN and rate.mean:
        valleys = sum(value < VALLEY_SHARE * rate.mean for value in curve)
        if valleys >= len(curve) / 4:
            text = f"{valleys} of {len(curve)} hours run under half the mean rate: room for offline work."
            found.append(_finding("idle_valleys", text, hours=valleys, of_hours=len(curve)))
    idle = portrait.utilisation and portrait.utilisation.series.get("gpu_pct")
    if idle and idle.mean < 40:
        text = f"The accelerator is {idle.mean:.0f} % busy on average: optimise before buying."
        found.append(_finding("accelerator_idle", text, gpu_pct_mean=idle.mean))
    return found


def _sizes(portrait: Portrait, frame: pl.DataFrame) -> list[Finding]:
    found = []
    named: tuple[tuple[str, Distribution | None], ...] = (
        ("items", portrait.items),
        ("tokens_in", portrait.tokens_in),
        ("tokens_out", portrait.tokens_out),
    )
    for name, sizes in named:
        if sizes is None:
            continue
        if sizes.p50 > 0 and sizes.p99 >= TAIL_HIGH * sizes.p50:
            text = f"{name}: p99 is {sizes.p99 / sizes.p50:.1f} times the median; test with the long ones."
            found.append(_finding("size_tail", text, column=name, p50=sizes.p50, p99=sizes.p99, max=sizes.max))
        at_top = _at_a_limit(frame[name], sizes.max)
        if at_top >= max(CEILING_ROWS_MIN, CEILING_SHARE * frame.height) and sizes.max > TAIL_MIN * sizes.p50:
            text = f"{name}: {at_top / frame.height:.1%} of requests stand at the largest value; a limit may cut them."
            found.append(_finding("truncated", text, column=name, value=sizes.max, requests=at_top))
    return found


def _at_a_limit(sizes: pl.Series, largest: float) -> int:
    """Requests that a limit seems to have cut; 0 where the largest sizes are hardly more frequent than those below.

    Limits cut a token or so apart, so the last hundredth counts as the top. Of sizes from 1 to 5 a fifth stands at the
    largest and nothing was cut: what tells is how often a size of the top comes against one of the upper half below it.
    """
    top = math.ceil((1 - CEILING_BAND) * largest)
    half = math.ceil(largest / 2)
    at_top = int((sizes >= top).sum())
    below = int(((sizes >= half) & (sizes < top)).sum())
    a_size = at_top / (largest - top + 1)
    return at_top if top > half and a_size > CEILING_RATIO * below / (top - half) else 0


def _tokens(portrait: Portrait) -> Iterable[Finding]:
    assert portrait.tokens is not None
    return tokens.findings(portrait.tokens, counts_items=portrait.items is not None)


def _failures(frame: pl.DataFrame) -> list[Finding]:
    if "status" not in frame.columns:
        return []
    known = frame["status"].drop_nulls()
    failed = int((known >= 500).sum())
    share = failed / max(1, len(known))
    if share < FAILED_SHARE:
        return []
    text = f"{share:.1%} of requests failed (status 500 and up): the recorded latency is not that of a healthy service."
    return [_finding("failures", text, share=share, requests=failed)]


def duration(seconds: float) -> str:
    """A span as a person says it."""
    for unit, length in (("days", DAY_S), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.3g} seconds"
