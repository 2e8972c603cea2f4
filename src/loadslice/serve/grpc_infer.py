"""One unary inference call, from the core's door to its reply; by callbacks on the loop's thread, without a task."""

import asyncio
import logging
from typing import Protocol

from loadslice.serve import grpc_call as g
from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_call import Answer, BadCallError, Call
from loadslice.serve.grpc_plan import Outputs
from loadslice.serve.oip import Wanted
from loadslice.serve.refusals import NS_PER_MS, RefusalError, of_outcome, retry_headers
from loadslice.serve.request import VERSIONS, Passage, Request
from loadslice.serve.service import Service
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.twin import dilation, label

log = logging.getLogger(__name__)

CODES = {
    400: g.INVALID_ARGUMENT, 401: g.UNAUTHENTICATED, 403: g.PERMISSION_DENIED, 404: g.NOT_FOUND,
    408: g.DEADLINE_EXCEEDED, 413: g.RESOURCE_EXHAUSTED, 415: g.INVALID_ARGUMENT, 422: g.FAILED_PRECONDITION,
    429: g.RESOURCE_EXHAUSTED, 500: g.INTERNAL, 502: g.UNAVAILABLE, 503: g.UNAVAILABLE, 504: g.DEADLINE_EXCEEDED,
}  # fmt: skip
"""HTTP status -> gRPC status."""


def as_call_error(refusal: RefusalError) -> BadCallError:
    """A refusal of the HTTP front in gRPC's words."""
    metadata: dict[str, str] = {}
    if refusal.retry_after_ns is not None:
        metadata = {name.lower(): value for name, value in retry_headers(refusal.retry_after_ns).items()}
        # What clients with a retry policy wait for by themselves.
        metadata["grpc-retry-pushback-ms"] = metadata["x-loadslice-retry-after-ms"]
    return BadCallError(CODES.get(refusal.status, g.UNKNOWN), refusal.text, metadata)


class Home(Protocol):
    """Where calls come from."""

    @property
    def outputs(self) -> Outputs:
        """Writes replies."""

    def ended(self, job: "Inference") -> None:
        """A request has been answered, or its client has gone; told once of each."""


class Inference:
    """See the module."""

    __slots__ = ("_front", "_identity", "_wanted", "call", "request", "service", "task")

    request: Request

    def __init__(self, front: Home, call: Call, service: Service, wanted: Wanted, identity: str) -> None:
        self.call: Call | None = call
        """``None``: the client has gone."""
        self.service = service
        self.task: asyncio.Task[None] | None = None
        self._front = front
        self._wanted = wanted
        self._identity = identity

    def cancel(self) -> None:
        """The client has gone."""
        self.call = None
        if self.request.outcome is Outcome.NONE:
            self.service.shell.cancel(self.request)
        elif self.task is not None:
            self.task.cancel()
            self._front.ended(self)

    def ended(self, request: Request) -> None:
        """The core has come to an outcome."""
        if self.call is None:
            self._front.ended(self)
        elif request.reason is Reason.DEGRADED:
            self.task = asyncio.get_running_loop().create_task(self._degrade())
        else:
            try:
                self.answer()
            except Exception:
                # One reply of many that are made in a row: the others must not suffer from a defect of ours.
                log.exception("the front failed on a reply")
                self.refuse(RefusalError(500, "internal server error"))

    async def _degrade(self) -> None:
        """Make a stage's degraded reply and send it."""
        request = self.request
        assert request.work is not None
        try:
            request.work = await self.service.degraded.reply(request.stage, request.work, request.tag)
        except RefusalError as refusal:
            self.refuse(refusal)
            return
        self.answer()

    def answer(self) -> None:
        """Reply."""
        request = self.request
        if self.call is None:
            return
        if request.outcome is not Outcome.COMPLETED:
            self.refuse(of_outcome(request.outcome, request.reason, request.hint_ns, request.fault))
            return
        assert request.work is not None
        try:
            message = self._front.outputs.encode(self._identity, request.work.tensors, self._wanted)
        except RefusalError as refusal:
            self.refuse(refusal)
            return
        self.call.job = None
        self.call.reply(Answer(message, told(self.service, request)))
        self._front.ended(self)

    def refuse(self, refusal: RefusalError) -> None:
        """Reply that there is no answer."""
        if self.call is not None:
            self.call.job = None
            self.call.refuse(as_call_error(refusal))
        self._front.ended(self)


def told(service: Service, request: Request) -> bytes:
    """What HTTP replies say in headers, as header fields."""
    engines = ", ".join([service.engine_names[passage.engine] for passage in request.passages])
    timing = ", ".join([_timing(service, passage) for passage in request.passages])
    fields = h2.field(b"x-loadslice-engine", engines.encode()) + h2.field(b"x-loadslice-timing", timing.encode())
    if service.emulated and any(service.engine_names[one.engine] in service.emulated for one in request.passages):
        fields += h2.field(b"x-loadslice-basis", label(dilation(service.pipeline)).encode())
    if request.reason is Reason.DEGRADED:
        fields += h2.field(b"x-loadslice-degraded", service.stage_names[request.stage].encode())
    if request.version is not None:
        fields += h2.field(b"x-loadslice-version", VERSIONS[request.version].encode())
    return fields


def _timing(service: Service, passage: Passage) -> str:
    name = service.stage_names[passage.stage]
    if passage.started_ns is None or passage.copy_ns is None or passage.compute_ns is None:
        return f"{name};moved"
    queue_ms = (passage.started_ns - passage.enqueued_ns) / NS_PER_MS
    return (
        f"{name};queue={queue_ms:.3f};copy={passage.copy_ns / NS_PER_MS:.3f}"
        f";compute={passage.compute_ns / NS_PER_MS:.3f}"
    )
