"""Time stamps as people write them -> integer nanoseconds."""

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

import polars as pl

from loadslice.spec.errors import InputError

TimeUnit = Literal["iso", "s", "ms", "us", "ns"]

_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
# Seconds since 1970 have ten digits from 2001 to 2286; each finer unit has three more.
_EPOCH_FROM = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?$"


def guess_unit(sample: str) -> tuple[TimeUnit, bool]:
    """Decide how a column writes time, from its first value.

    Returns:
        The unit, and whether it counts from 1970 (a smaller number is seconds from an unknown origin).
    """
    try:
        value = abs(float(sample))
    except ValueError:
        return "iso", True
    for least, unit in _EPOCH_FROM:
        if value >= least:
            return unit, True  # type: ignore[return-value]
    return "s", False


def to_ns(texts: pl.Series, unit: TimeUnit) -> pl.Series:
    """Parse a string column; what cannot be parsed, NaN and infinity become null.

    Args:
        texts: Strings; ISO 8601 with or without offset (none: UTC), or numbers.
        unit: From `guess_unit`, or stated by the user.
    """
    texts = texts.str.strip_chars()
    if unit == "iso":
        return _iso_ns(texts)
    whole = texts.cast(pl.Int64, strict=False)
    if not (whole.is_null() & texts.is_not_null()).any():
        # Integers stay exact: a float would lose 256 ns at today's epoch. Out of range becomes null.
        limit = (2**63 - 1) // _NS[unit]
        return whole.set(whole.abs() > limit, None) * _NS[unit]
    plain = texts.set(~texts.str.contains(_NUMBER), None)
    scaled = plain.cast(pl.Float64, strict=False) * _NS[unit]
    return scaled.set(~(scaled.abs() < 2.0**63), None).round(0).cast(pl.Int64, strict=False)


def _iso_ns(texts: pl.Series) -> pl.Series:
    plain = texts.str.replace("T", " ", literal=True).str.replace("Z", "+00:00", literal=True)
    zoned = plain.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%#z", time_unit="ns", strict=False).cast(pl.Int64)
    if not zoned.null_count():
        return zoned
    bare = plain.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False).cast(pl.Int64)
    return pl.select(pl.coalesce(zoned, bare)).to_series().rename(texts.name)


def has_zone(text: str) -> bool:
    """Whether an ISO 8601 time says its offset from UTC."""
    return re.search(r"(Z|[+-]\d\d:?\d\d)$", text.strip()) is not None


def iso_utc(since_epoch_ns: int) -> str:
    """A moment as ``start_utc`` holds it, ISO 8601 to the microsecond."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since_epoch_ns // 1000)).isoformat()


def refuse_unparsed(parsed: pl.Series, texts: pl.Series, lines: pl.Series, place: str) -> None:
    """Raise for the first value that `to_ns` could not read.

    Raises:
        InputError: With the text and its line.
    """
    bad = parsed.is_null().arg_true()
    if len(bad):
        text = texts[int(bad[0])]
        raise InputError(
            f"{place}: line {lines[int(bad[0])]}: '{(text or '')[:60]}' is not a time; "
            "expected ISO 8601 or a finite number (see --time-unit)."
        )
