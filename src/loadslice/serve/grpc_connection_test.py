"""A gRPC connection by itself, without a socket: who is cut off, who may go, what is counted."""

import asyncio
import gc
import zlib
from collections.abc import Callable

import pytest

from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_call import Answer, Call, Method
from loadslice.serve.grpc_calls import INFLATED_BYTES, Calls
from loadslice.serve.grpc_connection import PREFACE_TIMEOUT_S, GrpcConnection
from loadslice.serve.grpc_connections import LEAVING_MAX, GrpcConnections
from loadslice.serve.limits import Limits
from loadslice.serve.turns import Turns

LIMITS = Limits(connections_max=3, idle_s=0, body_timeout_s=5, reply_timeout_s=7, keepalive_timeout_s=100)


class Wire(asyncio.Transport):
    """Remembers what was sent; closes when it is told to and not before."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reads = self.is_open = True
        self.was_cut_off = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    def abort(self) -> None:
        self.is_open = False
        self.was_cut_off = True


class Port:
    """Connections that answer every message of `/stream` with it, and `/unary` never."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        async def echo(_call: Call, message: bytes) -> Answer:
            return Answer(message)

        self.held_bytes = 0
        self.limits = limits
        self.connections = GrpcConnections(limits)
        self.calls = Calls(
            {"/stream": Method(echo, streams=True), "/unary": Method(None, lambda _call, _message: None)},
            message_bytes_max=1 << 20,
            hold=self.keep,
            release=lambda fewer: self.keep(-fewer),
            keep=self.keep,
            turns=Turns(),
            now_ns=lambda: 0,
            message_timeout_s=limits.body_timeout_s,
        )

    def keep(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes

    def connect(self, said: bytes = h2.PREFACE) -> tuple[GrpcConnection, Wire]:
        connection, wire = GrpcConnection(self.calls, self.connections), Wire()
        connection.connection_made(wire)
        if wire.is_open:
            connection.data_received(said)
        return connection, wire


def opened(path: bytes, stream: int = 1) -> bytes:
    fields = ((b":method", b"POST"), (b":path", path), (b"content-type", b"application/grpc"))
    return h2.frame(h2.HEADERS, h2.END_HEADERS, stream, b"".join([h2.field(*one) for one in fields]))


def run(play: Callable[[Port], object], limits: Limits = LIMITS) -> None:
    async def scene() -> None:
        play(Port(limits))

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("said", "after_s"),
    [
        (b"", PREFACE_TIMEOUT_S),
        (b"PRI *", LIMITS.body_timeout_s),
        (h2.PREFACE + opened(b"/stream") + b"\0\1\0", LIMITS.body_timeout_s),
        (h2.PREFACE + opened(b"/stream") + b"\0\1\0\0\0\0\0\0\1" + bytes(200), LIMITS.body_timeout_s),
    ],
)
def test_who_does_not_finish_what_it_began_is_cut_off(said: bytes, after_s: float) -> None:
    def play(port: Port) -> None:
        connection, wire = port.connect(said)
        connection.sweep(connection.last_heard_s + after_s - 0.1, LIMITS)
        assert wire.is_open
        connection.sweep(connection.last_heard_s + after_s + 0.1, LIMITS)
        assert wire.was_cut_off

    run(play)


def test_a_peer_that_goes_on_a_byte_at_a_time_has_no_more_time_for_its_frame() -> None:
    def play(port: Port) -> None:
        connection, wire = port.connect(h2.PREFACE + opened(b"/stream") + b"\0\1\0\0\0\0\0\0\1")
        began_s = connection._frames.part_since_s
        for _ in range(20):
            connection.data_received(b"x")
        assert port.held_bytes == h2.HEAD_BYTES + 20
        assert connection._frames.part_since_s == began_s
        connection.sweep(began_s + LIMITS.body_timeout_s + 0.1, LIMITS)
        assert wire.was_cut_off
        connection.connection_lost(None)
        assert port.held_bytes == 0

    run(play)


def test_a_peer_that_does_not_read_is_not_read_from_and_cut_off_though_it_has_a_stream_open() -> None:
    def play(port: Port) -> None:
        connection, wire = port.connect(h2.PREFACE + opened(b"/stream"))
        connection.pause_writing()
        assert not wire.reads
        connection.sweep(connection._full_since_s + LIMITS.reply_timeout_s - 0.1, LIMITS)
        assert wire.is_open
        connection.sweep(connection._full_since_s + LIMITS.reply_timeout_s + 0.1, LIMITS)
        assert wire.was_cut_off

    run(play)


