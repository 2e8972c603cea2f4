"""The gRPC front: `inference.GRPCInferenceService` on a port of its own, over the same core as the HTTP front.

What HTTP says in headers is metadata here, by the same names; errors are status codes with the same words. A deadline
is the nearer of gRPC's own timeout and ``x-loadslice-deadline-ms``.
"""

from functools import partial
from typing import Any

import loadslice
from loadslice.serve import grpc_call as g
from loadslice.serve import grpc_tensors, oip_reply
from loadslice.serve.access import Caller
from loadslice.serve.clock import Clock
from loadslice.serve.envelope import Envelope
from loadslice.serve.front import LOADING_HINT_NS, PLATFORM, Front
from loadslice.serve.grpc_call import Answer, BadCallError, Call, Method
from loadslice.serve.grpc_calls import Calls
from loadslice.serve.grpc_connection import GrpcConnection
from loadslice.serve.grpc_connections import GrpcConnections
from loadslice.serve.grpc_infer import Inference, as_call_error
from loadslice.serve.grpc_messages import SERVICE, messages
from loadslice.serve.grpc_plan import Outputs, Plans
from loadslice.serve.inference import enter
from loadslice.serve.limits import Limits
from loadslice.serve.listener import Context, Listener, open_listener
from loadslice.serve.oip import InferRequest, Wanted
from loadslice.serve.refusals import NS_PER_MS, RefusalError, of_outcome
from loadslice.serve.service import Service
from loadslice.serve.turns import Work as LongWork
from loadslice.spec.outcome import Outcome
from loadslice.spec.work import Work

TIMEOUT_UNITS_NS = {"n": 1, "u": 1000, "m": NS_PER_MS, "S": 10**9, "M": 60 * 10**9, "H": 3600 * 10**9}
TIMEOUT_DIGITS = 8

CONNECTION_DRAIN_S = 2.0
LAST_CALL_S = 0.05
"""How long connections that were taken in the last moment may take to bring the call that will be refused."""


def timeout_ns(text: str | None) -> int | None:
    """``grpc-timeout`` as nanoseconds; ``None``: none was given.

    Raises:
        BadCallError: Not a timeout.
    """
    if text is None:
        return None
    digits, unit = text[:-1], text[-1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= TIMEOUT_DIGITS and unit in TIMEOUT_UNITS_NS):
        raise BadCallError(g.INVALID_ARGUMENT, "grpc-timeout is not a timeout")
    return int(digits) * TIMEOUT_UNITS_NS[unit]


