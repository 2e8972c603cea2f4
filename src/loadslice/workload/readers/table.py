"""Any table through a column map: what rows of text become, whatever file they come from (`csv_table` and its kin)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import CLASSES
from loadslice.workload import trace
from loadslice.workload.readers import times
from loadslice.workload.readers.parsed import Parsed, gather
from loadslice.workload.readers.said import Said
from loadslice.workload.readers.times import Clock, TimeUnit
from loadslice.workload.readers.units import durations, refuse_other_time


@dataclass(frozen=True)
class Chosen:
    """What is read of a table.

    Attributes:
        fields: Column of the table -> column of a trace.
        left_out: Columns that are not used.
        only: Column that says which rows are requests; it need not be one of ``fields``.
    """

    fields: Mapping[str, str]
    left_out: list[str]
    only: str | None = None

    @property
    def columns(self) -> list[str]:
        """Columns whose text is needed."""
        return list(dict.fromkeys([*self.fields, *([self.only] if self.only is not None else [])]))


def choose(path: Path, header: list[str], said: Said) -> Chosen:
    """Columns that are read: those that are mapped, and those that have a trace's name already.

    Raises:
        InputError: A mapped column is absent, or none is ``arrival_s``.
    """
    only = said.only[0] if said.only is not None else None
    need(path, header, [*said.mapping, *([only] if only is not None else [])])
    targets = set(said.mapping.values())
    fields = {
        name: name
        for name in header
        if trace.column_type(name) is not None and name not in targets and name != "blocks"
    }
    fields.update(said.mapping)
    if "arrival_s" not in fields.values():
        raise InputError(
            f"{path}: no column 'arrival_s'; found {', '.join(header)[:200]}. Name one with --map COLUMN=arrival_s."
        )
    return Chosen(fields, [name for name in header if name not in fields and name != only], only)


def need(path: Path, header: list[str], names: Iterable[str]) -> None:
    """Refuse a table that lacks one of these columns.

    Raises:
        InputError: Names it, and those that are there.
    """
    for name in names:
        if name not in header:
            raise InputError(f"{path}: no column '{name}'; found {', '.join(header)[:200]}.")


def read_rows(path: Path, rows: Callable[[], Iterator[pl.DataFrame]], chosen: Chosen, said: Said) -> Parsed:
    """Read rows of text, wherever they come from.

    Args:
        path: For messages.
        rows: Gives them: strings, with a column ``line``.
        chosen: Which columns.
        said: What their owner says of them.

    Raises:
        InputError: A value of the wrong type, or a column whose name says another unit than its field has.
    """
    notes: list[str] = []
    factors, silent = durations(path, said.mapping, said.units)
    parsed = parse_rows(path, _taken(rows(), said, notes), chosen, said, factors)
    if chosen.left_out:
        notes.append(f"columns not used: {', '.join(chosen.left_out)[:200]}")
    for column in silent:
        field = said.mapping[column]
        median = parsed.frame[field].median()
        seen = f" (median {median:.4g})" if isinstance(median, float) else ""
        notes.append(
            f"'{column}' was read as milliseconds{seen}; say --map '{column}={field}:s' (or us, ns) if it is not"
        )
    if not parsed.absolute and said.time_unit is None:
        notes.append("times were read as seconds; say --time-unit if they are not")
    if said.ended:
        parsed = _ended(path, parsed)
    return replace(parsed, notes=(*parsed.notes, *notes))


def parse_rows(
    path: Path, blocks: Iterator[pl.DataFrame], chosen: Chosen, said: Said, factors: Mapping[str, float]
) -> Parsed:
    """Type rows of text.

    Args:
        path: For messages.
        blocks: Rows of text with the number of their line.
        chosen: Which columns.
        said: What their owner says of them.
        factors: Column -> what its numbers are multiplied by to be in the unit of their field.

    Raises:
        InputError: A value of the wrong type, with its line.
    """
    time_column = next(column for column, field in chosen.fields.items() if field == "arrival_s")
    fields = {column: field for column, field in chosen.fields.items() if field != "arrival_s"}
    unit, absolute = said.time_unit, said.time_unit == "iso"
    notes: list[str] = []
    parts: list[pl.DataFrame] = []
    for rows in blocks:
        if not rows.height:
            continue
        texts = rows[time_column]
        if not parts:
            unit, absolute = _unit(texts, said)
            if said.time_unit is None and not absolute:
                refuse_other_time(path, time_column)
            if unit == "iso":
                notes += _zone_notes(str(texts[0]), said.clock)
            elif said.clock != Clock():
                raise InputError(f"{path}: {time_column}: --zone and --time-format are for dates, not '{texts[0]}'.")
            fields = _without_others(rows, fields, said, notes)
        assert unit is not None
        stamps = times.to_ns(texts, unit, said.clock)
        times.refuse_unparsed(stamps, texts, rows["line"], f"{path}: {time_column}", said.clock.expects)
        columns = [_column(rows, column, field, path, said, factors.get(column)) for column, field in fields.items()]
        parts.append(pl.DataFrame([stamps.rename("time_ns"), *columns, rows["line"]]))
    return Parsed(gather(parts, path), source="csv", absolute=absolute, notes=tuple(notes))


def _taken(blocks: Iterator[pl.DataFrame], said: Said, notes: list[str]) -> Iterator[pl.DataFrame]:
    """The rows that are meant; ``notes`` gets how many were not, once all are read."""
    if said.only is None:
        yield from blocks
        return
    column, pattern = said.only
    seen = kept = 0
    for rows in blocks:
        taken = rows.filter(pl.col(column).str.contains(pattern).fill_null(value=False))
        seen, kept = seen + rows.height, kept + taken.height
        yield taken
    if kept < seen:
        notes.append(f"{seen - kept} of {seen} rows were left out: --only '{column}={pattern}'")


def _ended(path: Path, parsed: Parsed) -> Parsed:
    if "latency_ms" not in parsed.frame.columns:
        raise InputError(
            f"{path}: --ended takes latency_ms from times, and no column is it; add --map COLUMN=latency_ms."
        )
    note = "times are when requests ended (--ended): arrival is that time less latency_ms"
    return replace(parsed, completion_order=True, completion_stamped=True, notes=(*parsed.notes, note))


def _unit(texts: pl.Series, said: Said) -> tuple[TimeUnit, bool]:
    """How times are written, and whether they count from 1970."""
    if said.clock.form is not None:
        return "iso", True
    guessed, absolute = times.guess_unit(str(texts.drop_nulls().first()))
    stated = said.time_unit
    if stated is None:
        return guessed, absolute
    return stated, stated == "iso" or (absolute and stated == guessed)


def _zone_notes(first: str, clock: Clock) -> list[str]:
    if clock.says_zone(first):
        return []
    if clock.zone is None:
        return ["times without a zone were taken as UTC; say --zone, such as Europe/Berlin, if they are not"]
    return [f"times without a zone were taken as those of {clock.zone}"]


def _without_others(rows: pl.DataFrame, fields: dict[str, str], said: Said, notes: list[str]) -> dict[str, str]:
    """Leave out columns that nobody mapped, have a trace's name by chance, and begin with what no trace holds."""
    kept = dict(fields)
    for column, field in fields.items():
        if column in said.mapping:
            continue
        known = rows[column].str.strip_chars().drop_nulls()
        first = next(iter(known.filter(known != "").head(1)), None)
        if first is None or (field == "class" and said.classes):
            continue
        if field == "class" and first not in CLASSES:
            notes.append(
                f"column 'class' was not used: '{first[:60]}' is none of {', '.join(CLASSES)}; "
                f"say --class '{first[:60]}=sheddable' and so on to use it"
            )
        elif _numbers(pl.Series([first]), field)[0] is None:
            notes.append(f"column '{column}' was not used: '{first[:60]}' cannot be {field}")
        else:
            continue
        del kept[column]
    return kept


