"""What a client sees: round trips in every form, and a right answer to everything that is wrong."""

import contextlib
import json
import socket
import struct
from typing import Any

import httpx
import numpy as np
import pytest

from loadslice.spec.outcome import Outcome

pytestmark = pytest.mark.live

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
MODEL = "/v2/models/tiny"
INFER = f"{MODEL}/infer"


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": ROWS.ravel().tolist()} | changes


def binary(document: dict[str, Any], *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(document).encode()
    return head + b"".join(blobs), {"Inference-Header-Content-Length": str(len(head))}


@pytest.fixture(scope="module")
def client(tiny):
    with httpx.Client(base_url=tiny.server.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def text_client(text):
    with httpx.Client(base_url=text.server.url, timeout=30) as client:
        yield client


@pytest.mark.parametrize("data", [ROWS.ravel().tolist(), ROWS.tolist()], ids=["flat", "nested"])
def test_json_tensors_pass_two_engines_and_come_back(client, data) -> None:
    reply = client.post(INFER, json={"id": "mine", "inputs": [tensor(data=data)]})
    assert reply.status_code == 200
    document = reply.json()
    assert (document["model_name"], document["model_version"], document["id"]) == ("tiny", "1", "mine")
    (output,) = document["outputs"]
    assert output == {"name": "z", "datatype": "FP32", "shape": [2, 4], "data": (-2 * ROWS).ravel().tolist()}
    assert reply.headers["x-loadslice-engine"] == "ort, ov"
    assert [part.split(";")[0] for part in reply.headers["x-loadslice-timing"].split(", ")] == ["double", "negate"]


def test_large_json_tensors_come_back_too_and_others_are_served_meanwhile(tiny, client) -> None:
    rows = np.arange(100_000, dtype=np.float32).reshape(25_000, 4)
    turns: list[int] = []
    take = tiny.server._front.turns.take

    async def counting(work):
        def counted():
            while True:
                try:
                    next(work)
                except StopIteration as done:
                    return done.value
                turns[-1] += 1
                yield

        turns.append(0)
        return await take(counted())

    tiny.server._front.turns.take = counting
    try:
        given = tensor(shape=list(rows.shape), data=rows.tolist())
        wanted = {"name": "z", "parameters": {"binary_data": False}}
        reply = client.post(INFER, json={"id": "mine", "inputs": [given], "outputs": [wanted]})
        assert reply.status_code == 200, reply.text
        (output,) = reply.json()["outputs"]
        assert output == {"name": "z", "datatype": "FP32", "shape": [25_000, 4], "data": (-2 * rows).ravel().tolist()}
        assert min(turns) > 10
        assert len(turns) == 2
        wrong = client.post(INFER, json={"inputs": [given | {"shape": [24_999, 4]}]})
        assert (wrong.status_code, "of another" in wrong.text) == (400, True)
    finally:
        del tiny.server._front.turns.take


def test_binary_tensors_go_in_and_come_out(client) -> None:
    given = {"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
    body, headers = binary({"inputs": [given], "parameters": {"binary_data_output": True}}, ROWS.tobytes())
    reply = client.post(INFER, content=body, headers=headers)
    assert reply.status_code == 200
    length = int(reply.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(reply.content[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": 32}
    np.testing.assert_array_equal(np.frombuffer(reply.content[length:], np.float32).reshape(2, 4), -2 * ROWS)


@pytest.mark.parametrize("padding", range(4))
def test_binary_tensors_may_stand_anywhere_in_the_body(client, padding) -> None:
    given = {"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
    body, headers = binary({"id": "i" * padding, "inputs": [given]}, ROWS.tobytes())
    assert (
        client.post(INFER, content=body, headers=headers).json()["outputs"][0]["data"] == (-2 * ROWS).ravel().tolist()
    )


def test_words_that_were_heard_before_mean_the_same_and_a_lie_in_them_is_still_one(client) -> None:
    given = {"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
    for factor in (1, 2, 3):
        rows = ROWS * factor
        body, headers = binary({"inputs": [given]}, rows.tobytes())
        reply = client.post(INFER, content=body, headers=headers)
        assert reply.json()["outputs"][0]["data"] == (-2 * rows).ravel().tolist()
    assert client.post(INFER, content=body[:-1], headers=headers).status_code == 400
    assert client.post(INFER, content=body + b"x", headers=headers).status_code == 400


def test_a_version_can_be_named_and_another_is_not_there(client) -> None:
    assert client.post(f"{MODEL}/versions/1/infer", json={"inputs": [tensor()]}).status_code == 200
    assert client.post(f"{MODEL}/versions/2/infer", json={"inputs": [tensor()]}).status_code == 404


def test_no_rows_are_an_answer_too(client) -> None:
    (output,) = client.post(INFER, json={"inputs": [tensor(shape=[0, 4], data=[])]}).json()["outputs"]
    assert (output["shape"], output["data"]) == ([0, 4], [])


def test_metadata_says_what_goes_in_and_out(client, text_client) -> None:
    document = client.get(MODEL).json()
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert document["outputs"] == [{"name": "z", "datatype": "FP32", "shape": [-1, 4]}]
    assert text_client.get("/v2/models/text").json()["inputs"][0]["datatype"] == "BYTES"
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data", "metrics"]
    assert client.get("/v1/pipelines").json()["pipelines"][0]["name"] == "tiny"


def test_readiness_passes_through_every_engine(client) -> None:
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").json() == {"name": "tiny", "ready": True}
    assert client.get(f"{MODEL}/ready").status_code == 200


def test_metrics_count_outcomes_and_times_per_engine(client) -> None:
    client.post(INFER, json={"inputs": [tensor()]})
    lines = client.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    done = float(values['loadslice_requests_total{outcome="completed",pipeline="tiny",reason="none"}'])
    assert done >= 1
    for engine, stage in (("ort", "double"), ("ov", "negate")):
        assert float(values[f'loadslice_engine_batches_total{{engine="{engine}"}}']) >= 1
        assert float(values[f'loadslice_engine_queue_length{{engine="{engine}"}}']) == 0
        assert 0 <= float(values[f'loadslice_engine_utilisation_ratio{{engine="{engine}"}}']) <= 1
        assert float(values[f'loadslice_engine_busy_seconds_total{{engine="{engine}"}}']) > 0
        for kind in ("queue", "copy", "compute"):
            assert float(values[f'loadslice_stage_{kind}_seconds_count{{engine="{engine}",stage="{stage}"}}']) == done


def test_no_reply_says_which_versions_are_inside(client) -> None:
    replies = [client.get(path) for path in ("/v2", "/metrics", "/nowhere")]
    replies.append(client.post(INFER, json={"inputs": [tensor()]}))
    assert {reply.headers["server"] for reply in replies} == {"loadslice"}


def test_raw_text_becomes_text(text_client) -> None:
    reply = text_client.post("/v1/pipelines/text", content="1 2 3 4\n5 6 7 8", headers={"content-type": "text/plain"})
    outputs = {output["name"]: output for output in reply.json()["outputs"]}
    assert outputs["sum"]["data"] == [20, 52]
    assert outputs["label"] == {"name": "label", "datatype": "BYTES", "shape": [2], "data": ["row 20", "row 52"]}


def test_raw_bytes_may_come_as_one_bytes_tensor_and_text_go_out_packed(text_client) -> None:
    raw = b"1 2 3 4"
    blob = struct.pack("<I", len(raw)) + raw
    given = {"name": "body", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(blob)}}
    wanted = [{"name": "label", "parameters": {"binary_data": True}}]
    body, headers = binary({"inputs": [given], "outputs": wanted}, blob)
    reply = text_client.post("/v2/models/text/infer", content=body, headers=headers)
    length = int(reply.headers["Inference-Header-Content-Length"])
    assert [output["name"] for output in json.loads(reply.content[:length])["outputs"]] == ["label"]
    assert reply.content[length:] == struct.pack("<I", 6) + b"row 20"


def test_a_text_without_rows_passes_without_running_the_model(text_client) -> None:
    reply = text_client.post("/v1/pipelines/text", content="none", headers={"content-type": "text/plain"})
    assert [output["shape"] for output in reply.json()["outputs"]] == [[0], [0]]


def test_tensors_may_enter_at_a_python_stage(text_client) -> None:
    reply = text_client.post("/v2/models/text/infer", json={"inputs": [tensor()]})
    assert reply.json()["outputs"][0]["data"] == [12, 44]


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ("one two", 400, "not rows of four numbers"),
        ("type", 415, "not this type"),
        ("boom", 500, "a stage failed on this request"),
        ("wide", 500, "a stage failed on this request"),
        ("bare", 500, "a stage failed on this request"),
        ("date", 500, "a stage failed on this request"),
        ("exit", 500, "a stage failed on this request"),
    ],
)
def test_a_stage_that_refuses_or_breaks_fails_its_own_request_only(text, text_client, body, status, error) -> None:
    before = dict(text.server.outcomes)
    reply = text_client.post("/v1/pipelines/text", content=body, headers={"content-type": "text/plain"})
    assert (reply.status_code, reply.json()) == (status, {"error": error})
    assert text.server.outcomes == before | {Outcome.FAILED: before[Outcome.FAILED] + 1}
    assert text_client.get("/v2/health/ready").status_code == 200
    text.check()


BAD_BODIES = [
    ("empty", b"", 400),
    ("not JSON", b"{", 400),
    ("not UTF-8", b'{"inputs": [{"name": "\xff"}]}', 400),
    ("a list", b"[]", 400),
    ("nothing in it", b"{}", 400),
    ("no inputs", {"inputs": []}, 400),
    ("deep nesting", b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    (
        "deep data",
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":' + b"[" * 90_000 + b"]" * 90_000 + b"}]}",
        400,
    ),
    ("twice the same", {"inputs": [tensor(), tensor()]}, 400),
    ("another name", {"inputs": [tensor(), tensor(name="w")]}, 400),
    ("no data", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4]}]}, 400),
    ("null data", {"inputs": [tensor(data=None)]}, 400),
    ("text as numbers", {"inputs": [tensor(data=["a"] * 8)]}, 400),
    ("too few values", {"inputs": [tensor(data=[1.0])]}, 400),
    ("too many values", {"inputs": [tensor(data=[1.0] * 9)]}, 400),
    ("ragged rows", {"inputs": [tensor(data=[[1, 2, 3, 4], [1, 2, 3]])]}, 400),
    ("nested otherwise", {"inputs": [tensor(data=[[1, 2], [3, 4], [5, 6], [7, 8]])]}, 400),
    ("a number out of range", {"inputs": [tensor(data=[1e300] * 8)]}, 400),
    ("a huge number", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1e999,0,0,0]}]}', 400),
    ("negative side", {"inputs": [tensor(shape=[-2, -4])]}, 400),
    ("huge side", {"inputs": [tensor(shape=[2**62, 4])]}, 400),
    ("huge side beside none", {"inputs": [tensor(shape=[0, 2**62, 2**62], data=[])]}, 400),
    ("side that is no number", {"inputs": [tensor(shape=["2", 4])]}, 400),
    ("side beyond 64 bits", {"inputs": [tensor(shape=[2**80, 4])]}, 400),
    ("no sides", {"inputs": [tensor(shape=[], data=[1.0])]}, 400),
    ("too many sides", {"inputs": [tensor(shape=[1] * 40, data=[1.0])]}, 400),
    ("another width", {"inputs": [tensor(shape=[4, 2])]}, 400),
    ("another rank", {"inputs": [tensor(shape=[2, 2, 2])]}, 400),
    ("another type", {"inputs": [tensor(datatype="FP64")]}, 400),
    ("no such type", {"inputs": [tensor(datatype="FP8")]}, 400),
    ("no such output", {"inputs": [tensor()], "outputs": [{"name": "w"}]}, 400),
    ("output twice", {"inputs": [tensor()], "outputs": [{"name": "z"}, {"name": "z"}]}, 400),
    ("binary without bytes", {"inputs": [{**tensor(), "parameters": {"binary_data_size": 32}}]}, 400),
    ("bytes after the end", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}xx', 400),
]


