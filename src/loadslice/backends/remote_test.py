"""Engines elsewhere, against stand-ins that answer as others do: JSON only, late, too much, not at all."""

import contextlib
import json
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from loadslice.backends.base import EngineError, open_backend
from loadslice.backends.remote_http import Call
from loadslice.backends.remote_oip import RemoteOipSession
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import StageInputError

METADATA = {
    "name": "double",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}, {"name": "t", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}, {"name": "t", "datatype": "BYTES", "shape": [-1]}],
}
FEEDS = {"x": np.ones((1, 4), np.float32), "t": np.array(["größer"], object)}


class StandIn(BaseHTTPRequestHandler):
    """Answers what the test says; as many other servers, it speaks JSON and nothing else."""

    protocol_version = "HTTP/1.1"
    answer: Callable[["StandIn", Any], tuple[int, Any]]
    connections: list[int]
    heads: list[dict[str, str]]
    gone: threading.Event
    extensions: list[str]

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def setup(self) -> None:
        super().setup()
        self.connections.append(1)

    def do_GET(self) -> None:
        pages = {
            "/v2": {"name": "stand-in", "version": "9", "extensions": self.extensions},
            "/v2/models/double": METADATA,
            "/v1/models": {"data": [{"id": "small"}]},
        }
        page = pages.get(self.path)
        self._send(200 if page else 404, page or {"error": "unknown model"})

    def do_POST(self) -> None:
        self.heads.append({key.lower(): value for key, value in self.headers.items()})
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(*type(self).answer(self, json.loads(body)))

    def _send(self, status: int, document: Any) -> None:
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        except OSError:
            self.gone.set()


def double(_: StandIn, asked: Any) -> tuple[int, Any]:
    x, t = asked["inputs"]
    y = {"name": "y", "datatype": "FP32", "shape": x["shape"], "data": [2 * value for value in x["data"]]}
    return 200, {"outputs": [y, {"name": "t", "datatype": "BYTES", "shape": t["shape"], "data": t["data"]}]}


@contextmanager
def standing_in(answer: Callable[[StandIn, Any], tuple[int, Any]], tls: Any = None) -> Iterator[tuple[str, Any]]:
    kind = type(
        "Kind",
        (StandIn,),
        {"answer": answer, "connections": [], "heads": [], "gone": threading.Event(), "extensions": []},
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}", kind
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def load(url: str, kind: str = "remote-oip", **options: Any) -> Any:
    name = "double" if kind == "remote-oip" else "small"
    return open_backend(kind).load(Path(name), Engine(backend=kind, options={"url": url, **options}))


def test_a_server_that_speaks_json_only_is_asked_in_json_over_one_connection() -> None:
    with standing_in(double) as (url, kind):
        session = load(url)
        assert [(info.name, info.dtype.kind, info.shape) for info in session.inputs] == [
            ("x", "f", (None, 4)),
            ("t", "O", (None,)),
        ]
        for _ in range(3):
            outputs = session.run(FEEDS)
        assert outputs["y"].tolist() == [[2, 2, 2, 2]]
        assert outputs["t"].tolist() == ["größer"]
        assert sum(kind.connections) == 2, "one for questions, one for the slot"
        assert session.describe()["form"] == "json"
        assert session.describe()["version"] == "9"
        session.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, StageInputError), (422, StageInputError), (401, EngineError), (404, EngineError), (429, EngineError),
     (500, EngineError), (503, EngineError)],
)  # fmt: skip
def test_what_the_server_says_is_the_requests_fault_or_the_engines(status: int, kind: type[Exception]) -> None:
    with standing_in(lambda *_: (status, {"error": "so it is"})) as (url, _):
        session = load(url)
        with pytest.raises(kind, match="so it is"):
            session.run(FEEDS)
        session.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"not json", {"outputs": []}, {"outputs": [{"name": "y"}]}, {"outputs": 3}, {}, [],
     {"outputs": [{"name": "y", "datatype": "FP32", "shape": [3, 4], "data": [1.0]}]},
     {"outputs": [{"name": "y", "datatype": "NEW", "shape": [1], "data": [1]}]},
     {"outputs": [{"name": "y", "datatype": "FP32", "shape": [2**70], "data": [1]}]},
     {"outputs": [{"name": "y", "datatype": "INT8", "shape": [1], "data": [300]}]},
     {"outputs": [{"name": "y", "datatype": "FP32", "shape": [9], "parameters": {"binary_data_size": 36}}]},
     {"outputs": [{"name": "y", "datatype": "FP32", "shape": [9], "parameters": {"binary_data_size": -1}}]}],
)  # fmt: skip
def test_what_is_no_reply_fails_the_batch(answer: Any) -> None:
    with standing_in(lambda *_: (200, answer)) as (url, _):
        session = load(url)
        with pytest.raises(EngineError):
            session.run(FEEDS)
        session.close()


