"""What every reader hands on: rows with integer times, and how far those times can be trusted."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError


@dataclass(frozen=True)
class Parsed:
    """One file as read, before ordering and spreading.

    Attributes:
        frame: ``time_ns`` (Int64), ``line`` (Int64, where the row stood) and columns of `spec.trace`.
        source: Short name of the kind of file.
        absolute: ``time_ns`` counts from 1970-01-01 UTC; otherwise from an unknown origin.
        completion_order: Rows were written when requests ended, so falling times are normal.
        completion_stamped: ``time_ns`` is when the request ended; arrival is that less ``latency_ms``.
        stamp_ns: Resolution of the time stamp where the format fixes it.
        notes: What a reader of the trace must know.
    """

    frame: pl.DataFrame
    source: str
    absolute: bool
    completion_order: bool = False
    completion_stamped: bool = False
    stamp_ns: int | None = None
    notes: tuple[str, ...] = ()


def gather(parts: Iterable[pl.DataFrame], path: Path) -> pl.DataFrame:
    """Put the parts of a file together.

    Raises:
        InputError: No rows at all.
    """
    frames = [part for part in parts if part.height]
    if not frames:
        raise InputError(f"{path}: no requests in it.")
    return pl.concat(frames, how="diagonal")
