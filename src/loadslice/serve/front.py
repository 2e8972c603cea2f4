"""The HTTP front: routes, and one request's way from the wire to the core and back.

A route is an exact path: a server has one pipeline, so all its paths are known when it starts. Inference is answered by
callbacks on the loop's thread, without a task; everything else is a coroutine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST

import loadslice
from loadslice.serve import extensions, oip, oip_reply
from loadslice.serve.access import ANYBODY, Access, Caller
from loadslice.serve.body import Bodies
from loadslice.serve.clock import Clock
from loadslice.serve.connection import Connection
from loadslice.serve.envelope import Envelope, EnvelopeReader
from loadslice.serve.head import Head
from loadslice.serve.inference import Inference, enter, resolve
from loadslice.serve.limits import Limits
from loadslice.serve.oip_plan import JSON_BYTES_MAX, tensors_of
from loadslice.serve.refusals import NS_PER_S, RefusalError
from loadslice.serve.reply import Reply, json_reply, refuse
from loadslice.serve.request import Request
from loadslice.serve.service import Service
from loadslice.serve.turns import Turns
from loadslice.serve.turns import Work as LongWork
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import Work

log = logging.getLogger(__name__)

HEADER_LENGTH = "inference-header-content-length"
LOADING_HINT_NS = NS_PER_S
RESERVED_PATHS = ("/v2/health/live", "/v2/health/ready", "/metrics")
"""What reserved connections are for."""
PLATFORM = "loadslice_pipeline"


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a route that is not inference."""

    head: Head
    body: bytes
    caller: Caller


Route = Callable[[Call], Awaitable[Reply]]


class _Notes:
    """What the front keeps with a head that may come again."""

    __slots__ = ("caller", "envelope", "json_bytes", "reader", "route")

    def __init__(self, route: "Route | None", head: Head) -> None:
        self.route = route
        """``None``: inference."""
        length = head.headers.get(HEADER_LENGTH, "")
        is_short = length.isascii() and length.isdigit() and len(length) <= 9 and int(length) <= JSON_BYTES_MAX
        self.json_bytes = int(length) if is_short else None
        """Bytes of JSON before binary tensors, where it may be one that is remembered."""
        self.reader: EnvelopeReader | None = None
        self.caller = ANYBODY
        self.envelope: Envelope | None = None
        """As for a request received at 0."""


