"""The gRPC front as a client of the C core sees it, and as a hostile peer does."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import grpc
import httpx
import numpy as np
import pytest
from tests.live.conftest import LiveServer
from tests.live.grpc_peer import INFER, ROWS, Peer, call, head, request

from loadslice.serve import grpc_connection
from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_messages import SERVICE, messages
from loadslice.serve.limits import Limits
from loadslice.serve.server import Server
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome

pytestmark = pytest.mark.live


def _started(server: Server) -> Iterator[LiveServer]:
    live = LiveServer(server)
    try:
        live.run(server.start())
        yield live
        live.run(server.drained())
        live.check()
        assert server._front.bodies.held_bytes == 0
        assert server._front.active == 0
        live.run(server.stop())
        assert not server._grpc.connections
    finally:
        live.close()


@pytest.fixture(scope="module")
def both(folder, pipeline) -> Iterator[LiveServer]:
    limits = Limits(body_bytes_max=1 << 20, body_timeout_s=2.0, reply_timeout_s=2.0, inputs_max=4)
    yield from _started(Server(pipeline("tiny"), folder, port=0, grpc=0, limits=limits))


@pytest.fixture(scope="module")
def gated(folder, pipeline) -> Iterator[LiveServer]:
    yield from _started(Server(pipeline("gated"), folder, port=0, grpc=0))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that breaks the rules may take its time to read why, for on a busy machine it does."""
    monkeypatch.setattr(grpc_connection, "LINGER_S", 60.0)


@pytest.fixture
def channel(both) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{both.server.grpc_port}") as channel:
        yield channel


def answer(raw: bytes):
    made = messages().classes["ModelInferResponse"].FromString(raw)
    return np.frombuffer(made.raw_output_contents[0], np.float32).reshape(made.outputs[0].shape), made


def refused(call) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def test_an_answer_says_where_it_was_made_and_how_long_that_took(channel) -> None:
    for _ in range(3):
        reply, call = channel.unary_unary(INFER).with_call(request(id="mine"))
        values, made = answer(reply)
        np.testing.assert_array_equal(values, -2 * ROWS)
        assert (made.model_name, made.model_version, made.id) == ("tiny", "1", "mine")
        told = dict(call.initial_metadata())
        assert told["x-loadslice-engine"] == "ort, ov"
        assert [part.split(";")[0] for part in told["x-loadslice-timing"].split(", ")] == ["double", "negate"]


def test_what_triton_has_beyond_the_protocol_is_refused_by_name_on_both_wires(channel, both) -> None:
    error = refused(lambda: channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "ModelStatistics is an extension of Triton's" in error.details()
    assert "GET /metrics" in error.details()
    reply = httpx.get(f"{both.server.url}/v2/models/tiny/config", timeout=30)
    assert reply.status_code == 404
    assert "ModelMetadata" in reply.json()["error"]


def test_messages_of_one_kind_with_other_values_have_other_answers(channel) -> None:
    infer = channel.unary_unary(INFER)
    for number in range(20):
        values = np.full((1 + number % 3, 4), number, np.float32)
        np.testing.assert_array_equal(answer(infer(request(values=values)))[0], -2 * values)


@pytest.mark.parametrize(
    ("raw", "code", "says"),
    [
        (request("nowhere"), grpc.StatusCode.NOT_FOUND, "no such model or version here; there is 'tiny'"),
        (request(model_version="2"), grpc.StatusCode.NOT_FOUND, "no such model"),
        (request("../tiny"), grpc.StatusCode.NOT_FOUND, "no such model"),
        (request(values=np.zeros((1, 3), np.float32)), grpc.StatusCode.INVALID_ARGUMENT, "x"),
        (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "the message is not a ModelInferRequest"),
        (b"", grpc.StatusCode.NOT_FOUND, "no such model"),
        (b"\0" * (1 << 20) + b"\0", grpc.StatusCode.RESOURCE_EXHAUSTED, "1048577 bytes, 1048576 is the most taken"),
    ],
)
def test_what_is_wrong_has_a_status_and_the_words_of_http(channel, raw: bytes, code, says: str) -> None:
    error = refused(lambda: channel.unary_unary(INFER)(raw))
    assert error.code() is code
    assert says in error.details()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-loadslice-priority", "best"),
        ("x-loadslice-deadline-ms", "soon"),
        ("x-loadslice-attempt", "0"),
        ("x-loadslice-tenant", "t" * 100),
    ],
)
def test_metadata_is_held_to_what_headers_are(channel, name: str, value: str) -> None:
    error = refused(lambda: channel.unary_unary(INFER)(request(), metadata=[(name, value)]))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert name in error.details()


