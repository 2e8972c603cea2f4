"""The HTTP front against requests that are not quite requests."""

import contextlib
import gzip
import json
import socket
import struct
import zlib

import httpx
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.live

PROFILE = settings.get_profile("fuzz")
FINE = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
HEAD = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
WHOLE = HEAD % len(FINE) + FINE


def send(server, data: bytes, *, half_close: bool = False, pieces: int = 1) -> bytes:
    """What the server answers until it closes or has answered; it must do either."""
    host, _, port = server.server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=8) as raw:
        with contextlib.suppress(OSError):
            step = max(1, len(data) // pieces)
            for at in range(0, len(data), step):
                raw.sendall(data[at : at + step])
            if half_close:
                raw.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := raw.recv(65536):
                answer += part
                if b"\r\n\r\n" in answer and not half_close:
                    break
    return answer


def check(server, answer: bytes) -> None:
    """An answer is one of HTTP's, never a failure of ours; and the next client is served."""
    if answer:
        assert answer.startswith(b"HTTP/1.1 ")
        assert 100 <= int(answer[9:12]) < 600
        assert answer[9:12] != b"500", answer
    assert httpx.get(f"{server.server.url}/v2/health/live", timeout=8).status_code == 200


@st.composite
def mangled(draw: st.DrawFn, whole: bytes = WHOLE) -> bytes:
    """A good request with a few bytes changed, lost, added or moved."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        change = draw(st.sampled_from(("flip", "cut", "insert", "repeat", "truncate")))
        if change == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "cut":
            del data[at : at + draw(st.integers(1, 20))]
        elif change == "insert":
            data[at:at] = draw(st.sampled_from((b"\r\n", b"\0", b" ", b":", b"\xff", b"99999999999", b"{", b"-")))
        elif change == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 60))]
        else:
            del data[at:]
    return bytes(data)


@pytest.fixture(scope="module", autouse=True)
def no_descriptor_stays(server):
    """As many files and sockets are open after all of it as before."""
    httpx.get(f"{server.server.url}/v2/health/live")
    before = psutil.Process().num_fds()
    yield
    assert psutil.Process().num_fds() <= before + 8


def test_mangled_requests(server, tried) -> None:
    @PROFILE
    @given(mangled(), st.integers(1, 5))
    def run(data: bytes, pieces: int) -> None:
        tried()
        check(server, send(server, data, half_close=True, pieces=pieces))

    run()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
SIDES = st.integers(-2, 6) | st.sampled_from([2**31, 2**62, 2**63 - 1])
NAMES = st.sampled_from(["x", "y", "", "../x", "x" * 300, "\0", "é"]) | st.text(max_size=4)
INPUT = st.fixed_dictionaries(
    {
        "name": NAMES | JSON,
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES", "BOOL", "FP16", "BF16", "fp32"]) | JSON,
        "shape": st.lists(SIDES, max_size=4) | JSON,
    },
    optional={
        "data": st.lists(st.integers(-5, 5) | st.floats() | st.text(max_size=2), max_size=9) | JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": SIDES | JSON, "content_type": JSON})
        | JSON,
    },
)
BODY = st.fixed_dictionaries(
    {"inputs": st.lists(INPUT, max_size=3) | JSON},
    optional={
        "id": JSON,
        "parameters": JSON,
        "outputs": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["z", "y", "z"]) | JSON}), max_size=3)
        | JSON,
    },
)


def test_bodies_of_the_protocol_that_say_anything(server, tried) -> None:
    with httpx.Client(base_url=server.server.url, timeout=8) as client:

        @PROFILE
        @given(BODY, st.binary(max_size=40), st.none() | st.integers(-1, 400))
        def run(document: object, tail: bytes, length: int | None) -> None:
            tried()
            raw = json.dumps(document).encode()
            headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
            reply = client.post("/v2/models/tiny/infer", content=raw + (tail if length is not None else b""),
                                headers=headers)  # fmt: skip
            assert reply.status_code in (200, 400, 415, 422), reply.text
            assert "Traceback" not in reply.text

        run()


def test_headers_that_say_anything(server, tried) -> None:
    names = st.sampled_from(
        ["x-loadslice-priority", "x-loadslice-deadline-ms", "x-loadslice-tenant", "x-loadslice-attempt",
         "x-loadslice-source", "x-loadslice-min-precision", "x-loadslice-key", "x-loadslice-tokens", "traceparent",
         "x-request-id", "Inference-Header-Content-Length", "Authorization", "Expect", "Content-Encoding"]
    )  # fmt: skip
    values = st.binary(max_size=40).map(lambda raw: raw.translate(None, b"\r\n\0")) | st.sampled_from(
        [b"0", b"-1", b"1e9", b"nan", b"9" * 200, b"critical", b"\xff\xfe", b"../../etc/passwd", b"gzip"]
    )

    @PROFILE
    @given(st.lists(st.tuples(names, values), max_size=5))
    def run(headers: list[tuple[str, bytes]]) -> None:
        tried()
        lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers)
        check(server, send(server, WHOLE.replace(b"Host: x\r\n", b"Host: x\r\n" + lines), half_close=True))

    run()


BINARY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}'
MANY = b'{"inputs":[' + b",".join([b'{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}'] * 5000) + b"]}"


def post(body: bytes, *headers: bytes, path: bytes = b"/v2/models/tiny/infer") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path, lines, len(body), body)


def outputs(*names: str) -> bytes:
    wanted = json.dumps([{"name": name} for name in names]).encode()
    return FINE[:-1] + b',"outputs":' + wanted + b"}"


CHUNKED = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SPECIAL = {
    "ten thousand headers": (b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 10_000 + b"\r\n", {400, 431}),
    "a header of a megabyte": (b"GET /v2 HTTP/1.1\r\nHost: x\r\na: " + b"b" * (1 << 20) + b"\r\n\r\n", {400, 431}),
    "a path of a megabyte": (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: x\r\n\r\n", {400, 414, 431}),
    "a body that is announced as endless": (HEAD % (1 << 60), {413}),
    "a flood of chunks": (CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n", {400, 413}),
    "more chunks than taken": (CHUNKED + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 40, {413}),
    "a chunk of a negative size": (CHUNKED + b"-1\r\n", {400}),
    "a chunk of an endless size": (CHUNKED + b"f" * 100 + b"\r\n", {400}),
    "both lengths": (HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") % 4 + b"0\r\n\r\n", {400}),
    "two lengths": (HEAD.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n") % 4 + b"abcd", {400}),
    "a gzip bomb": (post(gzip.compress(bytes(50 << 20)), b"Content-Encoding: gzip"), {413, 415}),
    "a deflate bomb": (post(zlib.compress(bytes(50 << 20)), b"Content-Encoding: deflate"), {413, 415}),
    "nested ten thousand deep": (post(b'{"inputs":' + b"[" * 10_000 + b"]" * 10_000 + b"}"), {400}),
    "five thousand inputs": (post(MANY), {400}),
    "an output twice": (post(outputs("z", "z")), {400}),
    "an output that is none": (post(outputs("../z")), {400}),
    "a hundred thousand outputs": (post(outputs(*(str(n) for n in range(60_000)))), {400, 413}),
    "an unknown tenant": (post(FINE, b"x-loadslice-tenant: nobody"), {200}),
    "a tenant that is a path": (post(FINE, b"x-loadslice-tenant: ../../etc/passwd"), {200}),
    "a tenant too long": (post(FINE, b"x-loadslice-tenant: " + b"t" * 1000), {400}),
    "a model that is a path": (post(FINE, path=b"/v2/models/../../etc/passwd/infer"), {404}),
    "a model that is an encoded path": (post(FINE, path=b"/v2/models/%2e%2e%2ftiny/infer"), {404}),
    "a model with a NUL": (post(FINE, path=b"/v2/models/ti%00ny/infer"), {404}),
    "a version that is not there": (post(FINE, path=b"/v2/models/tiny/versions/7/infer"), {404}),
    "a version that is a path": (post(FINE, path=b"/v2/models/tiny/versions/../1/infer"), {404}),
    "a shape beyond all memory": (post(FINE.replace(b"[1,4]", b"[2147483648,2147483648,2]")), {400}),
    "a shape below nothing": (post(FINE.replace(b"[1,4]", b"[-1,4]")), {400}),
    "binary data that is missing": (post(BINARY, b"Inference-Header-Content-Length: %d" % len(BINARY)), {400}),
    "an expectation of something else": (post(FINE, b"Expect: 200-ok"), {417}),
    "http 0.9": (b"GET /v2\r\n\r\n", {400}),
    "http 3": (b"GET /v2 HTTP/3.0\r\nHost: x\r\n\r\n", {400, 505}),
    "a smuggled line": (post(FINE, b"x-loadslice-source: a\rb"), {200, 400}),
    "a folded header": (post(FINE, b"x-loadslice-source: a\r\n b"), {200, 400}),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_requests_have_their_answer(server, tried, name: str) -> None:
    data, statuses = SPECIAL[name]
    tried()
    answer = send(server, data)
    # Whoever sends on after a refusal may find the connection reset before the answer was read.
    assert not answer or int(answer[9:12]) in statuses, answer[:200]
    check(server, answer)


def test_clients_that_leave_in_the_midst_of_everything(server, tried) -> None:
    host, _, port = server.server.url.removeprefix("http://").rpartition(":")
    for at in range(1, len(WHOLE), 3):
        tried()
        with socket.create_connection((host, int(port)), timeout=8) as raw:
            raw.sendall(WHOLE[:at])
            if at % 2:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    check(server, b"")
