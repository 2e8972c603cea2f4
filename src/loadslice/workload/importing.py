"""Any supported file -> a trace: recognise the format, read it, order it, spread its ticks, say what was done."""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from loadslice.spec.errors import InputError
from loadslice.spec.trace import SCHEMA
from loadslice.workload import recording, ticks, trace
from loadslice.workload.readers import (
    azure_llm,
    burstgpt,
    csv_table,
    envoy,
    json_table,
    mooncake,
    nginx,
    otlp,
    parquet_table,
    source,
    times,
    units,
)
from loadslice.workload.readers.log_lines import Taken
from loadslice.workload.readers.parsed import Parsed
from loadslice.workload.readers.said import Said
from loadslice.workload.readers.times import Clock, TimeUnit
from loadslice.workload.trace import Trace

_LOGS = {"nginx": nginx.read, "envoy": envoy.read}
_READERS: dict[str, Callable[[Path], Parsed]] = {
    "azure-llm": azure_llm.read,
    "mooncake": mooncake.read,
    "burstgpt": burstgpt.read,
    "otlp": otlp.read,
}
_MAPPED = {"csv": csv_table.read, "jsonl": json_table.read, "parquet": parquet_table.read}
"""Tables with anybody's names."""
FORMATS = ("loadslice", *_MAPPED, *_LOGS, *_READERS)

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Options:
    """How to read a file that leaves a choice."""

    mapping: Mapping[str, str] = field(default_factory=dict)
    """Column of a table -> column of a trace."""
    units: Mapping[str, TimeUnit] = field(default_factory=dict)
    """Column of a table -> its unit, of those whose field is a duration."""
    time_unit: TimeUnit | None = None
    clock: Clock = field(default_factory=Clock)
    """Which wrote the times of a table, where they are dates."""
    ended: bool = False
    """Times of a table are when requests ended."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """Word in a table's column of classes -> class of a trace."""
    sort: bool = False
    """Put a file that must be in arrival order into it, instead of refusing it."""
    spread: ticks.Spread = "uniform"
    seed: int = 0
    lines: Taken = field(default_factory=Taken)
    """Which lines of an access log, or rows of a table, are requests."""

    def said(self) -> Said:
        """What of this is about a table.

        Raises:
            InputError: ``only`` names no column.
        """
        only = None
        if self.lines.only is not None:
            column, equals, pattern = self.lines.only.partition("=")
            if not equals:
                raise InputError(f"--only '{self.lines.only}': of a table say which column, COLUMN=REGEX.")
            only = (column, pattern)
        return Said(
            self.mapping, self.units, self.time_unit, self.clock, self.ended, self.classes, only, self.lines.skip_bad
        )


def load(path: Path, kind: str = "auto", options: Options | None = None) -> Trace:
    """Read a trace in any supported format.

    Args:
        path: A file, or a folder a `loadslice.record.Recorder` wrote.
        kind: One of `FORMATS`, or ``auto``.
        options: What the file leaves open.

    Raises:
        InputError: One line with the fault and where it stands.
    """
    assert kind == "auto" or kind in FORMATS, kind
    options = options or Options()
    if kind == "auto":
        kind, _ = sniff(path, options.mapping)
    _refuse_misplaced(path, kind, options)
    if kind == "loadslice":
        found = recording.read(path) if path.is_dir() else trace.read(path, sort=options.sort)
        return _spread_own(found, options)
    if kind in _MAPPED:
        parsed = _MAPPED[kind](path, options.said())
    elif kind in _LOGS:
        parsed = _LOGS[kind](path, options.lines)
    else:
        parsed = _READERS[kind](path)
    return _finish(parsed, kind, path, options)


def _refuse_misplaced(path: Path, kind: str, options: Options) -> None:
    """Refuse what was said of another kind of file: it would be left unheard."""
    own = Options()
    of_tables = {
        "--map": bool(options.mapping),
        "--zone and --time-format": options.clock != own.clock,
        "--ended": options.ended,
        "--class": bool(options.classes),
    }
    for option, given in of_tables.items():
        if given and kind not in _MAPPED:
            verb = "are" if " and " in option else "is"
            raise InputError(
                f"{path}: {option} {verb} for tables, this is read as {kind}; add --format {'|'.join(_MAPPED)} if it "
                "is one."
            )
    if options.lines.only is not None and kind not in {**_LOGS, **_MAPPED}:
        raise InputError(f"{path}: --only is for access logs and tables, this is read as {kind}.")
    if options.lines.skip_bad and kind not in {**_LOGS, "jsonl": None}:
        raise InputError(f"{path}: --skip-bad is for access logs and JSON lines, this is read as {kind}.")