def test_a_method_that_is_none_is_unimplemented(channel) -> None:
    for path in ("/inference.GRPCInferenceService/ModelDelete", "/x", f"/{SERVICE}/"):
        assert refused(lambda p=path: channel.unary_unary(p)(b"")).code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("coding", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_taken_and_bombs_are_not(channel, coding) -> None:
    infer = channel.unary_unary(INFER)
    np.testing.assert_array_equal(answer(infer(request(), compression=coding))[0], -2 * ROWS)
    bomb = request(values=np.zeros((1 << 18, 4), np.float32))
    error = refused(lambda: infer(bomb, compression=coding))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "unpacks to more than 1048576 bytes" in error.details()


def test_large_messages_pass_in_both_directions(channel) -> None:
    values = np.random.default_rng(1).random((60_000, 4), np.float32)
    np.testing.assert_array_equal(answer(channel.unary_unary(INFER)(request(values=values)))[0], -2 * values)


def test_large_typed_contents_pass_too(channel) -> None:
    values = np.random.default_rng(1).random((15_000, 4), np.float32)
    made = messages().classes["ModelInferRequest"](model_name="tiny", id="mine")
    made.inputs.add(name="x", datatype="FP32", shape=values.shape).contents.fp32_contents.extend(
        values.ravel().tolist()
    )
    asked = made.SerializeToString()
    given, told = answer(channel.unary_unary(INFER)(asked))
    np.testing.assert_array_equal(given, -2 * values)
    assert told.id == "mine"
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([asked] * 2))
    assert len(list(call)) == 2


def test_a_stream_answers_each_message_with_its_id_and_goes_on_after_a_bad_one(channel) -> None:
    asked = [request(id=str(number)) for number in range(30)]
    asked[7] = request("nowhere", id="7")
    kind = messages().classes["ModelStreamInferResponse"]
    replies = [kind.FromString(raw) for raw in channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(iter(asked))]
    assert sorted(int(reply.infer_response.id) for reply in replies) == list(range(30))
    failed = [reply for reply in replies if reply.error_message]
    assert [(reply.infer_response.id, reply.error_message) for reply in failed] == [
        ("7", "no such model or version here; there is 'tiny'")
    ]


async def _inside(live: LiveServer, count: int) -> None:
    async with asyncio.timeout(20):
        while live.server.generation.inside != count:
            await asyncio.get_running_loop().run_in_executor(None, bool)


def test_a_timeout_of_the_client_is_a_deadline_of_the_core(gated, gate) -> None:
    gate("shut")
    before = gated.server.outcomes
    with grpc.insecure_channel(f"127.0.0.1:{gated.server.grpc_port}") as channel:
        infer = channel.unary_unary(INFER)
        held = [infer.future(request("gated")) for _ in range(3)]
        gated.run(_inside(gated, 3))
        error = refused(lambda: infer(request("gated"), timeout=0.5))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        gate("open")
        assert all(answer(call.result(20))[0].shape == (2, 4) for call in held)
    gated.run(gated.server.drained())
    after = gated.server.outcomes
    ended = {outcome: after[outcome] - before[outcome] for outcome in after if after[outcome] != before[outcome]}
    assert ended.pop(Outcome.COMPLETED) == 3
    assert sum(ended.values()) == 1
    assert set(ended) <= {Outcome.EXPIRED, Outcome.CANCELLED, Outcome.SHED}


def test_a_cancelled_call_leaves_the_queue(gated, gate) -> None:
    gate("shut")
    before = gated.server.outcomes[Outcome.CANCELLED]
    with grpc.insecure_channel(f"127.0.0.1:{gated.server.grpc_port}") as channel:
        infer = channel.unary_unary(INFER)
        calls = [infer.future(request("gated")) for _ in range(5)]
        arrived = threading.Event()

        async def wait() -> None:
            while len(gated.server.generation.shell._inside) < 5:
                await asyncio.get_running_loop().run_in_executor(None, arrived.wait, 0.01)

        gated.run(asyncio.wait_for(wait(), 10))
        for call in calls:
            call.cancel()

        async def left() -> None:
            while gated.server.outcomes[Outcome.CANCELLED] < before + 5:
                await asyncio.get_running_loop().run_in_executor(None, arrived.wait, 0.01)

        gated.run(asyncio.wait_for(left(), 10))
        gate("open")


def test_refusals_say_when_to_come_back_as_retry_policies_read_it(gated, gate) -> None:
    gate("shut")
    with grpc.insecure_channel(f"127.0.0.1:{gated.server.grpc_port}") as channel:
        infer = channel.unary_unary(INFER)
        calls = [infer.future(request("gated")) for _ in range(12)]
        refusals = []
        for call in calls:
            try:
                call.result(0.5)
            except grpc.FutureTimeoutError:
                continue
            except grpc.RpcError as error:
                refusals.append(error)
        assert refusals
        for error in refusals:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            told = dict(error.trailing_metadata())
            assert int(told["grpc-retry-pushback-ms"]) >= 50
            assert told["x-loadslice-retry-after-ms"] == told["grpc-retry-pushback-ms"]
        gate("open")


