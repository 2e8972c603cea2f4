"""Turns a trace into the arrays the loop reads."""

import numpy as np
import polars as pl

from loadslice.policy import columns as c
from loadslice.policy.tables import Int64s, rule_sources
from loadslice.sim.loop import Traffic
from loadslice.spec.errors import InputError
from loadslice.spec.latency import InputWork, LatencyTable
from loadslice.spec.pipeline import CLASSES, Pipeline, Stage

_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000
_DEFAULT_CLASS = CLASSES.index("critical")


def bucket_index(stage: Stage, shape: list[int] | None) -> int:
    """The first bucket of a stage that holds a shape; ``len(stage.buckets)`` when none does."""
    if shape is not None:
        for index, bucket in enumerate(stage.buckets):
            if len(bucket) == len(shape) and all(side <= most for side, most in zip(shape, bucket, strict=True)):
                return index
    return len(stage.buckets) if stage.buckets and shape is not None else 0


def lower_traffic(
    trace: pl.DataFrame, pipeline: Pipeline, latency: LatencyTable, *, seed: int
) -> tuple[Traffic, list[str]]:
    """Lower a trace for one pipeline.

    Args:
        trace: Columns as `spec.trace.SCHEMA`; ``arrival_s`` not falling.
        pipeline: Stages in execution order.
        latency: Its ``inputs`` say what each named input asks of each stage.
        seed: Start of the draw that gives inputs to rows that name none.

    Returns:
        The arrays, and a warning for each thing that had to be assumed.

    Raises:
        InputError: No rows, or a class or an input that does not exist.
    """
    rows = trace.height
    if rows == 0:
        raise InputError("the trace is empty. Import one with `loadslice trace import`.")
    arrival_ns = np.round(trace["arrival_s"].to_numpy() * _NS_PER_S).astype(np.int64)
    if (np.diff(arrival_ns) < 0).any():
        row = int(np.flatnonzero(np.diff(arrival_ns) < 0)[0]) + 1
        raise InputError(f"trace row {row}: arrival_s falls. Sort the trace with `loadslice trace import`.")
    work, items, bucket, warnings = _work(trace, pipeline, latency, seed)
    priority = _priority(trace)
    sources = rule_sources(pipeline)
    return (
        Traffic(
            arrival_ns=arrival_ns - arrival_ns[0],
            priority=priority,
            deadline_ns=_deadline_ns(trace, pipeline, priority),
            tokens=_integers(trace, "tokens_in", -1),
            source=_codes(trace, "source", sources),
            precision=np.zeros(rows, np.int64),
            work=work,
            items=items,
            bucket=bucket,
        ),
        warnings,
    )


def _integers(trace: pl.DataFrame, column: str, unknown: int) -> Int64s:
    if column not in trace.columns:
        return np.full(trace.height, unknown, np.int64)
    return trace[column].cast(pl.Int64).fill_null(unknown).to_numpy().copy()


def _codes(trace: pl.DataFrame, column: str, names: tuple[str, ...]) -> Int64s:
    """Index of each row's text among ``names``; -1 for any other."""
    if column not in trace.columns or not names:
        return np.full(trace.height, -1, np.int64)
    codes = {name: index for index, name in enumerate(names)}
    return trace[column].replace_strict(codes, default=-1, return_dtype=pl.Int64).to_numpy().copy()


def _priority(trace: pl.DataFrame) -> Int64s:
    if "class" not in trace.columns:
        return np.full(trace.height, _DEFAULT_CLASS, np.int64)
    unknown = trace["class"].drop_nulls().unique().filter(~trace["class"].drop_nulls().unique().is_in(list(CLASSES)))
    if unknown.len():
        raise InputError(f"trace column 'class': '{unknown[0]}' is not one of {', '.join(CLASSES)}.")
    named = trace["class"].fill_null(CLASSES[_DEFAULT_CLASS])
    return named.replace_strict({name: i for i, name in enumerate(CLASSES)}, return_dtype=pl.Int64).to_numpy().copy()


def _deadline_ns(trace: pl.DataFrame, pipeline: Pipeline, priority: Int64s) -> Int64s:
    """A row's own deadline, else its class's, else the pipeline's, else none."""
    by_class = []
    for name in CLASSES:
        limits = pipeline.classes.get(name)
        stated = limits.deadline_ms if limits is not None and limits.deadline_ms is not None else pipeline.deadline_ms
        by_class.append(c.FOREVER if stated is None else round(stated * _NS_PER_MS))
    deadline_ns = np.array(by_class, np.int64)[priority]
    if "deadline_ms" in trace.columns:
        own = trace["deadline_ms"].to_numpy()
        known = np.isfinite(own.astype(np.float64))
        deadline_ns[known] = np.round(own[known] * _NS_PER_MS).astype(np.int64)
    return deadline_ns


def _work(
    trace: pl.DataFrame, pipeline: Pipeline, latency: LatencyTable, seed: int
) -> tuple[Int64s, Int64s, Int64s, list[str]]:
    """Which row of work each request is, and what each row asks of each stage."""
    if latency.inputs:
        return _work_of_inputs(trace, pipeline, latency.inputs, seed)
    warnings = []
    sizes = np.maximum(1, _integers(trace, "items", 1))
    if "items" not in trace.columns:
        warnings.append("neither the trace nor the profile says how large requests are: taken as one item each.")
    distinct, work = np.unique(sizes, return_inverse=True)
    items = np.repeat(distinct[:, None], len(pipeline.stages), axis=1).astype(np.int64)
    return work.astype(np.int64), items, np.zeros_like(items), warnings


def _work_of_inputs(
    trace: pl.DataFrame, pipeline: Pipeline, inputs: list[InputWork], seed: int
) -> tuple[Int64s, Int64s, Int64s, list[str]]:
    items = np.ones((len(inputs), len(pipeline.stages)), np.int64)
    bucket = np.zeros_like(items)
    for row, known in enumerate(inputs):
        asked = {work.stage: work for work in known.stages}
        for s, stage in enumerate(pipeline.stages):
            if stage.name not in asked:
                raise InputError(
                    f"profile input '{known.input}' says nothing of stage '{stage.name}'. Run `loadslice profile`."
                )
            items[row, s] = max(1, asked[stage.name].items)
            bucket[row, s] = bucket_index(stage, asked[stage.name].shape)
    names = tuple(known.input for known in inputs)
    warnings = []
    if "input" in trace.columns:
        work = _codes(trace, "input", names)
        if (work < 0).any():
            unknown = trace["input"][int(np.flatnonzero(work < 0)[0])]
            raise InputError(f"trace column 'input': '{unknown}' is not an input of the profile ({names[0]}, ...).")
    else:
        work = np.random.default_rng(seed).integers(0, len(inputs), trace.height)
        warnings.append("the trace names no inputs: each request was given one of the profile's, drawn evenly.")
    return work.astype(np.int64), items, bucket, warnings
