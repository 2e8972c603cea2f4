"""The trace file, read, checked and written: one row per request, in arrival order (columns: `spec.trace`)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from loadslice.spec import frames, parquet
from loadslice.spec.classes import are_known
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason, replacing
from loadslice.spec.pipeline import CLASSES
from loadslice.spec.trace import META_KEYS, SCHEMA

STAGE_PREFIX = "stage_ms."
SPAN_S_MAX = 10 * 366 * 86_400.0
"""A longer span is a unit mistake (milliseconds read as seconds), not a trace."""

_NOT_NEGATIVE = ("items", "tokens_in", "tokens_out", "latency_ms", "deadline_ms", "bytes_in")

Locate = Callable[[int], str]
"""Row index -> how a person finds it, for instance ``line 17``."""


@dataclass(frozen=True)
class Trace:
    """Requests in arrival order and what is known about where they came from.

    Attributes:
        frame: Columns of `spec.trace.SCHEMA` that are known, ``stage_ms.*`` and ``blocks``.
        meta: Some of `META_KEYS`: format, source, start_utc (ISO 8601), tick_ms (float), notes (list of
            str), licence. An absent key is unknown.
    """

    frame: pl.DataFrame
    meta: dict[str, Any]

    @property
    def notes(self) -> list[str]:
        """What importing changed or could not know."""
        return list(self.meta.get("notes") or [])


def row_place(index: int) -> str:
    """Name a row of a Parquet file, counted from 1."""
    return f"row {index + 1}"


def stage_columns(columns: list[str]) -> list[str]:
    """Columns that hold a stage's time."""
    return [name for name in columns if name.startswith(STAGE_PREFIX)]


def column_type(name: str) -> pl.DataType | None:
    """The type a trace column must have; ``None``: not a trace column."""
    if name.startswith(STAGE_PREFIX) and len(name) > len(STAGE_PREFIX):
        return pl.Float64()
    return pl.List(pl.Int64()) if name == "blocks" else SCHEMA.get(name)


def conform(frame: pl.DataFrame, place: str, locate: Locate = row_place, *, sort: bool = False) -> pl.DataFrame:
    """Cast columns to their types and refuse what no trace may hold.

    Args:
        frame: Any frame.
        place: How messages name the file.
        locate: How messages name a row.
        sort: Put rows in arrival order instead of refusing falling times.

    Raises:
        InputError: Unknown or missing column, wrong type, null, NaN, infinite, negative or falling time,
            negative size, unknown class, or no rows.
    """
    frame = typed(frame, place, locate)
    if "arrival_s" not in frame.columns:
        raise InputError(f"{place}: no column 'arrival_s'; found {', '.join(frame.columns) or 'none'}.")
    if frame.height == 0:
        raise InputError(f"{place}: no requests in it.")
    if sort:
        frame = frame.sort("arrival_s", maintain_order=True)
    _check_times(frame["arrival_s"], place, locate)
    for name in [*_NOT_NEGATIVE, *stage_columns(frame.columns)]:
        if name in frame.columns:
            wrong = frame[name] < 0
            if frame.schema[name] == pl.Float64():
                wrong = wrong | ~frame[name].is_finite()
            refuse_first(wrong, frame[name], f"{place}: {name}", "is negative or not finite", locate)
    if "class" in frame.columns and not are_known(frame["class"]):
        wrong = frame["class"].is_not_null() & ~frame["class"].is_in(CLASSES)
        refuse_first(wrong, frame["class"], f"{place}: class", f"is not one of {', '.join(CLASSES)}", locate)
    # A column without a single value says "unknown", as its absence does.
    return frame.select(
        [column for column in frame if column.name == "arrival_s" or column.null_count() < frame.height]
    )


def typed(frame: pl.DataFrame, place: str, locate: Locate = row_place) -> pl.DataFrame:
    """Cast every column to the type the trace file gives it.

    Raises:
        InputError: Unknown column, or a value that is not of its type.
    """
    unknown = [name for name in frame.columns if column_type(name) is None]
    if unknown:
        raise InputError(f"{place}: unknown column '{unknown[0]}'; a trace has {', '.join(SCHEMA)}, stage_ms.NAME.")
    try:
        with frames.guarded():
            return frame.select([_cast(frame[name], place, locate) for name in frame.columns])
    except frames.TableError as error:
        raise InputError(f"{place}: not the columns of a trace ({error}).") from error


def _cast(column: pl.Series, place: str, locate: Locate) -> pl.Series:
    kind = column_type(column.name)
    assert kind is not None
    if column.dtype == kind:
        return column
    if column.dtype == pl.Null():
        return column.cast(kind)
    if column.dtype.is_numeric() != kind.is_numeric() or column.dtype.is_nested() != kind.is_nested():
        raise InputError(f"{place}: column '{column.name}' holds {column.dtype}, expected {kind}.")
    if kind.is_integer() and column.dtype.is_float():
        wrong = column.is_not_null() & (column != column.round(0))
        refuse_first(wrong, column, f"{place}: {column.name}", "is not a whole number", locate)
    cast = column.cast(kind, strict=False)
    refuse_first(cast.is_null() & column.is_not_null(), column, f"{place}: {column.name}", f"is no {kind}", locate)
    return cast