@pytest.mark.parametrize(("body", "status"), [case[1:] for case in BAD_BODIES], ids=[case[0] for case in BAD_BODIES])
def test_a_wrong_body_is_refused_in_words_and_the_server_lives(tiny, client, body, status) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    before = dict(tiny.server.outcomes)
    reply = client.post(INFER, content=content)
    assert reply.status_code == status
    (message,) = reply.json().values()
    assert message
    for word in ("Traceback", "Error", "/work", "0x", "site-packages", "numpy", "msgspec"):
        assert word not in message
    assert tiny.server.outcomes == before, "it never reached the core"
    assert client.post(INFER, json={"inputs": [tensor()]}).status_code == 200


BINARY = {"name": "x", "datatype": "FP32", "shape": [2, 4]}


@pytest.mark.parametrize(
    ("size", "blob", "length"),
    [
        (32, b"\0" * 31, None),
        (32, b"\0" * 33, None),
        (31, b"\0" * 31, None),
        (-1, b"", None),
        (True, b"\0", None),
        (2**70, b"\0" * 32, None),
        ("32", b"\0" * 32, None),
        (32, b"\0" * 32, "99999"),
        (32, b"\0" * 32, "5"),
        (32, b"\0" * 32, "0"),
        (32, b"\0" * 32, "-5"),
        (32, b"\0" * 32, "9" * 30),
        (32, b"\0" * 32, "x"),
    ],
)
def test_lies_about_binary_sizes_are_refused(client, size, blob, length) -> None:
    body, headers = binary({"inputs": [BINARY | {"parameters": {"binary_data_size": size}}]}, blob)
    if length is not None:
        headers = {"Inference-Header-Content-Length": length}
    assert client.post(INFER, content=body, headers=headers).status_code == 400


