"""What gRPC clients can hold: connections, bytes, time; counted, bounded, and given back."""

import asyncio
import gc
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import trustme
from tests.live.conftest import LiveServer
from tests.live.grpc_peer import ROWS, STREAM, Peer, call, framed, head, request

from loadslice.serve import grpc_frames as h2
from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.limits import Limits
from loadslice.serve.server import Server
from loadslice.serve.serving import Serving
from loadslice.serve.tls import Tls, TlsFiles

pytestmark = pytest.mark.live


@contextmanager
def served(pipeline: Any, folder: Path, limits: Limits, **options: Any) -> Iterator[LiveServer]:
    live = LiveServer(Server(pipeline, folder, port=0, grpc=0, limits=limits, **options))
    try:
        live.run(live.server.start())
        yield live
        live.run(live.server.drained())
        live.check()
        live.run(live.server.stop())
        assert not live.server._grpc.connections
        assert live.server._front.bodies.held_bytes == 0
    finally:
        live.close()


def wait(live: LiveServer, condition: Callable[[], bool]) -> None:
    async def turn() -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.get_running_loop().run_in_executor(None, bool)

    live.run(turn())


def status(peer: Peer, stream: int = 1) -> bytes:
    """The header block that ends a stream."""
    while True:
        kind, flags, number, payload = peer.frame()
        if kind == h2.HEADERS and flags & h2.END_STREAM and number == stream:
            return payload


def opened(stream: int = 1) -> bytes:
    return h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head(STREAM))


def test_connections_that_come_all_at_once_are_no_more_than_the_limit(pipeline, folder) -> None:
    with served(pipeline("tiny"), folder, Limits(connections_max=3, idle_s=3600)) as live:
        address = ("127.0.0.1", live.server.grpc_port)
        burst = []
        for _ in range(60):
            burst.append(socket.socket())
            burst[-1].setblocking(False)
            assert burst[-1].connect_ex(address) in (0, 115)
        greeted = 0
        for one in burst:
            one.settimeout(20)
            with suppress(ConnectionResetError):
                greeted += bool(one.recv(9))
        assert greeted == len(live.server._grpc.connections) == 3
        for one in burst:
            one.close()


def test_connections_whose_handshakes_end_all_at_once_are_no_more_than_the_limit(pipeline, folder, tmp_path) -> None:
    authority = trustme.CA()
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "pair.pem")
    files = TlsFiles(tmp_path / "pair.pem", tmp_path / "pair.pem", None)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2"])
    limits = Limits(connections_max=2, idle_s=3600)

    async def greeted(port: int) -> int:
        async def one() -> tuple[bool, asyncio.StreamWriter | None]:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            except OSError:
                return False, None
            try:
                return len(await reader.readexactly(9)) == 9, writer
            except (asyncio.IncompleteReadError, OSError):
                return False, writer

        async with asyncio.timeout(60):
            came = await asyncio.gather(*(one() for _ in range(20)))
        for _, writer in came:
            if writer is not None:
                writer.transport.abort()
        return sum(was for was, _ in came)

    with served(pipeline("tiny"), folder, limits, guard=Guard(Access(None), tls=Tls(files))) as live:
        assert asyncio.run(greeted(live.server.grpc_port)) == 2


def test_a_stream_in_which_nothing_goes_on_makes_room_for_who_comes(pipeline, folder) -> None:
    with (
        served(pipeline("tiny"), folder, Limits(connections_max=1, idle_s=0)) as live,
        Peer(live) as idle,
    ):
        idle.send(opened())
        wait(live, lambda: any(one.open for one in live.server._grpc.connections._all))
        with Peer(live) as next_one:
            next_one.send(call())
            assert b"grpc-status\x010" in status(next_one)
            assert idle.goaway() == h2.NO_ERROR


def test_a_message_of_a_stream_that_is_never_finished_ends_it_however_long_it_has_been_open(pipeline, folder) -> None:
    with (
        served(pipeline("tiny"), folder, Limits(body_timeout_s=0.2)) as live,
        Peer(live) as peer,
    ):
        peer.send(opened())
        time.sleep(0.3)  # the time of a message, in which none has begun
        peer.send(h2.frame(h2.DATA, 0, 1, framed(request()) + b"\0\0\0\1\0half"))
        assert b"grpc-status\x014" in status(peer)
        wait(live, lambda: live.server._front.bodies.held_bytes == 0)


