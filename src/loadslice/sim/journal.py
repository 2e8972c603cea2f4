"""Writes a simulated run as a journal, in the columns a live one has."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from loadslice.policy import events
from loadslice.policy.tables import Int64s, tenant_names
from loadslice.sim import record as r
from loadslice.sim.simulate import Run
from loadslice.spec import journal as spec
from loadslice.spec.files import Stamp, encode_json, write_bytes
from loadslice.spec.outcome import OUTCOMES, REASONS, VERSIONS, Outcome
from loadslice.spec.pipeline import CLASSES


def write(
    finished: Run, folder: Path, pipeline_yaml: str, stamped: Stamp | None = None, trace: pl.DataFrame | None = None
) -> None:
    """Write ``journal.json`` and its three tables; the head comes last, so a folder with a head is whole.

    Args:
        finished: A run made with ``journal=True``.
        folder: Made if absent.
        pipeline_yaml: The pipeline file's text.
        stamped: Inputs and versions.
        trace: The rows that were simulated, for what the simulator itself has no use for: sources and inputs.

    Raises:
        InputError: The folder cannot be written to.
    """
    record = finished.record
    assert len(record.events) > 0, "run(..., journal=True) keeps what a journal needs"
    for name, frame in (
        ("requests", requests(finished, trace)),
        ("stages", stages(finished)),
        ("events", _events(finished)),
    ):
        # Through memory: on a full disk the Parquet writer has words of its own, `write_bytes` has ours.
        held = io.BytesIO()
        frame.write_parquet(held)
        write_bytes(folder / f"{name}.parquet", held.getvalue())
    counts = np.bincount(record.outcome, minlength=len(OUTCOMES) + 1)[1:]
    head = spec.JournalHead(
        schema=spec.SCHEMA_VERSION,
        pipeline=finished.pipeline.pipeline,
        basis="emulated" if finished.basis == "simulated on emulated times" else "simulated",
        requests=int(counts.sum()),
        outcomes=dict(zip(OUTCOMES, map(int, counts), strict=True)),
        clean=True,
        span_ns=int(record.end_ns.max()),
        pipeline_yaml=pipeline_yaml,
        effects_sha256=effects_sha256(record.effects[: record.counts[r.N_EFFECTS]]),
        stamp=stamped,
    )
    write_bytes(folder / "journal.json", encode_json(head))


def effects_sha256(effects: Int64s) -> str:
    """Hash of decisions in order, as little-endian int64 rows."""
    return hashlib.sha256(np.ascontiguousarray(effects, dtype="<i8").tobytes()).hexdigest()


def requests(finished: Run, trace: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row per attempt that reached the core; as many as requests, unless clients came back."""
    record, traffic = finished.record, finished.traffic
    tags = np.flatnonzero(record.start_ns >= 0)
    rows = tags % len(traffic.arrival_ns)
    names = list(OUTCOMES)
    tenants = [None, *tenant_names(finished.pipeline)]
    told = {} if trace is None else {name: trace[name] for name in ("source", "input") if name in trace.columns}
    assert all(len(column) == len(traffic.arrival_ns) for column in told.values())
    return _typed(
        {
            "tag": tags,
            "arrival_ns": record.start_ns[tags],
            "end_ns": record.end_ns[tags],
            "outcome": [names[code - Outcome.COMPLETED] for code in record.outcome[tags]],
            "reason": [REASONS[code] for code in record.reason[tags]],
            "class": [CLASSES[code] for code in traffic.column(r.Q_PRIORITY)[rows]],
            "tenant": [tenants[code] for code in traffic.column(r.Q_TENANT)[rows]],
            "version": _versions(finished, tags),
            "hint_ns": record.hint_ns[tags],
            "reply_ns": record.attempts[tags, r.A_OVERHEAD_NS],
        }
        | {name: column.gather(rows) for name, column in told.items()},
        spec.REQUEST_COLUMNS,
        len(tags),
    )


def _versions(finished: Run, tags: Int64s) -> list[str | None]:
    """Which version served each attempt; null where there is one only, or nobody served it."""
    if all(stage.canary is None for stage in finished.pipeline.stages):
        return [None] * len(tags)
    return [None if code < 0 else VERSIONS[code] for code in finished.record.timeline[tags, 0, r.T_VERSION]]


def stages(finished: Run) -> pl.DataFrame:
    """One row per request and stage that was finished."""
    timeline = finished.record.timeline
    tags, index = np.nonzero(timeline[:, :, r.T_DONE_NS] >= 0)
    lines = timeline[tags, index]
    work = finished.traffic.work[tags % len(finished.traffic.work)]
    bucket = finished.traffic.bucket[work, index]
    stage_names = [stage.name for stage in finished.pipeline.stages]
    engine_names = list(finished.pipeline.engines)
    shape: Callable[[int, int], list[int] | None] = lambda s, b: (  # noqa: E731
        finished.pipeline.stages[s].buckets[b] if b < len(finished.pipeline.stages[s].buckets) else None
    )
    return _typed(
        {
            "tag": tags,
            "stage": [stage_names[s] for s in index],
            "engine": [engine_names[e] for e in lines[:, r.T_ENGINE]],
            "placed": [REASONS[code] for code in lines[:, r.T_REASON]],
            "bucket": bucket,
            "items": finished.traffic.items[work, index],
            "batch_rows": lines[:, r.T_BATCH_ROWS],
            "enqueued_ns": lines[:, r.T_ENQUEUED_NS],
            "dispatched_ns": lines[:, r.T_DISPATCHED_NS],
            "started_ns": lines[:, r.T_DISPATCHED_NS],
            "done_ns": lines[:, r.T_DONE_NS],
            "shape": [shape(int(s), int(b)) for s, b in zip(index, bucket, strict=True)],
        },
        spec.STAGE_COLUMNS,
        len(tags),
    )


def _events(finished: Run) -> pl.DataFrame:
    rows = finished.record.events[: finished.record.counts[r.N_EVENTS]]
    assert rows.shape[1] == events.EVENT_COLUMNS
    return pl.DataFrame(rows, schema=spec.EVENT_COLUMNS, orient="row")


def _typed(columns: dict[str, Any], schema: dict[str, pl.DataType], rows: int) -> pl.DataFrame:
    """A frame of a journal's schema; columns a simulation cannot know are null."""
    series = [
        pl.Series(name, columns[name], dtype=kind, strict=False)
        if name in columns
        else pl.Series(name, [None] * rows, dtype=kind)
        for name, kind in schema.items()
    ]
    return pl.DataFrame(series)
