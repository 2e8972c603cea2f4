"""The HTTP front: routes, and one request's way from the wire to the core and back.

A route is an exact path: a server has one pipeline, so all its paths are known when it starts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST

import loadslice
from loadslice.serve import oip, oip_reply
from loadslice.serve.admission import Admission
from loadslice.serve.body import BodyReader
from loadslice.serve.clock import Clock
from loadslice.serve.connection import SERVER_NAME, is_reserved, refuse
from loadslice.serve.degraded import DegradedReplies
from loadslice.serve.envelope import Envelope, EnvelopeReader
from loadslice.serve.health import Health
from loadslice.serve.limits import Limits
from loadslice.serve.metrics import Metrics
from loadslice.serve.refusals import NS_PER_MS, NS_PER_S, RefusalError, of_outcome
from loadslice.serve.request import VERSIONS, Passage, Request
from loadslice.serve.shell import Shell
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import dilation, label, twins
from loadslice.spec.work import Work

Route = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

HEADER_LENGTH = "Inference-Header-Content-Length"
LOADING_HINT_NS = NS_PER_S
RESERVED_PATHS = ("/v2/health/live", "/v2/health/ready", "/metrics")
"""What reserved connections are for."""
PLATFORM = "loadslice_pipeline"


@dataclass(frozen=True, slots=True)
class Service:
    """What answers requests once everything is loaded."""

    shell: Shell
    admission: Admission
    metrics: Metrics
    health: Health
    degraded: DegradedReplies
    outputs: list[dict[str, Any]]
    """Of the last stage, in the protocol's words; empty: known only from a reply."""
    record: Callable[[Request], None]
    """Keeps a request that has been replied to."""
    pipeline: Pipeline
    envelopes: EnvelopeReader
    stage_names: list[str]
    """Quoted, as headers carry them."""
    engine_names: list[str]
    emulated: frozenset[str]
    """Those of them that are emulated."""

    @classmethod
    def of(cls, pipeline: Pipeline, limits: Limits, **parts: Any) -> "Service":
        """What answers for one pipeline.

        Args:
            pipeline: Checked.
            limits: What clients may ask.
            parts: The other fields, down to `record`.
        """
        return cls(
            **parts,
            pipeline=pipeline,
            envelopes=EnvelopeReader(pipeline, limits),
            stage_names=[quote(stage.name) for stage in pipeline.stages],
            engine_names=[quote(name) for name in pipeline.engines],
            emulated=frozenset(quote(name) for name in twins(pipeline)),
        )


