"""The folder of a `loadslice.record.Recorder`: Parquet parts per process, sampled bodies, utilisation; and back.

``part-START-PID-NUMBER.parquet`` (columns of `spec.trace`, with ``time_ns`` since 1970 in place of ``arrival_s``),
``payloads/START-PID-NUMBER.bin`` (named by the column ``input``), ``utilisation.jsonl``.
"""

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import polars as pl

from loadslice.spec import frames
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason, replacing, write_bytes
from loadslice.spec.pipeline import CLASSES
from loadslice.spec.trace import SCHEMA
from loadslice.workload import trace
from loadslice.workload.readers import times

PART_PATTERN = "part-*.parquet"
NS_PER_S = 1_000_000_000
UTILISATION_BYTES_MAX = 32 << 20
"""Two such files hold over a month of samples every 5 s."""
STAGES_MAX = 64
"""Stage names beyond these are left out of a part: they are identifiers, and each would be a column."""


class Recorded(Protocol):
    """What the recorder knows of one request."""

    begin_ns: int
    end_ns: int
    status: int | None
    fields: dict[str, Any]
    stages: list[tuple[str, int]]
    payload: bytes | None


class Folder:
    """Writes one process's share of a recording.

    Args:
        path: An existing folder.
        max_bytes: Size of all parts in it; beyond it the oldest are removed.
        epoch_ns: Wall-clock time at which the requests' clock stood at 0.
        begin_ns: Wall-clock time now; with the process id it makes the names unique, and puts them in order of time.
    """

    def __init__(self, path: Path, max_bytes: int, epoch_ns: int, begin_ns: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._epoch_ns = epoch_ns
        self._prefix = f"{begin_ns // 1_000_000:015d}-{os.getpid()}"
        self._number = 0
        self._payload_number = 0

    def write_part(self, rows: Sequence[Recorded]) -> int:
        """Write requests, at least one, as one part.

        Returns:
            How many old parts made room.

        Raises:
            InputError: Not writable.
        """
        self._number += 1
        path = self._path / f"part-{self._prefix}-{self._number:06d}.parquet"
        with replacing(path) as temporary:
            try:
                with frames.guarded():
                    _frame(rows, self._epoch_ns).write_parquet(temporary, compression="zstd")
            except frames.TableError as error:
                raise InputError(f"{path}: cannot be written, {error}.") from error
        return self._make_room(path)

    def write_payloads(self, rows: Sequence[Recorded], most: int) -> int:
        """Write sampled bodies and name them in ``fields["input"]``; returns how many.

        Raises:
            InputError: Not writable.
        """
        kept = 0
        for row in rows:
            if row.payload is not None and kept < most:
                name = f"{self._prefix}-{self._payload_number:06d}"
                write_bytes(self._path / "payloads" / f"{name}.bin", row.payload)
                row.fields["input"] = name
                self._payload_number += 1
                kept += 1
        return kept

    def append_utilisation(self, sample: dict[str, float | None]) -> None:
        """Add one line to ``utilisation.jsonl``, putting a full file aside first.

        Raises:
            InputError: Not writable.
        """
        path = self._path / "utilisation.jsonl"
        try:
            if path.exists() and path.stat().st_size > UTILISATION_BYTES_MAX:
                path.replace(self._path / "utilisation-old.jsonl")
            with path.open("ab") as stream:
                stream.write(msgspec.json.encode(sample) + b"\n")
        except OSError as error:
            raise InputError(f"{path}: cannot be written, {reason(error)}.") from error

    def _make_room(self, newest: Path) -> int:
        try:
            parts = deque((part, part.stat().st_size) for part in sorted(self._path.glob(PART_PATTERN)))
            total, removed = sum(size for _, size in parts), 0
            while parts and total > self._max_bytes and parts[0][0] != newest:
                part, size = parts.popleft()
                part.unlink(missing_ok=True)
                total -= size
                removed += 1
        except OSError as error:
            raise InputError(f"{self._path}: old parts cannot be removed, {reason(error)}.") from error
        return removed


def _frame(rows: Sequence[Recorded], epoch_ns: int) -> pl.DataFrame:
    columns: dict[str, pl.Series] = {
        "time_ns": pl.Series([row.begin_ns + epoch_ns for row in rows], dtype=pl.Int64),
        "latency_ms": pl.Series([(row.end_ns - row.begin_ns) / 1e6 for row in rows], dtype=pl.Float64),
        "status": pl.Series([row.status for row in rows], dtype=pl.Int16, strict=False),
    }
    named = {name for row in rows for name in row.fields}
    for name in (field for field in SCHEMA if field in named):
        columns[name] = _values([row.fields.get(name) for row in rows], SCHEMA[name])
    if "class" in columns:
        columns["class"] = columns["class"].set(~columns["class"].is_in(CLASSES), None)
    columns.update(_stages(rows))
    return pl.DataFrame(columns)


def _values(values: list[Any], kind: pl.DataType) -> pl.Series:
    """A column of what clients and applications said; what is not of its type, or negative, is unknown."""
    if kind == pl.String():
        return pl.Series([_text(value) for value in values], dtype=pl.String)
    if not all(
        value is None or type(value) is float or (type(value) is int and abs(value) < 2**62) for value in values
    ):
        values = [_text(value) for value in values]
    numbers = pl.Series(values, strict=False).cast(pl.Float64, strict=False)
    numbers = numbers.set(~(numbers.is_finite() & (numbers >= 0)), None)
    return numbers.cast(kind, strict=False)


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    # Numbers of other libraries count; any other object is a mistake, and its str() could raise here.
    return str(value) if isinstance(value, str) or hasattr(value, "__float__") else None


def _stages(rows: Sequence[Recorded]) -> dict[str, pl.Series]:
    total: dict[str, list[float | None]] = {}
    for index, row in enumerate(rows):
        # A stage may still be appended by a thread that outlives its request: look at what is there now.
        for name, spent_ns in tuple(row.stages):
            if name not in total:
                if len(total) == STAGES_MAX:
                    continue
                total[name] = [None] * len(rows)
            total[name][index] = (total[name][index] or 0.0) + spent_ns / 1e6
    return {trace.STAGE_PREFIX + name: pl.Series(values, dtype=pl.Float64) for name, values in total.items()}


def read(folder: Path) -> trace.Trace:
    """Join the parts of a recording, of all processes, in arrival order.

    Raises:
        InputError: No parts there, or a part that is not readable.
    """
    parts = sorted(folder.glob(PART_PATTERN))
    if not parts:
        raise InputError(f"{folder}: a folder without {PART_PATTERN}; give a trace file or a recorder's folder.")
    try:
        frame = frames.read_parquet(parts, how="diagonal")
    except OSError as error:
        raise InputError(f"{folder}: a part cannot be read, {reason(error)}.") from error
    except frames.TableError as error:
        raise InputError(f"{folder}: a part is {error}; remove it.") from error
    if "time_ns" not in frame.columns or not frame.height:
        raise InputError(f"{folder}: the parts hold no recorded requests.")
    frame = frame.sort("time_ns", maintain_order=True)
    begin_ns = int(frame["time_ns"][0])
    arrivals = pl.Series((frame["time_ns"].to_numpy() - begin_ns) / NS_PER_S)
    rows = frame.with_columns(arrival_s=arrivals).drop("time_ns")
    meta = {"format": "recorder", "source": folder.name, "start_utc": times.iso_utc(begin_ns)}
    return trace.Trace(trace.conform(rows.select("arrival_s", pl.exclude("arrival_s")), str(folder)), meta)