def sniff(path: Path, mapping: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Recognise a format.

    Returns:
        One of `FORMATS`, and what it was recognised by.

    Raises:
        InputError: Not readable, or none of the formats.
    """
    if path.is_dir():
        return "loadslice", "a recorder's folder"
    start = source.head(path)
    if start.startswith(b"PAR1"):
        return ("parquet", "Parquet and --map") if mapping else ("loadslice", "Parquet")
    if not start.strip():
        raise InputError(f"{path}: empty, no requests in it.")
    if b"\0" in start:
        # Says what kind of binary it is, where that is known.
        next(source.blocks(path))
    lines = start.decode("utf-8", errors="replace").removeprefix("\ufeff").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    first = lines[0] if lines else ""
    found = _sniff_table(lines) if mapping else _sniff_json(start, first) or _sniff_text(first)
    if found is None:
        raise InputError(
            f"{path}: format not recognised from '{first[:80]}'. Say --format {'|'.join(FORMATS)}, "
            "or name the columns of a table (CSV, JSON lines) with --map COLUMN=arrival_s."
        )
    return found


def _sniff_table(lines: list[str]) -> tuple[str, str]:
    """What is read through a map: JSON lines, also where others (a traceback, a banner) stand among them, or CSV."""
    if sum(line.startswith("{") for line in lines) > len(lines) / 2:
        return "jsonl", "JSON lines and --map"
    return "csv", "--map"


def _sniff_json(start: bytes, first: str) -> tuple[str, str] | None:
    if not first.startswith("{"):
        return None
    if b'"resourceSpans"' in start:
        return "otlp", "key resourceSpans"
    if '"hash_ids"' in first or ('"timestamp"' in first and '"input_length"' in first):
        return "mooncake", "keys timestamp, input_length"
    if '"arrival_s"' in first or first.startswith('{"meta"'):
        return "loadslice", "key arrival_s"
    return None


def _sniff_text(first: str) -> tuple[str, str] | None:
    for log, pattern in (("envoy", envoy.PATTERN), ("nginx", nginx.PATTERN)):
        if pl.Series([first]).str.contains(pattern)[0]:
            return log, "the form of its first line"
    try:
        header = set(csv_table.columns_of(first)[0])
    except csv.Error:
        return None
    if set(azure_llm.NEEDED) <= header:
        return "azure-llm", "columns TIMESTAMP, ContextTokens, GeneratedTokens"
    if set(burstgpt.COLUMNS) <= header:
        return "burstgpt", "columns Timestamp, Model, Request tokens, Response tokens"
    return ("csv", "column arrival_s") if "arrival_s" in header else None


def _finish(parsed: Parsed, kind: str, path: Path, options: Options) -> Trace:
    notes = list(parsed.notes)
    frame = _ordered(parsed, path, options, notes)
    stamps = frame["time_ns"].to_numpy()
    if not parsed.absolute:
        seconds = frame["time_ns"] / NS_PER_S
        trace.refuse_first(seconds < 0, seconds, f"{path}: arrival_s", "is negative", _line_of(frame))
    tick_ns = parsed.stamp_ns or ticks.find_tick_ns(stamps)
    frame = frame.with_columns(time_ns=pl.Series(_spread(stamps, tick_ns, options, notes)))
    if parsed.completion_stamped:
        took_ms = frame["latency_ms"]
        wrong = took_ms > trace.SPAN_S_MAX * 1e3
        trace.refuse_first(wrong, took_ms, f"{path}: latency_ms", "is over ten years", _line_of(frame))
        shift = (pl.col("latency_ms").fill_null(0.0) * 1e6).cast(pl.Int64)
        frame = frame.with_columns(time_ns=pl.col("time_ns") - shift).sort("time_ns", maintain_order=True)
    begin_ns = int(frame["time_ns"][0])
    # Divided by NumPy: Polars multiplies by the reciprocal, and 0.052 would become 0.052000000000000005.
    arrivals = pl.Series((frame["time_ns"].to_numpy() - begin_ns) / NS_PER_S)
    rows = frame.with_columns(arrival_s=arrivals).drop("time_ns", "line")
    rows = trace.conform(rows.select("arrival_s", pl.exclude("arrival_s")), str(path), _line_of(frame))
    meta: dict[str, Any] = {"format": kind, "source": path.name, "notes": notes}
    if parsed.absolute:
        meta["start_utc"] = times.iso_utc(begin_ns)
    if tick_ns is not None and options.spread != "none":
        meta["tick_ms"] = tick_ns / 1e6
    return Trace(rows, {key: value for key, value in meta.items() if value not in (None, [])})


def _line_of(frame: pl.DataFrame) -> trace.Locate:
    return lambda index: f"line {frame['line'][index]}"


def _ordered(parsed: Parsed, path: Path, options: Options, notes: list[str]) -> pl.DataFrame:
    frame = parsed.frame
    falls = frame["time_ns"].diff() < 0
    if not falls.any():
        return frame
    if not (parsed.completion_order or options.sort):
        index = int(falls.fill_null(value=False).arg_true()[0])
        raise InputError(
            f"{path}: line {frame['line'][index]}: earlier than the line before; times must not fall. "
            "If the file is merely out of order, add --sort."
        )
    why = "the log is written when requests end" if parsed.completion_order else "--sort"
    notes.append(f"rows were not in time order ({int(falls.sum())} steps back) and were sorted: {why}")
    return frame.sort("time_ns", maintain_order=True)


def _spread(stamps: ticks.Times, tick_ns: int | None, options: Options, notes: list[str]) -> ticks.Times:
    if tick_ns is None:
        return stamps
    length = f"{tick_ns / 1e6:g} ms"
    if options.spread == "none":
        notes.append(f"times come in ticks of {length} and were left so (--spread none)")
        return stamps
    how = f"uniformly, seed {options.seed}" if options.spread == "uniform" else "evenly"
    notes.append(f"times come in ticks of {length}: arrivals were spread inside the tick ({how})")
    return ticks.spread(stamps, tick_ns, options.spread, np.random.default_rng(options.seed))


def _spread_own(found: Trace, options: Options) -> Trace:
    """Spread ticks in an own trace that does not say it was done already."""
    if "tick_ms" in found.meta:
        return found
    stamps = (found.frame["arrival_s"] * NS_PER_S).round(0).cast(pl.Int64).to_numpy()
    tick_ns = ticks.find_tick_ns(stamps)
    if tick_ns is None:
        return found
    notes = found.notes
    spread_ns = _spread(stamps, tick_ns, options, notes)
    meta = {**found.meta, "notes": notes}
    if options.spread == "none":
        return Trace(found.frame, meta)
    arrivals = pl.Series("arrival_s", (spread_ns - spread_ns[0]) / NS_PER_S)
    return Trace(found.frame.with_columns(arrivals), {**meta, "tick_ms": tick_ns / 1e6})


def column_map(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse ``COLUMN=FIELD`` pairs; the other way round is understood where only one side is a field.

    Raises:
        InputError: Not a pair, not a field, or a field twice.
    """
    mapping: dict[str, str] = {}
    for pair in pairs:
        left, right, _ = _pair(pair)
        if right in mapping.values() or left in mapping:
            raise InputError(f"--map {pair}: '{right if right in mapping.values() else left}' is mapped twice.")
        mapping[left] = right
    return mapping


def column_units(pairs: tuple[str, ...]) -> dict[str, TimeUnit]:
    """Units that ``COLUMN=FIELD:UNIT`` pairs state, by column.

    Raises:
        InputError: As `column_map`.
    """
    return {column: unit for column, _, unit in map(_pair, pairs) if unit is not None}


def _pair(pair: str) -> tuple[str, str, TimeUnit | None]:
    """Column, field and unit of one ``--map``."""
    # A column's name may hold "=", a field's may not.
    left, _, right = pair.rpartition("=")
    right, unit = _field(right)
    if trace.column_type(right) is None:
        right, _, left = pair.partition("=")
        right, unit = _field(right)
    if not left or trace.column_type(right) is None or right == "blocks":
        raise InputError(
            f"--map {pair}: expected COLUMN=FIELD with a field of {', '.join(SCHEMA)}, stage_ms.NAME; a duration's "
            f"may say its unit, as in latency_ms:us ({', '.join(units.MS)})."
        )
    return left, right, unit


def _field(text: str) -> tuple[str, TimeUnit | None]:
    name, _, unit = text.rpartition(":")
    if unit in units.MS and units.is_duration(name):
        return name, unit  # type: ignore[return-value]
    return text, None


def annotate(
    found: Trace, *, first: int | None, constants: tuple[str, ...], source: str | None, licence: str | None
) -> Trace:
    """Cut a trace short and say where it came from.

    Args:
        found: The trace.
        first: Requests to keep from the start; ``None``: all.
        constants: ``FIELD=VALUE`` for text columns.
        source: Replaces the name of the file.
        licence: Of the data.

    Raises:
        InputError: A constant for a column that is not text.
    """
    frame, notes = found.frame, found.notes
    if first is not None and first < frame.height:
        notes.append(f"the first {first} of {frame.height} requests")
        frame = frame.head(first)
    for pair in constants:
        name, _, value = pair.partition("=")
        if SCHEMA.get(name) != pl.String() or not value:
            texts = ", ".join(field for field, kind in SCHEMA.items() if kind == pl.String())
            raise InputError(f"--set {pair}: expected FIELD=VALUE with a field of {texts}.")
        frame = frame.with_columns(pl.lit(value).alias(name))
    meta = {**found.meta, "notes": notes, "source": source or found.meta.get("source")}
    if licence is not None:
        meta["licence"] = licence
    meta = {key: value for key, value in meta.items() if value not in (None, [])}
    return Trace(trace.conform(frame, "--set"), meta)
