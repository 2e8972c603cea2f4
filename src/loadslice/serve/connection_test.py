"""The connection by itself: what goes in on one side of it and what comes out on the other, without a socket."""

import asyncio
import gc
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.serve.body import ALIGNMENT, CONTINUE, Bodies
from loadslice.serve.connection import UNSENT_BYTES_MAX, Connection
from loadslice.serve.head import Head
from loadslice.serve.http_server import HttpServer
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import Reply, refuse


class Wire(asyncio.Transport):
    """Remembers what was sent and whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reads = True
        self.is_open = True
        self.protocol: Connection | None = None
        self.is_stuck = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)
        if self.is_stuck and self.protocol is not None:
            self.protocol.pause_writing()

    def writelines(self, parts) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        assert high == UNSENT_BYTES_MAX
        assert low == 0

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.sent += b"<eof>"

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    abort = close


class Echo:
    """Answers with the body, now or when told to."""

    def __init__(self, limits: Limits, *, waits: bool = False) -> None:
        self.bodies = Bodies(limits)
        self.waits = waits
        self.heads: list[Head] = []
        self.seen: list[bytes] = []
        self.waiting: list[Connection] = []
        self.left = 0
        self.replied = 0
        self.slow = 0
        self.refusals: list[RefusalError] = []

    def begin(self, head: Head, connection: Connection) -> bool:
        self.heads.append(head)
        if head.path == "/refused":
            raise RefusalError(404, "no such path")
        return head.path != "/unwanted"

    def handle(self, head: Head, body: bytes | memoryview, connection: Connection) -> None:
        self.seen.append(bytes(body))
        if self.waits:
            self.waiting.append(connection)
        else:
            connection.reply(Reply(200, bytes(body), "text/plain"))

    def refused(self, refusal: RefusalError) -> Reply:
        self.refusals.append(refusal)
        return refuse(refusal)

    def sent(self, connection: Connection) -> None:
        self.replied += 1

    def copied(self, connection: Connection) -> None:
        self.slow += 1

    def gone(self, connection: Connection) -> None:
        self.left += 1


def push(connection: Connection, data: bytes, step: int | None = None) -> None:
    """Give a connection bytes as an event loop does, in pieces of at most ``step``."""
    while data:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data), step or len(data))
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


async def turns(count: int = 4) -> None:
    for _ in range(count):
        loop = asyncio.get_running_loop()
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


def on(wire: Wire, handler: Echo, limits: Limits) -> tuple[HttpServer, Connection]:
    server = HttpServer(handler, limits)
    connection = server()
    wire.protocol = connection
    connection.connection_made(wire)
    return server, connection


def post(body: bytes, path: str = "/echo") -> bytes:
    return b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=6),
    st.integers(1, 200),
    st.booleans(),
)
@settings(deadline=None, max_examples=200)
def test_requests_arrive_whole_and_in_order_however_they_are_cut(bodies, step, ends_chunked) -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        stream = b"".join(post(body) for body in bodies)
        if ends_chunked:
            stream += chunked(b"last" * 20, 7)
        push(connection, stream, step)
        await turns(4 * len(bodies) + 8)
        assert handler.seen == bodies + [b"last" * 20] * ends_chunked
        assert wire.sent.count(b"HTTP/1.1 200 OK\r\n") == handler.replied == len(handler.seen)
        assert handler.bodies.held_bytes == 0
        connection.connection_lost(None)

    asyncio.run(run())


@given(st.binary(max_size=400), st.integers(1, 50))
@settings(deadline=None, max_examples=300)
def test_bytes_that_mean_nothing_are_answered_or_waited_for_and_nothing_stays_held(data, step) -> None:
    async def run() -> None:
        limits = Limits(body_bytes_max=100)
        handler, wire = Echo(limits), Wire()
        server, connection = on(wire, handler, limits)
        push(connection, data, step)
        await turns(len(data) + 4)
        connection.connection_lost(None)
        assert handler.bodies.held_bytes == 0
        assert not server.connections

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/refused", "/unwanted"])
def test_after_a_refusal_a_body_that_waited_for_leave_may_not_come_and_the_next_request_is_not_taken_for_it(
    path,
) -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        head = b"POST %b HTTP/1.1\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n" % path.encode()
        push(connection, head)
        assert b"Connection: close" in wire.sent
        push(connection, post(b"next"))
        await turns()
        assert wire.sent.endswith(b"<eof>"), "the client learns at once that it is not read"
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_client_that_leaves_takes_its_request_with_it_and_what_it_held() -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits, waits=True), Wire()
        server, connection = on(wire, handler, limits)
        push(connection, post(b"body"))
        assert handler.bodies.held_bytes == 4
        connection.connection_lost(None)
        assert (handler.left, handler.bodies.held_bytes, len(server.connections)) == (1, 0, 0)
        handler.waiting[0].reply(Reply(200, b"too late"))
        assert wire.sent == b""

    asyncio.run(run())


def test_a_body_that_nobody_wants_is_skipped_and_the_next_request_is_answered() -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        push(connection, post(b"a" * 500, "/refused") + post(b"b" * 500, "/unwanted") + post(b"next"), 90)
        await turns(20)
        assert handler.seen == [b"", b"next"]
        assert re.findall(rb"HTTP/1.1 (\d+)", wire.sent) == [b"404", b"200", b"200"]
        assert wire.is_open
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_client_that_does_not_read_is_asked_nothing_more_and_its_reply_stays_counted() -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        wire.is_stuck = True
        push(connection, post(b"one") + post(b"two"))
        await turns()
        assert handler.seen == [b"one"]
        assert handler.replied == 0
        assert handler.bodies.held_bytes > 3
        wire.is_stuck = False
        connection.resume_writing()
        await turns()
        assert handler.seen == [b"one", b"two"]
        assert (handler.replied, handler.bodies.held_bytes) == (2, 0)
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_client_that_waits_for_leave_may_send_chunks_then() -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        head, empty_line, body = chunked(b"body", 2).partition(b"\r\n\r\n")
        push(connection, head + b"\r\nExpect: 100-continue" + empty_line)
        assert wire.sent == CONTINUE
        push(connection, body)
        assert handler.seen == [b"body"]
        connection.connection_lost(None)

    asyncio.run(run())


def test_old_clients_are_told_that_the_connection_stays_open() -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        push(connection, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"\r\nConnection: keep-alive\r\n" in wire.sent
        push(connection, b"GET / HTTP/1.0\r\n\r\n")
        assert not wire.is_open

    asyncio.run(run())


def test_a_connection_that_has_closed_is_freed_and_not_by_the_garbage_collector() -> None:
    async def run() -> None:
        limits = Limits()
        gc.collect()
        gc.disable()
        try:
            for sent in (b"GET / HT", post(b"body"), chunked(b"body", 2), chunked(b"body", 2)[:-4]):
                connection = on(Wire(), Echo(limits), limits)[1]
                push(connection, sent)
                connection.connection_lost(None)
                connection._server._sweeper.cancel()
                del connection
            await turns()
            assert not [one for one in gc.get_objects() if type(one) is Connection]
        finally:
            gc.enable()

    asyncio.run(run())


def large(body: bytes, head: bytes = b"") -> bytes:
    return b"POST /v2 HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


class Taker(Echo):
    """Keeps each body as it was given, and answers with nothing."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.taken: list[bytes | memoryview] = []

    def handle(self, head: Head, body: bytes | memoryview, connection: Connection) -> None:
        self.taken.append(body)
        connection.reply(Reply(200, b"", "text/plain"))


