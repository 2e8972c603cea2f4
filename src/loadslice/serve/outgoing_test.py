"""Large replies over real sockets, on either loop: whole, in order, and never held for a client that does not read."""

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import trustme

from loadslice.serve import outgoing
from loadslice.serve.body import Bodies
from loadslice.serve.connection import Connection
from loadslice.serve.head import Head
from loadslice.serve.http_server import HttpServer
from loadslice.serve.limits import Limits
from loadslice.serve.loop import new_loop
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import Reply

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_loop], ids=["asyncio", "serving"])


class Large:
    """Answers with some parts, and keeps nothing of them."""

    def __init__(self, parts: list[bytes | memoryview]) -> None:
        self.bodies = Bodies(Limits())
        self.parts = parts
        self.connection: Connection | None = None
        self.slow = self.replied = 0

    def begin(self, head: Head, connection: Connection) -> bool:
        self.connection = connection
        return True

    def handle(self, head: Head, body: bytes | memoryview, connection: Connection) -> None:
        parts, self.parts = self.parts, self.parts if head.path == "/again" else []
        connection.send(tuple(parts), sum(len(part) for part in parts), close=head.path == "/last")

    def refused(self, refusal: RefusalError) -> Reply:
        raise AssertionError(refusal)

    def copied(self, connection: Connection) -> None:
        self.slow += 1

    def sent(self, connection: Connection) -> None:
        self.replied += 1

    def gone(self, connection: Connection) -> None:
        pass


async def connected(handler: Large, limits: Limits | None = None) -> tuple[HttpServer, socket.socket]:
    ours, theirs = socket.socketpair()
    server = HttpServer(handler, limits or Limits())
    await asyncio.get_running_loop().connect_accepted_socket(server, ours)
    theirs.setblocking(False)
    return server, theirs


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.get_running_loop().run_in_executor(None, bool)


async def drip(client: socket.socket, size: int, step: int) -> bytes:
    got = bytearray()
    async with asyncio.timeout(60):
        while len(got) < size:
            part = await asyncio.get_running_loop().sock_recv(client, step)
            if not part:
                break
            got += part
    return bytes(got)


@LOOPS
@pytest.mark.parametrize("step", [1 << 20, 4097])
@pytest.mark.parametrize("sizes", [[1 << 22], [5, 0, 700_000, 1, 70_000], [17_000] * 40, [1] * 20_000, [100]])
def test_every_byte_arrives_once_and_in_order_and_the_next_request_is_answered(loop, sizes, step) -> None:
    rng = np.random.default_rng(len(sizes))
    parts: list[bytes | memoryview] = [rng.integers(0, 255, size, np.uint8).data for size in sizes]
    whole = b"".join(parts)

    async def run() -> None:
        handler = Large(parts)
        server, client = await connected(handler)
        with client:
            for _ in range(2):
                await asyncio.get_running_loop().sock_sendall(client, b"GET /again HTTP/1.1\r\n\r\n")
                assert await drip(client, len(whole), step) == whole
                await until(lambda: handler.bodies.held_bytes == 0)
            assert handler.replied == 2
        await until(lambda: not server.connections)
        await server.shutdown(1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@LOOPS
def test_what_a_slow_client_has_not_taken_is_copied_and_nothing_of_the_outputs_is_held(loop) -> None:
    outputs = np.arange(1 << 22, dtype=np.uint8)
    whole, alive = outputs.tobytes(), weakref.ref(outputs)

    async def run() -> None:
        nonlocal outputs
        handler = Large([b"head", outputs.data])
        del outputs
        server, client = await connected(handler)
        with client:
            await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: handler.slow == 1)
            gc.collect()
            assert alive() is None
            assert handler.bodies.held_bytes == 4 + len(whole), "what is held is counted until it has been taken"
            assert handler.replied == 0
            assert await drip(client, 4 + len(whole), 1 << 16) == b"head" + whole
            await until(lambda: handler.replied == 1)
        await server.shutdown(1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@LOOPS
def test_a_client_that_leaves_amid_a_large_reply_leaves_nothing(loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "LENT_S", 3600.0)
    outputs = np.zeros(1 << 22, np.uint8)
    alive = weakref.ref(outputs)

    async def run() -> None:
        nonlocal outputs
        handler = Large([outputs.data])
        del outputs
        server, client = await connected(handler)
        with client:
            await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\n\r\n")
            assert await drip(client, 1000, 1000)
        await until(lambda: not server.connections)
        assert handler.bodies.held_bytes == 0
        handler.connection = None
        await server.shutdown(1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    gc.collect()
    assert alive() is None


@LOOPS
@pytest.mark.parametrize("path", [b"/", b"/last"])
def test_a_client_that_says_it_sends_no_more_still_gets_all_of_a_large_reply_that_has_begun(loop, path) -> None:
    outputs = np.arange(1 << 22, dtype=np.uint8)

    async def run() -> None:
        handler = Large([outputs.data])
        server, client = await connected(handler)
        with client:
            await asyncio.get_running_loop().sock_sendall(client, b"GET %b HTTP/1.1\r\n\r\n" % path)
            got = await drip(client, 1000, 1000)
            client.shutdown(socket.SHUT_WR)
            got += await drip(client, outputs.nbytes, 1 << 16)
            assert got == outputs.tobytes()
            await until(lambda: not server.connections)
        await server.shutdown(1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@LOOPS
def test_a_client_that_takes_a_little_now_and_then_has_no_more_time_for_all_of_it_than_one_that_takes_nothing(
    loop,
) -> None:
    outputs = np.zeros(1 << 24, np.uint8)

    async def run() -> None:
        handler = Large([outputs.data])
        server, client = await connected(handler, Limits(reply_timeout_s=0.3))
        with client:
            await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\n\r\n")
            got = 0
            async with asyncio.timeout(20):
                while server.connections or not got:
                    got += len(await asyncio.get_running_loop().sock_recv(client, 1 << 14))
                    await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=0.01)
            assert got < outputs.nbytes
        assert handler.bodies.held_bytes == 0
        await server.shutdown(1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@LOOPS
def test_under_tls_a_reply_stays_counted_until_it_has_been_taken_and_who_takes_none_is_cut_off(loop) -> None:
    outputs = np.arange(1 << 24, dtype=np.uint8)
    authority = trustme.CA()
    context, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(trusting)

    async def asked(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        accepting = asyncio.get_running_loop().connect_accepted_socket(server, ours, ssl=context)
        opening = asyncio.open_connection(sock=theirs, ssl=trusting, server_hostname="localhost", limit=1 << 12)
        _, (reader, writer) = await asyncio.gather(accepting, opening)
        writer.write(b"GET /again HTTP/1.1\r\n\r\n")
        return reader, writer

    async def run() -> None:
        handler = Large([b"head", outputs.data])
        server, hasty = HttpServer(handler, Limits()), HttpServer(handler, Limits(reply_timeout_s=0.1))
        reader, writer = await asked(server)
        await until(lambda: handler.slow == 1)
        assert (handler.replied, handler.bodies.held_bytes) == (0, 4 + outputs.nbytes)
        assert await reader.readexactly(4 + outputs.nbytes) == b"head" + outputs.tobytes()
        await until(lambda: handler.replied == 1)
        assert handler.bodies.held_bytes == 0
        _, idle = await asked(hasty)
        await until(lambda: handler.bodies.held_bytes > 0)
        await until(lambda: not hasty.connections)
        assert (handler.replied, handler.bodies.held_bytes) == (1, 0)
        for one in (writer, idle):
            one.transport.abort()
        await server.shutdown(1)
        await hasty.shutdown(1)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
