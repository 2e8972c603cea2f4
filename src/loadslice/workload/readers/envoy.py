"""Envoy access logs in the default format, or Istio's, which adds fields to it.

Envoy writes a line when a request ends and stamps it with the request's start, to the millisecond.
"""

from pathlib import Path

import polars as pl

from loadslice.workload.readers.log_lines import QUOTED, Form, Taken, matched
from loadslice.workload.readers.parsed import Parsed, gather

PATTERN = rf"^\[([^\]]+)\] {QUOTED} (\d+) (\S+)(?: \S+ \S+ {QUOTED})? (\d+|-) (\d+|-) (\d+|-) (\S+)(?: .*)?$"


def read(path: Path, taken: Taken) -> Parsed:
    """Read an Envoy access log.

    Raises:
        InputError: Unreadable, or a line of another form (with its number).
    """
    notes: list[str] = []
    frame = gather(matched(path, FORM, taken, notes), path)
    return Parsed(frame, source="envoy", absolute=True, completion_order=True, notes=tuple(notes))


def _columns(groups: pl.DataFrame) -> list[pl.Series]:
    plain = groups["1"].str.replace("Z", "+00:00", literal=True)
    stamp = plain.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", time_unit="ns", strict=False).cast(pl.Int64)
    status = groups["3"].cast(pl.Int16, strict=False)
    return [
        stamp.rename("time_ns"),
        # Envoy writes 0 when no response was sent: unknown, not a status.
        status.set(status == 0, None).rename("status"),
        groups["8"].cast(pl.Float64, strict=False).rename("latency_ms"),
        groups["6"].cast(pl.Int64, strict=False).rename("bytes_in"),
    ]


FORM = Form("Envoy default", PATTERN, "2", _columns)
