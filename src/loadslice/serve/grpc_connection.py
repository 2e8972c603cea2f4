"""One HTTP/2 connection that carries gRPC calls: frames in, calls out, answers back. It knows nothing of inference.

Hostile input: every length is checked before anything is kept. Headers, messages, streams and what all calls hold
together are bounded; a peer that keeps the server busy without asking for anything (pings, settings, resets, empty
frames) uses up its credit and is sent away; one that does not read, or does not finish what it began, is cut off.
"""

import asyncio
import struct
from typing import cast

from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_call import BadCallError, Call
from loadslice.serve.grpc_calls import Calls
from loadslice.serve.grpc_connections import GrpcConnections
from loadslice.serve.grpc_frames import ProtocolError
from loadslice.serve.grpc_incoming import FRAME_BYTES_MAX, FrameReader, unpadded
from loadslice.serve.limits import Limits

STREAMS_MAX = 256
"""Calls open at once on one connection."""

CREDIT_MAX = 20_000
CREDIT_PER_CALL = 50
"""What a peer may spend on frames that ask for nothing: one each, a reset of a call `RESET_COST`."""
RESET_COST = 20

PREFACE_TIMEOUT_S = 10.0
LINGER_S = 2.0
"""How long what a peer still sends after its fault is read and thrown away, so that it gets to read what the fault was:
closing over unread bytes makes a reset, which overtakes the words."""
REFILL_BYTES = 1 << 20
"""The connection's own window is refilled in steps of this; calls are bounded by what they hold, not by it."""

_HEAD = struct.Struct(">I")
_PAIR = struct.Struct(">HI")


