"""Hostile requests by kind: each is refused in words that tell nothing, and the server goes on."""

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from loadslice.serve import connection as connection_file

pytestmark = pytest.mark.live

SECRETS = re.compile(r"/(?:home|tmp|root|usr|work)/|Traceback|0x[0-9a-f]{6,}|\.py\b|site-packages|Error:")


@pytest.fixture(scope="module")
def client(tiny) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny.server.url, timeout=60) as client:
        yield client


def tensor(shape: object, data: object = (1, 2, 3, 4), datatype: str = "FP32") -> dict:
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]}


def refused(client: httpx.Client, body: bytes, headers: dict[str, str] | None = None) -> str:
    reply = client.post("/v2/models/tiny/infer", content=body, headers=headers)
    assert 400 <= reply.status_code < 500
    text = reply.json()["error"]
    assert not SECRETS.search(text)
    assert len(text) <= 512
    return text


@pytest.mark.parametrize(
    "shape",
    [
        [2**31, 2**31, 2],
        [2**63 - 1, 4],
        [2**64, 4],
        [10**30, 4],
        [-1, 4],
        [0, 2**62],
        [1, 2],
        [1.5, 4],
        ["1", 4],
        [[1], 4],
        [True, 4],
        [1] * 1000,
        [],
        None,
        "1x4",
        {"0": 1},
    ],
)
def test_a_shape_that_is_none_is_refused_before_any_memory_is_taken(client, shape) -> None:
    before = psutil.Process().memory_info().rss
    refused(client, json.dumps(tensor(shape)).encode())
    assert psutil.Process().memory_info().rss - before < 256 << 20


@pytest.mark.parametrize("dims", [[2**31, 2**31, 2], [2**62, 4], [-4, -1]])
def test_a_binary_tensor_counts_what_it_says_in_whole_numbers(client, dims) -> None:
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": dims, "parameters": {"binary_data_size": 16}}]}
    head = json.dumps(document).encode()
    refused(client, head + bytes(16), {"Inference-Header-Content-Length": str(len(head))})


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"inputs":['])
def test_nesting_ten_thousand_deep_is_refused(client, opening) -> None:
    refused(client, opening * 10_000)
    refused(client, b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":' + b"[" * 10_000 + b"]" * 10_000)


@pytest.mark.parametrize(
    "outputs",
    [
        [{"name": "z"}] * 2,
        [{"name": f"z{number}"} for number in range(50_000)],
        [{"name": "z"}] * 50_000,
        [{"name": "other"}],
        [{"name": "z" * 100_000}],
    ],
)
def test_outputs_that_are_many_twice_or_none_are_refused(client, outputs) -> None:
    refused(client, json.dumps(tensor([1, 4]) | {"outputs": outputs}).encode())


def test_inputs_that_come_twice_or_by_the_thousand_are_refused(client) -> None:
    one = tensor([1, 4])["inputs"][0]
    refused(client, json.dumps({"inputs": [one, one]}).encode())
    refused(client, json.dumps({"inputs": [one | {"name": f"x{n}"} for n in range(5000)]}).encode())


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/..%2f..%2fetc%2fpasswd/infer",
        "/v2/models/%2e%2e/%2e%2e/etc",
        "/v2/models/tiny%00/infer",
        "/v2/models/tiny/versions/../../../etc/ready",
        "/v2/models/\u2025/infer",
        "/v2/models/tiny/versions/9/infer",
        "//v2/models/tiny/infer/",
        "/v1/pipelines/..%5c..%5cwindows",
        "/v2/models/" + "a" * 8000 + "/infer",
    ],
)
def test_a_model_name_that_is_a_path_is_no_model(client, path) -> None:
    reply = client.post(path, json=tensor([1, 4]))
    assert reply.status_code in (400, 404, 414)
    assert not SECRETS.search(reply.text.replace(path, ""))
    assert "etc" not in reply.text


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/evil/load",
        "/v2/repository/models/tiny/unload",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/cudasharedmemory/region/r/register",
        "/v2/trace/setting",
        "/v2/logging",
        "/models",
        "/admin/reload",
    ],
)
def test_nothing_is_loaded_registered_or_set_from_outside(client, path) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert client.request(method, path, content=b"{}").status_code in (403, 404)


def test_three_megabytes_in_chunks_of_one_byte_hold_nobody_up_and_leave_nothing_behind(
    tiny, client, monkeypatch
) -> None:
    """A million tiny chunks are a million pieces of work: others must get their turn between them."""
    address = httpx.URL(tiny.server.url)
    monkeypatch.setattr(connection_file, "LINGER_S", 60.0)  # or whoever sends slowly could miss why it was refused
    chunks = b"1\r\nx\r\n" * 50_000
    statuses: list[bytes] = []

    def flood() -> None:
        with socket.create_connection((address.host, address.port), 60) as raw:
            raw.sendall(b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                for _ in range(60):
                    raw.sendall(chunks)
                raw.sendall(b"0\r\n\r\n")
            statuses.append(raw.recv(64))

    client.get("/v2/health/live")
    before = psutil.Process().memory_info().rss
    flooding = threading.Thread(target=flood)
    flooding.start()
    waits = []
    flood_s = time.monotonic()
    while flooding.is_alive():
        began_s = time.monotonic()
        assert client.get("/v2/health/live").status_code == 200
        waits.append(time.monotonic() - began_s)
    flooding.join()
    flood_s = time.monotonic() - flood_s
    assert statuses[0].startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))
    assert sorted(waits)[len(waits) // 2] < flood_s / 8, "of the work, which takes as long as this machine takes"
    assert psutil.Process().memory_info().rss - before < 64 << 20
    tiny.check()


def test_a_small_body_that_unpacks_to_a_large_one_is_not_unpacked(client) -> None:
    body = b"\x1f\x8b" + bytes(64)
    for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "x-gzip"):
        reply = client.post("/v2/models/tiny/infer", content=body, headers={"Content-Encoding": coding})
        assert reply.status_code == 415


def test_every_socket_that_listens_is_on_loopback(tiny) -> None:
    here = psutil.Process(os.getpid())
    listening = [
        connection.laddr.ip
        for process in (here, *here.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 0x10\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: a\r\n Folded: b\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nBad Header: b\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"GET /v2 HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_a_head_that_two_parsers_could_read_in_two_ways_is_refused(tiny, head) -> None:
    address = httpx.URL(tiny.server.url)
    with socket.create_connection((address.host, address.port), 30) as raw:
        raw.settimeout(30)
        raw.sendall(head)
        status = raw.recv(64)
        assert status.startswith(b"HTTP/1.1 4")
        assert b"HTTP/1.1 200" not in status
