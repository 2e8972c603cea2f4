"""What `modelled_bench` reads rather than measures: published whole-model times, and tables of measured GPU kernels.

Tables are optional: Vidur's (MIT), beside the checkout, and those in aiconfigurator 0.4.0 (Apache-2.0), where
``LOADSLICE_AICONFIGURATOR`` names its unpacked folder.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.inspect_models import REPOSITORY
from loadslice.graph import devices
from loadslice.graph.op_class import demand
from loadslice.profiles import kernel_tables
from loadslice.profiles.calibration import Observation
from loadslice.spec.device import Device, PeakPrecision
from loadslice.spec.inspection import NodeCost

VIDUR_DEVICES = {"a40": "nvidia-a40", "a100": "nvidia-a100-sxm-80gb", "h100": "nvidia-h100-sxm-80gb"}
AICONFIGURATOR_DEVICES = {
    "a100_sxm/trtllm/1.0.0": "nvidia-a100-sxm-80gb",
    "h100_sxm/trtllm/1.0.0rc3": "nvidia-h100-sxm-80gb",
    "h200_sxm/trtllm/1.0.0rc3": "nvidia-h200-sxm-141gb",
    "l40s/trtllm/1.0.0": "nvidia-l40s",
    "b200_sxm/trtllm/1.0.0rc6": "nvidia-b200-sxm-180gb",
}

PRECISIONS: dict[str, tuple[PeakPrecision, ...]] = {
    "a100_sxm/trtllm/1.0.0": ("fp16", "int8"),
    "h100_sxm/trtllm/1.0.0rc3": ("fp16", "fp8", "int8"),
    "h200_sxm/trtllm/1.0.0rc3": ("fp16", "fp8", "int8"),
    "l40s/trtllm/1.0.0": ("fp16", "fp8", "int8"),
    "b200_sxm/trtllm/1.0.0rc6": ("fp16", "fp8"),
}


def published() -> Iterator[Observation]:
    """Whole models on devices of the catalogue."""
    for block in yaml.safe_load((Path(__file__).parent / "modelled_published.yaml").read_text(encoding="utf-8")):
        device = devices.find(block["device"])
        for row in block.get("rows", []):
            nodes = [_lump(row, parts=block.get("parts", 1))]
            yield _observation(block, device, row["family"], row["model"], nodes, row["time_ms"])
        for size, time_ms in block.get("yolov8", {}).items():
            nodes = [conv.node(bytes_each=2) for conv in yolov8(size)]
            yield _observation(block, device, "yolov8", f"yolov8{size}", nodes, time_ms)


def _observation(
    block: dict[str, Any], device: Device, family: str, model: str, nodes: list[NodeCost], time_ms: float
) -> Observation:
    asked = demand(device, block["precision"], nodes)
    return Observation(
        kind=block["kind"],
        device=block["device"],
        family=family,
        model=model,
        precision=block["precision"],
        roofline_ms={kind: round(ms, 6) for kind, ms in asked.roofline_ms.items()},
        launches=asked.launches if len(nodes) > 1 else 0,
        whole=block["whole"],
        time_ms=time_ms,
        source=block["source"],
    )


def _lump(row: dict[str, Any], *, parts: int) -> NodeCost:
    """A model of which only its work and weights are known, as one convolution on one part of the device."""
    flops, weights = round(row["gflop"] * 1e9 * parts), round(row["weight_mb"] * 1e6)
    return NodeCost(
        name=row["model"],
        op="Conv",
        times=1,
        macs=flops // 2,
        flops=flops,
        bytes=weights,
        weight_bytes=weights,
        output_shapes=[[1]],
    )


def kernels() -> Iterator[Observation]:
    """Kernels of transformer layers on GPUs, from the tables that are there."""
    vidur = next((root / "shared/data/profiles/vidur/compute" for root in REPOSITORY.parents if _is_there(root)), None)
    for gpu, name in VIDUR_DEVICES.items() if vidur is not None else ():
        assert vidur is not None
        for path in sorted((vidur / gpu).glob("*/*/mlp.csv")):
            yield from kernel_tables.transformer_layers(path, devices.find(name), path.parent.name.lower())
    folder = os.environ.get("LOADSLICE_AICONFIGURATOR")
    for inside, name in AICONFIGURATOR_DEVICES.items() if folder else ():
        path = Path(str(folder)) / "aiconfigurator/systems/data" / inside / "gemm_perf.txt"
        device = devices.find(name)
        for precision in PRECISIONS.get(inside, ("fp16",)):
            yield from kernel_tables.products(path, device, precision)


def _is_there(root: Path) -> bool:
    return (root / "shared/data/profiles/vidur/compute").is_dir()


@dataclass(frozen=True)
class Conv:
    """One convolution of a network with square maps."""

    inputs: int
    outputs: int
    kernel: int
    side: int
    """Of its output."""
    stride: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.inputs * self.outputs * self.kernel**2 * self.side**2

    def node(self, bytes_each: int) -> NodeCost:
        """With its cost, for `demand`."""
        weights = self.inputs * self.outputs * self.kernel**2
        moved = self.inputs * (self.side * self.stride) ** 2 + self.outputs * self.side**2 + weights
        return NodeCost(
            name="conv",
            op="Conv",
            times=1,
            macs=self.macs,
            flops=2 * self.macs,
            bytes=moved * bytes_each,
            weight_bytes=weights * bytes_each,
            output_shapes=[[1, self.outputs, self.side, self.side]],
        )


_YOLOV8 = {
    "n": (0.33, 0.25, 1024),
    "s": (0.33, 0.5, 1024),
    "m": (0.67, 0.75, 768),
    "l": (1, 1, 512),
    "x": (1, 1.25, 512),
}
"""Depth, width, most channels."""


def yolov8(size: str, pixels: int = 640) -> list[Conv]:
    """The convolutions of a YOLOv8 detector, as its configuration describes them; nothing else of it costs much."""
    depth, width, most = _YOLOV8[size]

    def channels(base: int) -> int:
        return math.ceil(min(base, most) * width / 8) * 8

    convs: list[Conv] = []

    def conv(inputs: int, outputs: int, kernel: int, side: int, stride: int = 1) -> None:
        convs.append(Conv(inputs, outputs, kernel, side, stride))

    def stage(inputs: int, outputs: int, repeats: int, side: int) -> None:
        half, count = outputs // 2, max(round(repeats * depth), 1)
        conv(inputs, 2 * half, 1, side)
        for _ in range(count):
            conv(half, half, 3, side)
            conv(half, half, 3, side)
        conv((2 + count) * half, outputs, 1, side)

    c1, c2, c3, c4, c5 = (channels(base) for base in (64, 128, 256, 512, 1024))
    s1, s2, s3, s4, s5 = (pixels // step for step in (2, 4, 8, 16, 32))
    conv(3, c1, 3, s1, 2)
    conv(c1, c2, 3, s2, 2)
    stage(c2, c2, 3, s2)
    conv(c2, c3, 3, s3, 2)
    stage(c3, c3, 6, s3)
    conv(c3, c4, 3, s4, 2)
    stage(c4, c4, 6, s4)
    conv(c4, c5, 3, s5, 2)
    stage(c5, c5, 3, s5)
    conv(c5, c5 // 2, 1, s5)
    conv(2 * c5, c5, 1, s5)
    stage(c5 + c4, c4, 3, s4)
    stage(c4 + c3, c3, 3, s3)
    conv(c3, c3, 3, s4, 2)
    stage(c3 + c4, c4, 3, s4)
    conv(c4, c4, 3, s5, 2)
    stage(c4 + c5, c5, 3, s5)
    boxes, classes = max(16, c3 // 4, 64), max(c3, 80)
    for inputs, side in ((c3, s3), (c4, s4), (c5, s5)):
        for outputs, last in ((boxes, 64), (classes, 80)):
            conv(inputs, outputs, 3, side)
            conv(outputs, outputs, 3, side)
            conv(outputs, last, 1, side)
    return convs
