"""The reply to an inference request as bytes, made from templates.

Everything but the times, the date and the outputs themselves is the same for all requests that want the same outputs in
the same form and have passed the same engines: those parts are made once.
"""

from urllib.parse import quote

from loadslice.serve import oip_reply
from loadslice.serve.oip import Wanted
from loadslice.serve.refusals import NS_PER_MS, of_outcome
from loadslice.serve.reply import OK, Reply, refuse
from loadslice.serve.request import VERSIONS, Passage, Request
from loadslice.spec.outcome import Reason
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import dilation, label, twins

KINDS_MAX = 256
"""Lines remembered; when there are more, all are forgotten."""


class Answer:
    """Writes replies of one pipeline.

    Args:
        pipeline: Checked.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._outputs = oip_reply.Outputs(pipeline.pipeline)
        self._stage_names = [quote(stage.name).encode() for stage in pipeline.stages]
        self._engine_names = [quote(name).encode() for name in pipeline.engines]
        emulated = set(twins(pipeline))
        self._is_emulated = [name in emulated for name in pipeline.engines]
        self._has_emulated = bool(emulated)
        self._kinds: dict[tuple[int | None, bytes], bytes] = {}
        self._basis = b"x-loadslice-basis: %b\r\n" % label(dilation(pipeline)).encode("latin-1") if emulated else b""

    def refusal(self, request: Request) -> Reply:
        """The reply to a request that did not complete."""
        return refuse(of_outcome(request.outcome, request.reason, request.hint_ns, request.fault))

    def parts(
        self,
        request: Request,
        reply_id: str | None,
        wanted: Wanted,
        lines: bytes,
        written: oip_reply.Written = oip_reply.NOTHING,
    ) -> tuple[tuple[bytes | memoryview, ...], int]:
        """The whole reply to a request that has completed: its parts in order, and their bytes together.

        Args:
            request: With its outputs.
            reply_id: As the client gave it.
            wanted: Which outputs, and in which form.
            lines: What the head says of the time and the connection.
            written: Outputs whose JSON is there already.

        Raises:
            RefusalError: An output that is wanted does not exist, or has no form on the wire.
        """
        assert request.work is not None
        head, tensors, tensor_bytes = self._outputs.encode(reply_id, request.work.tensors, wanted, written)
        passages = request.passages
        if len(passages) == 1:
            engines, timing = self._engine_names[passages[0].engine], self._timing(passages[0])
        else:
            engines = b", ".join([self._engine_names[passage.engine] for passage in passages])
            timing = b", ".join([self._timing(passage) for passage in passages])
        more = b""
        if self._has_emulated and any(self._is_emulated[passage.engine] for passage in passages):
            more += self._basis
        if request.reason is Reason.DEGRADED:
            more += b"x-loadslice-degraded: %b\r\n" % self._stage_names[request.stage]
        if request.version is not None:
            more += b"x-loadslice-version: %b\r\n" % VERSIONS[request.version].encode()
        pieces: list[bytes] = []
        json_bytes = len(head)
        if written:
            head, *pieces = oip_reply.with_pieces(head, written)
            json_bytes = len(head) + sum([len(piece) for piece in pieces])
        start = b"%b%b%b%bx-loadslice-timing: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            OK,
            lines,
            self._kind(json_bytes if tensors else None, engines),
            more,
            timing,
            json_bytes + tensor_bytes,
            head,
        )
        return (start, *pieces, *tensors), len(start) + json_bytes - len(head) + tensor_bytes

    def _kind(self, json_bytes: int | None, engines: bytes) -> bytes:
        """What kind of body it is, and who made it; ``None``: it is all JSON."""
        kind = self._kinds.get((json_bytes, engines))
        if kind is None:
            if json_bytes is None:
                text = b"Content-Type: application/json\r\n"
            else:
                length = b"Inference-Header-Content-Length: %d\r\n" % json_bytes
                text = b"Content-Type: application/octet-stream\r\n" + length
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[json_bytes, engines] = b"%bx-loadslice-engine: %b\r\n" % (text, engines)
        return kind

    def _timing(self, passage: Passage) -> bytes:
        """One stage as ``name;queue=1.234;copy=0.056;compute=7.890``, milliseconds."""
        name = self._stage_names[passage.stage]
        if passage.started_ns is None or passage.copy_ns is None or passage.compute_ns is None:
            return name + b";moved"
        return b"%b;queue=%.3f;copy=%.3f;compute=%.3f" % (
            name,
            (passage.started_ns - passage.enqueued_ns) / NS_PER_MS,
            passage.copy_ns / NS_PER_MS,
            passage.compute_ns / NS_PER_MS,
        )