class Front:
    """Handles every request of one server.

    Args:
        name: Of the pipeline.
        limits: What clients may ask.
        clock: The server's.
        access: Who may ask; by default everybody may infer.
    """

    def __init__(self, name: str, limits: Limits, clock: Clock, access: Access | None = None) -> None:
        self.service: Service | None = None
        """Absent while models load. Another one may take its place between two turns of the loop: whoever has waited
        for anything looks anew before it submits."""
        self.active = 0
        """Requests being handled now."""
        self.access = access or Access(None)
        self.bodies = Bodies(limits)
        self.turns = Turns()
        """Has large requests decoded, and large replies written."""
        self._name = name
        self._limits = limits
        self._clock = clock
        self.routes: dict[str, dict[str, Route | None]] = self._make_routes()
        """By path and method; others may add theirs before the server starts. ``None``: inference."""
        self._raw_path = f"/v1/pipelines/{name}"

    def _make_routes(self) -> "dict[str, dict[str, Route | None]]":
        name = self._name
        routes: dict[str, dict[str, Route | None]] = {
            "/v2": {"GET": self._server},
            "/v2/health/live": {"GET": self._live},
            "/v2/health/ready": {"GET": self._ready},
            "/v1/pipelines": {"GET": self._pipelines},
            f"/v1/pipelines/{name}": {"POST": None},
            "/metrics": {"GET": self._metrics},
        }
        for model in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{oip_reply.VERSION}"):
            routes[model] = {"GET": self._model}
            routes[f"{model}/ready"] = {"GET": self._ready}
            routes[f"{model}/infer"] = {"POST": None}
        return routes

    # What a connection calls.

    def begin(self, head: Head, connection: Connection) -> bool:
        """See `Handler.begin`."""
        self.active += 1
        connection.received_ns = self._clock.now_ns()
        connection.job = caller = self.access.caller(head.headers, head.path)
        if connection.is_reserved and head.path not in RESERVED_PATHS:
            raise RefusalError(503, "too many connections", retry_after_ns=LOADING_HINT_NS, close=True)
        notes = head.notes
        if not isinstance(notes, _Notes):
            notes = head.notes = _Notes(self._route(head), head)
        if notes.route is not None:
            return head.method not in ("GET", "HEAD")
        service = self._loaded()
        if notes.reader is not service.envelopes or notes.caller != caller:
            notes.envelope = service.envelopes.read(caller.headers(head.headers), 0)
            notes.reader, notes.caller = service.envelopes, caller
            if head.path == self._raw_path and "content-type" not in head.headers:
                notes.reader = None
                raise RefusalError(415, "Content-Type is missing", close=True)
        return True

    def handle(self, head: Head, body: bytes | memoryview, connection: Connection) -> None:
        """See `Handler.handle`."""
        caller = connection.job
        assert isinstance(caller, Caller)
        connection.job = None
        notes = head.notes
        assert isinstance(notes, _Notes)
        if notes.route is not None:
            call = Call(head, bytes(body), caller)
            self._have(connection, self._run_route, notes.route, call, connection)
            return
        if len(body) == 0:
            raise RefusalError(400, "the body is empty")
        service = self._loaded()
        if notes.reader is not service.envelopes or notes.envelope is None or notes.caller != caller:
            # Another generation has begun to serve while the body came.
            notes.envelope = service.envelopes.read(caller.headers(head.headers), 0)
            notes.reader, notes.caller = service.envelopes, caller
        envelope = notes.envelope.received_at(connection.received_ns)
        if head.path == self._raw_path:
            work, bucket = service.admission.raw(head.headers["content-type"], bytes(body))
            self._submit(service, connection, envelope, envelope.id, work, bucket, None, oip.Wanted())
            return
        json_bytes = notes.json_bytes
        json_part = None
        if json_bytes is not None:
            json_part = bytes(body[:json_bytes])
            plan = service.plans.find(json_part)
            if plan is not None and len(body) == json_bytes + plan.binary_bytes:
                work = Work(tensors_of(plan, body, json_bytes))
                self._submit(service, connection, envelope, envelope.id, work, plan.bucket, None, plan.wanted)
                return
        decoding = oip.decoding(body, head.headers.get(HEADER_LENGTH), self._limits)
        try:
            next(decoding)
        except StopIteration as done:
            self._take(service, connection, envelope, done.value, json_part)
        else:
            self._have(connection, self._go_on, decoding, head, caller, connection)

    async def _go_on(
        self, decoding: LongWork[oip.InferRequest], head: Head, caller: Caller, connection: Connection
    ) -> None:
        """Go on decoding a large request, while others have their turns."""
        decoded = await self.turns.take(decoding)
        service = self._loaded()
        envelope = service.envelopes.read(caller.headers(head.headers), connection.received_ns)
        self._take(service, connection, envelope, decoded, None)

    def _take(
        self,
        service: Service,
        connection: Connection,
        envelope: Envelope,
        decoded: oip.InferRequest,
        json_part: bytes | None,
    ) -> None:
        """Take a decoded request to the core; what its JSON part means is kept, where that may come again."""
        work, bucket = self.admit(service, decoded)
        if json_part is not None and decoded.is_binary:
            service.plans.keep(json_part, decoded, work.tensors, bucket)
        identity = envelope.id or (decoded.id[: self._limits.text_max] if decoded.id else None)
        self._submit(service, connection, envelope, identity, work, bucket, decoded.id, decoded.wanted)

    def refused(self, refusal: RefusalError) -> Reply:
        """See `Handler.refused`."""
        if self.service is not None:
            self.service.metrics.refused_at_front(refusal.status)
        return refuse(refusal)

    def copied(self, connection: Connection) -> None:
        """See `Handler.copied`."""
        if isinstance(connection.job, Inference):
            connection.job.request.work = None

    def sent(self, connection: Connection) -> None:
        """See `Handler.sent`."""
        self._leave(connection)
        job = connection.job
        if isinstance(job, Inference):
            assert job.request.end_ns is not None
            job.request.reply_ns = self._clock.now_ns() - job.request.end_ns
            job.service.record(job.request)

    def gone(self, connection: Connection) -> None:
        """See `Handler.gone`."""
        self._leave(connection)
        job, connection.job = connection.job, None
        if isinstance(job, asyncio.Task):
            job.cancel()
        elif isinstance(job, Inference):
            job.connection = None
            if job.request.outcome is Outcome.NONE:
                job.service.shell.cancel(job.request)
            else:
                if job.task is not None:
                    job.task.cancel()
                job.service.record(job.request)

    def _leave(self, connection: Connection) -> None:
        if connection.received_ns:
            connection.received_ns = 0
            self.active -= 1

    # Any transport.

    def admit(self, service: Service, decoded: oip.InferRequest) -> tuple[Work, int]:
        """Work for the first stage, and its bucket.

        Raises:
            RefusalError: 400 or 415, for tensors the first stage does not take, or outputs that are none.
        """
        work, bucket = service.admission.tensors(decoded)
        known = [output["name"] for output in service.outputs]
        if known and decoded.wanted.names is not None:
            for name in decoded.wanted.names:
                if name not in known:
                    raise RefusalError(400, f"outputs: '{name[:64]}' is not an output here ({', '.join(known)})")
        return work, bucket

    async def infer(self, envelope: Envelope, decoded: oip.InferRequest, received_ns: int) -> Request:
        """Take one request through the core; for transports that are not HTTP.

        Cancelling this cancels the request. Where the caller has sent its reply, or given up, it calls
        `Service.record` once.

        Args:
            envelope: How it wants to be treated.
            decoded: Its tensors.
            received_ns: When it had arrived, on the server's clock.

        Returns:
            The request with its outcome; completed ones have their outputs in ``work``.

        Raises:
            RefusalError: It never reached the core, or its degraded reply could not be made.
        """
        service = self._loaded()
        work, bucket = self.admit(service, decoded)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        identity = envelope.id or (decoded.id[: self._limits.text_max] if decoded.id else None)
        request = enter(envelope, identity, work, bucket, received_ns, partial(resolve, done))
        service.shell.submit(request)
        try:
            await done
            if request.reason is Reason.DEGRADED:
                assert request.work is not None
                request.work = await service.degraded.reply(request.stage, request.work, request.tag)
        except asyncio.CancelledError:
            service.shell.cancel(request)
            service.record(request)
            raise
        except RefusalError:
            service.record(request)
            raise
        return request

    # HTTP inference.

    def _submit(
        self,
        service: Service,
        connection: Connection,
        envelope: Envelope,
        identity: str | None,
        work: Work,
        bucket: int,
        reply_id: str | None,
        wanted: oip.Wanted,
    ) -> None:
        inference = Inference(self.turns, service, connection, reply_id, wanted)
        connection.job = inference
        inference.request = enter(envelope, identity, work, bucket, connection.received_ns, inference.ended)
        service.shell.submit(inference.request)

    # Routes that are not inference.

    def _route(self, head: Head) -> "Route | None":
        methods = self.routes.get(head.path)
        if methods is None:
            raise RefusalError(404, self._unknown(head.path))
        method = "GET" if head.method == "HEAD" else head.method
        if method not in methods:
            allow = [*methods, "HEAD"] if "GET" in methods else [*methods]
            raise RefusalError(405, f"this path takes {', '.join(methods)}", allow=allow)
        return methods[method]

    async def _run_route(self, route: Route, call: Call, connection: Connection) -> None:
        reply = await route(call)
        connection.job = None
        connection.reply(reply)

    def _have(self, connection: Connection, handle: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Have a request handled by a task; whatever goes wrong is answered."""
        connection.job = asyncio.get_running_loop().create_task(self._handle(connection, handle, *arguments))

    async def _handle(self, connection: Connection, handle: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await handle(*arguments)
        except RefusalError as refusal:
            reply = self.refused(refusal)
        except Exception:
            log.exception("the front failed on a request")
            reply = refuse(RefusalError(500, "internal server error", close=True))
        else:
            return
        connection.job = None
        connection.reply(reply)

    def _unknown(self, path: str) -> str:
        if (extension := extensions.of_path(path)) is not None:
            return extension
        if path.startswith(("/v2/models/", "/v1/pipelines/")):
            return f"no such model or version here; there is '{self._name}'"
        return "no such path"

    def _loaded(self) -> Service:
        if self.service is None:
            raise RefusalError(503, "models are being loaded", retry_after_ns=LOADING_HINT_NS)
        return self.service

    async def _server(self, _call: Call) -> Reply:
        return json_reply(
            {"name": "loadslice", "version": loadslice.__version__, "extensions": ["binary_tensor_data", "metrics"]}
        )

    async def _live(self, _call: Call) -> Reply:
        return json_reply({"live": True})

    async def _ready(self, _call: Call) -> Reply:
        service = self._loaded()
        if service.shell.draining:
            raise RefusalError(503, "the server is stopping")
        silent = await service.health.silent_engines()
        if silent:
            # Whoever probes needs no token, so with tokens in use they are not told which engines there are.
            text = f"no answer from {', '.join(silent)}" if self.access.is_open else "not ready"
            raise RefusalError(503, text, retry_after_ns=LOADING_HINT_NS)
        return json_reply({"name": self._name, "ready": True})

    async def _model(self, _call: Call) -> Reply:
        service = self._loaded()
        return json_reply(
            {
                "name": self._name,
                "versions": [oip_reply.VERSION],
                "platform": PLATFORM,
                "inputs": service.admission.metadata(),
                "outputs": service.outputs,
            }
        )

    async def _pipelines(self, _call: Call) -> Reply:
        served = self._loaded().pipeline
        stages = [{"name": stage.name, "engines": stage.engine_names} for stage in served.stages]
        return json_reply({"pipelines": [{"name": self._name, "stages": stages}]})

    async def _metrics(self, _call: Call) -> Reply:
        return Reply(200, await self._loaded().metrics.scrape(), CONTENT_TYPE_LATEST)