def _check_times(times: pl.Series, place: str, locate: Locate) -> None:
    place = f"{place}: arrival_s"
    refuse_first(times.is_null(), times, place, "is missing", locate)
    refuse_first(~times.is_finite(), times, place, "is not finite", locate)
    refuse_first(times < 0, times, place, "is negative", locate)
    refuse_first(times.diff() < 0, times, place, "is earlier than the row before; sort it with --sort", locate)
    refuse_first(times > SPAN_S_MAX, times, place, "is over ten years; is it in seconds?", locate)


def refuse_first(wrong: pl.Series, column: pl.Series, place: str, says: str, locate: Locate) -> None:
    """Raise for the first row where ``wrong`` holds.

    Args:
        wrong: Booleans; nulls count as right.
        column: The values, of which the first wrong one is shown.
        place: Before the value: the file and the field.
        says: After it: what is wrong.
        locate: Index of a row to where it stands.

    Raises:
        InputError: Some row is wrong.
    """
    if wrong.any():
        index = int(wrong.fill_null(value=False).arg_true()[0])
        value = column[index]
        shown = "" if value is None else f" {str(value)[:60]!r}" if isinstance(value, str) else f" {value}"
        raise InputError(f"{place}{shown} {says} ({locate(index)}).")


def read(path: Path, *, sort: bool = False) -> Trace:
    """Read a trace file (Parquet, or JSONL) whole and check it.

    Args:
        path: The file; a name ending in ``.jsonl`` is read as JSONL.
        sort: Put rows in arrival order instead of refusing a file that is not.

    Raises:
        InputError: Unreadable, not a trace file, or a row that no trace may hold.
    """
    if path.suffix == ".jsonl":
        from loadslice.workload.readers import own

        return own.read_jsonl(path, sort=sort)
    lazy, meta = scan(path)
    return Trace(conform(collected(lazy, path), str(path), sort=sort), meta)


def collected(lazy: pl.LazyFrame, path: Path) -> pl.DataFrame:
    """Read what was opened.

    Raises:
        InputError: That cannot be done.
    """
    try:
        with frames.guarded():
            return lazy.collect()
    except (frames.TableError, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error}).") from error


def scan(path: Path, rows_at_once: int | None = None) -> tuple[pl.LazyFrame, dict[str, Any]]:
    """Open a Parquet trace that can be read whole, for traces larger than memory; what rows say is not checked.

    Args:
        path: The file.
        rows_at_once: How many will be read at a time; ``None``: all.

    Returns:
        A lazy frame with the file's columns, and the metadata as `Trace.meta` has it.

    Raises:
        InputError: Not a Parquet file.
    """
    if path.is_dir():
        raise InputError(f"{path}: a folder, not a trace file.")
    try:
        why = parquet.fault([path], rows_at_once)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error
    if why is not None:
        raise InputError(
            f"{path}: not a readable Parquet file ({why:.200})."
            if _begins_as_parquet(path)
            else f"{path}: no trace file (Parquet, or JSON lines named .jsonl). A log or another table is made one by "
            f"`loadslice trace import {path} -o trace.parquet`."
        )
    return pl.scan_parquet(path, glob=False), _meta_from(pl.read_parquet_metadata(path))


def _begins_as_parquet(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) in (b"PAR1", b"")  # an empty one was to be one


def _meta_from(stored: dict[str, str]) -> dict[str, Any]:
    meta: dict[str, Any] = {key: stored[key] for key in META_KEYS if stored.get(key)}
    try:
        if "tick_ms" in meta:
            meta["tick_ms"] = float(meta["tick_ms"])
        if "notes" in meta:
            meta["notes"] = [str(note) for note in json.loads(meta["notes"])]
    except (ValueError, TypeError):
        # Written by another program: keep its words.
        meta["notes"] = [f"metadata as found: {stored.get('tick_ms', '')} {stored.get('notes', '')}".strip()]
        meta.pop("tick_ms", None)
    return meta


def write(trace: Trace, path: Path) -> None:
    """Write a trace as Parquet (zstd) or, when the name ends in ``.jsonl``, as JSONL; whole or not at all.

    A JSONL trace opens with one line ``{"meta": {...}}``.

    Raises:
        InputError: Not writable, disk full, or a name that ends in neither.
    """
    if path.suffix not in (".parquet", ".jsonl"):
        raise InputError(f"{path}: a trace file is named .parquet or .jsonl.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is not a file; choose another name.")
    with replacing(path) as temporary:
        try:
            if path.suffix == ".jsonl":
                _write_jsonl(trace, temporary)
            else:
                with frames.guarded():
                    trace.frame.write_parquet(temporary, compression="zstd", metadata=_meta_text(trace.meta))
        except frames.TableError as error:
            raise InputError(f"{path}: cannot be written, {error}.") from error


def _write_jsonl(trace: Trace, path: Path) -> None:
    with path.open("wb") as stream:
        stream.write(msgspec.json.encode({"meta": trace.meta}) + b"\n")
        for part in trace.frame.iter_slices(100_000):
            for row in part.iter_rows(named=True):
                known = {name: value for name, value in row.items() if value is not None}
                stream.write(msgspec.json.encode(known) + b"\n")


def _meta_text(meta: dict[str, Any]) -> dict[str, str]:
    assert set(meta) <= set(META_KEYS), meta
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in meta.items() if value is not None
    }
