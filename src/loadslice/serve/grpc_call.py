"""One gRPC call: its status, its answers on their way out, and what it holds."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import quote

from loadslice.serve import grpc_frames as h2

if TYPE_CHECKING:
    from loadslice.serve.grpc_connection import GrpcConnection

log = logging.getLogger(__name__)

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = range(6)
PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 7, 8, 9
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16

PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its length."""
UNANSWERED_BYTES_MAX = 16 * 1024 * 1024
"""Answers of one stream that may wait for its client; a message that comes then ends the stream."""

STREAM_MESSAGES_MAX = 256
"""Messages of one stream that may be inside at once; one more ends the stream."""

_HEAD_OK = h2.STATUS_200 + h2.CONTENT_TYPE
_TRAILERS_OK = h2.field(b"grpc-status", b"0")
_ACCEPTED = h2.field(b"grpc-accept-encoding", b"identity,deflate,gzip")


class BadCallError(Exception):
    """A call that ends with a status other than OK.

    Args:
        code: gRPC's.
        text: For the client.
        metadata: Further trailers.
    """

    def __init__(self, code: int, text: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.metadata = metadata or {}


class Answer(NamedTuple):
    """What a method gives."""

    message: bytes
    metadata: Mapping[str, str] | bytes = b""
    """Initial metadata, or its header fields."""


class Job(Protocol):
    """What answers a call without a task."""

    def cancel(self) -> object:
        """The client has gone."""


class Method(NamedTuple):
    """One method of a service."""

    answer: Callable[["Call", bytes], Awaitable[Answer]] | None
    """Given the call and one message; raises `BadCallError`."""
    begin: Callable[["Call", bytes], None] | None = None
    """The same without a task: it sets the call's `job`, which replies later. Raises `BadCallError`."""
    streams: bool = False
    """Takes many messages, and gives an answer to each."""


@dataclass(slots=True, eq=False)
class Call:
    """One stream of a connection."""

    connection: "GrpcConnection"
    stream: int
    headers: h2.Headers
    window: int
    """What the peer still takes on this stream."""
    received_ns: int = 0
    """When its headers had arrived, on the server's clock."""
    method: Method | None = None
    job: Job | None = None
    half_closed: bool = False
    """The client sends nothing more."""
    unrefilled: int = 0
    """Bytes taken since the stream's window was last refilled."""
    buffer: bytearray = field(default_factory=bytearray)
    held_bytes: int = 0
    """Counted with the server."""
    buffered_bytes: int = 0
    """Of them, those of the buffer."""
    deadline: asyncio.TimerHandle | None = None
    blocked_since_s: float = 0.0
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _working: int = 0
    """Messages being answered; a task is in `_tasks` a turn longer."""
    _pending: bytearray = field(default_factory=bytearray)
    """Message bytes that wait for the peer's window."""
    _trailers: bytes | None = None
    """Header block that ends the stream once nothing is pending."""
    _headed: bool = False
    _ended: bool = False

    # What the server has to say.

    def start(self, message: bytes) -> None:
        """Have the method answer one message, which is counted until it has."""
        self.have(self._answer, message)

    def have(self, handle: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Have something done by a task; whatever goes wrong ends the call."""
        self._working += 1
        task = asyncio.get_running_loop().create_task(self._handle(handle, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, handle: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await handle(*arguments)
        except BadCallError as error:
            self.refuse(error)
        except Exception:
            log.exception("a call failed")
            self.refuse(BadCallError(INTERNAL, "the server failed on this call"))
        finally:
            self._working -= 1
        self.end_if_done()

    async def _answer(self, message: bytes) -> None:
        assert self.method is not None
        assert self.method.answer is not None
        try:
            answer = await self.method.answer(self, message)
        finally:
            self.connection.calls.release(self, len(message))
        if self.method.streams:
            self.send(answer)
        else:
            self.reply(answer)

    def reply(self, answer: Answer) -> None:
        """Send one message and the status OK."""
        if self._ended:
            return
        self._ended = True
        size = len(answer.message)
        connection = self.connection
        framed = PREFIX_BYTES + size
        if framed <= min(self.window, connection.window, connection.frame_bytes) and connection.is_writable:
            self.window -= framed
            connection.window -= framed
            head = _HEAD_OK + _fields(answer.metadata)
            connection.write(
                b"".join(
                    (
                        h2.frame(h2.HEADERS, h2.END_HEADERS, self.stream, head),
                        h2.frame(h2.DATA, 0, self.stream, b"\0" + size.to_bytes(4, "big") + answer.message),
                        h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, self.stream, _TRAILERS_OK),
                    )
                )
            )
            self.done()
            return
        self._send_head(answer.metadata)
        self._trailers = _TRAILERS_OK
        self._add(answer.message)

    def send(self, answer: Answer) -> None:
        """Send one message of a stream."""
        if self._ended:
            return
        self._send_head(b"")
        self._add(answer.message)

    def refuse(self, error: BadCallError) -> None:
        """End the call with a status that is not OK. What the client still sends is not read."""
        if self._ended:
            return
        self._ended = True
        block = bytearray() if self._headed else bytearray(_HEAD_OK + _ACCEPTED)
        block += h2.field(b"grpc-status", str(error.code).encode())
        # It may quote the peer, whose bytes need be no text.
        text = error.text.encode(errors="replace")
        block += h2.field(b"grpc-message", quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode())
        block += _fields(error.metadata)
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._trailers = bytes(block)
        self.flush()

    def end_if_done(self) -> None:
        """End a stream whose client has nothing more to say and has heard everything."""
        is_stream = self.method is not None and self.method.streams
        if is_stream and self.half_closed and not (self.buffer or self._working or self._ended):
            self._send_head(b"")
            self._ended = True
            self._trailers = _TRAILERS_OK
            self.flush()

    def _send_head(self, metadata: Mapping[str, str] | bytes) -> None:
        if self._headed:
            return
        self._headed = True
        head = _HEAD_OK + _fields(metadata)
        self.connection.write(h2.frame(h2.HEADERS, h2.END_HEADERS, self.stream, head))

    def _add(self, message: bytes) -> None:
        self._pending += b"\0" + len(message).to_bytes(4, "big") + message
        self.connection.calls.keep(self, PREFIX_BYTES + len(message))
        self.flush()

    def flush(self) -> bool:
        """Send what the peer takes; whether nothing is left."""
        connection = self.connection
        sent = 0
        pending = self._pending
        while sent < len(pending):
            room = min(self.window, connection.window, connection.frame_bytes)
            if room <= 0 or not connection.is_writable:
                break
            part = bytes(pending[sent : sent + room])
            connection.write(h2.frame(h2.DATA, 0, self.stream, part))
            sent += len(part)
            self.window -= len(part)
            connection.window -= len(part)
        if sent:
            del pending[:sent]
            connection.calls.release(self, sent)
        if pending:
            if sent or not self.blocked_since_s:
                self.blocked_since_s = asyncio.get_running_loop().time()
            connection.wait_for_room(self)
            return False
        self.blocked_since_s = 0.0
        if self._trailers is not None:
            block, self._trailers = self._trailers, None
            connection.write(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, self.stream, block))
            if not self.half_closed:
                connection.write(h2.rst_stream(self.stream, h2.NO_ERROR))
            self.done()
        return True

    @property
    def is_full(self) -> bool:
        """Whether what the client sends has to wait."""
        return self._working >= STREAM_MESSAGES_MAX or len(self._pending) > UNANSWERED_BYTES_MAX

    @property
    def is_quiet(self) -> bool:
        """Whether it is a stream in which nothing is going on."""
        is_stream = self.method is not None and self.method.streams
        return is_stream and not (self._working or self._pending or self.buffer or self._ended)

    def done(self) -> None:
        """Give back what it holds."""
        self.connection.calls.closed(self)
        self.connection.finished(self)

    def cancel(self) -> None:
        """The client has gone: what is inside is cancelled, in the queue or on the engine."""
        self._ended = True
        for task in list(self._tasks):
            task.cancel()
        job, self.job = self.job, None
        if job is not None:
            job.cancel()
        self.connection.calls.closed(self)


def _fields(metadata: Mapping[str, str] | bytes) -> bytes:
    if isinstance(metadata, bytes):
        return metadata
    return b"".join([h2.field(name.encode(), value.encode()) for name, value in metadata.items()])
