"""How far modelled times are from measured ones, and the calibration that comes with the package.

Measures real models on this machine, one thread, in processor time, so that neighbours disturb little; reads published
times and kernel tables for what is not here. `python -m benchmarks modelled` prints the errors of what is left out;
`python -m benchmarks.modelled_bench --write` also writes ``src/loadslice/profiles/calibration.json``; with ``--refit``
from what was measured for the file that is there.
"""

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import onnx

from benchmarks.inspect_models import CASES, REPOSITORY, Array, Case, fed, found
from benchmarks.modelled_sources import kernels, published
from loadslice.graph.inspect import inspect
from loadslice.graph.kernels import midmean
from loadslice.graph.op_class import demand
from loadslice.profiles import calibration, product_peak
from loadslice.profiles.calibration import Calibration, Observation
from loadslice.spec.device import Device, Figure, Peak
from loadslice.spec.errors import InputError
from loadslice.spec.files import cpu_model, encode_json, stamp, write_bytes

COMMAND = "python -m benchmarks.modelled_bench --write"

SECONDS_EACH = 1.5

COPY_BYTES = 128 * 1024 * 1024

BATCHES = (1, 4)

_FAMILIES = {
    "det": "ocr-detect",
    "rec": "ocr-recognise",
    "cls": "ocr-orient",
    "layout": "layout",
    "silero": "silero",
    "magika": "magika",
    "minilm": "minilm",
    "nmp": "basic-pitch",
    "net": "mtcnn",
    "FastestDet": "fastestdet",
}

BASE = {"cpu": "fp32", "gpu": "fp16", "npu": "int8"}
"""Precision that each kind of device is fitted at."""

_WHAT = {
    "cpu": "real models through ONNX Runtime on one core",
    "gpu": "fp16 kernels of transformer layers and YOLOv8 through TensorRT on NVIDIA GPUs",
    "npu": "published times of int8 models on four NPUs and a vendor's cycle model of three more",
}


def one_core() -> Device:
    """This machine as one thread sees it, in processor time too."""
    model, feeds = product_peak.product()
    with tempfile.TemporaryDirectory(prefix="loadslice-") as folder:
        onnx.save(model, Path(folder) / "product.onnx")
        best_ms = min(_timed(Path(folder) / "product.onnx", dict(feeds)))
    peak = 2 * product_peak.SIDE**3 / best_ms * 1e3
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    copies_ms = []
    for _ in range(20):
        began = time.thread_time_ns()
        np.copyto(target, source)
        copies_ms.append((time.thread_time_ns() - began) / 1e6)
    bandwidth = 2 * COPY_BYTES / min(copies_ms) * 1e3
    print(f"one core: {peak:.3g} FLOP/s, {bandwidth:.3g} B/s", file=sys.stderr)
    return Device(
        name="local",
        title=f"{cpu_model()}, one core",
        kind="cpu",
        peak_ops_per_s={"fp32": Peak(value=peak, source="product", basis="measured", dense=True)},
        bandwidth_bytes_per_s=Figure(value=bandwidth, source="copy", basis="measured"),
    )


def measured() -> list[Observation]:
    """Every model that is there, in a process whose libraries use one thread."""
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured).result()


def _measured() -> list[Observation]:
    device = one_core()
    warnings.simplefilter("ignore")
    found_here = []
    for case in CASES:
        path = found(case) if case.made is None else None
        for batch in BATCHES if path is not None else ():
            assert path is not None
            observation = _observe(case, path, batch, device)
            if observation is not None:
                found_here.append(observation)
                print(f"{observation.model} x{batch}: {observation.time_ms:.2f} ms", file=sys.stderr)
    return found_here


