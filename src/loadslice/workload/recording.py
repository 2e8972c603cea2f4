"""The folder that `loadslice.record.Recorder` writes: Parquet parts per process -> one trace."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.workload import trace

PART_PATTERN = "part-*.parquet"
NS_PER_S = 1_000_000_000


def read(folder: Path) -> trace.Trace:
    """Join the parts of a recording, of all processes, in arrival order.

    Raises:
        InputError: No parts there, or a part that is not readable.
    """
    parts = sorted(folder.glob(PART_PATTERN))
    if not parts:
        raise InputError(f"{folder}: a folder without {PART_PATTERN}; give a trace file or a recorder's folder.")
    try:
        frame = pl.concat([pl.read_parquet(part, glob=False) for part in parts], how="diagonal")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{folder}: a part is damaged ({str(error).splitlines()[0][:160]}); remove it.") from error
    if "time_ns" not in frame.columns or not frame.height:
        raise InputError(f"{folder}: the parts hold no recorded requests.")
    frame = frame.sort("time_ns", maintain_order=True)
    begin_ns = int(frame["time_ns"][0])
    rows = frame.with_columns(arrival_s=(pl.col("time_ns") - begin_ns) / NS_PER_S).drop("time_ns")
    start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=begin_ns // 1000)
    meta = {"format": "recorder", "source": folder.name, "start_utc": start.isoformat()}
    return trace.Trace(trace.conform(rows.select("arrival_s", pl.exclude("arrival_s")), str(folder)), meta)
