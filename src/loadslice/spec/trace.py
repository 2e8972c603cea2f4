"""The trace file: one row per request, Parquet or JSONL, in arrival order.

Column -> type, unit, meaning. Only ``arrival_s`` is required; an absent column means "unknown", never 0.
"""

import polars as pl

SCHEMA: dict[str, pl.DataType] = {
    "arrival_s": pl.Float64(),  # seconds since the first request, not falling
    "items": pl.Int32(),  # rows of work in the request (images, lines, sequences)
    "tokens_in": pl.Int32(),
    "tokens_out": pl.Int32(),
    "latency_ms": pl.Float64(),  # as the recorded service answered
    "status": pl.Int16(),  # HTTP status as recorded
    "class": pl.String(),  # one of spec.pipeline.CLASSES
    "source": pl.String(),  # who sent it: a tag the rules may look at
    "tenant": pl.String(),
    "deadline_ms": pl.Float64(),  # relative to arrival
    "input": pl.String(),  # which example input stands for it, see LatencyTable.inputs
    "bytes_in": pl.Int64(),
}
"""``stage_ms.NAME`` (Float64) columns hold measured stage times; ``blocks`` (List[Int64]) the prefix block hashes."""

META_KEYS = ("format", "source", "start_utc", "tick_ms", "notes", "licence")
"""Parquet metadata kept beside the rows; ``tick_ms`` says that arrivals were spread inside ticks of that length."""