def _observe(case: Case, path: Path, batch: int, device: Device) -> Observation | None:
    """One model at one batch; ``None``: it takes no such batch."""
    feeds = {name: _repeated(array, batch) for name, array in fed(case).items()}
    try:
        inspection = inspect(path, {name: list(array.shape) for name, array in feeds.items()}, [], feeds)
    except InputError:
        return None
    if not inspection.complete or inspection.precision != "fp32" or (batch > 1 and "silero" in case.name):
        return None
    try:
        times_ms = _timed(path, feeds)
    except Exception as error:  # noqa: BLE001 - the runtime's errors have no common base; a batch it refuses is left out
        print(f"{case.name} x{batch} left out: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        return None
    asked = demand(device, inspection.precision, inspection.nodes_cost)
    return Observation(
        kind="cpu",
        device=cpu_model(),
        family=next(family for part, family in _FAMILIES.items() if part in case.name),
        model=f"{case.name}, batch {batch}",
        precision="fp32",
        roofline_ms={kind: round(ms, 6) for kind, ms in asked.roofline_ms.items()},
        launches=asked.launches,
        time_ms=round(midmean(times_ms), 6),
        cv=round(float(np.std(np.sort(times_ms)[: max(2, len(times_ms) * 9 // 10)]) / np.mean(times_ms)), 4),
        source=f"ONNX Runtime on {device.title}, processor time",
    )


def _repeated(array: Array, batch: int) -> Array:
    return np.repeat(array, batch, axis=0) if array.ndim and batch > 1 else array


def _timed(path: Path, feeds: dict[str, Array]) -> list[float]:
    """Processor time of single runs on this thread, ms."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, feeds)
    times_ms: list[float] = []
    end = time.perf_counter() + SECONDS_EACH
    while len(times_ms) < 8 or time.perf_counter() < end:
        began = time.thread_time_ns()
        session.run(None, feeds)
        times_ms.append((time.thread_time_ns() - began) / 1e6)
    return times_ms


def calibrated(here: list[Observation] | None = None) -> Calibration:
    """Everything.

    Args:
        here: What was measured on this machine; default: measured now.
    """
    observations = [*(measured() if here is None else here), *published(), *kernels()]
    of = {
        kind: [each for each in observations if each.kind == kind and each.precision == base]
        for kind, base in BASE.items()
    }
    # Tables of several precisions are of GPUs; elsewhere theirs is the best that is known.
    precisions = calibration.between_precisions([each for each in observations if each.kind == "gpu"], BASE["gpu"])
    apart = calibration.fit(of["cpu"]).between_kinds_sd
    return Calibration(
        stamp=stamp("calibration/1", tools=("onnxruntime", "numpy")),
        command=COMMAND,
        kinds={kind: calibration.calibrate(of[kind], what, apart, precisions) for kind, what in _WHAT.items()},  # type: ignore[misc]
        observations=observations,
    )


def run() -> dict[str, float | int | str]:
    """The spread of errors of what was left out, by kind of device."""
    done = calibrated()
    figures: dict[str, float | int | str] = {}
    for kind, each in done.kinds.items():
        own = [one for one in done.observations if one.kind == kind and one.precision == each.precision]
        figures[f"{kind}_observations"] = len(own)
        figures[f"{kind}_families"] = each.errors.families
        figures[f"{kind}_model_sd"] = each.errors.model_sd
        held = calibration.covered(own, each.fit.between_kinds_sd)
        figures[f"{kind}_in_90pct_interval"] = f"{sum(held.values())} of {len(held)} families"
        if each.errors.device_sd is not None:
            figures[f"{kind}_device_sd"] = each.errors.device_sd
    return figures


def lines(done: Calibration) -> Iterator[str]:
    """The calibration for a person."""
    for kind, each in done.kinds.items():
        yield f"{kind}: {each.what}; {each.errors}"
        yield f"  {each.fit}"
        own = [one for one in done.observations if one.kind == kind and one.precision == each.precision]
        for name, group in (("family", lambda one: one.family), ("device", lambda one: one.device)):
            for left, off in calibration.left_out(own, group).items():
                yield f"  {name:<8}{left:<28}{off:+.3f}"


if __name__ == "__main__":
    refit = "--refit" in sys.argv
    result = calibrated([each for each in calibration.shipped().observations if each.kind == "cpu"] if refit else None)
    print("\n".join(lines(result)))
    if "--write" in sys.argv:
        write_bytes(REPOSITORY / "src/loadslice/profiles/calibration.json", encode_json(result))
