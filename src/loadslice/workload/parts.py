"""A trace in parts, for traces larger than memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.workload.trace import collected, column_type, conform, row_place, scan

ROWS_PER_PART = 1 << 18
"""About 25 MB of a trace with every column; arrays of this size are used again rather than asked of the system anew."""


@dataclass(frozen=True)
class Parts:
    """A Parquet trace that is read part by part.

    Attributes:
        path: The file.
        rows: Requests in it.
        span_s: Time from the first request to the last.
        columns: Columns with at least one value.
    """

    path: Path
    rows: int
    span_s: float
    columns: tuple[str, ...]

    def frames(self, rows_per_part: int = ROWS_PER_PART) -> Iterator[pl.DataFrame]:
        """The parts in order, each checked as `workload.trace.read` checks a whole trace, all with the same columns.

        Raises:
            InputError: As `workload.trace.read`, when the part's turn comes; falling times across parts too.
        """
        lazy = pl.scan_parquet(self.path, glob=False)  # it was found to be readable when it was opened
        latest_s = 0.0
        for start in range(0, self.rows, rows_per_part):
            frame = conform(
                collected(lazy.slice(start, rows_per_part), self.path),
                str(self.path),
                lambda index, start=start: row_place(start + index),  # type: ignore[misc] # a default is no parameter
            )
            if frame["arrival_s"][0] < latest_s:
                raise InputError(
                    f"{self.path}: arrival_s {frame['arrival_s'][0]} is earlier than the row before; "
                    f"sort it with --sort ({row_place(start)})."
                )
            latest_s = frame["arrival_s"][-1]
            # A column may be unknown throughout one part and known in another.
            absent = [name for name in self.columns if name not in frame.columns]
            yield frame.with_columns([pl.lit(None, column_type(name)).alias(name) for name in absent])


def in_parts(path: Path) -> Parts:
    """Open a Parquet trace to be read in parts.

    Raises:
        InputError: Not a Parquet file, no column ``arrival_s``, or no rows.
    """
    lazy, _ = scan(path, ROWS_PER_PART)
    names = lazy.collect_schema().names()
    if "arrival_s" not in names:
        raise InputError(f"{path}: no column 'arrival_s'; found {', '.join(names) or 'none'}.")
    known = lazy.select(pl.len().alias("rows"), *[pl.col(name).is_not_null().any().alias(name) for name in names])
    times_s = pl.col("arrival_s").cast(pl.Float64, strict=False)
    ends = lazy.select(times_s.first().alias("first"), times_s.last().alias("last"))
    found, times = collected(known, path).row(0, named=True), collected(ends, path).row(0, named=True)
    if found["rows"] == 0:
        raise InputError(f"{path}: no requests in it.")
    span_s = (times["last"] or 0.0) - (times["first"] or 0.0)
    return Parts(path, found["rows"], span_s, tuple(name for name in names if found[name]))
