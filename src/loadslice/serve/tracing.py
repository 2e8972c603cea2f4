"""Spans of requests to a collector that the operator names. Off unless one is named; nothing leaves otherwise.

A span is made when a request has ended, with the times it had: the loop does no tracing work while it decides. Below
the request stand its stages, below each stage queue, copy and compute. What is sent is sampled, the queue to the
collector is bounded, and what does not fit is dropped: a slow collector costs spans, never requests.

A caller's ``traceparent`` (W3C Trace Context) is the parent, and its sampled flag decides for its requests. Engines
that are other servers are told it as it came, whether or not there is a collector: their spans stand beside ours.
"""

import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import loadslice
from loadslice.serve.request import VERSIONS, Passage, Request
from loadslice.spec.address import web_address
from loadslice.spec.errors import MissingExtraError
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import CLASSES, Pipeline
from loadslice.spec.twin import dilation

PPM = 1_000_000
QUEUE_SPANS_MAX = 4096
EXPORT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_MS = 3000

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_BYTES = 55
"""Of the four fields that are known."""


class Parent(NamedTuple):
    """The caller's span."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parent_of(text: str | None) -> Parent | None:
    """Read a ``traceparent``; ``None``: there is none, or it is none."""
    found = _TRACEPARENT.fullmatch(text or "")
    if found is None:
        return None
    return Parent(int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & 1))


def passed_on(texts: Iterable[str | None]) -> str | None:
    """The ``traceparent`` that another server is told of a batch: a call has one, a batch may have many.

    Args:
        texts: Of the batch's requests.

    Returns:
        The first that is sampled, else the first that is one, without what a later version of the format may append;
        ``None`` where no request has one.
    """
    valid = [(text[:_BYTES], parent) for text in texts if text is not None and (parent := parent_of(text)) is not None]
    return next((text for text, parent in valid if parent.is_sampled), valid[0][0] if valid else None)


class Tracer:
    """Makes and sends spans.

    Args:
        url: Of the collector, for instance ``http://127.0.0.1:4318/v1/traces``.
        share: Of requests without a caller's span that are traced, by error diffusion.
        processor: Takes finished spans; by default one that sends them.

    Raises:
        MissingExtraError: The packages are not there.
        InputError: Not an http URL.
    """

    def __init__(self, url: str, share: float, processor: Any = None) -> None:
        web_address(url, "--otlp")
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
        except ImportError as error:
            raise MissingExtraError("otel", "--otlp") from error
        self._share_ppm = round(share * PPM)
        self._credit_ppm = 0
        resource = Resource({"service.name": "loadslice", "service.version": loadslice.__version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor or _sender(url))
        self._tracer = self._provider.get_tracer("loadslice", loadslice.__version__)

    def close(self) -> None:
        """Send what is left, within a few seconds. Blocks."""
        self._provider.force_flush(CLOSE_TIMEOUT_MS)
        self._provider.shutdown()

    def ended(self, pipeline: Pipeline, request: Request, now_ns: int) -> None:
        """See `loadslice.serve.logs.Witness.ended`."""
        parent = parent_of(request.traceparent)
        if parent is None:
            self._credit_ppm += self._share_ppm
            if self._credit_ppm < PPM:
                return
            self._credit_ppm -= PPM
        elif not parent.is_sampled:
            return
        self._send(pipeline, request, parent, now_ns)

    def _send(self, pipeline: Pipeline, request: Request, parent: Parent | None, now_ns: int) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        wall_ns = time.time_ns()
        slow = dilation(pipeline)

        def at(ns: int) -> int:
            """A time of the server's clock as nanoseconds since 1970."""
            return wall_ns - round((now_ns - ns) * slow)

        end_ns = request.end_ns if request.end_ns is not None else now_ns
        root = self._tracer.start_span(
            f"infer {pipeline.pipeline}",
            context=_context(parent),
            kind=SpanKind.SERVER,
            start_time=at(request.received_ns),
            attributes=_attributes(request),
        )
        if request.outcome is not Outcome.COMPLETED:
            root.set_status(Status(StatusCode.ERROR, request.reason.name.lower()))
        inside = set_span_in_context(root)
        for passage in request.passages:
            self._stage(pipeline, passage, inside, at, end_ns)
        root.end(at(end_ns + (request.reply_ns or 0)))

    def _stage(self, pipeline: Pipeline, passage: Passage, inside: Any, at: Any, end_ns: int) -> None:
        from opentelemetry.trace import set_span_in_context

        attributes: dict[str, str | int] = {
            "loadslice.engine": list(pipeline.engines)[passage.engine],
            "loadslice.placed": passage.placed.name.lower(),
            "loadslice.items": passage.items,
        }
        if passage.batch_rows is not None:
            attributes["loadslice.batch_rows"] = passage.batch_rows
        stage = self._tracer.start_span(
            f"stage {pipeline.stages[passage.stage].name}",
            context=inside,
            start_time=at(passage.enqueued_ns),
            attributes=attributes,
        )
        below = set_span_in_context(stage)
        started_ns = passage.started_ns
        done_ns = passage.done_ns if passage.done_ns is not None else end_ns
        parts = [("queue", passage.enqueued_ns, started_ns if started_ns is not None else done_ns)]
        if started_ns is not None and passage.copy_ns is not None and passage.compute_ns is not None:
            # A batch is gathered before it is computed, and handed out after; the sum is known, and shown before.
            copied_ns = started_ns + passage.copy_ns
            parts += [("copy", started_ns, copied_ns), ("compute", copied_ns, copied_ns + passage.compute_ns)]
        for name, from_ns, to_ns in parts:
            self._tracer.start_span(name, context=below, start_time=at(from_ns)).end(at(to_ns))
        stage.end(at(done_ns))


def _attributes(request: Request) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "loadslice.outcome": request.outcome.name.lower(),
        "loadslice.reason": request.reason.name.lower(),
        "loadslice.class": CLASSES[request.priority],
        "loadslice.tag": request.tag,
    }
    for name, value in (("id", request.id), ("tenant", request.tenant), ("source", request.source)):
        if value is not None:
            found[f"loadslice.{name}"] = value
    if request.version is not None:
        found["loadslice.version"] = VERSIONS[request.version]
    return found


def _context(parent: Parent | None) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if parent is None:
        return Context()
    span = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(span), Context())


def _sender(url: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError("otel", "--otlp") from error
    exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S)
    return BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS_MAX, max_export_batch_size=512)