def test_a_reply_is_never_read_past_its_limit() -> None:
    with standing_in(lambda *_: (200, b"x" * 3_000_000)) as (url, _):
        session = load(url, reply_mb_max=1)
        with pytest.raises(EngineError, match="reply_mb_max"):
            session.run(FEEDS)
        session.close()


def test_a_server_that_is_late_is_given_up_and_told_how_long_it_has() -> None:
    release = threading.Event()

    def late(_: StandIn, asked: Any) -> tuple[int, Any]:
        release.wait(20)
        return double(_, asked)

    with standing_in(late) as (url, kind):
        session = load(url)
        session.remote.calls[0] = Call(time.monotonic() + 0.2)
        began = time.monotonic()
        with pytest.raises(EngineError, match="in time"):
            session.run(FEEDS)
        assert time.monotonic() - began < 2
        assert 0 < int(kind.heads[0]["x-loadslice-deadline-ms"]) <= 200
        release.set()
        session.remote.calls[0] = Call()
        assert session.run(FEEDS)["y"].tolist() == [[2, 2, 2, 2]], "the next call has a connection of its own"
        session.close()


def test_a_call_that_nobody_waits_for_any_more_is_dropped_and_the_server_can_tell() -> None:
    taken_up, release = threading.Event(), threading.Event()

    def slow(stand_in: StandIn, asked: Any) -> tuple[int, Any]:
        taken_up.set()
        release.wait(20)
        return 200, b"x" * 50_000_000

    with standing_in(slow) as (url, kind):
        session = load(url)
        session.remote.calls[0] = Call(None, lambda: not taken_up.is_set())
        with pytest.raises(EngineError, match="nobody waits"):
            session.run(FEEDS)
        release.set()
        assert kind.gone.wait(20), "the connection was left open"
        session.close()


HEAD = b"HTTP/1.1 200 OK\r\n"
LAST_CHUNK = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"", b"H"), (HEAD, b"x"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (HEAD + LAST_CHUNK, b"x: y\r\n")],
    ids=["status", "header", "continue", "trailers"],
)
def test_a_server_that_answers_a_little_now_and_then_has_no_more_time_and_holds_nobody_who_has_left(
    start: bytes, piece: bytes, waits: bool
) -> None:
    began, enough = threading.Event(), threading.Event()

    def drip(stand_in: StandIn, _: Any) -> tuple[int, Any]:
        stand_in.close_connection = True
        with contextlib.suppress(OSError):
            stand_in.wfile.write(start)
            for _ in range(300):
                stand_in.wfile.write(piece)
                began.set()
                if enough.wait(0.01):
                    break
        return 200, b""

    with standing_in(drip) as (url, _):
        session = load(url)
        session.remote.calls[0] = Call(time.monotonic() + 0.05) if waits else Call(None, lambda: not began.is_set())
        with pytest.raises(EngineError, match="in time" if waits else "nobody waits"):
            session.run(FEEDS)
        enough.set()
        session.close()


def test_what_was_asked_is_not_kept_until_the_next_call() -> None:
    class Waiting:
        """Whoever waits for an answer."""

        def still(self) -> bool:
            return True

    with standing_in(double) as (url, _):
        session = load(url)
        waiting = Waiting()
        gone = weakref.ref(waiting)
        session.remote.calls[0] = Call(None, waiting.still)
        session.run(FEEDS)
        session.remote.calls[0] = Call()
        del waiting
        assert gone() is None
        session.close()


def test_a_connection_that_the_server_closed_while_idle_costs_no_request() -> None:
    def once(stand_in: StandIn, asked: Any) -> tuple[int, Any]:
        stand_in.close_connection = True
        return double(stand_in, asked)

    with standing_in(once) as (url, _):
        session = load(url)
        assert [session.run(FEEDS)["y"].shape for _ in range(3)] == [(1, 4)] * 3
        session.close()


