"""Who is refused, kept waiting or let go by a connection, and what it holds meanwhile; without a socket."""

import asyncio

import pytest

from loadslice.serve.connection import HEAD_S, Connection
from loadslice.serve.connection_test import Echo, Wire, chunked, on, post, push, turns
from loadslice.serve.http_server import TURNED_AWAY_MAX, HttpServer
from loadslice.serve.incoming import AHEAD_BYTES_MAX
from loadslice.serve.limits import Limits
from loadslice.serve.reply import Reply


def test_one_request_at_a_time_is_with_the_handler_and_a_client_that_sends_much_ahead_is_not_read_from() -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits, waits=True), Wire()
        _, connection = on(wire, handler, limits)
        push(connection, post(b"first") + post(b"second"))
        push(connection, post(b"x" * AHEAD_BYTES_MAX))
        await turns()
        assert handler.seen == [b"first"]
        assert not wire.reads
        for expected in (b"first", b"second"):
            handler.waiting[-1].reply(Reply(200, b""))
            await turns()
            assert expected in handler.seen
        assert wire.reads
        assert handler.seen[-1] == b"x" * AHEAD_BYTES_MAX
        connection.connection_lost(None)
        assert handler.left == 1

    asyncio.run(run())


def test_what_clients_send_ahead_is_counted_and_nobody_is_read_from_ahead_where_too_much_is_held() -> None:
    async def run() -> None:
        limits = Limits(held_bytes_max=5000)
        handler, wire = Echo(limits, waits=True), Wire()
        _, connection = on(wire, handler, limits)
        push(connection, post(b"first"))
        before = handler.bodies.held_bytes
        ahead = post(b"x" * 3000)
        push(connection, ahead, 500)
        assert handler.bodies.held_bytes == before + len(ahead)
        assert wire.reads
        push(connection, b"y" * 3000)
        assert not wire.reads
        handler.waiting[-1].reply(Reply(200, b""))
        await turns()
        assert handler.seen[-1] == b"x" * 3000
        assert wire.reads, "it is its turn"
        assert handler.bodies.held_bytes == 3000 + 3000
        connection.connection_lost(None)
        assert handler.bodies.held_bytes == 0

    asyncio.run(run())


def test_half_a_head_is_counted() -> None:
    async def run() -> None:
        limits = Limits()
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        push(connection, b"GET / HTTP/1.1\r\nx: ")
        assert handler.bodies.held_bytes == len(b"GET / HTTP/1.1\r\nx: ")
        push(connection, b"y\r\n\r\n")
        assert (handler.bodies.held_bytes, handler.replied) == (0, 1)
        push(connection, b"GET ")
        connection.connection_lost(None)
        assert handler.bodies.held_bytes == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 40_000, b"400"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 40_000 + b"\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 200\r\n\r\n", b"413"),
        (chunked(b"a" * 200, 10), b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
)
def test_what_is_too_much_is_refused_and_the_connection_ends_once_the_client_could_read_it(sent, status) -> None:
    async def run() -> None:
        limits = Limits(body_bytes_max=100)
        handler, wire = Echo(limits), Wire()
        _, connection = on(wire, handler, limits)
        push(connection, sent, 1000)
        await turns()
        assert wire.sent.startswith(b"HTTP/1.1 " + status)
        assert b"Connection: close" in wire.sent
        assert wire.sent.endswith(b"<eof>")
        push(connection, b"more that nobody reads")
        assert handler.seen == []
        assert len(handler.refusals) == 1
        connection.connection_lost(None)
        assert handler.bodies.held_bytes == 0

    asyncio.run(run())


def test_whoever_brings_no_request_for_too_long_is_let_go() -> None:
    async def run() -> None:
        limits = Limits(keepalive_timeout_s=0.05)
        handler, wire = Echo(limits, waits=True), Wire()
        server, connection = on(wire, handler, limits)
        busy = Wire()
        kept = server()
        kept.connection_made(busy)
        push(kept, post(b"long"))
        push(connection, b"GET / HT")
        async with asyncio.timeout(10):
            while wire.is_open:
                await turns()
        assert busy.is_open, "its request is being answered"
        kept.connection_lost(None)
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_client_that_never_takes_the_rest_of_its_reply_is_cut_off_though_its_connection_was_closed() -> None:
    async def run() -> None:
        for ends in (Connection.close, Connection.eof_received):
            limits = Limits(reply_timeout_s=0.05, keepalive_timeout_s=0.05)
            handler, wire = Echo(limits), Wire()
            server, connection = on(wire, handler, limits)
            push(connection, post(b"one"))
            wire.unsent, aborted = 3, []
            wire.abort = lambda aborted=aborted: aborted.append(True)  # type: ignore[method-assign]
            ends(connection)
            async with asyncio.timeout(10):
                while not aborted:
                    await turns()
            connection.connection_lost(None)
            assert not server.connections

    asyncio.run(run())


