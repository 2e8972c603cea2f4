"""In what units a table's columns are: as their names say, as the user says, and where the two disagree."""

import re
from collections.abc import Mapping
from pathlib import Path

from loadslice.spec.errors import InputError
from loadslice.workload.readers.times import TimeUnit
from loadslice.workload.trace import STAGE_PREFIX

MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
"""Milliseconds of one."""

_WORDS: dict[str, TimeUnit] = {
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "ms": "ms", "msec": "ms", "msecs": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
    "us": "us", "µs": "us", "μs": "us", "usec": "us", "usecs": "us", "micros": "us", "microsecond": "us",
    "microseconds": "us",
    "ns": "ns", "nsec": "ns", "nsecs": "ns", "nanos": "ns", "nano": "ns", "nanosecond": "ns", "nanoseconds": "ns",
}  # fmt: skip
_NAMES: dict[str, TimeUnit] = {"request_time": "s", "upstream_response_time": "s"}
"""Names that say no unit and have one: of nginx's variables, by which its logs in JSON are named."""
_LONG = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_PARTS = re.compile(r"[A-Z]+(?![a-zµμ])|[A-Z]?[a-zµμ]+")


def of_name(column: str) -> TimeUnit | None:
    """The unit that a name ends in, as ``dur_us``, ``durationMs`` or ``start (epoch ms)`` do, or is known for."""
    parts = _PARTS.findall(column)
    ending = _WORDS.get(parts[-1].lower()) if len(parts) > 1 else None
    return ending or _NAMES.get(column.rpartition(".")[2])


def is_duration(field: str) -> bool:
    """Whether a field of a trace is a length of time, in milliseconds."""
    return field in ("latency_ms", "deadline_ms") or field.startswith(STAGE_PREFIX)


def durations(
    path: Path, mapping: Mapping[str, str], stated: Mapping[str, TimeUnit]
) -> tuple[dict[str, float], list[str]]:
    """What turns each mapped duration into milliseconds.

    Args:
        path: For messages.
        mapping: Column of the file -> field.
        stated: Column of the file -> its unit, where the user said.

    Returns:
        Column -> factor, of those that are not milliseconds; and the columns of which nothing says a unit.

    Raises:
        InputError: A name says another unit than milliseconds, and the user said none.
    """
    factors, silent = dict[str, float](), list[str]()
    for column, field in mapping.items():
        if not is_duration(field):
            continue
        named, unit = of_name(column), stated.get(column)
        if unit is None and named is None:
            silent.append(column)
        elif unit is None and named is not None and named != "ms":
            raise InputError(
                f"{path}: column '{column}' seems to hold {_LONG[named]}, and {field} is in milliseconds. Say "
                f"--map '{column}={field}:{named}' to convert it, or {field}:ms if it holds milliseconds."
            )
        elif unit is not None and unit != "ms":
            factors[column] = MS[unit]
    return factors, silent


def refuse_other_time(path: Path, column: str) -> None:
    """Refuse a column of times that are about to be read as seconds though its name says otherwise.

    Raises:
        InputError: With the ways to say it.
    """
    named = of_name(column)
    if named not in (None, "s"):
        raise InputError(
            f"{path}: column '{column}' seems to hold {_LONG[named]}, and its numbers would be read as seconds. "
            f"Say --time-unit {named} (or s)."
        )
