"""Sampled resources of the recorded machine: CSV or JSONL with a time and percentages."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from loadslice.spec.errors import InputError
from loadslice.spec.portrait import Series, Utilisation, UtilisationHour
from loadslice.workload.readers import csv_table, json_lines, source, times

PERCENT = ("cpu_pct", "gpu_pct", "mem_pct", "gpu_mem_pct", "mem_bandwidth_pct", "io_pct")
WATTS = ("gpu_w", "power_w")
_ALIASES = {
    "time": "time", "time_s": "time", "timestamp": "time", "cpu": "cpu_pct", "gpu": "gpu_pct", "mem": "mem_pct",
    "memory": "mem_pct", "io": "io_pct", "gpu_mem": "gpu_mem_pct", "mem_bandwidth": "mem_bandwidth_pct",
    "power": "power_w",
}  # fmt: skip
HOUR_S = 3600.0


def read(path: Path) -> Utilisation:
    """Read samples and summarise them.

    Args:
        path: CSV with a header, or JSONL; ``time`` (ISO 8601 or a number) and some of `PERCENT` and `WATTS`
            (short names such as ``cpu`` are understood).

    Raises:
        InputError: Unreadable, no time or no resource column, or a percentage outside 0 to 100 (with its line).
    """
    jsonl = source.head(path, 64).lstrip().startswith(b"{")
    texts = _json_texts(path) if jsonl else _csv_texts(path)
    names = {column: _ALIASES.get(column.strip().lower(), column.strip().lower()) for column in texts.columns}
    time_column = next((column for column, name in names.items() if name == "time"), None)
    resources = {column: name for column, name in names.items() if name in (*PERCENT, *WATTS)}
    if time_column is None or not resources:
        wanted = ", ".join((*PERCENT, *WATTS))
        raise InputError(f"{path}: needs a column time and one of {wanted}; found {', '.join(texts.columns)[:200]}.")
    stamps = texts[time_column]
    unit, _ = times.guess_unit(str(stamps.drop_nulls().first()))
    parsed = times.to_ns(stamps, unit)
    times.refuse_unparsed(parsed, stamps, texts["line"], f"{path}: {time_column}")
    series = {name: _numbers(path, texts, column, name) for column, name in resources.items()}
    frame = pl.DataFrame({"time_ns": parsed, **series}).sort("time_ns")
    return _summary(frame, list(series))


def _csv_texts(path: Path) -> pl.DataFrame:
    header, separator = csv_table.header_of(path)
    parts = list(csv_table.text_rows(path, header, separator))
    if not parts:
        raise InputError(f"{path}: no samples in it.")
    return pl.concat(parts)


def _json_texts(path: Path) -> pl.DataFrame:
    rows: list[dict[str, str | None]] = []
    lines: list[int] = []
    for numbers, found in json_lines.rows(path, dict[str, Any]):
        rows += (
            {name: None if value is None else str(value) for name, value in row.items() if name != "line"}
            for row in found
        )
        lines += numbers
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame.with_columns(line=pl.Series(lines, dtype=pl.Int64))


def _numbers(path: Path, texts: pl.DataFrame, column: str, name: str) -> pl.Series:
    stripped = texts[column].str.strip_chars().str.strip_suffix("%").str.strip_chars()
    values = stripped.cast(pl.Float64, strict=False)
    wrong = (values.is_null() & (stripped != "")) | (values < 0) | ~values.is_finite()
    if name in PERCENT:
        wrong = wrong | (values > 100)
    bad = wrong.fill_null(value=False).arg_true()
    if len(bad):
        at = int(bad[0])
        expected = "a percentage of 0 to 100" if name in PERCENT else "a power in watts"
        raise InputError(f"{path}: line {texts['line'][at]}: {column}: '{texts[column][at]}' is not {expected}.")
    return values


def _summary(frame: pl.DataFrame, names: list[str]) -> Utilisation:
    stamps = frame["time_ns"].to_numpy()
    elapsed_s = (stamps - stamps[0]) / 1e9
    series = {}
    for name in names:
        values = frame[name].drop_nulls().to_numpy()
        if len(values):
            p50, p95 = np.quantile(values, [0.5, 0.95])
            series[name] = Series(mean=float(values.mean()), p50=float(p50), p95=float(p95), max=float(values.max()))
    hours = (
        frame.with_columns(hour=pl.Series((elapsed_s // HOUR_S).astype(np.int64)))
        .group_by("hour")
        .agg(pl.col(list(series)).mean())
        .sort("hour")
    )
    curve = [UtilisationHour(hour=row.pop("hour"), mean=row) for row in hours.iter_rows(named=True)]
    return Utilisation(samples=frame.height, span_s=float(elapsed_s[-1]), series=series, curve=curve)
