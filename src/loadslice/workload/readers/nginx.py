"""nginx access logs: the combined format, with or without ``$request_time``; Traefik's are the same with a duration.

nginx writes a line when a request ends and stamps it to the second, so lines are in completion order and arrival is the
stamp less the request time.
"""

from pathlib import Path

import polars as pl

from loadslice.workload.readers.log_lines import QUOTED, Form, Taken, matched
from loadslice.workload.readers.parsed import Parsed, gather

PATTERN = rf"^(\S+) \S+ (.+?) \[([^\]]+)\] {QUOTED} (\d{{3}}) (\d+|-)(?: {QUOTED} {QUOTED})?( .*)?$"

STAMP_NS = 1_000_000_000


def read(path: Path, taken: Taken) -> Parsed:
    """Read an nginx access log.

    Raises:
        InputError: Unreadable, or a line of another form (with its number).
    """
    notes: list[str] = []
    frame = gather(matched(path, FORM, taken, notes), path)
    timed = frame["latency_ms"].null_count() < frame.height
    note = (
        "nginx logs the end of a request: arrival is that time less $request_time, the longest time of its line"
        if timed
        else "the log has no $request_time (0.123, or Traefik's 123ms): arrivals are the times requests ended, and "
        "latency is unknown"
    )
    return Parsed(
        frame,
        source="nginx",
        absolute=True,
        completion_order=True,
        completion_stamped=timed,
        stamp_ns=STAMP_NS,
        notes=(note, *notes),
    )


def _columns(groups: pl.DataFrame) -> list[pl.Series]:
    stamp = groups["3"].str.to_datetime("%d/%b/%Y:%H:%M:%S %z", time_unit="ns", strict=False).cast(pl.Int64)
    return [
        stamp.rename("time_ns"),
        groups["5"].cast(pl.Int16).rename("status"),
        _request_time_ms(groups["9"]).rename("latency_ms"),
    ]


def _request_time_ms(rests: pl.Series) -> pl.Series:
    """``$request_time`` out of what follows the user agent, wherever the format puts it.

    nginx writes times with three decimals (``0.123``, ``rt=0.123``, ``"0.123"``), those of upstreams too; each of these
    is a part of the request's. An address (``192.168.0.1``) is no time. Traefik ends a line with a duration, ``123ms``.
    """
    words = rests.str.extract_all(r'[ "=][\d.]+')
    times = words.list.eval(pl.element().str.extract(r"^.(\d+\.\d{3})$").cast(pl.Float64, strict=False))
    durations_ms = rests.str.extract(r" (\d+)ms$").cast(pl.Float64, strict=False)
    return pl.select(pl.coalesce(durations_ms, times.list.max() * 1000)).to_series()


FORM = Form("nginx combined", PATTERN, "4", _columns)
