"""CSV with a header, its columns separated by commas, semicolons, tabs or bars: rows of text for `table`."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from loadslice.spec import frames
from loadslice.spec.errors import InputError
from loadslice.workload.readers import source, table
from loadslice.workload.readers.parsed import Parsed
from loadslice.workload.readers.said import Said
from loadslice.workload.readers.times import TimeUnit

_SEPARATORS = ",;\t|"
_DECIMAL_COMMA = r"^\s*(-?\d+),(\d+)\s*$"


def read(path: Path, said: Said) -> Parsed:
    """Read any CSV with a header.

    Raises:
        InputError: Unreadable, a mapped column absent, or a value of the wrong type (with its line).
    """
    header, separator = header_of(path)
    decimal_commas = False

    def rows() -> Iterator[pl.DataFrame]:
        nonlocal decimal_commas
        for block in text_rows(path, header, separator):
            if separator == ",":
                yield block
                continue
            points = block.with_columns(pl.exclude("line").str.replace(_DECIMAL_COMMA, "$1.$2"))
            decimal_commas = decimal_commas or not points.equals(block)
            yield points

    parsed = table.read_rows(path, rows, table.choose(path, header, said), said)
    if decimal_commas:
        return replace(parsed, notes=(*parsed.notes, "numbers such as 0,25 were read as 0.25"))
    return parsed


def parse(path: Path, fields: Mapping[str, str], time_unit: TimeUnit) -> Parsed:
    """Read the columns of a public trace.

    Args:
        path: The file.
        fields: Column of the file -> column of a trace; ``arrival_s`` among them.
        time_unit: How times are written.

    Raises:
        InputError: A value of the wrong type, with its line.
    """
    header, separator = header_of(path)
    chosen = table.Chosen(fields, [])
    return table.parse_rows(path, text_rows(path, header, separator), chosen, Said(fields, time_unit=time_unit), {})


def header_of(path: Path) -> tuple[list[str], str]:
    """Column names of a CSV file, and what separates them.

    Raises:
        InputError: Empty, or a name twice.
    """
    first = source.head(path).removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    try:
        names, separator = columns_of(first.decode(errors="replace").rstrip("\r"))
    except csv.Error as error:
        raise InputError(f"{path}: line 1 is no CSV header ({error}).") from error
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"{path}: line 1: column '{min(twice)}' stands twice.")
    return names, separator


def columns_of(header: str) -> tuple[list[str], str]:
    """Names in a header, and of the separators the one that it has most of; a comma where it has none.

    Raises:
        csv.Error: It is no header.
    """
    separator = max(_SEPARATORS, key=header.count)
    return [name.strip() for name in next(csv.reader([header], delimiter=separator), [])], separator


def text_rows(path: Path, header: list[str], separator: str = ",") -> Iterator[pl.DataFrame]:
    """Read rows as strings, with a column ``line``.

    Raises:
        InputError: A row with more fields than the header, with its line.
    """
    schema = dict.fromkeys(header, pl.String)
    for block in source.blocks(path, quoted=True):
        first = block.first_line == 1
        data = block.data.split(b"\n", 1)[1] if first else block.data
        body = source.Block(data, block.first_line + 1 if first else block.first_line)
        if not data.strip():
            continue
        try:
            with frames.guarded():
                rows = pl.read_csv(
                    io.BytesIO(data), has_header=False, schema=schema, infer_schema=False, separator=separator
                )
        except frames.TableError as error:
            fault = _fault(body, len(header), separator)
            raise InputError(f"{path}: {fault or f'not a CSV table ({error})'}.") from error
        if b'"' not in data and data.count(separator.encode()) < rows.height * (len(header) - 1):
            # Polars fills short rows; a row cut off is damage, not "unknown".
            fault = _fault(body, len(header), separator)
            if fault is not None:
                raise InputError(f"{path}: {fault}.")
        if "line" in header:
            rows = rows.rename({"line": "line of the file"})
        yield rows.with_columns(line=_line_numbers(body, rows.height, separator))


def _line_numbers(block: source.Block, height: int, separator: str) -> pl.Series:
    if block.data.count(b"\n") == height:
        return pl.int_range(block.first_line, block.first_line + height, dtype=pl.Int64, eager=True)
    # Quoted newlines or blank lines: count as the csv module does, more slowly.
    reader = csv.reader(io.StringIO(block.data.decode(), newline=""), delimiter=separator)
    begun, numbers = block.first_line, []
    for row in reader:
        if row:
            numbers.append(begun)
        begun = block.first_line + reader.line_num
    return pl.Series("line", (numbers + [begun] * height)[:height], dtype=pl.Int64)


def _fault(block: source.Block, columns: int, separator: str) -> str | None:
    """Find the first row that is not one of this many fields."""
    if block.data.count(b'"') % 2:
        return f"line {block.first_line} or later: a double quote is never closed"
    reader = csv.reader(io.StringIO(block.data.decode(), newline=""), delimiter=separator)
    begun = block.first_line
    try:
        for row in reader:
            if row and len(row) != columns:
                return f"line {begun} has {len(row)} fields, the header {columns}"
            begun = block.first_line + reader.line_num
    except csv.Error as found:
        return f"line {begun}: {found}"
    return None