class Front:
    """Handles every request of one server.

    Args:
        name: Of the pipeline.
        limits: What clients may ask.
        clock: The server's.
    """

    def __init__(self, name: str, limits: Limits, clock: Clock) -> None:
        self.service: Service | None = None
        """Absent while models load. Another one may take its place between two turns of the loop: whoever has waited
        for anything looks anew before it submits."""
        self.active = 0
        """Requests being handled now."""
        self._name = name
        self._limits = limits
        self._clock = clock
        self._bodies = BodyReader(limits)
        self._routes = self._make_routes()

    def _make_routes(self) -> dict[str, dict[str, Route]]:
        name = self._name
        routes: dict[str, dict[str, Route]] = {
            "/v2": {"GET": self._server},
            "/v2/health/live": {"GET": self._live},
            "/v2/health/ready": {"GET": self._ready},
            "/v1/pipelines": {"GET": self._pipelines},
            f"/v1/pipelines/{name}": {"POST": self._raw},
            "/metrics": {"GET": self._metrics},
        }
        for model in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{oip_reply.VERSION}"):
            routes[model] = {"GET": self._model}
            routes[f"{model}/ready"] = {"GET": self._ready}
            routes[f"{model}/infer"] = {"POST": self._infer}
        return routes

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever it is."""
        self.active += 1
        try:
            if is_reserved(request):
                return await self._answer_reserved(request)
            return await self._route(request)(request)
        except RefusalError as refusal:
            if self.service is not None:
                self.service.metrics.refused_at_front(refusal.status)
            return refuse(refusal)
        finally:
            self.active -= 1

    async def _answer_reserved(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer on a connection beyond the limit: whoever looks after this server reaches it when clients do not."""
        if request.path not in RESERVED_PATHS:
            raise RefusalError(503, "too many connections", retry_after_ns=LOADING_HINT_NS, close=True)
        response = await self._route(request)(request)
        response.force_close()
        return response

    def _route(self, request: web.BaseRequest) -> Route:
        methods = self._routes.get(request.path)
        if methods is None:
            raise RefusalError(404, self._unknown(request.path))
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            allow = [*methods, "HEAD"] if "GET" in methods else [*methods]
            raise RefusalError(405, f"this path takes {', '.join(methods)}", allow=allow)
        return methods[method]

    def _unknown(self, path: str) -> str:
        if path.startswith(("/v2/models/", "/v1/pipelines/")):
            return f"no such model or version here; there is '{self._name}'"
        return "no such path"

    def _loaded(self) -> Service:
        if self.service is None:
            raise RefusalError(503, "models are being loaded", retry_after_ns=LOADING_HINT_NS)
        return self.service

    async def _server(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _json(
            {"name": "loadslice", "version": loadslice.__version__, "extensions": ["binary_tensor_data", "metrics"]}
        )

    async def _live(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _json({"live": True})

    async def _ready(self, _request: web.BaseRequest) -> web.StreamResponse:
        service = self._loaded()
        if service.shell.draining:
            raise RefusalError(503, "the server is stopping")
        silent = await service.health.silent_engines()
        if silent:
            raise RefusalError(503, f"no answer from {', '.join(silent)}", retry_after_ns=LOADING_HINT_NS)
        return _json({"name": self._name, "ready": True})

    async def _model(self, _request: web.BaseRequest) -> web.StreamResponse:
        service = self._loaded()
        return _json(
            {
                "name": self._name,
                "versions": [oip_reply.VERSION],
                "platform": PLATFORM,
                "inputs": service.admission.metadata(),
                "outputs": service.outputs,
            }
        )

    async def _pipelines(self, _request: web.BaseRequest) -> web.StreamResponse:
        served = self._loaded().pipeline
        stages = [{"name": stage.name, "engines": stage.engine_names} for stage in served.stages]
        return _json({"pipelines": [{"name": self._name, "stages": stages}]})

    async def _metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        body = self._loaded().metrics.exposition()
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST, hdrs.SERVER: SERVER_NAME})

    async def _raw(self, request: web.BaseRequest) -> web.StreamResponse:
        received_ns = self._clock.now_ns()
        service = self._loaded()
        envelope = service.envelopes.read(request.headers, received_ns)
        content_type = request.headers.get(hdrs.CONTENT_TYPE)
        if content_type is None:
            raise RefusalError(415, "Content-Type is missing", close=True)
        body = await self._bodies.read(request)
        body_bytes = len(body)
        try:
            if self._loaded() is not service:
                service = self._loaded()
                envelope = service.envelopes.read(request.headers, received_ns)
            work, bucket = service.admission.raw(content_type, body)
            del body  # from here on only the work holds it
            inside = _enter(envelope, envelope.id, work, bucket, received_ns)
            return await self._run(request, service, inside, None, oip.Wanted())
        finally:
            self._bodies.release(body_bytes)

    async def _infer(self, request: web.BaseRequest) -> web.StreamResponse:
        received_ns = self._clock.now_ns()
        service = self._loaded()
        envelope = service.envelopes.read(request.headers, received_ns)
        body = await self._bodies.read(request)
        body_bytes = len(body)
        try:
            decoded = oip.decode(body, request.headers.get(HEADER_LENGTH), self._limits)
            del body
            if self._loaded() is not service:
                service = self._loaded()
                envelope = service.envelopes.read(request.headers, received_ns)
            work, bucket = service.admission.tensors(decoded)
            self._check_wanted(service, decoded.wanted)
            identity = envelope.id or (decoded.id[: self._limits.text_max] if decoded.id else None)
            inside = _enter(envelope, identity, work, bucket, received_ns)
            return await self._run(request, service, inside, decoded.id, decoded.wanted)
        finally:
            self._bodies.release(body_bytes)

    def _check_wanted(self, service: Service, wanted: oip.Wanted) -> None:
        known = [output["name"] for output in service.outputs]
        if known and wanted.names is not None:
            for name in wanted.names:
                if name not in known:
                    raise RefusalError(400, f"outputs: '{name[:64]}' is not an output here ({', '.join(known)})")

    async def _run(
        self, request: web.BaseRequest, service: Service, inside: Request, reply_id: str | None, wanted: oip.Wanted
    ) -> web.StreamResponse:
        """Take a request through the core and reply. Exactly one outcome is recorded, whoever leaves first."""
        service.shell.submit(inside)
        try:
            if inside.outcome is Outcome.NONE:
                await inside.done
            response = await self._answer(service, inside, reply_id, wanted)
            await self._send(request, response)
            assert inside.end_ns is not None
            inside.reply_ns = self._clock.now_ns() - inside.end_ns
        except asyncio.CancelledError:
            service.shell.cancel(inside)
            raise
        finally:
            service.record(inside)
        return response

    async def _send(self, request: web.BaseRequest, response: web.Response) -> None:
        assert isinstance(response.body, bytes)
        reply_bytes = len(response.body)
        self._bodies.hold(reply_bytes)
        try:
            await response.prepare(request)
            await response.write_eof()
        finally:
            self._bodies.release(reply_bytes)

    async def _answer(
        self, service: Service, inside: Request, reply_id: str | None, wanted: oip.Wanted
    ) -> web.Response:
        if inside.reason is Reason.DEGRADED:
            assert inside.work is not None
            try:
                inside.work = await service.degraded.reply(inside.stage, inside.work, inside.tag)
            except RefusalError as refusal:
                return refuse(refusal)
        return self._reply(service, inside, reply_id, wanted)

    def _reply(self, service: Service, inside: Request, reply_id: str | None, wanted: oip.Wanted) -> web.Response:
        if inside.outcome is not Outcome.COMPLETED:
            return refuse(of_outcome(inside.outcome, inside.reason, inside.hint_ns, inside.fault))
        assert inside.work is not None
        try:
            reply = oip_reply.encode(self._name, reply_id, inside.work.tensors, wanted)
        except RefusalError as refusal:
            return refuse(refusal)
        headers = {
            hdrs.CONTENT_TYPE: reply.content_type,
            hdrs.SERVER: SERVER_NAME,
            "x-loadslice-engine": ", ".join([service.engine_names[passage.engine] for passage in inside.passages]),
            "x-loadslice-timing": ", ".join([_timing(service, passage) for passage in inside.passages]),
        }
        if any(service.engine_names[passage.engine] in service.emulated for passage in inside.passages):
            headers["x-loadslice-basis"] = label(dilation(service.pipeline))
        if inside.reason is Reason.DEGRADED:
            headers["x-loadslice-degraded"] = service.stage_names[inside.stage]
        if inside.version is not None:
            headers["x-loadslice-version"] = VERSIONS[inside.version]
        if reply.header_length is not None:
            headers[HEADER_LENGTH] = str(reply.header_length)
        return web.Response(body=reply.body, headers=headers)


