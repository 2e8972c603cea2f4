"""What a process of its own costs an engine: one request of 150 kB in and 150 kB out, alone and through a server.

Both kinds of engine run the same model of one operator and take turns, request by request, so that whatever else the
machine does meets both. Promised: at most 60 us more.
"""

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from loadslice.backends.isolated.session import Hosts
from loadslice.spec.pipeline import Engine

NUMBERS = 37_500
"""Of float32: 150 kB."""

ROUNDS = 1500
WARM = 200
START_S = 60

PIPELINE = """
version: 1
pipeline: relu
engines: {{e: {{backend: onnxruntime, isolation: {isolation}}}}}
stages: [{{name: relu, model: relu.onnx, engine: e}}]
"""


def write_model(folder: Path) -> Path:
    """``y = relu(x)``, [n, NUMBERS]."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", NUMBERS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", NUMBERS])],
    )
    path = folder / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def alone(model: Path) -> tuple[list[int], list[int]]:
    """Nanoseconds of runs here, and of runs in a process."""
    hosts = Hosts()
    here = hosts.load("here", Engine(backend="onnxruntime", isolation="thread"), model)
    there = hosts.load("there", Engine(backend="onnxruntime", isolation="process"), model)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, NUMBERS), np.float32)}
    took: tuple[list[int], list[int]] = ([], [])
    try:
        for number in range(WARM + ROUNDS):
            for kind, session in enumerate((here, there)):
                began_ns = time.perf_counter_ns()
                session.run(feeds)
                if number >= WARM:
                    took[kind].append(time.perf_counter_ns() - began_ns)
    finally:
        hosts.stop()
    return took


@contextmanager
def serving(folder: Path, isolation: str) -> Iterator[http.client.HTTPConnection]:
    """A server in a process of its own, and a connection to it."""
    (folder / f"{isolation}.yaml").write_text(PIPELINE.format(isolation=isolation))
    command = [sys.executable, "-m", "loadslice", "serve", str(folder / f"{isolation}.yaml"), "--http", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                line = server.stdout.readline()
                if not line:
                    raise RuntimeError(f"the server with isolation '{isolation}' did not start")
                text += line
            connection = http.client.HTTPConnection(json.loads(text)["url"].removeprefix("http://"), timeout=START_S)
            yield connection
            connection.close()
        finally:
            server.terminate()
            server.wait(START_S)


def served(folder: Path) -> tuple[list[int], list[int]]:
    """Nanoseconds of requests to a server whose engine is a thread, and to one whose engine is a process."""
    raw = np.zeros((1, NUMBERS), np.float32).tobytes()
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, NUMBERS], "parameters": {"binary_data_size": len(raw)}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    took: tuple[list[int], list[int]] = ([], [])
    with serving(folder, "thread") as thread, serving(folder, "process") as process:
        for number in range(WARM + ROUNDS):
            for kind, connection in enumerate((thread, process)):
                began_ns = time.perf_counter_ns()
                connection.request("POST", "/v2/models/relu/infer", head + raw, headers)
                reply = connection.getresponse()
                body = reply.read()
                if number >= WARM:
                    took[kind].append(time.perf_counter_ns() - began_ns)
                if reply.status != 200 or len(body) < len(raw):
                    raise RuntimeError(f"status {reply.status}: {body[:200]!r}")
    return took


def run() -> dict[str, Any]:
    """Medians, and what the process costs."""
    with tempfile.TemporaryDirectory(prefix="loadslice-") as name:
        folder = Path(name)
        run_here, run_there = alone(write_model(folder))
        thread, process = served(folder)
    return {
        "run_here_us_p50": statistics.median(run_here) / 1e3,
        "run_in_process_us_p50": statistics.median(run_there) / 1e3,
        "run_costs_us": (statistics.median(run_there) - statistics.median(run_here)) / 1e3,
        "request_thread_us_p50": statistics.median(thread) / 1e3,
        "request_process_us_p50": statistics.median(process) / 1e3,
        "request_costs_us": (statistics.median(process) - statistics.median(thread)) / 1e3,
        "request_costs_us_of_pairs_p50": statistics.median(
            there - here for here, there in zip(thread, process, strict=True)
        )
        / 1e3,
        "tensor_bytes": 4 * NUMBERS,
    }
