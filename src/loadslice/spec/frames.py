"""The door to tables that somebody else may have written: whatever is wrong with one is a `TableError` of one line.

polars panics where it meets what it did not foresee, and its panics are no `Exception`: they pass through every
ordinary handler.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from loadslice.spec import parquet
from loadslice.spec.files import replacing

SAID_MAX = 200
"""Characters of what polars says that are passed on; a schema in full is pages."""
TIGHT_BYTES = 1 << 16
"""A disk with less is full to a writer of tables."""


class TableError(Exception):
    """What is wrong with a table, without its place: the caller knows that better."""


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Work of polars on tables that were not checked yet.

    Raises:
        TableError: In place of all that polars raises, panics and memory that is not there among it.
        OSError: A table cannot be written because the disk is full.
    """
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, MemoryError) as error:
        said = " ".join(str(error).split())[:SAID_MAX]
        if f"(os error {errno.ENOSPC})" in said:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise TableError(said or type(error).__name__) from error


def read_parquet(paths: Sequence[Path], how: Literal["vertical", "diagonal"] = "vertical") -> pl.DataFrame:
    """Read Parquet files whole, rows of one after those of the other, once a process of its own came through them.

    Args:
        paths: At least one; none may change meanwhile.
        how: ``diagonal`` leaves null what a file has no column for.

    Raises:
        OSError: One is not there or may not be read.
        TableError: Damaged, no Parquet, or files that do not go together.
    """
    why = parquet.fault(paths)
    if why is not None:
        raise TableError(f"damaged, or not a Parquet file: {why:.{SAID_MAX}}")
    with guarded():
        return pl.concat([pl.read_parquet(path, glob=False) for path in paths], how=how)


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Write a Parquet file.

    Raises:
        OSError: It cannot be written; where the disk is full, that is what it says, which polars does not always.
        TableError: Whatever else it is.
    """
    try:
        with guarded():
            frame.write_parquet(path)
    except TableError as error:
        if shutil.disk_usage(path.parent).free < TIGHT_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def join_parquet(parts: list[Path], columns: Mapping[str, pl.DataType], target: Path) -> int:
    """Join files that this process wrote, in order and streaming: a long run needs no more memory than a short one.

    Args:
        parts: Of the same columns; none: the result has no rows.
        columns: With their types.
        target: Written whole or not at all.

    Returns:
        Rows in ``target``.

    Raises:
        OutputError: ``target`` cannot be written.
        OSError: The disk is full.
        TableError: Somebody damaged a part.
    """
    with guarded(), replacing(target) as path:
        if parts:
            pl.scan_parquet(parts, glob=False).sink_parquet(path)
        else:
            pl.DataFrame(schema=columns).write_parquet(path)
        return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
