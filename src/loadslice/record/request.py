"""The request that is running, its stages and what it asked for."""

from contextvars import ContextVar
from time import perf_counter_ns
from types import TracebackType
from typing import Any

HEADERS = {
    b"content-length": "bytes_in",
    b"x-loadslice-priority": "class",
    b"x-loadslice-source": "source",
    b"x-loadslice-tenant": "tenant",
    b"x-loadslice-deadline-ms": "deadline_ms",
}
"""Header -> column of the trace."""
TEXT_LENGTH_MAX = 128
"""Header values are cut here: they wait in memory."""


class Request:
    """One request while it runs; once it has ended, the writer thread owns it.

    ``fields`` holds columns of the trace as the application or the client gave them (header values as bytes).
    """

    __slots__ = ("begin_ns", "end_ns", "fields", "payload", "stages", "status")

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.end_ns = 0
        self.status: int | None = None
        self.fields: dict[str, Any] = {}
        self.stages: list[tuple[str, int]] = []
        self.payload: bytes | None = None


CURRENT: ContextVar[Request | None] = ContextVar("loadslice_request", default=None)


class Stage:
    """Times one stage of the current request; a stage entered twice counts the sum."""

    __slots__ = ("_begin_ns", "_name", "_request")

    def __init__(self, name: str) -> None:
        self._name = name
        self._request: Request | None = None
        self._begin_ns = 0

    def __enter__(self) -> None:
        """Start the clock."""
        self._request = CURRENT.get()
        self._begin_ns = perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop the clock, also when the stage failed."""
        if self._request is not None:
            self._request.stages.append((self._name, perf_counter_ns() - self._begin_ns))


def stage(name: str) -> Stage:
    """Time a stage of the current request; a context manager."""
    return Stage(name)


def note(
    *,
    items: int | None = None,
    tokens_in: int | None = None,
    tokens_out: int | None = None,
    source: str | None = None,
    tenant: str | None = None,
    deadline_ms: float | None = None,
    input: str | None = None,  # noqa: A002 - the column's name
) -> None:
    """Say what the current request asked for; fields are those of a trace, the last word counts."""
    request = CURRENT.get()
    if request is not None:
        fields = request.fields
        # Written out: a dictionary of all of them, filtered, costs a request five times as much.
        if items is not None:
            fields["items"] = items
        if tokens_in is not None:
            fields["tokens_in"] = tokens_in
        if tokens_out is not None:
            fields["tokens_out"] = tokens_out
        if source is not None:
            fields["source"] = source
        if tenant is not None:
            fields["tenant"] = tenant
        if deadline_ms is not None:
            fields["deadline_ms"] = deadline_ms
        if input is not None:
            fields["input"] = input