@pytest.mark.parametrize(
    "blob",
    [b"", b"\1\0\0", b"\5\0\0\0abc", b"\1\0\0\0ab", b"\xff\xff\xff\xff"],
)
def test_lies_inside_bytes_tensors_are_refused(text_client, blob) -> None:
    given = {"name": "t", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(blob)}}
    body, headers = binary({"inputs": [given]}, blob)
    assert text_client.post("/v2/models/text/infer", content=body, headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-loadslice-priority", "first"),
        ("x-loadslice-priority", "4"),
        ("x-loadslice-deadline-ms", "0"),
        ("x-loadslice-deadline-ms", "-1"),
        ("x-loadslice-deadline-ms", "nan"),
        ("x-loadslice-deadline-ms", "inf"),
        ("x-loadslice-deadline-ms", "soon"),
        ("x-loadslice-min-precision", "fp7"),
        ("x-loadslice-attempt", "1" * 30),
        ("x-request-id", b"a\xff\xfe"),
        ("x-loadslice-source", "s" * 300),
        ("x-loadslice-tenant", "t" * 65),
        ("x-loadslice-tenant", "two\tcolumns"),
        ("x-loadslice-key", "k" * 300),
        ("x-loadslice-tokens", "-1"),
        ("x-loadslice-tokens", "1e3"),
        ("Inference-Header-Content-Length", "1" * 5),
    ],
)
def test_a_wrong_header_is_refused(client, name, value) -> None:
    assert client.post(INFER, json={"inputs": [tensor()]}, headers={name: value}).status_code == 400