def test_goodbyes_under_tls_are_not_waited_for_among_the_connections_nor_for_long() -> None:
    class Tls(Wire):
        is_gone = False

        def get_extra_info(self, name: str, default: object = None) -> object:
            return self if name == "sslcontext" else default

        def set_read_buffer_limits(self, high: int) -> None:
            assert high == AHEAD_BYTES_MAX

        def abort(self) -> None:
            self.is_gone = True

    async def run() -> None:
        limits = Limits(connections_max=1, idle_s=0, reply_timeout_s=0.05)
        handler = Echo(limits)
        server = HttpServer(handler, limits)
        wires = []
        for _ in range(TURNED_AWAY_MAX + 2):
            connection, wire = server(), Tls()
            connection.connection_made(wire)
            wires.append(wire)
            assert len(server.connections) == 1
            assert wire.sent == b"", "whoever is idle makes room"
        assert [wire.is_gone for wire in wires[:2]] == [True, False]
        server._sweeper.cancel()

    asyncio.run(run())


def test_clients_beyond_all_limits_may_read_that_while_they_send_and_do_not_pile_up() -> None:
    async def run() -> None:
        limits = Limits(connections_max=0, connections_reserved=0)
        handler = Echo(limits)
        server = HttpServer(handler, limits)
        wires = []
        for _ in range(TURNED_AWAY_MAX + 1):
            wires.append(Wire())
            connection = server()
            connection.connection_made(wires[-1])
            push(connection, post(b"never looked at"))
        assert all(wire.sent.startswith(b"HTTP/1.1 503 ") and wire.sent.endswith(b"<eof>") for wire in wires)
        assert [wire.is_open for wire in wires] == [False] + [True] * TURNED_AWAY_MAX
        assert len(handler.refusals) == len(wires)
        assert handler.seen == []
        await server.shutdown(0)
        assert not any(wire.is_open for wire in wires)

    asyncio.run(run())


def test_heads_that_never_become_whole_do_not_keep_everybody_else_out() -> None:
    async def run() -> None:
        limits = Limits(connections_max=2, connections_reserved=1, idle_s=3600)
        handler = Echo(limits)
        server = HttpServer(handler, limits)
        made = []
        for _ in range(3):
            made.append((server(), Wire()))
            made[-1][0].connection_made(made[-1][1])
            push(made[-1][0], b"GET / HT")
        (slow, slow_wire), (late, late_wire), (reserved, reserved_wire) = made
        assert [one.is_reserved for one, _ in made] == [False, False, True]
        slow.free_s -= HEAD_S
        one, wire = server(), Wire()
        one.connection_made(wire)
        assert (slow_wire.is_open, late_wire.is_open, one.is_reserved) == (False, True, False)
        reserved.free_s -= HEAD_S + 1
        late.free_s -= HEAD_S + 1
        server._sweep()
        assert (late_wire.is_open, reserved_wire.is_open) == (True, False), "what is reserved is for who is quick"
        await server.shutdown(0)

    asyncio.run(run())


def test_what_is_reserved_makes_room_for_what_is_reserved_and_for_nothing_else() -> None:
    async def run() -> None:
        limits = Limits(connections_max=1, connections_reserved=1, idle_s=3600)
        server = HttpServer(Echo(limits, waits=True), limits)

        def come(sent: bytes) -> tuple[Connection, Wire]:
            connection, wire = server(), Wire()
            connection.connection_made(wire)
            push(connection, sent)
            return connection, wire

        _, busy = come(post(b"is being answered"))
        first, left = come(b"GET / HT")
        assert first.is_reserved
        _, away = come(b"GET / HT")
        assert away.sent.startswith(b"HTTP/1.1 503 ")
        first.free_s -= HEAD_S
        second, wire = come(b"GET / HT")
        assert (busy.is_open, left.is_open, wire.is_open, second.is_reserved) == (True, False, True, True)
        await server.shutdown(0)

    asyncio.run(run())
