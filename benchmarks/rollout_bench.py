"""Rollouts on a live server: equal versions over 100,000 requests, and one layer's scale off by 2 %.

A three-layer perceptron in ONNX Runtime, eight connections that each send the next request when they have the reply to
the last, 5 % canary, the plan's own numbers. Equal versions must raise no alarm; the wrong one must be found.
"""

import asyncio
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from loadslice.serve.loop import new_loop
from loadslice.serve.server import Server
from loadslice.spec import pipeline as pipelines
from loadslice.spec.rollout import RolloutPlan

REQUESTS = 100_000
CONNECTIONS = 8
SIDES = (64, 64, 64, 16)
SEED = 3
OFF = 1.02
"""Scale of the middle layer in the version that is silently wrong."""

PIPELINE = """
version: 1
pipeline: mlp
rollout: {steps: [0.05, 0.25]}
engines: {ort: {backend: onnxruntime}}
stages: [{name: mlp, model: stable.onnx, canary: {model: canary.onnx}, engine: ort, batch: {ort: {size: 16}}}]
"""


def write_model(path: Path, scale: float) -> None:
    """A perceptron whose middle layer's weights are scaled."""
    generator = np.random.default_rng(SEED)
    nodes, weights, name = [], [], "x"
    for layer in range(len(SIDES) - 1):
        shape = SIDES[layer], SIDES[layer + 1]
        weight = generator.standard_normal(shape) / np.sqrt(shape[0]) * (scale if layer == 1 else 1.0)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{layer}"))
        last = layer == len(SIDES) - 2
        nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], ["y" if last else f"m{layer}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        name = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIDES[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", SIDES[-1]])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def request(seed: int) -> bytes:
    """One inference with the binary extension."""
    body = np.random.default_rng(seed).standard_normal((1, SIDES[0])).astype(np.float32).tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, SIDES[0]], "parameters": {"binary_data_size": len(body)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return (
        (
            b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: bench\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(head), len(head) + len(body))
        )
        + head
        + body
    )


async def drive(server: Server, requests: int) -> tuple[int, int, float]:
    """Send until there were enough, or the rollout is over; requests, those not answered with 200, and seconds."""
    assert server.rollout is not None
    rollout = server.rollout
    port = int(server.url.rpartition(":")[2])
    payloads = [request(seed) for seed in range(64)]
    count = wrong = 0
    began_s = time.perf_counter()

    async def client(first: int) -> None:
        nonlocal count, wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = first
        while count < requests and rollout.record.state == "running":
            writer.write(payloads[number % len(payloads)])
            number += 1
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"\r\n[Cc]ontent-[Ll]ength: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            count += 1
            wrong += not head.startswith(b"HTTP/1.1 200")
        writer.close()

    await asyncio.gather(*[client(number) for number in range(CONNECTIONS)])
    return count, wrong, time.perf_counter() - began_s


def roll_out(scale: float, requests: int) -> dict[str, Any]:
    """Serve both versions and see what the rollout says."""

    async def serve(folder: Path) -> dict[str, Any]:
        server = Server(pipelines.load(folder / "mlp.yaml"), folder, port=0, state=folder / "state.sqlite")
        await server.start()
        assert server.rollout is not None
        await server.rollout.start(None, RolloutPlan(automatic=False))
        count, wrong, took_s = await drive(server, requests)
        status = server.rollout.status()
        await server.stop()
        return {"requests": count, "wrong": wrong, "took_s": took_s, "status": status}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "stable.onnx", 1.0)
        write_model(folder / "canary.onnx", scale)
        (folder / "mlp.yaml").write_text(PIPELINE, encoding="utf-8")
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(serve(folder))


def run() -> dict[str, float | int | str]:
    """Equal versions, then one that is silently wrong."""
    equal, off = roll_out(1.0, REQUESTS), roll_out(OFF, REQUESTS)
    analysis = equal["status"]["analysis"]
    return {
        "equal_requests": equal["requests"],
        "equal_requests_failed": equal["wrong"],
        "equal_requests_per_s": equal["requests"] / equal["took_s"],
        "equal_false_alarms": int(equal["status"]["decision"] == "fail"),
        "equal_pairs": analysis["outputs"]["figures"]["pairs"],
        "equal_distance_max": analysis["outputs"]["figures"]["distance_max"],
        **{f"equal_{name}": one["decision"] for name, one in analysis.items()},
        "off_state": off["status"]["state"],
        "off_why": off["status"]["why"],
        "off_requests_until_rolled_back": off["requests"],
        "off_requests_failed": off["wrong"],
        "off_pairs": off["status"]["analysis"]["outputs"]["figures"]["pairs"],
        "off_distance_max": off["status"]["analysis"]["outputs"]["figures"]["distance_max"],
    }