@pytest.mark.parametrize("priority", ["critical_plus", "0", "sheddable", "3"])
def test_classes_are_known_by_name_and_number(client, priority) -> None:
    headers = {"x-loadslice-priority": priority, "x-loadslice-deadline-ms": "5000", "x-loadslice-min-precision": "fp32"}
    assert client.post(INFER, json={"inputs": [tensor()]}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models/other", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v1/pipelines/other", 404),
        ("GET", "/v2/models/tiny/../../../etc/passwd", 404),
        ("GET", "/v2//health/live", 404),
        ("GET", INFER, 405),
        ("DELETE", MODEL, 405),
        ("POST", "/v2/health/ready", 405),
        ("PUT", "/metrics", 405),
        ("POST", "/v1/pipelines/tiny", 415),
    ],
)
def test_wrong_paths_and_methods(client, method, path, status) -> None:
    reply = client.request(
        method, path, headers={"content-type": "image/png"}, content=b"x" if method != "GET" else None
    )
    assert reply.status_code == status
    assert list(reply.json()) == ["error"]
    assert ("allow" in reply.headers) == (status == 405)


def test_a_path_says_which_methods_it_takes(client) -> None:
    assert client.delete(MODEL).headers["allow"] == "GET, HEAD"
    assert client.get(INFER).headers["allow"] == "POST"


