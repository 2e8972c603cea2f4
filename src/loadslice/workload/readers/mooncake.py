"""Mooncake traces: JSONL with a time in milliseconds, two lengths and the hashes of 512-token prefix blocks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from loadslice.workload.readers import json_lines
from loadslice.workload.readers.parsed import Parsed, gather

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """One request as the release writes it."""

    timestamp: Annotated[int, msgspec.Meta(ge=0, le=10**13)] | Annotated[float, msgspec.Meta(ge=0, le=1e13)]
    input_length: _Count
    output_length: _Count
    hash_ids: list[int] = []


def read(path: Path) -> Parsed:
    """Read a Mooncake trace.

    Raises:
        InputError: With the line of the first fault.
    """

    def parts() -> list[pl.DataFrame]:
        return [_frame(lines, rows) for lines, rows in json_lines.rows(path, Row)]

    return Parsed(gather(parts(), path), source="mooncake", absolute=False)


def _frame(lines: Sequence[int], rows: list[Row]) -> pl.DataFrame:
    blocks = [row.hash_ids for row in rows]
    return pl.DataFrame(
        {
            "time_ns": pl.Series([round(row.timestamp * 1e6) for row in rows], dtype=pl.Int64),
            "tokens_in": pl.Series([row.input_length for row in rows], dtype=pl.Int32),
            "tokens_out": pl.Series([row.output_length for row in rows], dtype=pl.Int32),
            "blocks": pl.Series(blocks, dtype=pl.List(pl.Int64)),
            "line": pl.Series(lines, dtype=pl.Int64),
        }
    )
