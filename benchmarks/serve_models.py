"""Models, pipelines and requests of `serve_bench`."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, OUTPUTS = 32, 8
IMAGE = (3, 128, 128)
WIDTHS = (16, 24, 40, 64)
"""Of the requests of mixed shapes."""

PIPELINES = {
    "mlp": """
version: 1
pipeline: mlp
engines: {cpu0: {backend: onnxruntime, threads: 1, queue: {limit: 256}}}
stages: [{name: mlp, model: mlp.onnx, engine: cpu0, batch: {cpu0: {size: 32}}}]
""",
    "three": """
version: 1
pipeline: three
engines: {cpu0: {backend: onnxruntime, threads: 1, queue: {limit: 256}}}
stages:
  - {name: first, model: first.onnx, engine: cpu0, batch: {cpu0: {size: 32}}}
  - {name: second, model: second.onnx, engine: cpu0, batch: {cpu0: {size: 32}}}
  - {name: third, model: third.onnx, engine: cpu0, batch: {cpu0: {size: 32}}}
""",
    "cnn": """
version: 1
pipeline: cnn
engines: {cpu0: {backend: onnxruntime, threads: 1, max_inflight: 2, queue: {limit: 256}}}
# Two images in one run take 4 % less of a core each than two runs; four take 7 % less, but whoever comes then waits for
# four: at 8 clients that is a third more at the 99th percentile.
stages: [{name: cnn, model: cnn.onnx, engine: cpu0, batch: {cpu0: {size: 2}}}]
""",
    "mixed": f"""
version: 1
pipeline: mixed
engines: {{cpu0: {{backend: onnxruntime, threads: 1, queue: {{limit: 256}}}}}}
stages: [{{name: mixed, model: mixed.onnx, engine: cpu0, buckets: [[{max(WIDTHS)}]], batch: {{cpu0: {{size: 32}}}}}}]
""",
    "busy": """
version: 1
pipeline: busy
engines: {host: {backend: python}}
stages: [{name: hold, python: "bench_stages:hold", engine: host}]
""",
    "paced": """
version: 1
pipeline: mlp
engines:
  device: {backend: python, max_inflight: 8, queue: {limit: 256}}
  cpu0: {backend: onnxruntime, threads: 1, queue: {limit: 256}}
stages:
  - {name: pace, python: "bench_stages:pace", engine: device}
  - {name: mlp, model: mlp.onnx, engine: cpu0, batch: {cpu0: {size: 32}}}
""",
}

STAGES = """
import threading


def hold(work):
    threading.Event().wait(float(work.tensors["x"][0, 0]))
    return work


def pace(work):
    threading.Event().wait(0.02)
    return work
"""


def write(folder: Path) -> None:
    """Write every model, stage and pipeline."""
    draw = np.random.default_rng(7)
    _dense(folder / "mlp.onnx", draw, "x", "y", (WIDTH, 64, OUTPUTS))
    _dense(folder / "first.onnx", draw, "x", "p", (WIDTH, WIDTH, WIDTH))
    _dense(folder / "second.onnx", draw, "p", "q", (WIDTH, WIDTH, WIDTH))
    _dense(folder / "third.onnx", draw, "q", "y", (WIDTH, WIDTH, OUTPUTS))
    _convolutions(folder / "cnn.onnx", draw)
    side = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "w"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "w"])
    _save(folder / "mixed.onnx", [helper.make_node("Relu", ["x"], ["y"])], [side], [out], [])
    (folder / "bench_stages.py").write_text(STAGES)
    for name, text in PIPELINES.items():
        (folder / f"{name}.yaml").write_text(text)
    engines = ", ".join(f"cpu{number}: {{backend: onnxruntime, queue: {{limit: 256}}}}" for number in range(64))
    names = ", ".join(f"cpu{number}" for number in range(64))
    batch = ", ".join(f"cpu{number}: {{size: 32}}" for number in range(64))
    (folder / "many.yaml").write_text(
        f"version: 1\npipeline: many\nengines: {{{engines}}}\n"
        f"stages: [{{name: mlp, model: mlp.onnx, engines: [{names}], batch: {{{batch}}}}}]\n"
    )


def request(model: str, shape: tuple[int, ...], *, as_json: bool = False) -> bytes:
    """One whole HTTP request of the Open Inference Protocol."""
    rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    tensor: dict[str, object] = {"name": "x", "shape": list(shape), "datatype": "FP32"}
    if as_json:
        document = {"inputs": [tensor | {"data": [round(float(value), 4) for value in rows.ravel()]}]}
        return post(f"/v2/models/{model}/infer", json.dumps(document).encode(), "application/json")
    tensor["parameters"] = {"binary_data_size": rows.nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    extra = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return post(f"/v2/models/{model}/infer", head + rows.tobytes(), "application/octet-stream", extra)


def hold_request(seconds: float, deadline_ms: float | None = None) -> bytes:
    """A request that keeps its engine busy for a while."""
    document = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [seconds]}]}
    extra = "" if deadline_ms is None else f"x-loadslice-deadline-ms: {deadline_ms:g}\r\n"
    return post("/v2/models/busy/infer", json.dumps(document).encode(), "application/json", extra)


def raw_request(path: str, shape: tuple[int, ...]) -> bytes:
    """The same rows as bare bytes."""
    rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return post(path, rows.tobytes(), "application/octet-stream")


def post(path: str, body: bytes, kind: str, extra: str = "") -> bytes:
    """One whole HTTP request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\nAccept: */*\r\nContent-Type: {kind}\r\n"
        f"{extra}Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _dense(path: Path, draw: np.random.Generator, source: str, target: str, sides: tuple[int, int, int]) -> None:
    width, hidden, outputs = sides
    weights = {"w1": (width, hidden), "b1": (hidden,), "w2": (hidden, outputs), "b2": (outputs,)}
    values = [numpy_helper.from_array(_drawn(draw, shape), name) for name, shape in weights.items()]
    nodes = [
        helper.make_node("Gemm", [source, "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], [target]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", side])
        for name, side in ((source, width), (target, outputs))
    ]
    _save(path, nodes, ends[:1], ends[1:], values)


def _convolutions(path: Path, draw: np.random.Generator) -> None:
    """Depthwise-separable blocks on an image of 128 by 128, about 7 ms of one core of a server processor."""
    nodes, values, at, channels = [], [], "x", IMAGE[0]

    def convolve(outputs: int, side: int, stride: int, groups: int = 1) -> None:
        nonlocal at, channels
        name = f"c{len(nodes)}"
        shape = (outputs, channels // groups, side, side)
        values.append(numpy_helper.from_array(_drawn(draw, shape), f"{name}w"))
        pads = [side // 2] * 4
        attributes = {"kernel_shape": [side, side], "strides": [stride, stride], "pads": pads, "group": groups}
        nodes.append(helper.make_node("Conv", [at, f"{name}w"], [name], **attributes))
        nodes.append(helper.make_node("Relu", [name], [f"{name}r"]))
        at, channels = f"{name}r", outputs

    convolve(32, 3, 2)
    for outputs, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), *[(512, 2)], *[(512, 1)] * 18):
        convolve(channels, 3, stride, channels)
        convolve(outputs, 1, 1)
    values.append(numpy_helper.from_array(_drawn(draw, (channels, 100)), "head"))
    nodes += [
        helper.make_node("GlobalAveragePool", [at], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *IMAGE]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 100]),
    ]
    _save(path, nodes, ends[:1], ends[1:], values)


def _drawn(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (draw.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)


def _save(path: Path, nodes: list, inputs: list, outputs: list, values: list) -> None:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, values)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
