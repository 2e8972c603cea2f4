"""Time stamps as people write them -> integer nanoseconds."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import polars as pl

from loadslice.spec import frames
from loadslice.spec.errors import InputError

TimeUnit = Literal["iso", "s", "ms", "us", "ns"]

_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
# Seconds since 1970 have ten digits from 2001 to 2286; each finer unit has three more.
_EPOCH_FROM = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?$"
_ISO = "%Y-%m-%d %H:%M:%S%.f"
_ACCESS_LOG = "%d/%b/%Y:%H:%M:%S %z"
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
_ZONED = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_FORM_ZONED = re.compile(r"%[:#]*z")
_SAMPLE = datetime(2026, 11, 30, 13, 45, 59, tzinfo=UTC)


@dataclass(frozen=True)
class Clock:
    """How the clock that wrote a table's dates writes them, and where it stood.

    Raises:
        InputError: No form of a date, or no zone.
    """

    form: str | None = None
    """As for strftime; ``None``: ISO 8601, or as access logs write them."""
    zone: str | None = None
    """Of dates that say none: a name such as ``Europe/Berlin``, or an offset such as ``+05:30``; ``None``: UTC."""

    def __post_init__(self) -> None:
        if self.form is not None and not self._reads_itself(self.form):
            raise InputError(f"--time-format '{self.form}': no form of a date, which is such as '%d.%m.%Y %H:%M:%S'.")
        try:
            with frames.guarded():
                self._utc(pl.Series([_SAMPLE.replace(tzinfo=None)]))
        except frames.TableError as error:
            raise InputError(
                f"--zone {self.zone}: no zone; expected a name such as Europe/Berlin, or +05:30."
            ) from error

    @property
    def expects(self) -> str:
        """What a date is expected to look like, for messages."""
        if self.form is not None:
            return f"expected the form '{self.form}'"
        return (
            "expected ISO 8601 or a finite number (see --time-unit); say another form as in "
            "--time-format '%d.%m.%Y %H:%M:%S'"
        )

    def says_zone(self, text: str) -> bool:
        """Whether dates such as this one say their offset from UTC."""
        return (
            _ZONED.search(text.strip()) is not None if self.form is None else _FORM_ZONED.search(self.form) is not None
        )

    def to_ns(self, texts: pl.Series) -> pl.Series:
        """Dates as nanoseconds since 1970 UTC; what is none, or is never shown by a clock of the zone, becomes null."""
        if self.form is not None:
            return self._utc(_parsed(texts, self.form))
        plain = texts.str.replace("T", " ", literal=True).str.replace("Z", "+00:00", literal=True)
        found = _parsed(plain, f"{_ISO}%#z").cast(pl.Int64)
        if found.null_count():
            found = _filled(found, self._utc(_parsed(plain, _ISO)))
        if found.null_count():
            found = _filled(found, _parsed(texts, _ACCESS_LOG).cast(pl.Int64))
        return found

    @staticmethod
    def _reads_itself(form: str) -> bool:
        """Whether a date that was written in a form is that date again: a form may lack the day, or be none."""
        try:
            with frames.guarded():
                (read,) = _parsed(pl.Series([_SAMPLE.strftime(form)]), form)
        except (frames.TableError, ValueError):
            return False
        return read is not None and read.date() == _SAMPLE.date()

    def _utc(self, local: pl.Series) -> pl.Series:
        """Dates without a zone are those of the clock's; of an hour that it shows twice the first is meant."""
        if self.zone is None or local.dtype == pl.Datetime("ns", "UTC"):
            return local.cast(pl.Int64)
        offset = _OFFSET.fullmatch(self.zone)
        if offset is not None:
            minutes = int(offset[2]) * 60 + int(offset[3])
            return local.cast(pl.Int64) - (minutes if offset[1] == "+" else -minutes) * 60 * _NS["s"]
        return local.dt.replace_time_zone(self.zone, ambiguous="earliest", non_existent="null").cast(pl.Int64)


def _parsed(texts: pl.Series, form: str) -> pl.Series:
    # Python writes a fraction as `.%f`; in chrono, whose forms Polars takes, the point belongs to the directive. Its
    # logging puts a comma there, as ISO 8601 allows.
    points = texts.str.replace(r"(:\d\d),(\d)", "$1.$2")
    return points.str.to_datetime(re.sub("[.,]%f", "%.f", form), time_unit="ns", strict=False)


def _filled(found: pl.Series, others: pl.Series) -> pl.Series:
    return pl.select(pl.coalesce(found, others)).to_series().rename(found.name)


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


def to_ns(texts: pl.Series, unit: TimeUnit, clock: Clock = Clock()) -> pl.Series:
    """Parse a string column; what cannot be parsed, NaN and infinity become null.

    Args:
        texts: Strings; dates with or without offset, or numbers.
        unit: From `guess_unit`, or stated by the user.
        clock: Which wrote the dates.
    """
    texts = texts.str.strip_chars()
    if unit == "iso":
        return clock.to_ns(texts)
    whole = texts.cast(pl.Int64, strict=False)
    if not (whole.is_null() & texts.is_not_null()).any():
        # Integers stay exact: a float would lose 256 ns at today's epoch. Out of range becomes null.
        limit = (2**63 - 1) // _NS[unit]
        return whole.set(whole.abs() > limit, None) * _NS[unit]
    plain = texts.set(~texts.str.contains(_NUMBER), None)
    scaled = plain.cast(pl.Float64, strict=False) * _NS[unit]
    return scaled.set(~(scaled.abs() < 2.0**63), None).round(0).cast(pl.Int64, strict=False)


def iso_utc(since_epoch_ns: int) -> str:
    """A moment as ``start_utc`` holds it, ISO 8601 to the microsecond."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since_epoch_ns // 1000)).isoformat()


def refuse_unparsed(
    parsed: pl.Series, texts: pl.Series, lines: pl.Series, place: str, expects: str = "expected ISO 8601 or a number"
) -> None:
    """Raise for the first value that `to_ns` could not read.

    Raises:
        InputError: With the text, its line and what was expected.
    """
    bad = parsed.is_null().arg_true()
    if len(bad):
        text = texts[int(bad[0])]
        raise InputError(f"{place}: line {lines[int(bad[0])]}: '{(text or '')[:60]}' is not a time; {expects}.")
