"""Access logs, line by line: match a pattern; name the first line that does not, or leave out as many as allowed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.workload.readers import source

QUOTED = r'"((?:[^"\\]|\\.)*)"'
"""A field between double quotes, with backslash escapes."""

Columns = Callable[[pl.DataFrame], list[pl.Series]]
"""Groups of the pattern ("1", "2", ..) -> columns, ``time_ns`` first."""

PATHS_NAMED = 3


@dataclass(frozen=True)
class Taken:
    """Which lines of a log become requests."""

    skip_bad: int = 0
    """Lines of another form that are left out before one is refused."""
    only: str | None = None
    """Regular expression that the request (``GET /path HTTP/1.1``) must hold; ``None``: every request."""

    def __post_init__(self) -> None:
        try:
            pl.Series([""]).str.contains(self.only or "")
        except pl.exceptions.ComputeError as error:
            raise InputError(f"--only '{self.only}': no regular expression ({str(error).splitlines()[0]}).") from error


@dataclass(frozen=True)
class Form:
    """What a line of one kind of log looks like.

    Attributes:
        name: What to call it.
        pattern: Regular expression of one line.
        request: Group of the pattern that holds the request.
        columns: Makes columns of the groups.
    """

    name: str
    pattern: str
    request: str
    columns: Columns


def matched(path: Path, form: Form, taken: Taken, notes: list[str]) -> Iterator[pl.DataFrame]:
    """Read a log block by block.

    Args:
        path: The log.
        form: Of its lines.
        taken: Which of them count.
        notes: Gets what was left out, once all is read.

    Raises:
        InputError: One line more than may be left out does not match, or its time cannot be read, with its number.
    """
    bad, others, lines, first_bad = 0, 0, 0, ""
    for block in source.blocks(path, lenient=taken.skip_bad > 0):
        texts = pl.DataFrame({"text": block.lines()}).with_columns(
            line=pl.int_range(block.first_line, block.first_line + pl.len(), dtype=pl.Int64)
        )
        texts = texts.filter(pl.col("text").str.strip_chars() != "")
        groups = texts["text"].str.extract_groups(form.pattern).struct.unnest()
        found = pl.DataFrame([*form.columns(groups), texts["line"], groups[form.request].alias("request")])
        wrong = found["time_ns"].is_null().arg_true()
        if len(wrong):
            first_bad = first_bad or f"line {texts['line'][int(wrong[0])]}: '{texts['text'][int(wrong[0])][:80]}'"
            if bad + len(wrong) > taken.skip_bad:
                at = int(wrong[taken.skip_bad - bad])
                raise InputError(
                    f"{path}: line {texts['line'][at]} is not {form.name} format: '{texts['text'][at][:80]}'"
                    f"{f', and {taken.skip_bad} were left out before it' if taken.skip_bad else ''}. "
                    "Leave out up to N such lines with --skip-bad N, use --format, or convert the log to CSV and use "
                    "--map."
                )
            bad += len(wrong)
            found = found.filter(pl.col("time_ns").is_not_null())
        if lines == 0 and taken.only is None:
            notes += _paths(found["request"])
        lines += texts.height
        if taken.only is not None:
            kept = found.filter(pl.col("request").str.contains(taken.only))
            others += found.height - kept.height
            found = kept
        yield found.drop("request")
    if bad:
        notes.append(f"{bad} of {lines} lines are not {form.name} format and were left out, the first {first_bad}")
    if others:
        notes.append(f"{others} of {lines} lines were left out: --only '{taken.only}'")


def _paths(requests: pl.Series) -> list[str]:
    """What is asked for, where it is not one thing: health checks and files are requests of a log as any other."""
    paths = requests.str.extract(r"^\S+ ([^ ?]*)").drop_nulls()
    counts = paths.value_counts(sort=True)
    if counts.height < 2:
        return []
    named = ", ".join(f"{path[:60]} {count / len(paths):.0%}" for path, count in counts.head(PATHS_NAMED).iter_rows())
    more = counts.height - PATHS_NAMED
    rest = f" and {more} other path{'s' if more > 1 else ''}" if more > 0 else ""
    return [f"of the first {len(requests)} requests {named}{rest}, all taken; --only REGEX takes some"]
