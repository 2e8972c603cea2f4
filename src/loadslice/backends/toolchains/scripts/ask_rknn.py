"""Asks Rockchip's compiler where it places the layers of an ONNX model.

Placement is read from the layer table of its verbose log. Half of its layers carry 0 cycles, so that their sum is a
lower bound and no latency.
"""

import os
import re
import time
from pathlib import Path
from typing import Any

from ask_protocol import RefusedError, last_line, serve, versions  # type: ignore[import-not-found]

_ROW = re.compile(
    r"\s(?P<id>\d+)\s+(?P<op>\S+)\s+(?P<dtype>\S+)\s+(?P<on>NPU|CPU|GPU)\s+(?P<inputs>\S+)\s+(?P<outputs>\S+)\s+"
    r"\d+/\d+/(?P<cycles>\d+)\s+(?P<kb>\d+)\s+(?P<name>.*)$"
)
_SPLIT = re.compile(r"(_2conv\d+|_ConvAdd|#\d+)+$")
"""What it appends to the name of a node that it splits or fuses."""

_MEMORY = re.compile(r"Total (?P<what>Internal|Weight) Memory Size: (?P<kb>[\d.]+)KB")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Build for one chip, in float 16 unless a data set is given to quantise with."""
    from rknn.api import RKNN  # type: ignore[import-not-found]

    folder = Path(request["folder"])
    os.chdir(folder)
    log = Path(request["log"])
    tool = RKNN(verbose=True)
    start = time.perf_counter()
    platform = request["target"].removeprefix("rknn-")
    if tool.config(target_platform=platform):
        raise RefusedError(f"it has no platform '{platform}'")
    if tool.load_onnx(model=request["model"]):
        raise RefusedError(f"it cannot load the model: {_trouble(log)}")
    if tool.build(do_quantization=False):
        raise RefusedError(f"it cannot build the model: {_trouble(log)}")
    seconds = time.perf_counter() - start
    built = folder / "model.rknn"
    tool.export_rknn(str(built))
    rows, memory = _parse(log)
    if not rows:
        raise RefusedError("its log holds no layer table")
    layers, nodes = _placed(rows, set(request["names"]))
    return {
        "version": versions("rknn-toolkit2")["rknn-toolkit2"],
        "seconds": seconds,
        "nodes": nodes,
        "layers": layers,
        "artefacts": [{"name": "model.rknn", "bytes": built.stat().st_size}],
        "figures": {
            "cycles_total_at_least": sum(layer["cycles"] or 0 for layer in layers),
            "layers_without_cycles": sum(1 for layer in layers if layer["on"] == "device" and layer["cycles"] is None),
            **memory,
        },
        "figures_basis": "modelled by the compiler at fp16; layers without cycles are not in the sum",
    }


def _trouble(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as stream:
        lines = [line for line in stream if " E " in line or line.startswith("E ") or "Error" in line]
    return last_line("\n".join(lines)) or "see its log"


def _parse(log: Path) -> tuple[list[dict[str, str]], dict[str, float]]:
    rows: list[dict[str, str]] = []
    memory: dict[str, float] = {}
    inside = False
    with log.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            found = _MEMORY.search(line)
            if found:
                memory[f"{found['what'].lower()}_memory_bytes"] = float(found["kb"]) * 1024
            if "OpType" in line and "Cycles(DDR/NPU/Total)" in line:
                inside, rows = True, []
            elif inside:
                row = _ROW.search(line.rstrip())
                if row is not None:
                    rows.append(row.groupdict())
                elif rows:
                    inside = False
    return rows, memory


def _placed(rows: list[dict[str, str]], names: set[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    layers: list[dict[str, Any]] = []
    nodes: dict[str, dict[str, Any]] = {}
    segment, before = -1, "CPU"
    for row in rows:
        if row["op"] in ("InputOperator", "OutputOperator"):
            continue
        on = "device" if row["on"] == "NPU" else "host"
        if row["on"] == "NPU" and before != "NPU":
            segment += 1
        before = row["on"]
        reason = None if on == "device" else f"the compiler places {row['op']} on the {row['on']}"
        cycles = int(row["cycles"]) or None
        size = int(row["kb"]) * 1024
        full = row["name"].partition(":")[2].strip()
        layers.append(
            {"name": full, "op": row["op"], "on": on, "reason": reason, "cycles": cycles, "read_write_bytes": size}
        )
        name = full if full in names else _SPLIT.sub("", full)
        name = name if name in names else full
        if nodes.get(name, {}).get("on") != "host":
            part = {"segment": segment} if on == "device" else {}
            nodes[name] = {"name": name, "on": on, "op": row["op"], "reason": reason, "into": row["op"], **part}
    return layers, list(nodes.values())


if __name__ == "__main__":
    serve(answer)
