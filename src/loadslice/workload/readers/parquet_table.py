"""Parquet with anybody's names: read through a column map, as a CSV is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.workload import trace
from loadslice.workload.readers import table
from loadslice.workload.readers.parsed import Parsed
from loadslice.workload.readers.said import Said
from loadslice.workload.readers.times import TimeUnit

ROWS_AT_ONCE = 1 << 18


def read(path: Path, said: Said) -> Parsed:
    """Read any Parquet table; a column of type Duration knows its own unit.

    Raises:
        InputError: Unreadable, a mapped column absent, or a value of the wrong type.
    """
    lazy, _ = trace.scan(path)
    schema = lazy.collect_schema()
    chosen = table.choose(path, schema.names(), said)
    for column in chosen.columns:
        if schema[column].is_nested():
            raise InputError(f"{path}: column '{column}' holds {schema[column]}, not one value a row.")
    known: dict[str, TimeUnit] = {column: "ms" for column in chosen.fields if isinstance(schema[column], pl.Duration)}
    rows = trace.collected(lazy.select(_as_text(column, schema[column]) for column in chosen.columns), path)

    def frames() -> Iterator[pl.DataFrame]:
        for begin in range(0, rows.height, ROWS_AT_ONCE):
            part = rows.slice(begin, ROWS_AT_ONCE)
            yield part.with_columns(line=pl.int_range(begin + 1, begin + part.height + 1, dtype=pl.Int64))

    parsed = table.read_rows(path, frames, chosen, replace(said, units={**known, **said.units}))
    return replace(parsed, source="parquet")


def _as_text(column: str, kind: pl.DataType) -> pl.Expr:
    """A column as it would stand in a CSV."""
    values = pl.col(column)
    if isinstance(kind, pl.Duration):
        values = values.dt.total_nanoseconds() / 1e6
    if isinstance(kind, pl.Datetime):
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if kind.time_zone else values
        return values.dt.strftime("%Y-%m-%d %H:%M:%S%.f")
    return values.cast(pl.String)
