"""How much memory a run takes that cannot be simulated in parts."""

from loadslice.policy import columns as c
from loadslice.policy.events import EVENT_COLUMNS
from loadslice.sim import clients
from loadslice.sim import record as r
from loadslice.spec.errors import InputError

_CELL = 8
_TRACE_COLUMNS = 8
"""Of the trace as it was read, all of them taken as wide ones."""
_COPIES = 2
"""Logs and attempts stand twice in memory while they are summed up and written."""


def bytes_per_request(*, stages: int, attempts: int, journal: bool) -> int:
    """Memory a request takes in a run whose trace is in memory as a whole.

    Args:
        stages: Of the pipeline.
        attempts: Most that a client makes; 1: clients do not come back.
        journal: Whether every event and every decision is kept.
    """
    attempt = _COPIES * (r.ATTEMPT_COLUMNS + 1) + stages * r.TIMELINE_COLUMNS
    if attempts > 1:
        attempt += 2 * clients.HEAP_COLUMNS + 1
    if journal:
        attempt += _COPIES * (3 * stages + 4) * (EVENT_COLUMNS + c.EFFECT_COLUMNS)
    return _CELL * (_TRACE_COLUMNS + r.REQUEST_COLUMNS + 1 + attempts * attempt)


def check_fits(requests: int, available_bytes: int, reason: str, *, stages: int, attempts: int, journal: bool) -> None:
    """Refuse a run that memory cannot hold, before it begins.

    Args:
        requests: Rows of the trace.
        available_bytes: Memory that is free.
        reason: What wants the whole trace at once, named in the message.
        stages: As for `bytes_per_request`.
        attempts: As for `bytes_per_request`.
        journal: As for `bytes_per_request`.

    Raises:
        InputError: It does not fit; says how many requests would.
    """
    each = bytes_per_request(stages=stages, attempts=attempts, journal=journal)
    if requests * each > available_bytes:
        raise InputError(
            f"{requests:,} requests need about {requests * each / 1e9:,.1f} GB with {reason}, and "
            f"{available_bytes / 1e9:,.1f} GB are free: {available_bytes // each:,} requests would fit. "
            f"Cut the trace with `loadslice trace sample`, or leave out {reason}."
        )
