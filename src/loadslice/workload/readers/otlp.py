"""OTLP spans as JSON (one export request per line, or one document): server spans -> requests, children -> stages.

A request is a server span whose parent is not in the file: a server span below another one belongs to the request
above it. Direct children give ``stage_ms.NAME``; deeper spans are inside those already.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON
from loadslice.workload.readers import json_lines, source
from loadslice.workload.readers.parsed import Parsed, gather
from loadslice.workload.trace import STAGE_PREFIX

DOCUMENT_BYTES_MAX = 64 << 20
"""Collectors write a whole batch of spans on one line, so lines are longer here than in a log."""
STAGES_MAX = 64
"""More span names than this are identifiers, not stages; the longest-running ones are kept."""

_SERVER = (2, "SPAN_KIND_SERVER")
_ATTRIBUTES = {
    "http.response.status_code": "status",
    "http.status_code": "status",
    "http.request.body.size": "bytes_in",
    "http.request_content_length": "bytes_in",
    "gen_ai.usage.input_tokens": "tokens_in",
    "gen_ai.usage.output_tokens": "tokens_out",
    "loadslice.items": "items",
}
"""Semantic conventions of OpenTelemetry (HTTP, old and new; generative AI) and one of our own."""
_RANGE_MAX = {"status": 999, "bytes_in": 2**62}


class Attribute(msgspec.Struct):
    """A key and a typed value."""

    key: str
    value: dict[str, Any] = {}


class Span(msgspec.Struct):
    """The fields of a span that say anything about load."""

    name: str = ""
    span_id: str = msgspec.field(name="spanId", default="")
    parent_id: str = msgspec.field(name="parentSpanId", default="")
    trace_id: str = msgspec.field(name="traceId", default="")
    kind: int | str = 0
    start: int | str = msgspec.field(name="startTimeUnixNano", default=0)
    end: int | str = msgspec.field(name="endTimeUnixNano", default=0)
    attributes: list[Attribute] = []


class Scope(msgspec.Struct):
    """Spans of one instrumentation library."""

    spans: list[Span] = []


class Resource(msgspec.Struct):
    """Spans of one process."""

    scopes: list[Scope] = msgspec.field(name="scopeSpans", default_factory=list)


class Export(msgspec.Struct):
    """One export request."""

    resources: list[Resource] = msgspec.field(name="resourceSpans")


def read(path: Path) -> Parsed:
    """Read spans and make requests of them.

    Raises:
        InputError: Not OTLP JSON, a span without times, or no server span.
    """
    spans: list[tuple[int, Span]] = []
    for lines, exports in _exports(path):
        for line, export in zip(lines, exports, strict=True):
            found = [span for resource in export.resources for scope in resource.scopes for span in scope.spans]
            spans.extend((line, span) for span in found)
    known = {(span.trace_id, span.span_id) for _, span in spans}
    requests = [
        (line, span)
        for line, span in spans
        if span.kind in _SERVER and (not span.parent_id or (span.trace_id, span.parent_id) not in known)
    ]
    if not requests:
        raise InputError(f"{path}: {len(spans)} spans, none of them a server span (kind 2) that starts a request.")
    rows = {(span.trace_id, span.span_id): _row(path, line, span) for line, span in requests}
    notes = _add_stages(path, spans, rows)
    frame = gather([pl.DataFrame(list(rows.values()), infer_schema_length=None)], path)
    return Parsed(frame, source="otlp", absolute=True, completion_order=True, notes=notes)


def _exports(path: Path) -> list[tuple[Sequence[int], list[Export]]]:
    try:
        return list(json_lines.rows(path, Export, line_bytes_max=DOCUMENT_BYTES_MAX))
    except InputError as per_line:
        document = source.head(path, DOCUMENT_BYTES_MAX + 1)
        if len(document) > DOCUMENT_BYTES_MAX:
            raise
        try:
            return [([1], [msgspec.json.decode(document, type=Export)])]
        except NOT_JSON:
            raise per_line from None


def _row(path: Path, line: int, span: Span) -> dict[str, Any]:
    start, end = _times(path, line, span)
    row: dict[str, Any] = {"time_ns": start, "latency_ms": (end - start) / 1e6, "line": line}
    for attribute in span.attributes:
        field = _ATTRIBUTES.get(attribute.key)
        if field is not None:
            row[field] = _whole(path, line, attribute, _RANGE_MAX.get(field, 2**31 - 1))
    return row


def _whole(path: Path, line: int, attribute: Attribute, most: int) -> int | None:
    value = attribute.value.get("intValue", attribute.value.get("stringValue"))
    if value is None:
        return None
    try:
        number = int(value)
    except (ValueError, TypeError):
        number = -1
    if not 0 <= number <= most:
        raise InputError(f"{path}: line {line}: {attribute.key}: {str(value)[:40]!r} is not a whole number in range.")
    return number


def _times(path: Path, line: int, span: Span) -> tuple[int, int]:
    try:
        start, end = int(span.start), int(span.end)
    except ValueError:
        start, end = 0, 0
    if not 0 < start <= end < 2**63:
        raise InputError(
            f"{path}: line {line}: span '{span.name[:60]}' has no usable times "
            f"({str(span.start)[:24]} to {str(span.end)[:24]})."
        )
    return start, end


def _add_stages(
    path: Path, spans: list[tuple[int, Span]], rows: dict[tuple[str, str], dict[str, Any]]
) -> tuple[str, ...]:
    total_ms: dict[str, float] = {}
    times = []
    for line, span in spans:
        row = rows.get((span.trace_id, span.parent_id))
        if row is None or not span.name or (span.trace_id, span.span_id) in rows:
            continue
        start, end = _times(path, line, span)
        duration_ms = (end - start) / 1e6
        total_ms[span.name] = total_ms.get(span.name, 0.0) + duration_ms
        times.append((row, span.name, duration_ms))
    kept = set(sorted(total_ms, key=lambda name: (-total_ms[name], name))[:STAGES_MAX])
    for row, name, duration_ms in times:
        if name in kept:
            column = STAGE_PREFIX + name
            row[column] = row.get(column, 0.0) + duration_ms
    left = len(total_ms) - len(kept)
    return (f"{left} span names with the least time were left out",) if left else ()
