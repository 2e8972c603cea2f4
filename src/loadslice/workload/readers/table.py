"""CSV with a header: any table through a column map; the public CSV traces are special cases of it."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from loadslice.spec import frames
from loadslice.spec.errors import InputError
from loadslice.workload import trace
from loadslice.workload.readers import source, times
from loadslice.workload.readers.parsed import Parsed, gather
from loadslice.workload.readers.times import TimeUnit
from loadslice.workload.readers.units import durations, refuse_other_time


def header_of(path: Path) -> list[str]:
    """Column names of a CSV file.

    Raises:
        InputError: Empty, or a name twice.
    """
    first = source.head(path).removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    try:
        fields = next(csv.reader([first.decode(errors="replace").rstrip("\r")]), [])
    except csv.Error as error:
        raise InputError(f"{path}: line 1 is no CSV header ({error}).") from error
    names = [name.strip() for name in fields]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"{path}: line 1: column '{min(twice)}' stands twice.")
    return names


def read(
    path: Path, mapping: Mapping[str, str], time_unit: TimeUnit | None = None, units: Mapping[str, TimeUnit] = {}
) -> Parsed:
    """Read any CSV with a header.

    Args:
        path: The file.
        mapping: Column of the file -> column of a trace; columns that already have a trace's name need none.
        time_unit: How times are written; ``None``: decided from the first.
        units: Of mapped durations, by column.

    Raises:
        InputError: Unreadable, a mapped column absent, or a value of the wrong type (with its line).
    """
    header = header_of(path)
    fields = chosen(path, header, mapping)
    return read_rows(path, lambda: text_rows(path, header), header, fields, mapping, time_unit, units)


def read_rows(
    path: Path,
    rows: Callable[[], Iterator[pl.DataFrame]],
    header: list[str],
    fields: Mapping[str, str],
    mapping: Mapping[str, str],
    time_unit: TimeUnit | None,
    units: Mapping[str, TimeUnit],
) -> Parsed:
    """Read rows of text, wherever they come from.

    Args:
        path: For messages.
        rows: Gives them, as `text_rows` does.
        header: All columns of the file.
        fields: As `chosen` gives them.
        mapping: Of these, what the user said.
        time_unit: How times are written; ``None``: decided from the first.
        units: Of mapped durations, by column.

    Raises:
        InputError: A value of the wrong type, or a column whose name says another unit than its field has.
    """
    left_out = [name for name in header if name not in fields]
    notes = (f"columns not used: {', '.join(left_out)[:200]}",) if left_out else ()
    factors, silent = durations(path, mapping, units)
    if silent:
        notes = (*notes, f"{silent} was read as milliseconds; say --map COLUMN=FIELD:s (or us, ns) if it is not")
    parsed = parse_rows(path, rows(), fields, time_unit, factors)
    if not parsed.absolute and time_unit is None:
        notes = (*notes, "times were read as seconds; say --time-unit if they are not")
    return replace(parsed, notes=(*parsed.notes, *notes))


def need(path: Path, header: list[str], names: Iterable[str]) -> None:
    """Refuse a table that lacks one of these columns."""
    for name in names:
        if name not in header:
            raise InputError(f"{path}: no column '{name}'; found {', '.join(header)[:200]}.{_separated(header)}")


def chosen(path: Path, header: list[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """Columns that are read, with their fields: those that are mapped, and those that have a trace's name already.

    Raises:
        InputError: A mapped column is absent, or none is ``arrival_s``.
    """
    need(path, header, mapping)
    targets = set(mapping.values())
    found = {
        name: name
        for name in header
        if trace.column_type(name) is not None and name not in targets and name != "blocks"
    }
    found.update(mapping)
    if "arrival_s" not in found.values():
        raise InputError(
            f"{path}: no column 'arrival_s'; found {', '.join(header)[:200]}. "
            f"Name one with --map COLUMN=arrival_s.{_separated(header)}"
        )
    return found


def _separated(header: list[str]) -> str:
    """What a header of one name that is several is likely to be."""
    marks = [mark for mark in ";\t|" if len(header) == 1 and mark in header[0]]
    return f" Its columns seem to be separated by {marks[0]!r}: write them with commas." if marks else ""


def parse(path: Path, header: list[str], chosen: Mapping[str, str], time_unit: TimeUnit | None) -> Parsed:
    """Read the chosen columns of a table.

    Args:
        path: The file.
        header: All its columns.
        chosen: Column of the file -> column of a trace; ``arrival_s`` among them.
        time_unit: How times are written; ``None``: decided from the first.

    Raises:
        InputError: A value of the wrong type, with its line.
    """
    return parse_rows(path, text_rows(path, header), chosen, time_unit, {})


def parse_rows(
    path: Path,
    blocks: Iterator[pl.DataFrame],
    chosen: Mapping[str, str],
    time_unit: TimeUnit | None,
    factors: Mapping[str, float],
) -> Parsed:
    """As `parse`, from rows of text; ``factors`` turns columns into the unit of their field."""
    time_column = next(column for column, field in chosen.items() if field == "arrival_s")
    unit, absolute = time_unit, time_unit == "iso"
    notes: tuple[str, ...] = ()
    parts: list[pl.DataFrame] = []
    for rows in blocks:
        texts = rows[time_column]
        if not parts:
            unit, absolute = _unit(texts, time_unit)
            if time_unit is None and not absolute:
                refuse_other_time(path, time_column)
        assert unit is not None
        stamps = times.to_ns(texts, unit)
        times.refuse_unparsed(stamps, texts, rows["line"], f"{path}: {time_column}")
        if not parts and unit == "iso" and not times.has_zone(str(texts[0])):
            notes = ("times without a zone were taken as UTC",)
        others = [
            _typed(rows[column], field, rows["line"], path) * factors[column]
            if column in factors
            else _typed(rows[column], field, rows["line"], path)
            for column, field in chosen.items()
            if field != "arrival_s"
        ]
        parts.append(pl.DataFrame([stamps.rename("time_ns"), *others, rows["line"]]))
    frame = gather(parts, path)
    return Parsed(frame, source="csv", absolute=absolute, notes=notes)


def _unit(texts: pl.Series, stated: TimeUnit | None) -> tuple[TimeUnit, bool]:
    first = texts.drop_nulls().first()
    guessed, absolute = times.guess_unit(str(first))
    if stated is None:
        return guessed, absolute
    return stated, stated == "iso" or (absolute and stated == guessed)


def _typed(texts: pl.Series, field: str, lines: pl.Series, path: Path) -> pl.Series:
    kind = trace.column_type(field)
    assert kind is not None, field
    texts = texts.str.strip_chars()
    texts = texts.set(texts == "", None)
    if kind == pl.String():
        return texts.rename(field)
    # Through a float: tables of other programs write whole numbers as `12.0`.
    numbers = texts.cast(pl.Float64, strict=False)
    if kind.is_integer():
        numbers = numbers.set(numbers != numbers.round(0), None).cast(kind, strict=False)
    bad = (numbers.is_null() & texts.is_not_null()).arg_true()
    if len(bad):
        index = int(bad[0])
        raise InputError(
            f"{path}: line {lines[index]}: {texts.name}: '{texts[index][:60]}' cannot be {field} ({kind})."
        )
    return numbers.rename(field)


def text_rows(path: Path, header: list[str]) -> Iterator[pl.DataFrame]:
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
                rows = pl.read_csv(io.BytesIO(data), has_header=False, schema=schema, infer_schema=False)
        except frames.TableError as error:
            raise InputError(f"{path}: {_fault(body, len(header)) or f'not a CSV table ({error})'}.") from error
        if b'"' not in data and data.count(b",") < rows.height * (len(header) - 1):
            # Polars fills short rows; a row cut off is damage, not "unknown".
            fault = _fault(body, len(header))
            if fault is not None:
                raise InputError(f"{path}: {fault}.")
        if "line" in header:
            rows = rows.rename({"line": "line of the file"})
        yield rows.with_columns(line=_line_numbers(body, rows.height))


def _line_numbers(block: source.Block, height: int) -> pl.Series:
    if block.data.count(b"\n") == height:
        return pl.int_range(block.first_line, block.first_line + height, dtype=pl.Int64, eager=True)
    # Quoted newlines or blank lines: count as the csv module does, more slowly.
    reader = csv.reader(io.StringIO(block.data.decode(), newline=""))
    begun, numbers = block.first_line, []
    for row in reader:
        if row:
            numbers.append(begun)
        begun = block.first_line + reader.line_num
    return pl.Series("line", (numbers + [begun] * height)[:height], dtype=pl.Int64)


def _fault(block: source.Block, columns: int) -> str | None:
    """Find the first row that is not one of this many fields."""
    if block.data.count(b'"') % 2:
        return f"line {block.first_line} or later: a double quote is never closed"
    reader = csv.reader(io.StringIO(block.data.decode(), newline=""))
    begun = block.first_line
    try:
        for row in reader:
            if row and len(row) != columns:
                return f"line {begun} has {len(row)} fields, the header {columns}"
            begun = block.first_line + reader.line_num
    except csv.Error as found:
        return f"line {begun}: {found}"
    return None