def _column(rows: pl.DataFrame, column: str, field: str, path: Path, said: Said, factor: float | None) -> pl.Series:
    """One column of a table as a column of a trace."""
    texts = rows[column].str.strip_chars()
    texts = texts.set(texts == "", None)
    if field == "class":
        return _classes(texts, rows["line"], path, said.classes)
    values = _numbers(texts, field)
    bad = (values.is_null() & texts.is_not_null()).arg_true()
    if len(bad):
        index = int(bad[0])
        raise InputError(
            f"{path}: line {rows['line'][index]}: {column}: '{texts[index][:60]}' cannot be {field} "
            f"({trace.column_type(field)})."
        )
    return values if factor is None else values * factor


def _numbers(texts: pl.Series, field: str) -> pl.Series:
    """Texts in the type of a field, null where they cannot be it."""
    kind = trace.column_type(field)
    assert kind is not None, field
    if kind == pl.String():
        return texts.rename(field)
    # Through a float: tables of other programs write whole numbers as `12.0`.
    numbers = texts.cast(pl.Float64, strict=False)
    if kind.is_integer():
        numbers = numbers.set(numbers != numbers.round(0), None).cast(kind, strict=False)
    return numbers.rename(field)


def _classes(texts: pl.Series, lines: pl.Series, path: Path, words: Mapping[str, str]) -> pl.Series:
    """Words that somebody has for classes as those of a trace."""
    known = dict(zip(CLASSES, CLASSES, strict=True)) | dict(words)
    wrong = (texts.is_not_null() & ~texts.is_in(list(known))).arg_true()
    if len(wrong):
        index = int(wrong[0])
        raise InputError(
            f"{path}: line {lines[index]}: {texts.name}: '{texts[index][:60]}' is none of {', '.join(known)[:200]}. "
            f"Say which class it is with --class '{texts[index][:60]}=sheddable'."
        )
    return texts.replace_strict(known, default=None, return_dtype=pl.String).rename("class")
