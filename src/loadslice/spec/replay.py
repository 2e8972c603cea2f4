"""What a replay says: recorded traffic driven at a live server; keys as in the contract."""

from typing import Literal

import msgspec
import polars as pl

from loadslice.spec.files import Stamp
from loadslice.spec.simulation import LatencyMs

REPLAY_COLUMNS: dict[str, pl.DataType] = {
    "row": pl.Int64(),  # row of the trace, from 0; sent as x-request-id
    "due_s": pl.Float64(),  # when it had to be sent, since the replay began
    "send_lag_ms": pl.Float64(),  # how much later it was sent; null: never sent
    "latency_ms": pl.Float64(),  # from due to the last byte of the answer; null without an answer
    "status": pl.Int16(),  # HTTP status; null without an answer
    "outcome": pl.String(),  # one of spec.outcome.OUTCOMES
    "reason": pl.String(),  # why it did not complete
    "within_deadline": pl.Boolean(),  # null without a deadline
    "input": pl.String(),  # example input that was sent
    "engine": pl.String(),  # x-loadslice-engine of the answer
    "texts": pl.List(pl.String()),  # what was read; null where nothing is scored
    "wrong_characters": pl.Int64(),
    "characters": pl.Int64(),
}
"""Columns of ``replay.parquet``, one row per request in order of the trace."""


class SendLagMs(msgspec.Struct, frozen=True, kw_only=True):
    """How late the generator itself was, milliseconds; part of every latency, because that counts from the due time."""

    p50: float | None
    p99: float | None


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Answers against the known text."""

    wrong_characters: int
    characters: int
    share: float | None
    """``wrong_characters / characters``."""
    answers: int
    """Completed requests that were scored."""


class ServerSaid(msgspec.Struct, frozen=True, kw_only=True):
    """The words that a server refused requests with most often."""

    text: str
    status: int
    requests: int
    """Refused with just these words."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `loadslice replay`."""

    requests: int
    outcomes: dict[str, int]
    latency_ms: LatencyMs
    throughput_per_s: float | None
    """Completed requests over ``span_s``."""
    goodput_per_s: float | None
    """Completed within their deadline, over ``span_s``; equal to throughput where no request has one."""
    send_lag_ms: SendLagMs
    client_errors: int
    """Requests that this client or its input is to blame for: refused as bad input, or never sent because too many were
    already open."""
    accuracy: Accuracy | None
    basis: Literal["measured", "emulated"] = "measured"
    """``emulated``: an answer came from a device that is not here."""
    dilate: float = 1.0
    """Seconds of the world for one of this document; every time in it has been divided by this."""
    open_loop: bool = True
    trace: str
    url: str
    speed: float
    from_s: float
    """Start of the replayed stretch in the trace."""
    span_s: float
    """From the first due time to the last answer."""
    complete: bool
    """Every request was sent; false after an interrupt or when the server went away."""
    answered: bool = True
    """Half of the requests completed or more; false gives exit code 3: such figures are those of refusals."""
    server_said: ServerSaid | None = None
    """Of requests that did not complete; ``None``: all did, or the server said nothing."""
    reasons: dict[str, int] = {}
    """Why requests did not complete."""
    warnings: list[str] = []
    stamp: Stamp | None = None
