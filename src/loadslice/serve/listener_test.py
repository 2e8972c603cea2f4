"""Accepting: errors of one connection, and of the system, never end it."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterable

import pytest
import trustme

from loadslice.serve.listener import REST_S, Listener, open_listener

HOST = "127.0.0.1"


class Met(asyncio.Protocol):
    """Counts whom it has met, and says a word."""

    met = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).met += 1
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"met")
        transport.close()


class Faulty(socket.socket):
    """A listening socket whose next accepts fail."""

    faults: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.faults:
            raise OSError(self.faults.pop(0), "as told")
        return super().accept()


async def faulty(faults: Iterable[int]) -> tuple[Listener, int]:
    listening = Faulty(socket.AF_INET, socket.SOCK_STREAM)
    listening.faults = list(faults)
    listening.setblocking(False)
    listening.bind((HOST, 0))
    listening.listen(8)
    return Listener(Met, [listening], None), listening.getsockname()[1]


async def greeting(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


OF_THE_CONNECTION = ("ECONNABORTED", "EPROTO", "ENETDOWN", "EHOSTUNREACH", "ENOPROTOOPT", "EOPNOTSUPP", "EPERM")
OF_THE_SYSTEM = ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "EINVAL", "EIO")


@pytest.mark.parametrize("name", OF_THE_CONNECTION + OF_THE_SYSTEM)
def test_whatever_goes_wrong_with_accepting_the_next_is_accepted(name: str) -> None:
    faults: list[dict[str, object]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        listener, port = await faulty([getattr(errno, name)] * 3)
        async with asyncio.timeout(20):
            assert await greeting(port) == b"met"
        await listener.close(0)

    asyncio.run(run())
    assert faults == []


def test_an_error_of_one_connection_does_not_keep_the_next_waiting() -> None:
    async def run() -> None:
        listener, port = await faulty([errno.EPROTO] * 3)
        with socket.create_connection((HOST, port), 10):
            assert listener._accept(listener.sockets[0]) == 4, "three that were gone, and the one that is there"
            assert listener._resting is None
            await listener.close(0)

    asyncio.run(run())


def test_what_lasts_is_tried_again_after_a_rest_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        listener, port = await faulty([])
        listening = listener.sockets[0]
        listening.faults = [errno.ENOMEM] * 3  # type: ignore[attr-defined]
        assert listener._accept(listening) == 0
        assert listener._resting is not None, "or it would spin"
        assert not asyncio.get_running_loop().remove_reader(listening.fileno()), "nobody listens meanwhile"
        async with asyncio.timeout(20):
            assert await greeting(port) == b"met"
        await listener.close(0)

    asyncio.run(run())
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_an_error_while_closing_starts_nothing_again() -> None:
    faults: list[dict[str, object]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        listener, _ = await faulty([errno.EMFILE])
        await listener.close(2 * REST_S)
        assert listener._resting is None

    asyncio.run(run())
    assert faults == []


def test_who_is_accepted_is_asked_whether_it_is_still_there_and_sends_at_once() -> None:
    async def run() -> None:
        made: list[asyncio.BaseTransport] = []

        class Kept(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        listener = await open_listener(Kept, HOST, 0)
        _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        async with asyncio.timeout(20):
            while not made:
                await asyncio.get_running_loop().run_in_executor(None, bool)
        there = made[0].get_extra_info("socket")
        assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
        assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        writer.close()
        await listener.close(0)
        made[0].abort()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_who_has_not_ended_its_handshake_when_the_port_closes_is_closed_with_it() -> None:
    async def run() -> None:
        authority = trustme.CA()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(HOST).configure_cert(context)
        listener = await open_listener(Met, HOST, 0, lambda: context)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        async with asyncio.timeout(20):
            while not listener._setting_up:
                await asyncio.get_running_loop().run_in_executor(None, bool)
            await listener.close(0)
            assert not listener._setting_up
            assert await reader.read() == b""
        writer.close()

    asyncio.run(run())