def test_messages_of_a_stream_are_counted_while_they_are_inside(pipeline, folder, gate) -> None:
    large = request("gated", np.zeros((5_000, 4), np.float32))
    with served(pipeline("gated"), folder, Limits(held_bytes_max=3 * len(large) - 1)) as live:
        gate("shut")
        with Peer(live) as peer:
            peer.send(opened() + h2.frame(h2.SETTINGS, h2.ACK, 0))
            sent = framed(large)
            for message in range(2):
                for at in range(0, len(sent), 16_000):
                    peer.send(h2.frame(h2.DATA, 0, 1, sent[at : at + 16_000]))
                wait(live, lambda inside=message + 1: live.server.generation.inside == inside)
            assert live.server._front.bodies.held_bytes == 2 * len(large)
            for at in range(0, len(sent), 16_000):
                peer.send(h2.frame(h2.DATA, 0, 1, sent[at : at + 16_000]))
            assert b"grpc-status\x0214" in status(peer), "the third is more than may be held"
        gate("open")
        wait(live, lambda: live.server._front.bodies.held_bytes == 0)


def test_an_answer_that_has_been_made_is_sent_however_much_is_held(pipeline, folder) -> None:
    message = request("tiny", np.ones((1_000, 4), np.float32))
    with (
        served(pipeline("tiny"), folder, Limits(held_bytes_max=len(message) + 10_000)) as live,
        Peer(live, window=1_000) as peer,
    ):
        peer.send(call(1, message))
        got = b""
        while True:
            kind, flags, _, payload = peer.frame()
            if kind == h2.DATA:
                got += payload
                peer.send(h2.window_update(1, len(payload)) + h2.window_update(0, len(payload)))
            if kind == h2.HEADERS and flags & h2.END_STREAM:
                break
        assert len(got) > 16_000


def test_part_of_a_frame_is_counted_and_has_its_time(pipeline, folder) -> None:
    limits = Limits(body_timeout_s=0.2, keepalive_timeout_s=3600)
    with served(pipeline("tiny"), folder, limits) as live, Peer(live) as peer:
        peer.send(opened() + h2.frame(h2.DATA, 0, 1, framed(request("tiny", ROWS))))
        peer.send((1 << 20).to_bytes(3, "big") + b"\0\0\0\0\0\1" + bytes(100_000))
        with pytest.raises((EOFError, ConnectionResetError)):
            peer.goaway()
        wait(live, lambda: not live.server._grpc.connections)


def test_part_of_a_frame_is_refused_where_too_much_is_held(pipeline, folder) -> None:
    limits = Limits(held_bytes_max=50_000, body_bytes_max=40_000)
    with served(pipeline("tiny"), folder, limits) as live, Peer(live) as peer:
        peer.send(opened() + (1 << 20).to_bytes(3, "big") + b"\0\0\0\0\0\1" + bytes(100_000))
        assert peer.goaway() == h2.ENHANCE_YOUR_CALM


def test_a_generation_that_has_been_replaced_is_kept_by_nobody(pipeline, folder) -> None:
    served_now = pipeline("tiny")
    with (
        served(served_now, folder, Limits(), source=lambda: Serving(served_now, folder)) as live,
        Peer(live) as peer,
    ):
        for stream in (1, 3):
            peer.send(call(stream))
            assert b"grpc-status\x010" in status(peer, stream)
        with httpx.Client(base_url=live.server.url) as client:
            body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
            for _ in range(2):
                assert client.post("/v2/models/tiny/infer", json=body).status_code == 200
        replaced = [weakref.ref(live.server.generation), weakref.ref(live.server.generation.shell)]
        live.run(live.server.reload())
        live.run(live.server.retired())
        gc.collect()
        assert [one() for one in replaced] == [None, None]
        peer.send(call(5))
        assert b"grpc-status\x010" in status(peer, 5)
