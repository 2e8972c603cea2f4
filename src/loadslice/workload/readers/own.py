"""The project's own JSONL: one object per request (columns: `spec.trace`), after an optional ``{"meta": ...}`` line."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from loadslice.spec import frames
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON
from loadslice.spec.trace import META_KEYS
from loadslice.workload import trace
from loadslice.workload.readers import json_lines, source
from loadslice.workload.readers.parsed import gather


class _MetaLine(msgspec.Struct, forbid_unknown_fields=True):
    meta: dict[str, Any]


def read_jsonl(path: Path, *, sort: bool = False) -> trace.Trace:
    """Read and check a JSONL trace.

    Raises:
        InputError: With the line of the first fault.
    """
    meta: dict[str, Any] = {}
    frame = gather(_parts(path, meta), path)
    lines = frame["line"]
    rows = trace.conform(frame.drop("line"), str(path), lambda index: f"line {lines[index]}", sort=sort)
    return trace.Trace(rows, meta)


def _parts(path: Path, meta: dict[str, Any]) -> Iterator[pl.DataFrame]:
    """Typed rows with their ``line``; fills ``meta`` from the first line."""
    for block in source.blocks(path):
        if block.first_line == 1:
            block = _take_meta(path, block, meta)
        if not block.data.strip():
            continue
        try:
            with frames.guarded():
                frame = pl.read_ndjson(io.BytesIO(block.data), infer_schema_length=None)
        except frames.TableError as error:
            decoder = msgspec.json.Decoder(dict[str, Any])
            raise InputError(f"{path}: {json_lines.fault(block, decoder, error)}.") from error
        yield _typed(path, block, frame)


def _typed(path: Path, block: source.Block, frame: pl.DataFrame) -> pl.DataFrame:
    lines = _line_numbers(block, frame.height)
    try:
        typed = trace.typed(frame, str(path), lambda index: f"line {lines[index]}")
    except InputError:
        # A column of mixed types has no row to blame; the first line that is wrong by itself has.
        for number, line in zip(lines, (line for line in block.data.split(b"\n") if line.strip()), strict=False):
            _refuse_alone(msgspec.json.decode(line), f"{path}: line {number}")
        raise
    return typed.with_columns(line=lines)


def _refuse_alone(row: dict[str, Any], place: str) -> None:
    for name, value in row.items():
        try:
            with frames.guarded():
                alone = pl.DataFrame({name: pl.Series([value])})
            trace.typed(alone, place)
        except (TypeError, OverflowError, frames.TableError) as error:
            raise InputError(f"{place}: {name}: {str(value)[:60]!r} is no value of a trace.") from error


def _take_meta(path: Path, block: source.Block, meta: dict[str, Any]) -> source.Block:
    line, _, rest = block.data.partition(b"\n")
    if not line.lstrip().startswith(b'{"meta"'):
        return block
    try:
        found = msgspec.json.decode(line, type=_MetaLine).meta
    except NOT_JSON as error:
        raise InputError(f"{path}: line 1: not a meta line ({error}).") from error
    meta.update({key: found[key] for key in META_KEYS if found.get(key) is not None})
    if not isinstance(meta.get("tick_ms", 0.0), int | float) or not isinstance(meta.get("notes", []), list):
        raise InputError(f"{path}: line 1: meta.tick_ms is a number and meta.notes a list.")
    return source.Block(rest, 2)


def _line_numbers(block: source.Block, height: int) -> pl.Series:
    if block.data.count(b"\n") == height:
        return pl.int_range(block.first_line, block.first_line + height, dtype=pl.Int64, eager=True)
    numbers = [number for number, line in enumerate(block.data.split(b"\n"), block.first_line) if line.strip()]
    return pl.Series("line", (numbers + [block.first_line] * height)[:height], dtype=pl.Int64)
