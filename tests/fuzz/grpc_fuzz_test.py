"""The gRPC front against frames that are not quite frames, and messages that are not quite messages."""

import contextlib
import socket

import grpc
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_messages import SERVICE, messages

pytestmark = pytest.mark.live

PROFILE = settings.get_profile("fuzz")
INFER = f"/{SERVICE}/ModelInfer"
ALLOWED = {
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED,
}  # fmt: skip


def allowed(error: grpc.RpcError) -> None:
    assert error.code() in ALLOWED, error


def request() -> bytes:
    made = messages().classes["ModelInferRequest"](model_name="tiny", id="7")
    made.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    made.raw_input_contents.append(np.arange(4, dtype="<f4").tobytes())
    return bytes(made.SerializeToString())


def head(path: str = INFER) -> bytes:
    fields = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc"}
    return b"".join(h2.field(name.encode(), value.encode()) for name, value in fields.items())


FRAMED = b"\0" + len(request()).to_bytes(4, "big") + request()
WHOLE = (
    h2.PREFACE
    + h2.settings([(h2.S_WINDOW, 100_000)])
    + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head())
    + h2.frame(h2.DATA, h2.END_STREAM, 1, FRAMED)
    + h2.frame(h2.HEADERS, h2.END_HEADERS, 3, head(f"/{SERVICE}/ModelStreamInfer"))
    + h2.frame(h2.DATA, 0, 3, FRAMED)
    + h2.window_update(0, 1000)
    + h2.frame(h2.PING, 0, 0, b"12345678")
)


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.server.grpc_port}") as channel:
        yield channel


@pytest.fixture(scope="module", autouse=True)
def no_descriptor_stays(server, channel):
    channel.unary_unary(INFER)(request())
    before = psutil.Process().num_fds()
    yield
    assert psutil.Process().num_fds() <= before + 8


def throw(server, data: bytes) -> None:
    """Send it, and read until the server leaves or there is nothing more to read."""
    with socket.create_connection(("127.0.0.1", server.server.grpc_port), timeout=8) as raw:
        with contextlib.suppress(OSError):
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(65536):
                pass


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    data = bytearray(WHOLE)
    first = draw(st.sampled_from((0, len(h2.PREFACE))))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(min(first, len(data)), len(data)))
        change = draw(st.sampled_from(("set", "cut", "insert", "repeat")))
        if change == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif change == "cut":
            del data[at : at + draw(st.integers(1, 30))]
        elif change == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 80))]
    return bytes(data)


FRAMES = st.lists(
    st.builds(
        h2.frame,
        st.integers(0, 12),
        st.integers(0, 255),
        st.integers(0, 9) | st.just(2**31 - 1),
        st.binary(max_size=40) | st.just(FRAMED) | st.just(head()),
    ),
    max_size=20,
)


def test_mangled_connections(server, channel, tried) -> None:
    @PROFILE
    @given(mangled())
    def run(data: bytes) -> None:
        tried()
        throw(server, data)

    run()
    channel.unary_unary(INFER)(request(), timeout=8)


def test_frames_in_any_order(server, channel, tried) -> None:
    @PROFILE
    @given(FRAMES)
    def run(frames: list[bytes]) -> None:
        tried()
        throw(server, h2.PREFACE + b"".join(frames))

    run()
    channel.unary_unary(INFER)(request(), timeout=8)


def test_messages_that_are_not_quite_messages(channel, tried) -> None:
    infer = channel.unary_unary(INFER)

    @st.composite
    def changed(draw: st.DrawFn) -> bytes:
        data = bytearray(request())
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, len(data) - 1))
            if draw(st.booleans()):
                data[at] = draw(st.integers(0, 255))
            else:
                data[at:at] = draw(st.binary(min_size=1, max_size=10))
        return bytes(data)

    @PROFILE
    @given(changed() | st.binary(max_size=100))
    def run(data: bytes) -> None:
        tried()
        try:
            infer(data, timeout=8)
        except grpc.RpcError as error:
            allowed(error)

    run()


SIDES = st.integers(-2, 5) | st.sampled_from([2**31, 2**62, 2**63 - 1])


def test_messages_that_say_anything(channel, tried) -> None:
    infer = channel.unary_unary(INFER)
    kind = messages().classes["ModelInferRequest"]

    @PROFILE
    @given(
        st.sampled_from(["tiny", "", "../tiny", "tiny\0"]),
        st.sampled_from(["", "1", "2", "../1"]),
        st.lists(
            st.tuples(
                st.sampled_from(["x", "y", "x" * 300, ""]),
                st.sampled_from(["FP32", "BYTES", "INT8", "BOOL", "FP16", "BF16", ""]),
                st.lists(SIDES, max_size=4),
                st.lists(st.integers(-300, 300), max_size=5),
            ),
            max_size=3,
        ),
        st.lists(st.binary(max_size=20), max_size=3),
        st.lists(st.sampled_from(["z", "y", ""]), max_size=3),
    )
    def run(model, version, inputs, raw, outputs) -> None:
        tried()
        made = kind(model_name=model, model_version=version)
        for name, datatype, shape, values in inputs:
            tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
            tensor.contents.fp32_contents.extend(values)
            tensor.contents.int_contents.extend(values)
        made.raw_input_contents.extend(raw)
        for name in outputs:
            made.outputs.add(name=name)
        try:
            infer(made.SerializeToString(), timeout=8)
        except grpc.RpcError as error:
            allowed(error)

    run()


def test_messages_over_the_limit(channel, tried) -> None:
    infer = channel.unary_unary(INFER)
    for size in ((1 << 20) + 1, 2 << 20, 5 << 20):
        tried()
        with pytest.raises(grpc.RpcError) as caught:
            infer(bytes(size), timeout=8)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
