"""Real servers on loopback ports, with models small enough to be written by hand."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.policy import invariants
from loadslice.serve.server import Server
from loadslice.spec.functions import load_function
from loadslice.spec.pipeline import Pipeline, check

STAGES = """
import threading
import numpy as np
from loadslice.spec.work import RawInput, Sample, StageInputError, Work

gate = threading.Event()
gate.set()


def shut_gate():
    gate.clear()


def open_gate():
    gate.set()


def parse(work):
    if not isinstance(work.context, RawInput):
        return work
    text = work.context.body.decode(errors="replace")
    if text == "type":
        raise StageInputError("not this type", unsupported_type=True)
    if text == "boom":
        raise ValueError("secret of the stage in /home/somebody")
    if text == "exit":
        raise SystemExit(1)
    if text == "bare":
        return Work(None)
    if text == "date":
        return Work({"x": np.zeros((1, 4), np.float32)}, text)
    if text == "wide":
        return Work({"x": np.zeros((1, 7), np.float32)})
    if text == "none":
        return Work({"x": np.zeros((0, 4), np.float32)}, "context is kept")
    try:
        rows = [[float(word) for word in line.split()] for line in text.splitlines()]
        return Work({"x": np.array(rows, np.float32).reshape(-1, 4)})
    except ValueError as error:
        raise StageInputError("not rows of four numbers") from error


def wait(work):
    assert gate.wait(20)
    return work


def block(work):
    threading.Event().wait(30)
    return work


def hang_on_a(work):
    if threading.current_thread().name.startswith("a."):
        assert gate.wait(20)
    return work


def plain(work):
    (y,) = work.tensors["y"][0, :1]
    if y == 4:
        raise ValueError("secret of the degraded reply")
    if y == 6:
        assert gate.wait(20)
    if y == 8:
        return Work({"y": np.zeros(1, "datetime64[s]")})
    return Work({"y": -work.tensors["y"]})


def rows():
    return [Sample("one row", "", b"", tensors={"x": np.ones((1, 4), np.float32)})]


def label(work):
    y = work.tensors["y"]
    if work.context == "date":
        return Work({"when": np.zeros(1, "datetime64[s]")})
    return Work({"sum": y.sum(axis=1), "label": np.array([f"row {value:g}" for value in y.sum(axis=1)], object)})
"""

TENSORS = """
version: 1
pipeline: tiny
engines: {ort: {backend: onnxruntime}, ov: {backend: openvino}}
stages:
  - {name: double, model: double.onnx, engine: ort, batch: {ort: {size: 8}}}
  - {name: negate, model: negate.onnx, engine: ov, batch: {ov: {size: 8}}}
"""

TEXT = """
version: 1
pipeline: text
engines: {host: {backend: python, max_inflight: 2}, ort: {backend: onnxruntime}}
classes: {sheddable: {deadline_ms: 60000}}
stages:
  - {name: parse, python: "stages:parse", engine: host}
  - {name: double, model: double.onnx, engine: ort}
  - {name: label, python: "stages:label", engine: host}
"""

GATED = """
version: 1
pipeline: gated
max_requests: 8
engines: {host: {backend: python, max_inflight: 2, queue: {limit: 4}}, ort: {backend: onnxruntime}}
stages:
  - {name: wait, python: "stages:wait", engine: host}
  - {name: double, model: double.onnx, engine: ort}
"""

BLOCKED = """
version: 1
pipeline: blocked
engines: {host: {backend: python}}
stages: [{name: block, python: "stages:block", engine: host}]
"""

LOOKUP = """
version: 1
pipeline: lookup
engines: {ort: {backend: onnxruntime}}
stages: [{name: lookup, model: lookup.onnx, engine: ort}]
"""


CANARY = """
version: 1
pipeline: canary
rollout: {steps: [0.25, 1.0]}
engines: {ort: {backend: onnxruntime}, ov: {backend: openvino}}
stages:
  - {name: double, model: double.onnx, canary: {model: keep.onnx}, engine: ort, batch: {ort: {size: 8}}}
  - {name: negate, model: negate.onnx, engine: ov, batch: {ov: {size: 8}}}
"""

PADDED = """
version: 1
pipeline: padded
inputs: stages:rows
engines: {ort: {backend: onnxruntime}, ov: {backend: openvino}}
stages:
  - {name: double, model: double4.onnx, engine: ort, batch: {ort: {size: 4, pad_to: [4]}}}
  - {name: negate, model: negate.onnx, engine: ov, batch: {ov: {size: 8, pad_to: [2, 8]}}}
"""

DEGRADED = """
version: 1
pipeline: degraded
engines: {ort: {backend: onnxruntime}, host: {backend: python, queue: {limit: 0}}}
stages:
  - {name: double, model: double.onnx, engine: ort}
  - {name: wait, python: "stages:wait", engine: host, degraded: "stages:plain"}
"""

TWO_HOSTS = """
version: 1
pipeline: hosts
engines: {a: {backend: python}, b: {backend: python}}
retry: {reserve: 1000}
stages:
  - {name: work, python: "stages:hang_on_a", engines: [a, b], timeout_ms: 300, failover: {to: b}}
