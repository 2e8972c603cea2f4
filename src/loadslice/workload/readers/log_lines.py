"""Access logs, line by line: match a pattern, name the first line that does not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.workload.readers import source

QUOTED = r'"((?:[^"\\]|\\.)*)"'
"""A field between double quotes, with backslash escapes."""

Columns = Callable[[pl.DataFrame], list[pl.Series]]
"""Groups of the pattern ("1", "2", ..) -> columns, ``time_ns`` first."""


def matched(path: Path, pattern: str, name: str, columns: Columns) -> Iterator[pl.DataFrame]:
    """Read a log block by block.

    Args:
        path: The log.
        pattern: Regular expression of one line.
        name: What to call the format.
        columns: Makes columns of the groups.

    Raises:
        InputError: A line that does not match or whose time cannot be read, with its number.
    """
    for block in source.blocks(path):
        texts = pl.DataFrame({"text": block.lines()}).with_columns(
            line=pl.int_range(block.first_line, block.first_line + pl.len(), dtype=pl.Int64)
        )
        texts = texts.filter(pl.col("text").str.strip_chars() != "")
        found = columns(texts["text"].str.extract_groups(pattern).struct.unnest())
        wrong = found[0].is_null().arg_true()
        if len(wrong):
            index = int(wrong[0])
            raise InputError(
                f"{path}: line {texts['line'][index]} is not {name} format: '{texts['text'][index][:80]}'. "
                "Use --format, or convert the log to CSV and use --map."
            )
        yield pl.DataFrame([*found, texts["line"]])
