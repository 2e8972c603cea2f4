"""Asks Arm's Vela compiler what an Ethos-U runs of an int8 TFLite model, and at how many cycles.

Its figures leave out what it hands back to the CPU: such layers cost 0 cycles there. They are listed with the work they
are, counted from their shapes, so that a caller can add their time.
"""

import contextlib
import csv
import io
import math
import re
import time
from pathlib import Path
from typing import Any

from ask_protocol import RefusedError, last_line, serve, versions  # type: ignore[import-not-found]

SUMMARY = {
    "cycles_total": "cycles_total",
    "cycles_npu": "cycles_npu",
    "cycles_sram_access": "cycles_sram_access",
    "cycles_dram_access": "cycles_dram_access",
    "nn_macs": "macs",
    "core_clock": "clock_hz",
}
KIB = {"sram_memory_used": "sram_bytes", "dram_memory_used": "dram_bytes", "off_chip_flash_memory_used": "flash_bytes"}
_REFUSED = re.compile(r"^Warning \([\w ]+\) operator: (?P<type>\w+), ofm: '(?P<name>.*)'$")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile for one accelerator configuration."""
    from ethosu.vela import vela  # type: ignore[import-not-found]

    options = request["options"]
    folder = Path(request["folder"])
    arguments = [request["model"], "--accelerator-config", request["target"], "--output-dir", str(folder)]
    for key, value in options.items():
        arguments += [f"--{key.replace('_', '-')}", value]
    arguments += ["--verbose-performance", "--show-cpu-operations"]
    said = io.StringIO()
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = vela.main(arguments)
    except SystemExit as error:
        code = error.code
    seconds = time.perf_counter() - start
    if code:
        raise RefusedError(last_line(said.getvalue()) or f"it stopped with code {code}")
    # Its native part prints past Python's streams, into the log.
    printed = Path(request["log"]).read_text(encoding="utf-8", errors="replace")
    reasons = _reasons(said.getvalue() + printed)
    work = _work(request["model"])
    layers = _layers(folder, reasons, work)
    found = versions("ethos-u-vela")
    return {
        "version": found["ethos-u-vela"],
        "seconds": seconds,
        "layers": layers,
        "artefacts": [{"name": path.name, "bytes": path.stat().st_size} for path in folder.glob("*_vela.tflite")],
        "figures": _figures(folder, layers),
        "figures_basis": "modelled by the compiler; layers left to the CPU cost nothing in it",
        "notes": _defaults(said.getvalue()),
    }


def _reasons(text: str) -> dict[str, str]:
    """Why an operator falls back, by the name of its output, from pairs of lines."""
    found: dict[str, str] = {}
    lines = text.splitlines()
    for place, line in enumerate(lines):
        match = _REFUSED.search(line.strip())
        said = lines[place + 1].strip() if place + 1 < len(lines) else ""
        if match is not None and said.startswith("Reason: "):
            # The tensor's own name follows in brackets; the operator's is beside it already.
            found.setdefault(match["name"], said.removeprefix("Reason: ").partition(" (")[0])
    return found


def _layers(folder: Path, reasons: dict[str, str], work: dict[str, int]) -> list[dict[str, Any]]:
    path = next(iter(folder.glob("*_per-layer.csv")), None)
    if path is None:
        raise RefusedError("it wrote no per-layer table")
    layers = []
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            host = row["Target"] == "CPU"
            name = row["Name"]
            layers.append(
                {
                    "name": name,
                    "op": row["Original Operator"],
                    "on": "host" if host else "device",
                    "reason": reasons.get(name) if host else None,
                    "cycles": None if host else int(float(row["Op Cycles"])),
                    "macs": None if host else int(float(row["MAC Count"])),
                    "host_operations": work.get(name) if host else None,
                }
            )
    return layers


def _figures(folder: Path, layers: list[dict[str, Any]]) -> dict[str, float | int | None]:
    path = next(iter(folder.glob("*_summary_*.csv")), None)
    if path is None:
        raise RefusedError("it wrote no summary")
    with path.open(encoding="utf-8", newline="") as stream:
        row = next(iter(csv.DictReader(stream)))
    figures: dict[str, float | int | None] = {key: _number(row.get(name)) for name, key in SUMMARY.items()}
    figures |= {key: _times(_number(row.get(name)), 1024) for name, key in KIB.items()}
    on_device = any(layer["on"] == "device" for layer in layers)
    # With nothing on the device its zero is not a time of zero.
    figures["device_ms_modelled"] = _times(_number(row.get("inference_time")), 1e3) if on_device else None
    figures["host_layers"] = sum(layer["on"] == "host" for layer in layers)
    figures["device_layers"] = len(layers) - int(figures["host_layers"] or 0)
    return figures


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _work(model: str) -> dict[str, int]:
    """Scalar operations of each layer by the name of its output: 2 per multiply-accumulate, 1 per output element."""
    from ethosu.vela import tflite_reader

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        read = tflite_reader.read_tflite(model, None, {}, None, [])
    network = read[0] if isinstance(read, tuple) else read
    work = {}
    for subgraph in network.subgraphs:
        for operation in subgraph.get_all_ops():
            if operation.ofm is None or not operation.inputs:
                continue
            elements = math.prod(int(side) for side in operation.ofm.shape)
            work[operation.name] = work[operation.ofm.name] = elements * (2 * _macs_per_element(operation) + 1)
    return work


def _macs_per_element(operation: Any) -> int:
    kind = str(operation.type)
    weights = next((tensor for tensor in operation.inputs[1:] if tensor is not None and len(tensor.shape) > 1), None)
    if weights is None:
        return 0
    sides = [int(side) for side in weights.shape]
    if "Depthwise" in kind:
        return math.prod(sides[:2])
    if "Conv2D" in kind or "FullyConnected" in kind:
        # The reader orders weights with the output channels last.
        return math.prod(sides[:-1])
    return sides[-2] if "MatMul" in kind else 0


def _defaults(text: str) -> list[str]:
    """What it chose by itself, in its own words."""
    return [
        line.strip().removeprefix("Warning: ").partition(" Compilation may")[0]
        for line in text.splitlines()
        if line.startswith("Warning: No ") and "configuration file" not in line
    ]


if __name__ == "__main__":
    serve(answer)