@pytest.mark.parametrize("step", [None, 20_000, 50_000])
def test_large_bodies_that_lie_alike_are_received_in_place_and_others_are_not_mistaken_for_them(step) -> None:
    async def play() -> None:
        limits = Limits()
        taker = Taker(limits)
        server = HttpServer(taker, limits)
        connection = Connection(server)
        connection.connection_made(Wire())
        sizes = [40_000, 40_000, 60_000, 40_000, 20_000, 9, 40_000, 40_000]
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
        for number, body in enumerate(bodies):
            push(connection, large(body, b"X-A: b\r\n" if number == 3 else b""), step)
        push(connection, large(bodies[0]) + large(bodies[5]) + large(bodies[1]), step)
        await turns()
        assert [bytes(body) for body in taker.taken] == [*bodies, bodies[0], bodies[5], bodies[1]]
        assert taker.bodies.held_bytes == 0
        connection.connection_lost(None)
        server._sweeper.cancel()

    asyncio.run(play())


def test_the_next_large_body_is_received_where_it_stays_its_tensors_aligned() -> None:
    async def play() -> None:
        limits = Limits()
        taker = Taker(limits)
        server = HttpServer(taker, limits)
        connection = Connection(server)
        connection.connection_made(Wire())
        wire = large(b"{" + b"\7" * 40_000, b"Inference-Header-Content-Length: 1\r\n")
        push(connection, wire)
        room = connection.get_buffer(-1)
        assert len(room) > len(wire), "or a read that fills it is followed by another"
        room[: len(wire)] = wire
        connection.buffer_updated(len(wire))
        whole, body = (np.frombuffer(one, np.uint8).ctypes.data for one in (room, taker.taken[1]))
        assert body == whole + len(wire) - 40_001
        assert (body + 1) % ALIGNMENT == 0
        assert bytes(taker.taken[1][1:]) == b"\7" * 40_000
        connection.connection_lost(None)
        server._sweeper.cancel()

    asyncio.run(play())