def test_readiness_is_the_same_round_trip(channel, both) -> None:
    made = messages().classes["ModelReadyResponse"]
    asked = messages().classes["ModelReadyRequest"]
    ready = channel.unary_unary(f"/{SERVICE}/ModelReady")
    assert made.FromString(ready(asked(name="tiny").SerializeToString())).ready
    assert not made.FromString(ready(asked(name="other").SerializeToString())).ready
    assert not made.FromString(ready(asked(name="tiny", version="9").SerializeToString())).ready


def test_a_port_in_use_is_one_line(folder, pipeline) -> None:
    async def start() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = Server(pipeline("tiny"), folder, port=0, grpc=taken.getsockname()[1])
            with pytest.raises(InputError, match=r"--grpc \d+: the port is in use on 127.0.0.1"):
                await server.start()

    asyncio.run(start())


HOSTILE = {
    "not http/2": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 20, h2.PROTOCOL_ERROR),
    "a huge frame": (h2.PREFACE + b"\xff\xff\xff\0\0\0\0\0\1", h2.FRAME_SIZE_ERROR),
    "headers without end": (
        h2.PREFACE + h2.frame(h2.HEADERS, 0, 1, b"") + h2.frame(h2.CONTINUATION, 0, 1, b"") * 5000,
        h2.ENHANCE_YOUR_CALM,
    ),
    "headers that go on for ever": (
        h2.PREFACE + h2.frame(h2.HEADERS, 0, 1, b"") + h2.frame(h2.CONTINUATION, 0, 1, b"\0" * 1000) * 20,
        h2.ENHANCE_YOUR_CALM,
    ),
    "headers interrupted": (
        h2.PREFACE + h2.frame(h2.HEADERS, 0, 1, b"") + h2.frame(h2.PING, 0, 0, b"12345678"),
        h2.PROTOCOL_ERROR,
    ),
    "a ping flood": (h2.PREFACE + h2.frame(h2.PING, 0, 0, b"12345678") * 25_000, h2.ENHANCE_YOUR_CALM),
    "a settings flood": (h2.PREFACE + h2.settings([]) * 25_000, h2.ENHANCE_YOUR_CALM),
    "an empty data flood": (
        h2.PREFACE + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head()) + h2.frame(h2.DATA, 0, 1) * 25_000,
        h2.ENHANCE_YOUR_CALM,
    ),
    "rapid resets": (
        h2.PREFACE
        + b"".join(
            h2.frame(h2.HEADERS, h2.END_HEADERS, 2 * n + 1, head()) + h2.rst_stream(2 * n + 1, h2.CANCEL)
            for n in range(3000)
        ),
        h2.ENHANCE_YOUR_CALM,
    ),
    "an even stream": (h2.PREFACE + h2.frame(h2.HEADERS, h2.END_HEADERS, 2, head()), h2.PROTOCOL_ERROR),
    "stream zero": (h2.PREFACE + h2.frame(h2.HEADERS, h2.END_HEADERS, 0, head()), h2.PROTOCOL_ERROR),
    "data of no stream": (h2.PREFACE + h2.frame(h2.DATA, 0, 5, b"x"), h2.PROTOCOL_ERROR),
    "a reset of no stream": (h2.PREFACE + h2.rst_stream(9, 0), h2.PROTOCOL_ERROR),
    "a push": (h2.PREFACE + h2.frame(h2.PUSH_PROMISE, 0, 1, b"1234"), h2.PROTOCOL_ERROR),
    "a window of nothing": (h2.PREFACE + h2.window_update(0, 0), h2.PROTOCOL_ERROR),
    "a window without end": (h2.PREFACE + h2.window_update(0, h2.WINDOW_MAX), h2.FLOW_CONTROL_ERROR),
    "settings without measure": (h2.PREFACE + h2.settings([(h2.S_WINDOW, 1 << 31)]), h2.FLOW_CONTROL_ERROR),
    "a tiny frame size": (h2.PREFACE + h2.settings([(h2.S_FRAME_BYTES, 1)]), h2.PROTOCOL_ERROR),
    "half a setting": (h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0, b"12345"), h2.FRAME_SIZE_ERROR),
    "more padding than frame": (
        h2.PREFACE + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head()) + h2.frame(h2.DATA, h2.PADDED, 1, b"\xff1"),
        h2.PROTOCOL_ERROR,
    ),
    "no headers": (h2.PREFACE + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff"), h2.COMPRESSION_ERROR),
    "data beyond the window": (
        h2.PREFACE
        + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head(f"/{SERVICE}/ModelStreamInfer"))
        + h2.frame(h2.DATA, 0, 1, b"\0\0\x0f\xff\xff" + b"x" * 65_000)
        + h2.frame(h2.DATA, 0, 1, b"x" * 65_000) * 17,
        h2.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_peer_is_told_what_it_did_and_others_are_served(both, channel, name: str) -> None:
    data, code = HOSTILE[name]
    with socket.create_connection(("127.0.0.1", both.server.grpc_port), timeout=10) as raw:
        peer = Peer.__new__(Peer)
        peer.socket = raw
        threading.Thread(target=_send_all, args=(raw, data)).start()
        assert peer.goaway() == code
    np.testing.assert_array_equal(answer(channel.unary_unary(INFER)(request()))[0], -2 * ROWS)


def test_a_peer_that_reads_late_still_learns_what_it_did(both) -> None:
    with Peer(both) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sender = threading.Thread(target=_send_all, args=(peer.socket, h2.frame(h2.PING, 0, 0, b"12345678") * 40_000))
        sender.start()
        time.sleep(0.5)  # more than our answers fill the window by now, and more than it took lies unread there
        assert peer.goaway() == h2.ENHANCE_YOUR_CALM
        sender.join(10)
        assert not sender.is_alive()


def _send_all(raw: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server has left, as it should
        raw.sendall(data)


def test_frames_in_any_pieces_make_the_same_call(both) -> None:
    whole = call()
    for size in (1, 2, 7, 50):
        with Peer(both) as peer:
            for at in range(0, len(whole), size):
                peer.send(whole[at : at + size])
            kinds = []
            while not (kinds and kinds[-1][0] == h2.HEADERS and kinds[-1][1] & h2.END_STREAM):
                kinds.append(peer.frame())
            assert [kind[0] for kind in kinds[-3:]] == [h2.HEADERS, h2.DATA, h2.HEADERS]


def test_a_client_that_takes_little_at_a_time_gets_all_of_it(both) -> None:
    with Peer(both, window=10) as peer:
        peer.send(call())
        got = b""
        while True:
            kind, flags, stream, payload = peer.frame()
            if kind == h2.DATA:
                assert len(payload) <= 10
                got += payload
                peer.send(h2.window_update(1, 7) + h2.window_update(0, 7))
            if kind == h2.HEADERS and flags & h2.END_STREAM:
                assert stream == 1
                break
        np.testing.assert_array_equal(answer(got[5:])[0], -2 * ROWS)


def test_a_client_that_takes_nothing_is_cut_off_and_nothing_stays(both) -> None:
    with Peer(both, window=0) as peer:
        peer.send(call())
        with pytest.raises((EOFError, ConnectionResetError)):
            peer.goaway()
    both.run(_idle(both))


def test_half_a_message_ends_with_its_time(both) -> None:
    with Peer(both) as peer:
        peer.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head()) + h2.frame(h2.DATA, 0, 1, b"\0\0\0\1\0half"))
        while True:
            kind, _, _, payload = peer.frame()
            if kind == h2.HEADERS:
                assert b"grpc-status\x014" in payload
                break
    both.run(_idle(both))