@pytest.mark.parametrize("content_type", ["text/html", "multipart/form-data", "", "x", b"text/\xff\xfe"])
def test_raw_bodies_of_another_type_are_not_taken(text_client, content_type) -> None:
    reply = text_client.post("/v1/pipelines/text", content=b"1 2 3 4", headers={"content-type": content_type})
    assert reply.status_code == 415


@pytest.mark.parametrize(
    ("head", "status"),
    [
        # RFC 9112: 7.4 lets a server ignore TE; 6.1 asks for 501 where a coding is not known, and 6.3 for 400 where the
        # last is not chunked, because then nobody knows where the body ends.
        ("TE: gzip, chunked\r\nTransfer-Encoding: chunked", 200),
        ("Transfer-Encoding: gzip, chunked", 501),
        ("Transfer-Encoding: chunked, gzip", 400),
        ("Transfer-Encoding: gzip", 400),
    ],
)
def test_codings_of_the_way_are_chunked_or_refused(tiny, head, status) -> None:
    body = json.dumps({"inputs": [tensor()]}).encode()
    with socket.create_connection(("127.0.0.1", int(tiny.server.url.rsplit(":", 1)[1])), timeout=10) as wire:
        wire.sendall(f"POST {INFER} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{head}\r\n\r\n".encode())
        wire.sendall(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        reply = wire.makefile("rb").read()
    assert reply.split()[1] == str(status).encode()


def test_compressed_bodies_are_not_taken(client) -> None:
    assert client.post(INFER, content=b"\x1f\x8b" + b"\0" * 50, headers={"content-encoding": "gzip"}).status_code == 415


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(tiny) -> None:
    with socket.create_connection(("127.0.0.1", int(tiny.server.url.rsplit(":", 1)[1])), timeout=10) as wire:
        wire.sendall(f"POST {INFER} HTTP/1.1\r\nHost: h\r\nContent-Length: {100 << 20}\r\n\r\n".encode())
        reply = wire.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close" in reply


def test_a_chunked_body_is_refused_where_it_becomes_too_large(client) -> None:
    def chunks():
        for _ in range(40):
            yield b"\0" * (1 << 20)

    with contextlib.suppress(httpx.WriteError):  # the refusal may come while this client still writes
        assert client.post(INFER, content=chunks()).status_code == 413
    assert client.get("/v2/health/live").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_json(tiny, head) -> None:
    with socket.create_connection(("127.0.0.1", int(tiny.server.url.rsplit(":", 1)[1])), timeout=10) as wire:
        wire.sendall(head)
        reply = wire.makefile("rb").read()
    assert reply.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert reply.endswith(b'{"error":"the request is not valid HTTP"}')


def test_a_client_that_waits_for_leave_gets_it(tiny) -> None:
    body = json.dumps({"inputs": [tensor()]}).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", int(tiny.server.url.rsplit(":", 1)[1])), timeout=10) as wire:
        wire.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        stream = wire.makefile("rb")
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        stream.readline()
        wire.sendall(body)
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