def test_tls_is_checked_against_the_authority_that_the_file_names(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with standing_in(double, authority.issue_cert("127.0.0.1")) as (url, _):
        session = load(url, ca_file=str(tmp_path / "ca.pem"))
        assert session.run(FEEDS)["y"].tolist() == [[2, 2, 2, 2]]
        session.close()
        with pytest.raises(InputError, match="not trusted"):
            load(url)


def test_a_token_comes_from_the_environment_and_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "s3cret")
    with standing_in(lambda *_: (401, {"error": "no"})) as (url, kind):
        session = load(url, token_env="THERE")
        with pytest.raises(EngineError) as refused:
            session.run(FEEDS)
        assert kind.heads[0]["authorization"] == "Bearer s3cret"
        assert "s3cret" not in str(refused.value)
        session.close()
    with pytest.raises(InputError, match="'NOWHERE' holds no token"):
        load("http://127.0.0.1:1", token_env="NOWHERE")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "options.url is missing"),
        ({"url": "http://me:pass@host:80"}, "holds a user or password"),
        ({"url": "http://me:pa/ss@host:80"}, "options.url"),
        ({"url": "ftp://host"}, "not like http"),
        ({"url": "http://host:99999"}, "not like http"),
        ({"url": "http://host:80/?q=1"}, "not like http"),
        ({"url": "http://host", "uri": "x"}, "options.uri: not known"),
        ({"url": 3}, "options.url: a value of type int"),
        ({"url": "http://host", "call_s": 0}, "options.call_s"),
        ({"url": "https://host", "ca_file": "/no/such.pem"}, "options.ca_file"),
    ],
)
def test_options_that_cannot_be_right_are_refused_and_no_secret_is_repeated(options: Any, said: str) -> None:
    for kind in ("remote-oip", "remote-openai"):
        with pytest.raises(InputError, match=said) as refused:
            open_backend(kind).load(Path("double"), Engine(backend=kind, options=options))
        assert "pass" not in str(refused.value).replace("password", "")


def test_a_server_that_is_not_there_or_has_no_such_model_is_refused_at_load() -> None:
    with pytest.raises(InputError, match=r"127.0.0.1:1.*Check options.url"):
        load("http://127.0.0.1:1")
    with standing_in(double) as (url, _):
        with pytest.raises(InputError, match=r"404: .*unknown model"):
            load(url, model="treble")
        with pytest.raises(InputError, match=r"has no model 'large' \(small\)"):
            load(url, "remote-openai", model="large")


def answer_chat(_: StandIn, asked: Any) -> tuple[int, Any]:
    said = asked["messages"][-1]["content"].upper() if "messages" in asked else asked["prompt"][::-1]
    choice = {"message": {"content": said}} if "messages" in asked else {"text": said}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": asked.get("max_tokens", 0)}}


def test_text_goes_to_a_chat_server_and_comes_back_with_its_tokens() -> None:
    with standing_in(answer_chat) as (url, _):
        session = load(url + "/v1", "remote-openai", max_tokens=7)
        found = session.run({"prompt": np.array(["one", b"two"], object)})
        assert found["text"].tolist() == ["ONE", "TWO"]
        assert found["tokens_in"].tolist() == [3, 3]
        assert found["tokens_out"].tolist() == [7, 7]
        session.close()
        session = load(url, "remote-openai", endpoint="completions")
        assert session.run({"prompt": np.array(["one"], object)})["text"].tolist() == ["eno"]
        session.close()


def test_a_chat_reply_without_choices_fails_the_batch_and_uncounted_tokens_are_unknown() -> None:
    for answer, error in (({}, True), ({"choices": []}, True), ({"choices": [{"message": {"content": "x"}}]}, False)):
        with standing_in(lambda *_, answer=answer: (200, answer)) as (url, _):
            session = load(url, "remote-openai")
            if error:
                with pytest.raises(EngineError):
                    session.run({"prompt": np.array(["one"], object)})
            else:
                assert session.run({"prompt": np.array(["one"], object)})["tokens_in"].tolist() == [-1]
            session.close()


@pytest.mark.parametrize("count", [2**70, 1e999, "many", None, True])
def test_counts_of_tokens_that_are_none_are_unknown(count: object) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 2}
    raw = json.dumps({"choices": [{"message": {"content": "x"}}], "usage": usage}).replace("Infinity", "1e999")
    with standing_in(lambda *_: (200, raw.encode())) as (url, _):
        session = load(url, "remote-openai")
        found = session.run({"prompt": np.array(["one"], object)})
        assert (found["tokens_in"].tolist(), found["tokens_out"].tolist()) == ([-1], [2])
        session.close()


def test_a_form_that_the_file_states_is_used_whatever_the_server_lists() -> None:
    with standing_in(double) as (url, _):
        session = load(url, binary=True)
        assert isinstance(session, RemoteOipSession)
        assert session.is_binary
        session.close()
