"""nginx access logs: the combined format, with or without ``$request_time``.

nginx writes a line when a request ends and stamps it to the second, so lines are in completion order and arrival is the
stamp less the request time.
"""

from pathlib import Path

import polars as pl

from loadslice.workload.readers.log_lines import QUOTED, matched
from loadslice.workload.readers.parsed import Parsed, gather

PATTERN = (
    rf"^(\S+) \S+ (.+?) \[([^\]]+)\] {QUOTED} (\d{{3}}) (\d+|-)(?: {QUOTED} {QUOTED})?"
    r'(?:.*?[ "=](\d+\.\d{3})\b.*| .*)?$'
)
"""The first number with three decimals after the user agent is ``$request_time``: nginx writes it exactly so, wherever
the format puts it (``0.123``, ``rt=0.123``, ``"0.123"``)."""

STAMP_NS = 1_000_000_000


def read(path: Path) -> Parsed:
    """Read an nginx access log.

    Raises:
        InputError: Unreadable, or a line of another form (with its number).
    """
    frame = gather(matched(path, PATTERN, "nginx combined", _columns), path)
    timed = frame["latency_ms"].null_count() < frame.height
    note = (
        "nginx logs the end of a request: arrival is that time less $request_time"
        if timed
        else "the log has no $request_time: arrivals are the times requests ended, and latency is unknown"
    )
    return Parsed(
        frame,
        source="nginx",
        absolute=True,
        completion_order=True,
        completion_stamped=timed,
        stamp_ns=STAMP_NS,
        notes=(note,),
    )


def _columns(groups: pl.DataFrame) -> list[pl.Series]:
    stamp = groups["3"].str.to_datetime("%d/%b/%Y:%H:%M:%S %z", time_unit="ns", strict=False).cast(pl.Int64)
    return [
        stamp.rename("time_ns"),
        groups["5"].cast(pl.Int16).rename("status"),
        (groups["9"].cast(pl.Float64, strict=False) * 1000).rename("latency_ms"),
    ]