def test_a_stream_without_messages_may_stay_and_a_connection_without_calls_not_for_ever() -> None:
    def play(port: Port) -> None:
        busy, kept = port.connect(h2.PREFACE + opened(b"/stream"))
        idle, left = port.connect()
        for one in (busy, idle):
            one.sweep(one.last_heard_s + LIMITS.keepalive_timeout_s + 1, LIMITS)
        assert (kept.is_open, left.is_open) == (True, False)
        assert h2.frame(h2.GOAWAY, 0, 0, bytes(8)) in left.sent

    run(play)


def test_at_the_limit_the_one_that_was_quiet_longest_makes_room_and_those_with_a_call_stay() -> None:
    def play(port: Port) -> None:
        unary, first = port.connect(h2.PREFACE + opened(b"/unary"))
        quiet, second = port.connect(h2.PREFACE + opened(b"/stream"))
        begun, third = port.connect(h2.PREFACE + opened(b"/stream") + h2.frame(h2.DATA, 0, 1, b"\0\0\0\0\7abc"))
        for count, one in enumerate((unary, quiet, begun)):
            one.last_heard_s -= 30 - count
        _, fourth = port.connect()
        assert [wire.is_open for wire in (first, second, third, fourth)] == [True, False, True, True]
        assert not quiet.open
        port.connections.discard(quiet)  # closed
        _, fifth = port.connect(h2.PREFACE + opened(b"/unary"))
        assert fifth.is_open == (not fourth.is_open)

    run(play)


def test_at_the_limit_with_calls_everywhere_the_next_is_closed_and_is_not_one_of_them() -> None:
    def play(port: Port) -> None:
        for _ in range(3):
            port.connect(h2.PREFACE + opened(b"/unary"))
        connection, wire = port.connect()
        assert wire.was_cut_off
        assert len(port.connections) == 3
        connection.connection_lost(None)
        assert len(port.connections) == 3

    run(play)


def test_those_that_were_told_to_leave_and_do_not_read_it_do_not_pile_up() -> None:
    def play(port: Port) -> None:
        wires = [port.connect()[1] for _ in range(3 + 2 * LEAVING_MAX)]
        assert len(port.connections) <= 3 + LEAVING_MAX
        assert sum(wire.was_cut_off for wire in wires) == LEAVING_MAX
        assert sum(wire.is_open for wire in wires) == 3

    run(play)


def test_a_refusal_that_quotes_bytes_which_are_no_text_ends_its_call_alone() -> None:
    def play(port: Port) -> None:
        connection, wire = port.connect()
        fields = (b":method", b"POST"), (b":path", b"/unary"), (b"content-type", b"application/grpc")
        coded = b"".join([h2.field(*one) for one in (*fields, (b"grpc-encoding", b"\xff\xfe"))])
        connection.data_received(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, coded))
        connection.data_received(h2.frame(h2.DATA, h2.END_STREAM, 1, b"\1\0\0\0\1x"))
        assert b"grpc-message" in wire.sent
        assert wire.is_open
        connection.connection_lost(None)

    run(play)


def test_a_connection_that_has_closed_is_freed_and_not_by_the_garbage_collector() -> None:
    def play(port: Port) -> None:
        gc.collect()
        gc.disable()
        try:
            for said in (h2.PREFACE, h2.PREFACE + opened(b"/unary"), h2.PREFACE + b"\0\0\0\0\0\0\0\0\0"):
                port.connect(said)[0].connection_lost(None)
            assert not [one for one in gc.get_objects() if type(one) is GrpcConnection]
        finally:
            gc.enable()

    run(play)


def test_unpacking_a_message_keeps_nobody_waiting() -> None:
    packed = zlib.compress(bytes(1 << 20), 9)
    turns = list(Port().calls._unpacking(b"\1" + len(packed).to_bytes(4, "big") + packed, "deflate"))
    assert len(turns) >= (1 << 20) // INFLATED_BYTES


def test_a_call_with_a_header_that_decides_given_twice_is_refused() -> None:
    def play(port: Port) -> None:
        connection, wire = port.connect()
        fields = (b":method", b"POST"), (b":path", b"/unary"), (b"content-type", b"application/grpc")
        twice = b"".join([h2.field(*one) for one in (*fields, (b"authorization", b"a"), (b"authorization", b"b"))])
        connection.data_received(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, twice))
        assert b"given twice" in wire.sent
        connection.connection_lost(None)

    run(play)