class GrpcFront:
    """Answers gRPC calls.

    Args:
        name: Of the pipeline.
        front: The HTTP front, which knows the core and what is held.
        limits: What clients may ask.
        clock: The server's.

    Raises:
        MissingExtraError: A package of the extra is not there.
    """

    def __init__(self, name: str, front: Front, limits: Limits, clock: Clock) -> None:
        self._messages = messages()
        self._name = name
        self._front = front
        self._limits = limits
        self._clock = clock
        self._plans = Plans()
        self.outputs = Outputs(self._messages.classes["ModelInferResponse"], name, oip_reply.VERSION)
        self._listener: Listener | None = None
        self.connections = GrpcConnections(limits)
        methods = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
        }
        table = {f"/{SERVICE}/{method}": Method(self._guarded(answer)) for method, answer in methods.items()}
        table[f"/{SERVICE}/ModelInfer"] = Method(None, self._infer)
        table[f"/{SERVICE}/ModelStreamInfer"] = Method(self._stream_infer, streams=True)
        self._calls = Calls(
            table,
            message_bytes_max=limits.body_bytes_max,
            hold=self._hold,
            release=self._release,
            keep=self._keep,
            turns=front.turns,
            now_ns=clock.now_ns,
            message_timeout_s=limits.body_timeout_s,
        )

    # The port.

    async def listen(self, host: str, port: int, tls: Context | None = None) -> int:
        """Open the port.

        Args:
            host: Address or name.
            port: 0: any free one.
            tls: Gives the context of a server that speaks HTTP/2.

        Returns:
            The port.

        Raises:
            InputError: It is in use, or the address is not ours.
        """
        self._listener = await open_listener(
            lambda: GrpcConnection(self._calls, self.connections), host, port, tls, option="--grpc"
        )
        self.connections.watch()
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Take no more connections and calls, let open calls be answered, then cut off what is left."""
        if self._listener is None:
            return
        await self._listener.close(LAST_CALL_S)
        await self.connections.close(CONNECTION_DRAIN_S)

    def _hold(self, more_bytes: int) -> None:
        try:
            self._front.bodies.check_room(more_bytes)
        except RefusalError as refusal:
            raise as_call_error(refusal) from refusal
        self._keep(more_bytes)

    def _keep(self, more_bytes: int) -> None:
        self._front.bodies.held_bytes += more_bytes

    def _release(self, fewer_bytes: int) -> None:
        self._front.bodies.held_bytes -= fewer_bytes

    # Methods.

    def _guarded(self, answer: Any) -> Any:
        return partial(self._answer, answer)

    async def _answer(self, answer: Any, call: Call, message: bytes) -> Answer:
        self._front.active += 1
        try:
            made: Answer = await answer(call, message)
            return made
        except RefusalError as refusal:
            self._front.refused(refusal)
            raise as_call_error(refusal) from refusal
        finally:
            self._front.active -= 1

    def _read(self, kind: str, message: bytes) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return self._messages.classes[kind].FromString(message)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusalError(400, f"the message is not a {kind}") from error

    def _made(self, kind: str, **fields: Any) -> Answer:
        return Answer(self._messages.classes[kind](**fields).SerializeToString())

    def _loaded(self) -> Service:
        if self._front.service is None:
            raise RefusalError(503, "models are being loaded", retry_after_ns=LOADING_HINT_NS)
        return self._front.service

    def _is_ours(self, name: str, version: str) -> bool:
        return name == self._name and version in ("", oip_reply.VERSION)

    def _check_model(self, name: str, version: str) -> None:
        if not self._is_ours(name, version):
            raise RefusalError(404, f"no such model or version here; there is '{self._name}'")

    async def _live(self, _call: Call, _message: bytes) -> Answer:
        return self._made("ServerLiveResponse", live=True)

    async def _is_ready(self) -> bool:
        """The same round trip through every engine as over HTTP."""
        service = self._front.service
        return service is not None and not service.shell.draining and not await service.health.silent_engines()

    async def _ready(self, _call: Call, _message: bytes) -> Answer:
        return self._made("ServerReadyResponse", ready=await self._is_ready())

    async def _model_ready(self, call: Call, message: bytes) -> Answer:
        asked = self._read("ModelReadyRequest", message)
        ready = self._is_ours(asked.name, asked.version) and await self._is_ready()
        return self._made("ModelReadyResponse", ready=ready)

    async def _server_metadata(self, call: Call, _message: bytes) -> Answer:
        self._front.access.check(call.headers.get("authorization"), "infer")
        return self._made("ServerMetadataResponse", name="loadslice", version=loadslice.__version__)

    async def _model_metadata(self, call: Call, message: bytes) -> Answer:
        self._front.access.check(call.headers.get("authorization"), "infer")
        asked = self._read("ModelMetadataRequest", message)
        self._check_model(asked.name, asked.version)
        service = self._loaded()
        return self._made(
            "ModelMetadataResponse",
            name=self._name,
            versions=[oip_reply.VERSION],
            platform=PLATFORM,
            inputs=service.admission.metadata(),
            outputs=service.outputs,
        )

    def _infer(self, call: Call, message: bytes) -> None:
        """Take a unary request to the core, by callbacks alone."""
        try:
            caller = self._front.access.check(call.headers.get("authorization"), "infer")
            service = self._loaded()
            envelope = self._envelope(call, caller, service)
            plan = self._plans.find(service, message)
            if plan is not None:
                work = Work({plan.name: plan.tensor(message)})
                self._submit(call, service, envelope, work, plan.bucket, plan.wanted, "")
                return
            asked = self._read("ModelInferRequest", message)
            self._check_model(asked.model_name, asked.model_version)
            decoding = grpc_tensors.decoding(asked, self._limits)
            try:
                next(decoding)
            except StopIteration as done:
                self._take(call, service, envelope, message, asked, done.value)
            else:
                call.have(self._go_on, call, caller, message, asked, decoding)
        except RefusalError as refusal:
            self._front.refused(refusal)
            raise as_call_error(refusal) from refusal

    async def _go_on(
        self, call: Call, caller: Caller, message: bytes, asked: Any, decoding: LongWork[InferRequest]
    ) -> None:
        """Go on decoding a large request, while others have their turns."""
        self._front.active += 1
        try:
            decoded = await self._front.turns.take(decoding)
            service = self._loaded()
            self._take(call, service, self._envelope(call, caller, service), message, asked, decoded)
        except RefusalError as refusal:
            self._front.refused(refusal)
            raise as_call_error(refusal) from refusal
        finally:
            self._front.active -= 1

    def _take(
        self, call: Call, service: Service, envelope: Envelope, message: bytes, asked: Any, decoded: InferRequest
    ) -> None:
        """Take a decoded request to the core; what its message means is kept, where it may come again."""
        work, bucket = self._front.admit(service, decoded)
        self._plans.keep(service, message, asked, decoded, work, bucket)
        self._submit(call, service, envelope, work, bucket, decoded.wanted, asked.id)

    def _submit(
        self,
        call: Call,
        service: Service,
        envelope: Envelope,
        work: Work,
        bucket: int,
        wanted: Wanted,
        identity: str,
    ) -> None:
        job = call.job = Inference(self, call, service, wanted, identity)
        identity = identity[: self._limits.text_max]
        self._front.active += 1
        job.request = enter(envelope, envelope.id or identity or None, work, bucket, call.received_ns, job.ended)
        service.shell.submit(job.request)

    def _envelope(self, call: Call, caller: Caller, service: Service) -> Envelope:
        """A call's wishes; of headers that come again only the deadline is worked out anew."""
        notes = call.headers.notes
        if notes is None or notes[0] is not service.envelopes or notes[1] != caller:
            given_ns = timeout_ns(call.headers.get("grpc-timeout"))
            envelope = service.envelopes.read(caller.headers(call.headers), 0)
            if given_ns is not None and given_ns < envelope.deadline_ns:
                envelope = envelope._replace(deadline_ns=given_ns)
            notes = call.headers.notes = (service.envelopes, caller, envelope)
        envelope = notes[2]
        assert isinstance(envelope, Envelope)
        return envelope.received_at(call.received_ns)

    def ended(self, job: Inference) -> None:
        """A unary request has been answered, or its client has gone."""
        self._front.active -= 1
        request = job.request
        if request.end_ns is not None and job.call is not None:
            request.reply_ns = self._clock.now_ns() - request.end_ns
        job.service.record(request)

    async def _stream_infer(self, call: Call, message: bytes) -> Answer:
        """One message of a stream. What goes wrong with it does not end the stream."""
        received_ns = self._clock.now_ns()
        kind = self._messages.classes["ModelStreamInferResponse"]
        self._front.active += 1
        identity = ""
        try:
            asked = self._read("ModelInferRequest", message)
            identity = asked.id
            response = await self._inferred(call, asked, received_ns)
        except RefusalError as refusal:
            self._front.refused(refusal)
            failed = kind(error_message=refusal.text)
            failed.infer_response.id = identity
            return Answer(failed.SerializeToString())
        finally:
            self._front.active -= 1
        return Answer(kind(infer_response=response).SerializeToString())

    async def _inferred(self, call: Call, asked: Any, received_ns: int) -> Any:
        caller = self._front.access.check(call.headers.get("authorization"), "infer")
        self._check_model(asked.model_name, asked.model_version)
        service = self._loaded()
        # Of a stream, gRPC's own timeout is about all of it: it cancels what is left when it is over.
        envelope = service.envelopes.read(caller.headers(call.headers), received_ns)
        decoded = await self._front.turns.take(grpc_tensors.decoding(asked, self._limits))
        request = await self._front.infer(envelope, decoded, received_ns)
        try:
            if request.outcome is not Outcome.COMPLETED:
                raise of_outcome(request.outcome, request.reason, request.hint_ns, request.fault)
            assert request.work is not None
            response = self._messages.classes["ModelInferResponse"](
                model_name=self._name, model_version=oip_reply.VERSION, id=asked.id
            )
            grpc_tensors.fill(response, request.work.tensors, decoded.wanted)
            return response
        finally:
            assert request.end_ns is not None
            request.reply_ns = self._clock.now_ns() - request.end_ns
            service.record(request)
