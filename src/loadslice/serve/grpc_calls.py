"""One gRPC call: its message in, its answer and status out; who may call what, and how much all calls may hold."""

import asyncio
import logging
import zlib
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
INFLATE = {"gzip": 31, "deflate": 15}
"""Window bits of zlib by name of a coding."""

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

    def cancel(self) -> None:
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
        """Have the method answer one message."""
        self._working += 1
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: bytes) -> None:
        assert self.method is not None
        assert self.method.answer is not None
        try:
            answer = await self.method.answer(self, message)
        except BadCallError as error:
            self.refuse(error)
            return
        except Exception:
            log.exception("a call failed")
            self.refuse(BadCallError(INTERNAL, "the server failed on this call"))
            return
        finally:
            self._working -= 1
        if not self.method.streams:
            self.reply(answer)
            return
        self.send(answer)
        self.end_if_done()

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
        block += h2.field(b"grpc-message", quote(error.text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode())
        block += _fields(error.metadata)
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._trailers = bytes(block)
        self.flush()

    def end_if_done(self) -> None:
        """End a stream whose client has nothing more to say and has heard everything."""
        if self.half_closed and not (self.buffer or self._working or self._ended):
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
        self.connection.calls.hold(self, PREFIX_BYTES + len(message))
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


class Calls:
    """Takes calls apart and gives them to methods; one for all connections of a server.

    Args:
        methods: By path.
        message_bytes_max: Largest message.
        hold: Told of bytes that are kept; raises `BadCallError` where that is too much for the server.
        release: Told that they are not kept any more.
        now_ns: The server's clock.
        message_timeout_s: Longest time a whole message may take to arrive.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        message_bytes_max: int,
        hold: Callable[[int], None],
        release: Callable[[int], None],
        now_ns: Callable[[], int],
        message_timeout_s: float,
    ) -> None:
        self.stream_window = min(h2.WINDOW_MAX, max(message_bytes_max, h2.WINDOW_DEFAULT) + h2.FRAME_BYTES_DEFAULT)
        """As large as a message may be: a unary call never waits for a refill."""
        self._methods = methods
        self._message_bytes_max = message_bytes_max
        self._hold = hold
        self._release = release
        self._now_ns = now_ns
        self._message_timeout_s = message_timeout_s

    def begin(self, call: Call) -> None:
        """A call's headers have arrived.

        Raises:
            BadCallError: It is not one of ours.
        """
        call.received_ns = self._now_ns()
        headers = call.headers
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            raise BadCallError(UNKNOWN, "this port speaks gRPC only")
        method = self._methods.get(headers.get(":path", ""))
        if method is None:
            raise BadCallError(UNIMPLEMENTED, "no such method")
        call.method = method
        call.deadline = asyncio.get_running_loop().call_later(self._message_timeout_s, self._too_slow, call)

    def _too_slow(self, call: Call) -> None:
        if not call.half_closed and not (call.method is not None and call.method.streams and not call.buffer):
            call.refuse(BadCallError(DEADLINE_EXCEEDED, "the message did not arrive in time"))

    def feed(self, call: Call, part: bytes) -> None:
        """Part of a call's messages has arrived.

        Raises:
            BadCallError: Too much of it.
        """
        assert call.method is not None
        buffer = call.buffer
        gathered = len(buffer) + len(part)
        if gathered > h2.FRAME_BYTES_DEFAULT:  # small ones are counted when they are whole
            self.hold(call, gathered - call.held_bytes)
        buffer += part
        if len(buffer) < PREFIX_BYTES:
            return
        length = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
        if length > self._message_bytes_max:
            raise BadCallError(
                RESOURCE_EXHAUSTED, f"the message has {length} bytes, {self._message_bytes_max} is the most taken"
            )
        if call.method.streams:
            self._take_streamed(call)
        elif len(buffer) > PREFIX_BYTES + length:
            raise BadCallError(INVALID_ARGUMENT, "more than one message in a unary call")

    def _take_streamed(self, call: Call) -> None:
        buffer = call.buffer
        while len(buffer) >= PREFIX_BYTES:
            length = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
            if length > self._message_bytes_max:
                raise BadCallError(
                    RESOURCE_EXHAUSTED, f"the message has {length} bytes, {self._message_bytes_max} is the most taken"
                )
            if len(buffer) < PREFIX_BYTES + length:
                return
            message = self._message(call, bytes(buffer[: PREFIX_BYTES + length]))
            del buffer[: PREFIX_BYTES + length]
            self.release(call, call.held_bytes)
            if call.is_full:
                raise BadCallError(RESOURCE_EXHAUSTED, "too many messages of this stream are inside or unread")
            call.start(message)
            if call.unrefilled > self.stream_window // 2:
                call.connection.write(h2.window_update(call.stream, call.unrefilled))
                call.unrefilled = 0

    def end(self, call: Call) -> None:
        """The client has said everything.

        Raises:
            BadCallError: Not a whole message.
        """
        assert call.method is not None
        if call.deadline is not None:
            call.deadline.cancel()
            call.deadline = None
        buffer = call.buffer
        if call.method.streams:
            if buffer:
                raise BadCallError(INVALID_ARGUMENT, "the last message is cut off")
            call.end_if_done()
            return
        if len(buffer) < PREFIX_BYTES or len(buffer) != PREFIX_BYTES + int.from_bytes(buffer[1:PREFIX_BYTES], "big"):
            raise BadCallError(INVALID_ARGUMENT, "the message is cut off")
        message = self._message(call, bytes(buffer))
        call.buffer = bytearray()
        self.hold(call, len(message) - call.held_bytes)
        if call.method.begin is not None:
            call.method.begin(call, message)
        else:
            call.start(message)

    def _message(self, call: Call, framed: bytes) -> bytes:
        if framed[0] == 0:
            return framed[PREFIX_BYTES:]
        coding = call.headers.get("grpc-encoding", "identity")
        if framed[0] != 1 or coding not in INFLATE:
            raise BadCallError(
                UNIMPLEMENTED, f"coding '{coding[:32]}' is not taken", {"grpc-accept-encoding": "identity,deflate,gzip"}
            )
        inflater = zlib.decompressobj(INFLATE[coding])
        try:
            # A few kilobytes can unpack to gigabytes: what goes beyond the limit is never unpacked.
            message = inflater.decompress(framed[PREFIX_BYTES:], self._message_bytes_max + 1)
        except zlib.error as error:
            raise BadCallError(INVALID_ARGUMENT, f"the message is not {coding}") from error
        if len(message) > self._message_bytes_max:
            raise BadCallError(RESOURCE_EXHAUSTED, f"the message unpacks to more than {self._message_bytes_max} bytes")
        if not inflater.eof:
            raise BadCallError(INVALID_ARGUMENT, f"the message is not {coding}")
        return message

    def hold(self, call: Call, more_bytes: int) -> None:
        """Count bytes that a call keeps; negative: it keeps that many fewer."""
        if more_bytes > 0:
            self._hold(more_bytes)
        elif more_bytes < 0:
            self._release(-more_bytes)
        call.held_bytes += more_bytes

    def release(self, call: Call, fewer_bytes: int) -> None:
        """A call keeps fewer bytes."""
        fewer_bytes = min(fewer_bytes, call.held_bytes)
        if fewer_bytes:
            self._release(fewer_bytes)
            call.held_bytes -= fewer_bytes

    def closed(self, call: Call) -> None:
        """A call has ended, however it did."""
        self.release(call, call.held_bytes)
        call.buffer = bytearray()
        if call.deadline is not None:
            call.deadline.cancel()
            call.deadline = None
