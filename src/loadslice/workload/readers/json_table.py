"""JSON lines with anybody's names: read through a column map, as a CSV is."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.workload.readers import json_lines, table
from loadslice.workload.readers.parsed import Parsed
from loadslice.workload.readers.said import Said


def read(path: Path, said: Said) -> Parsed:
    """Read one JSON object per line; a key inside an object is named with dots (``request.size``).

    Raises:
        InputError: Unreadable, a mapped key that no line of the first block has, or a value of the wrong type.
    """
    bad = json_lines.Bad(said.skip_bad)
    blocks = json_lines.rows(path, dict[str, Any], bad=bad)
    first = next(blocks, None)
    if first is None or not first[1]:
        raise InputError(f"{path}: no requests in it.")
    keys = list(dict.fromkeys(key for row in first[1] for key in _keys(row)))
    chosen = table.choose(path, keys, said)
    # An object is not left out where something inside it is used.
    left_out = [key for key in chosen.left_out if not any(used.startswith(f"{key}.") for used in chosen.columns)]
    chosen = replace(chosen, left_out=left_out)

    def frames() -> Iterator[pl.DataFrame]:
        for numbers, rows in itertools.chain([first], blocks):
            yield _texts(path, numbers, rows, chosen.columns)

    parsed = table.read_rows(path, frames, chosen, said)
    return replace(parsed, source="jsonl", notes=(*parsed.notes, *bad.notes))


def _keys(row: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in row.items():
        yield before + key
        if isinstance(value, dict):
            yield from _keys(value, f"{before}{key}.")


def _texts(path: Path, lines: Sequence[int], rows: list[dict[str, Any]], keys: list[str]) -> pl.DataFrame:
    columns: dict[str, list[str | None]] = {
        key: [_text(_value(row, key), path, key, line) for line, row in zip(lines, rows, strict=True)] for key in keys
    }
    return pl.DataFrame(columns, schema=dict.fromkeys(keys, pl.String)).with_columns(
        line=pl.Series(lines, dtype=pl.Int64)
    )


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
