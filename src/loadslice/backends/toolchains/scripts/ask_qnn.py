"""Asks Qualcomm's HTP compiler, by ONNX Runtime's QNN provider, what it takes of a model.

The partition is read from the provider's framework op trace. A session that took nothing succeeds silently on the CPU
and still names the provider, so `get_providers` is never asked.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

from ask_protocol import RefusedError, last_line, serve, versions  # type: ignore[import-not-found]

TRACE = "qnn_op_trace.json"
PROVIDER = "QNNExecutionProvider"

_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|Fatal error: |/\S+:\d+ .*?\) (?=[A-Z])"
)

_RENAMED = re.compile(r"(_token_\d+|/duplicated|/MatMulAddFusion|_new_reshape)$")
"""What ONNX Runtime appends to a node's name when it copies, fuses or moves it on the way to the compiler."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile to a context binary; with ``numerics``, also run on the vendor's x86 functional simulator."""
    import onnxruntime as ort
    import onnxruntime_qnn as qnn  # type: ignore[import-not-found]

    ort.disable_telemetry_events()
    ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise RefusedError("the provider offers no device on this machine")
    folder = Path(request["folder"])
    provider = {"backend_path": qnn.get_qnn_htp_path(), **request["options"]}
    start = time.perf_counter()
    _session(ort, devices, request["model"], folder, provider, compile_only=True)
    seconds = time.perf_counter() - start
    trace = _trace(folder, request["options"])
    found = versions("onnxruntime-qnn", "onnxruntime")
    summary = trace["summary"]
    document: dict[str, Any] = {
        "version": f"{found['onnxruntime-qnn']} on onnxruntime {found['onnxruntime']}",
        "seconds": seconds,
        "nodes": _nodes(trace, set(request["names"])),
        "artefacts": [{"name": path.name, "bytes": path.stat().st_size} for path in sorted(folder.glob("ctx*"))],
        "figures": {
            "nodes_after_optimisation": summary["total_onnx_nodes"],
            "device_nodes": summary["supported_nodes"],
            "device_segments": summary["qnn_subgraphs"],
            "device_operators": summary["total_qnn_ops"],
        },
        "figures_basis": "framework op trace of the compiler",
    }
    if request.get("numerics"):
        document["numerics"] = _numerics(ort, devices, request, provider)
        document["numerics_basis"] = (
            "emulated: x86 functional simulator of the HTP against ONNX Runtime's CPU, same model, "
            + ("the given input" if request.get("inputs") else "one random input, deviation 0.5, seed 0")
        )
    return document


def _session(ort: Any, devices: Any, model: str, folder: Path, provider: dict[str, str], *, compile_only: bool) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    chosen = dict(provider)
    if compile_only:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(folder / "ctx.onnx"))
        options.add_session_config_entry("ep.context_embed_mode", "0")
        chosen["enable_htp_prepare_only"] = "1"
        chosen |= {"enable_framework_op_trace": "1", "framework_op_trace_dir": str(folder)}
    options.add_provider_for_devices(devices, chosen)
    try:
        return ort.InferenceSession(model, options)
    except Exception as error:
        raise RefusedError(_plain(str(error))) from error


def _plain(message: str) -> str:
    """ONNX Runtime's message without its error code, our temporary path and the place in its source."""
    text = _NOISE.sub("", last_line(message))
    return text.rpartition(" was false. ")[2].strip()


def _trace(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    path = folder / TRACE
    if not path.is_file():
        asked = ", ".join(f"{key}={value}" for key, value in options.items()) or "its defaults"
        raise RefusedError(f"it compiled nothing with {asked} and would have run everything on the CPU")
    trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return trace


def _nodes(trace: dict[str, Any], names: set[str]) -> list[dict[str, Any]]:
    """Each node once; of copies of one node those on the host decide."""
    nodes: dict[str, dict[str, Any]] = {}
    for segment, subgraph in enumerate(trace["subgraph_traces"]):
        for mapping in subgraph["op_mappings"]:
            group = mapping["node_group_type"]
            into = mapping["dst_qnn_op_type"] + ("" if group == "OrtNodeUnit" else f" ({group})")
            for source in mapping["sources"]:
                if source["type"] == "OP":
                    name = _original(source["name"], names)
                    nodes.setdefault(name, {"name": name, "on": "device", "segment": segment, "into": into})
    for node in trace["unsupported_nodes"]:
        name = _original(node["node_name"], names)
        reason = " ".join(node["reason"].split())
        nodes[name] = {"name": name, "on": "host", "op": node["op_type"], "reason": reason}
    return list(nodes.values())


def _original(name: str, names: set[str]) -> str:
    """The name a node had in the model we gave; the new one where it is a node of the compiler's own."""
    base = name
    while base not in names and _RENAMED.search(base):
        base = _RENAMED.sub("", base)
    return base if base in names else name


def _numerics(ort: Any, devices: Any, request: dict[str, Any], provider: dict[str, str]) -> list[dict[str, Any]]:
    import numpy as np

    cpu_options = ort.SessionOptions()
    cpu_options.log_severity_level = 3
    cpu = ort.InferenceSession(request["model"], cpu_options, providers=["CPUExecutionProvider"])
    if request.get("inputs"):
        with np.load(request["inputs"], allow_pickle=False) as stored:
            feeds = {info.name: stored[info.name] for info in cpu.get_inputs()}
    else:
        generator = np.random.default_rng(0)
        feeds = {info.name: _random(np, generator, info) for info in cpu.get_inputs()}
    simulator = _session(ort, devices, request["model"], Path(request["folder"]), provider, compile_only=False)
    names = [info.name for info in cpu.get_outputs()]
    found = []
    for name, got, wanted in zip(names, simulator.run(names, feeds), cpu.run(names, feeds), strict=True):
        a, b = got.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        noise = float(np.sum((a - b) ** 2))
        found.append(
            {
                "output": name,
                "cosine": float(a @ b) / norm if norm else None,
                "max_abs_diff": float(np.max(np.abs(a - b), initial=0.0)),
                "sqnr_db": float(10 * np.log10(np.sum(b**2) / noise)) if noise and b.any() else None,
                "reference_min": float(b.min(initial=0.0)),
                "reference_max": float(b.max(initial=0.0)),
            }
        )
    return found


def _random(np: Any, generator: Any, info: Any) -> Any:
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
    if info.type in kinds:
        return (generator.standard_normal(info.shape) * 0.5).astype(kinds[info.type])
    integers = {
        "tensor(int64)": np.int64,
        "tensor(int32)": np.int32,
        "tensor(bool)": np.bool_,
        "tensor(uint8)": np.uint8,
    }
    if info.type not in integers:
        raise RefusedError(f"input '{info.name}' is a {info.type}; give it with --inputs")
    return generator.integers(0, 2, info.shape).astype(integers[info.type])


if __name__ == "__main__":
    serve(answer)