def test_clients_that_vanish_leave_nothing(both) -> None:
    peers = [Peer(both) for _ in range(50)]
    for number, peer in enumerate(peers):
        peer.send(call()[: 20 + 5 * number])
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.close()
    both.run(_idle(both))


async def _idle(live: LiveServer) -> None:
    async with asyncio.timeout(10):
        while live.server._front.bodies.held_bytes or live.server._front.active:
            await asyncio.get_running_loop().run_in_executor(None, bool)


def test_more_streams_than_allowed_are_refused_and_the_others_answered(gated, gate) -> None:
    gate("shut")
    with Peer(gated) as peer:
        peer.send(b"".join(call(2 * n + 1, request("gated")) for n in range(300)))
        reset, ended = set(), {}
        while len(reset) + len(ended) < 300 - 8:
            kind, flags, stream, payload = peer.frame()
            if kind == h2.RST_STREAM:
                assert struct.unpack(">I", payload)[0] == h2.REFUSED_STREAM
                reset.add(stream)
            if kind == h2.HEADERS and flags & h2.END_STREAM:
                ended[stream] = payload
        gate("open")
        while len(reset) + len(ended) < 300:
            kind, flags, stream, payload = peer.frame()
            if kind == h2.HEADERS and flags & h2.END_STREAM:
                ended[stream] = payload
