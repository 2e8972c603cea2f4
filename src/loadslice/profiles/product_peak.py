"""What this machine's processor reaches in the best case through the runtime that models run on here.

`loadslice.backends.probe` measures its peak with NumPy, whose library may not use a processor's widest units; ONNX
Runtime's does, and models would then seem to run above the peak.
"""

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from loadslice.backends import probe
from loadslice.graph.measure import profile
from loadslice.spec.device import Device, Figure, Peak

SIDE = 512
"""Three matrices of 1 MB stay in cache, so that arithmetic is timed; one takes a few ms, short of an interruption."""

RUNS = 100


def local_device() -> Device:
    """This machine's processor, its peak the better of NumPy's product and the runtime's.

    Raises:
        MissingExtraError: onnxruntime is not installed.
    """
    count = probe.usable_cores()
    cores = Figure(value=float(count), source="operating system: logical processors", basis="stated")
    device = msgspec.structs.replace(probe.local().device, cores=cores)
    with probe.Others() as beside:
        flop_per_s, runtime = product_flop_per_s(count)
    known = device.peak_ops_per_s.get("fp32")
    if known is not None and known.value >= flop_per_s:
        return device
    source = f"{runtime}, product of {SIDE}x{SIDE} on {count} threads, best of {RUNS}"
    peak = Peak(value=flop_per_s, source=source, basis="measured", dense=True, note=beside.note)
    return msgspec.structs.replace(device, peak_ops_per_s=device.peak_ops_per_s | {"fp32": peak})


def product_flop_per_s(threads: int) -> tuple[float, str]:
    """FLOP/s of the fastest of `RUNS` fp32 products through ONNX Runtime, and its name and version.

    Raises:
        MissingExtraError: onnxruntime is not installed.
    """
    model, feeds = product()
    with tempfile.TemporaryDirectory(prefix="loadslice-") as folder:
        path = Path(folder) / "product.onnx"
        onnx.save(model, path)
        ran = profile(path, model, feeds, optimise="all", threads=threads, warmup=2, runs=RUNS)
    best_us = min(sum(kernel.dur_us for kernel in run) for run in ran.runs)
    return 2 * SIDE**3 / (best_us / 1e6), ran.runtime


def product() -> tuple[onnx.ModelProto, dict[str, NDArray[np.float32]]]:
    """A model of one product of `SIDE` x `SIDE`, and what it is fed."""
    rng = np.random.default_rng(0)
    right = helper.make_tensor(
        "right", TensorProto.FLOAT, [SIDE, SIDE], rng.random((SIDE, SIDE), np.float32).tobytes(), raw=True
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["left", "right"], ["out"], name="product")],
        "product",
        [helper.make_tensor_value_info("left", TensorProto.FLOAT, [SIDE, SIDE])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [SIDE, SIDE])],
        [right],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), {
        "left": rng.random((SIDE, SIDE), np.float32)
    }