def _timing(service: Service, passage: Passage) -> str:
    """One stage as ``name;queue=1.234;copy=0.056;compute=7.890``, milliseconds."""
    name = service.stage_names[passage.stage]
    if passage.started_ns is None or passage.copy_ns is None or passage.compute_ns is None:
        return f"{name};moved"
    queue_ms = (passage.started_ns - passage.enqueued_ns) / NS_PER_MS
    return (
        f"{name};queue={queue_ms:.3f};copy={passage.copy_ns / NS_PER_MS:.3f}"
        f";compute={passage.compute_ns / NS_PER_MS:.3f}"
    )


def _enter(envelope: Envelope, identity: str | None, work: Work, bucket: int, received_ns: int) -> Request:
    return Request(
        work=work,
        bucket=bucket,
        priority=envelope.priority,
        deadline_ns=envelope.deadline_ns,
        source=envelope.source,
        source_index=envelope.source_index,
        precision=envelope.precision,
        attempt=envelope.attempt,
        tenant=envelope.tenant,
        tenant_index=envelope.tenant_index,
        key=envelope.key,
        tokens=envelope.tokens,
        id=identity,
        input=envelope.input,
        received_ns=received_ns,
        done=asyncio.get_running_loop().create_future(),
    )


def _json(document: Any) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(document), content_type="application/json", headers={hdrs.SERVER: SERVER_NAME}
    )