class GrpcConnection(asyncio.Protocol):
    """See the module.

    Args:
        calls: Who answers.
        connections: It is among these from its being made, after any TLS handshake, to its end.
    """

    def __init__(self, calls: Calls, connections: GrpcConnections) -> None:
        self.calls = calls
        self.open: dict[int, Call] = {}
        """Calls by stream, until they are answered or reset."""
        self.last_heard_s = asyncio.get_running_loop().time()
        self.is_writable = True
        self.window = h2.WINDOW_DEFAULT
        """What the peer takes over all streams."""
        self.stream_window = h2.WINDOW_DEFAULT
        """What it takes on a new stream."""
        self.frame_bytes = h2.FRAME_BYTES_DEFAULT
        self.transport: asyncio.Transport | None = None
        self._connections = connections
        self._frames = FrameReader(calls, self._frame, self._spend, self.last_heard_s)
        self._headers = h2.HeaderReader()
        self._last_stream = 0
        self._credit = CREDIT_MAX
        self._consumed = 0
        self._full_since_s = 0.0
        """Since when the peer has not read, while it does not."""
        self._leaving = False
        self._lingering = False
        """It has been told its fault: nothing it sends is looked at, and nothing more is written."""
        self._waiting: list[Call] = []
        """Calls whose answer waits for the peer's window, or for the transport."""

    # Of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we take, unless there are too many."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        if not self._connections.admit(self):
            self.transport.abort()
            return
        self.transport.write(
            h2.settings(
                (
                    (h2.S_STREAMS, STREAMS_MAX),
                    (h2.S_WINDOW, self.calls.stream_window),
                    (h2.S_FRAME_BYTES, FRAME_BYTES_MAX),
                    (h2.S_LIST_BYTES, h2.HEADER_BYTES_MAX),
                )
            )
            + h2.window_update(0, h2.WINDOW_MAX - h2.WINDOW_DEFAULT)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is inside."""
        self.transport = None
        self._frames.stop()
        del self._frames  # it refers to us: both would wait for the garbage collector
        for call in list(self.open.values()):
            call.cancel()
        self.open.clear()
        self._waiting.clear()
        self._connections.discard(self)

    def pause_writing(self) -> None:
        """The peer does not read fast enough: nothing more is written, nor read, until it does."""
        self.is_writable = False
        self._full_since_s = asyncio.get_running_loop().time()
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self.is_writable = True
        if self.transport is not None:
            self.transport.resume_reading()
            self._pump()

    def data_received(self, data: bytes) -> None:
        """Take what arrived, frame by frame."""
        self.last_heard_s = asyncio.get_running_loop().time()
        if self._lingering:
            return
        try:
            self._frames.feed(data, self.last_heard_s)
        except ProtocolError as error:
            self.leave(error.code, error.text)

    def eof_received(self) -> bool:
        """A peer that has closed its side wants nothing any more."""
        return False

    # Frames.

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """Take one frame; whether more are wanted."""
        if kind == h2.DATA:
            self._on_data(flags, stream, payload)
        elif kind == h2.HEADERS:
            self._on_block(flags, stream, payload)
        elif kind == h2.WINDOW_UPDATE:
            self._on_window_update(stream, payload)
        elif kind == h2.RST_STREAM:
            self._on_reset(stream, payload)
        elif kind == h2.SETTINGS:
            self._on_settings(flags, stream, payload)
        elif kind == h2.PING:
            self._on_ping(flags, stream, payload)
        elif kind == h2.GOAWAY:
            self._leaving = True
            self._close_if_done()
        elif kind == h2.PUSH_PROMISE:
            raise ProtocolError(h2.PROTOCOL_ERROR, "a client cannot push")
        else:  # PRIORITY, and kinds that are not known: to be ignored
            self._spend(1)
        return self.transport is not None and not self.transport.is_closing()

    def _spend(self, cost: int) -> None:
        self._credit -= cost
        if self._credit < 0:
            raise ProtocolError(h2.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def _on_block(self, flags: int, stream: int, block: bytes) -> None:
        headers = self._headers.read(block)  # even of a refused call: the table must be kept in step
        call = self.open.get(stream)
        if call is not None:  # trailers, which gRPC clients do not send
            if not flags & h2.END_STREAM:
                raise ProtocolError(h2.PROTOCOL_ERROR, "headers in the midst of a stream")
            self._end_of(call)
            return
        if not stream & 1 or stream <= self._last_stream:
            if stream & 1:  # a stream that has ended; the peer has not heard yet
                self._spend(1)
                return
            raise ProtocolError(h2.PROTOCOL_ERROR, "not a stream that a client opens")
        self._last_stream = stream
        if self._leaving or len(self.open) >= STREAMS_MAX:
            self._spend(1)
            self.write(h2.rst_stream(stream, h2.REFUSED_STREAM))
            return
        call = Call(self, stream, headers, self.stream_window)
        self.open[stream] = call
        try:
            self.calls.begin(call)
        except BadCallError as error:
            call.refuse(error)
            return
        if flags & h2.END_STREAM:
            self._end_of(call)

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._consumed += len(payload)
        if self._consumed >= REFILL_BYTES:
            self.write(h2.window_update(0, self._consumed))
            self._consumed = 0
        if stream == 0 or stream > self._last_stream:
            raise ProtocolError(h2.PROTOCOL_ERROR, "data on a stream that was not opened")
        call = self.open.get(stream)
        if call is None:  # answered or reset already
            return
        part = unpadded(payload) if flags & h2.PADDED else payload
        if not part and not flags & h2.END_STREAM:
            self._spend(1)
        call.unrefilled += len(payload)
        if call.unrefilled > self.calls.stream_window:
            raise ProtocolError(h2.FLOW_CONTROL_ERROR, "more data than the window of its stream")
        try:
            self.calls.feed(call, part, ends=flags & h2.END_STREAM)
        except BadCallError as error:
            call.refuse(error)
            return
        if flags & h2.END_STREAM:
            self._end_of(call)

    def _end_of(self, call: Call) -> None:
        if call.half_closed:
            raise ProtocolError(h2.STREAM_CLOSED, "a stream ended twice")
        call.half_closed = True
        try:
            self.calls.end(call)
        except BadCallError as error:
            call.refuse(error)

    def _on_reset(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4 or stream == 0 or stream > self._last_stream:
            raise ProtocolError(h2.PROTOCOL_ERROR, "a reset of no stream")
        self._spend(RESET_COST)
        call = self.open.pop(stream, None)
        if call is not None:
            call.cancel()
            self._forget(call)
        self._close_if_done()

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream != 0 or len(payload) % 6 or (flags & h2.ACK and payload):
            raise ProtocolError(h2.FRAME_SIZE_ERROR, "not settings")
        if flags & h2.ACK:
            return
        self._spend(1 + len(payload) // 6)
        for name, value in _PAIR.iter_unpack(payload):
            if name == h2.S_WINDOW:
                if value > h2.WINDOW_MAX:
                    raise ProtocolError(h2.FLOW_CONTROL_ERROR, "a window is too large")
                for call in self.open.values():
                    call.window += value - self.stream_window
                self.stream_window = value
            elif name == h2.S_FRAME_BYTES:
                if not h2.FRAME_BYTES_DEFAULT <= value < 1 << 24:
                    raise ProtocolError(h2.PROTOCOL_ERROR, "a frame size that is none")
                self.frame_bytes = min(value, FRAME_BYTES_MAX)
        self.write(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._pump()

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 8 or stream != 0:
            raise ProtocolError(h2.FRAME_SIZE_ERROR, "not a ping")
        if not flags & h2.ACK:
            self._spend(1)
            self.write(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _on_window_update(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(h2.FRAME_SIZE_ERROR, "not a window update")
        increment = _HEAD.unpack(payload)[0] & 0x7FFFFFFF
        if increment == 0:
            raise ProtocolError(h2.PROTOCOL_ERROR, "a window that grows by nothing")
        if stream == 0:
            self.window += increment
            grown = self.window
        else:
            call = self.open.get(stream)
            if call is None:
                self._spend(1)
                return
            call.window += increment
            grown = call.window
        if grown > h2.WINDOW_MAX:
            raise ProtocolError(h2.FLOW_CONTROL_ERROR, "a window is too large")
        if self._waiting:
            self._pump()
        else:
            self._spend(1)

    # Answers.

    def write(self, data: bytes) -> None:
        """Send bytes; after the end of the connection they go nowhere."""
        if self.transport is not None and not self._lingering:
            self.transport.write(data)

    def wait_for_room(self, call: Call) -> None:
        """Have a call's unsent bytes go out as the peer makes room."""
        if call not in self._waiting:
            self._waiting.append(call)

    def finished(self, call: Call) -> None:
        """A call has been answered in full."""
        if self.open.pop(call.stream, None) is not None:
            self._credit = min(CREDIT_MAX, self._credit + CREDIT_PER_CALL)
            self._forget(call)
            self._close_if_done()

    def _forget(self, call: Call) -> None:
        if call in self._waiting:
            self._waiting.remove(call)

    def _pump(self) -> None:
        for call in list(self._waiting):
            if not self.is_writable or self.window <= 0:
                return
            if call.flush():
                self._forget(call)

    # The end.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost when it is closed: no call is open but streams in which nothing is going on."""
        return not self._leaving and all(call.is_quiet for call in self.open.values())

    @property
    def has_left(self) -> bool:
        """Whether it is there only to be closed."""
        return self._leaving and not self.open

    def let_go(self) -> None:
        """Close an idle one, with its streams."""
        for call in list(self.open.values()):
            call.cancel()
        self.open.clear()
        self.leave()

    def abort(self) -> None:
        """Close it at once, and forget what has been written."""
        if self.transport is not None:
            self.transport.abort()

    def leave(self, code: int = h2.NO_ERROR, text: str = "") -> None:
        """Take no more calls. After an error at once; otherwise when those that are open have been answered."""
        if not self._leaving:
            self._leaving = True
            self.write(h2.goaway(self._last_stream, code, text))
        if code != h2.NO_ERROR and not self._lingering:
            self._linger()
        self._close_if_done()

    def _linger(self) -> None:
        for call in list(self.open.values()):
            call.cancel()
        self.open.clear()
        self._waiting.clear()
        self._frames.stop()
        if self.transport is None or not self.transport.can_write_eof():  # TLS closes both sides at once
            return
        self._lingering = True
        self.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._close)

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def _close_if_done(self) -> None:
        if self._leaving and not self.open and not self._lingering:
            self._close()

    def sweep(self, now_s: float, limits: Limits) -> None:
        """Cut off a peer that does not greet, does not read, does not finish a frame, or is only there.

        Args:
            now_s: The loop's time.
            limits: How long it may.
        """
        if self.transport is None:
            return
        silent_s = now_s - self.last_heard_s
        if (
            (not self._frames.has_greeted and silent_s > PREFACE_TIMEOUT_S)
            or (self._frames.has_part and now_s - self._frames.part_since_s > limits.body_timeout_s)
            or (not self.is_writable and now_s - self._full_since_s > limits.reply_timeout_s)
            or any(now_s - call.blocked_since_s > limits.reply_timeout_s for call in self._waiting)
        ):
            self.transport.abort()
        elif not self.open and silent_s > limits.keepalive_timeout_s:
            self.leave()
        if self.transport.is_closing() and silent_s > limits.reply_timeout_s + 1:
            self.transport.abort()