"""

TWO_RUNTIMES = """
version: 1
pipeline: runtimes
engines: {a: {backend: onnxruntime}, b: {backend: onnxruntime}}
stages: [{name: double, model: double.onnx, engines: [a, b]}]
"""


BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()


def write_model(path: Path, operator: str, source: str, target: str, rows: int | str = "n") -> None:
    """A model [n, 4] -> [n, 4] of one operator."""
    shape = [rows, 4]
    graph = helper.make_graph(
        [
            helper.make_node("Add", [source, source], [target])
            if operator == "Add"
            else helper.make_node(operator, [source], [target])
        ],
        "tiny",
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(target, TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def write_lookup(path: Path) -> None:
    """A model i [n] -> y [n] that fails where an index is outside its table of four."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [4], [10, 11, 12, 13])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        "lookup",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [table],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, stages and pipelines."""
    folder = tmp_path_factory.mktemp("pipelines")
    write_model(folder / "double.onnx", "Add", "x", "y")
    write_model(folder / "negate.onnx", "Neg", "y", "z")
    write_model(folder / "keep.onnx", "Identity", "x", "y")
    write_model(folder / "renamed.onnx", "Identity", "w", "y")
    write_model(folder / "double4.onnx", "Add", "x", "y", rows=4)
    write_lookup(folder / "lookup.onnx")
    (folder / "stages.py").write_text(STAGES)
    for text in (TENSORS, TEXT, GATED, BLOCKED, LOOKUP, CANARY, PADDED, DEGRADED, TWO_HOSTS, TWO_RUNTIMES):
        (folder / f"{msgspec.yaml.decode(text)['pipeline']}.yaml").write_text(text)
    return folder


@pytest.fixture(scope="session")
def pipeline(folder: Path) -> Callable[[str], Pipeline]:
    """Pipelines of the folder by name."""

    def read(name: str) -> Pipeline:
        raw = (folder / f"{name}.yaml").read_bytes()
        return check(msgspec.yaml.decode(raw, type=Pipeline), name)

    return read


class LiveServer:
    """A server on a loop of its own in a thread, so that tests may block."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Awaitable[Any]) -> Any:
        """Run a coroutine on the server's loop."""

        async def wrapped() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(wrapped(), self._loop).result(60)

    async def _check(self) -> None:
        invariants.check(self.server.tables, self.server.state)

    def check(self) -> None:
        """Assert the core's invariants on its own thread."""
        self.run(self._check())

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _live(server: Server) -> Iterator[LiveServer]:
    live = LiveServer(server)
    try:
        live.run(server.start())
        yield live
        live.run(server.drained())
        live.check()
        live.run(server.stop())
        invariants.check_idle(server.state)
    finally:
        live.close()


@pytest.fixture(scope="module")
def tiny(folder: Path, pipeline: Callable[[str], Pipeline]) -> Iterator[LiveServer]:
    """Two models on two runtimes."""
    yield from _live(Server(pipeline("tiny"), folder, port=0))


@pytest.fixture(scope="module")
def text(folder: Path, pipeline: Callable[[str], Pipeline]) -> Iterator[LiveServer]:
    """A Python stage that reads text, a model, a Python stage that writes text."""
    yield from _live(Server(pipeline("text"), folder, port=0))


@pytest.fixture
def gate(folder: Path) -> Iterator[Callable[[str], None]]:
    """Shut and open the gate that the stage `wait` stands at."""
    actions = {"shut": load_function("stages:shut_gate", folder), "open": load_function("stages:open_gate", folder)}
    yield lambda what: actions[what]()
    actions["open"]()


@contextlib.asynccontextmanager
async def _serving(pipeline: Pipeline, folder: Path, **options: Any) -> AsyncIterator[tuple[Server, Any]]:
    server = Server(pipeline, folder, port=0, **options)
    await server.start()
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(server.url, connector=connector) as client:
            yield server, client
            invariants.check(server.tables, server.state)
    finally:
        await server.stop()
        invariants.check(server.tables, server.state)
        invariants.check_idle(server.state)


@pytest.fixture
def serving() -> Callable[..., Any]:
    """A server and a client while a block runs; the core's invariants hold when it ends."""
    return _serving


async def _infer(
    client: aiohttp.ClientSession, name: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str]]:
    async with client.post(f"/v2/models/{name}/infer", data=BODY, headers=headers) as reply:
        await reply.read()
        return reply.status, dict(reply.headers)


@pytest.fixture
def infer() -> Callable[..., Any]:
    """Send one row; status and headers of the reply."""
    return _infer


@contextlib.asynccontextmanager
async def _stalls() -> AsyncIterator[Callable[[], float]]:
    loop = asyncio.get_running_loop()
    late_s, timer = 0.0, None

    def beat(due_s: float) -> None:
        nonlocal late_s, timer
        late_s += max(0.0, loop.time() - due_s)
        due_s = loop.time() + 0.01
        timer = loop.call_at(due_s, beat, due_s)

    beat(loop.time())
    try:
        yield lambda: late_s
    finally:
        assert timer is not None
        timer.cancel()


@pytest.fixture
def stalls() -> Callable[..., Any]:
    """While a block runs: by how many seconds the loop has come too late in all, for others had the machine.

    A promise about time is kept where it is kept but for that.
    """
    return _stalls


async def _until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is true."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.get_running_loop().run_in_executor(None, bool)


@pytest.fixture
def until() -> Callable[..., Any]:
    """Wait for a condition."""
    return _until
