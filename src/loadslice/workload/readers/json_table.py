"""JSON lines with anybody's names: read through a column map, as a CSV is."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.workload.readers import json_lines, table
from loadslice.workload.readers.parsed import Parsed
from loadslice.workload.readers.times import TimeUnit


def read(
    path: Path, mapping: Mapping[str, str], time_unit: TimeUnit | None = None, units: Mapping[str, TimeUnit] = {}
) -> Parsed:
    """Read one JSON object per line; a key inside an object is named with dots (``request.size``).

    Args:
        path: The file.
        mapping: Key -> column of a trace; keys that already have a trace's name need none.
        time_unit: How times are written; ``None``: decided from the first.
        units: Of mapped durations, by key.

    Raises:
        InputError: Unreadable, a mapped key that no line of the first block has, or a value of the wrong type.
    """
    blocks = json_lines.rows(path, dict[str, Any])
    first = next(blocks, None)
    if first is None or not first[1]:
        raise InputError(f"{path}: no requests in it.")
    keys = list(dict.fromkeys(key for row in first[1] for key in _keys(row)))

    def frames() -> Iterator[pl.DataFrame]:
        for number, rows in itertools.chain([first], blocks):
            yield _texts(path, number, rows, list(chosen))

    chosen = table.chosen(path, keys, mapping)
    return replace(table.read_rows(path, frames, keys, chosen, mapping, time_unit, units), source="jsonl")


def _keys(row: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in row.items():
        yield before + key
        if isinstance(value, dict):
            yield from _keys(value, f"{before}{key}.")


def _texts(path: Path, first_line: int, rows: list[dict[str, Any]], keys: list[str]) -> pl.DataFrame:
    columns: dict[str, list[str | None]] = {
        key: [_text(_value(row, key), path, key, line) for line, row in enumerate(rows, first_line)] for key in keys
    }
    lines = pl.int_range(first_line, first_line + len(rows), dtype=pl.Int64, eager=True)
    return pl.DataFrame(columns, schema=dict.fromkeys(keys, pl.String)).with_columns(lines.alias("line"))


def _value(row: Any, key: str) -> Any:
    """What stands at a key, else at its dotted path; ``None``: nothing does."""
    if not isinstance(row, dict):
        return None
    if key in row:
        return row[key]
    head, _, rest = key.partition(".")
    return _value(row.get(head), rest) if rest else None


def _text(value: Any, path: Path, key: str, line: int) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        kind = "an object; name a key inside it with a dot" if isinstance(value, dict) else "a list"
        raise InputError(f"{path}: line {line}: '{key}' is {kind}.")
    return str(value).lower() if isinstance(value, bool) else repr(value)
