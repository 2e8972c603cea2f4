"""Kinds of operators that use hardware alike, and what a model asks of a device by kind.

An efficiency found on one convolution says something of other convolutions and little of a transpose. The kinds are
few, so that a handful of measured models calibrates them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from loadslice.graph import contrib
from loadslice.graph.costs import MOVES, PER_INPUT_ELEMENT, PER_OUTPUT_ELEMENT, VIEWS
from loadslice.graph.roofline import WIDTH_BITS, precision_on
from loadslice.spec.device import Device, PeakPrecision
from loadslice.spec.inspection import NodeCost

OpClass = Literal["conv", "conv_thin", "matmul", "recurrent", "reduce", "elementwise", "move", "other", "stream"]

THIN_MACS = 64
"""A convolution of so few products per output element (depthwise 3x3 to 7x7, the first of an image's 3 channels) reads
more than it computes."""

_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_CONVS = frozenset({"Conv", "ConvTranspose", "NhwcConv", "DeformConv"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_CANONICAL = {name: standard for name, (standard, _) in contrib.CANONICAL.items()}


def op_class(node: NodeCost) -> OpClass:
    """Which kind a node is of; quantised operators are of the kind of the float ones."""
    op = _CANONICAL.get(node.op, node.op)
    if op in _CONVS:
        outputs = _output_elements(node)
        return "conv_thin" if outputs and (node.macs or 0) <= THIN_MACS * outputs * (node.times or 1) else "conv"
    if op in _RECURRENT:
        return "recurrent"
    if node.macs:
        return "matmul"
    if op in PER_INPUT_ELEMENT or op in _POOLS:
        return "reduce"
    if op in PER_OUTPUT_ELEMENT:
        return "elementwise"
    return "move" if op in MOVES else "other"


def _output_elements(node: NodeCost) -> int | None:
    shape = node.output_shapes[0] if node.output_shapes else None
    sides = [side for side in shape or [] if side is not None]
    return math.prod(sides) if shape and len(sides) == len(shape) else None


@dataclass(frozen=True, slots=True)
class Demand:
    """What one run of a model asks of one device."""

    roofline_ms: dict[OpClass, float] = field(default_factory=dict)
    """By kind: the sum over nodes of max(FLOPs / peak, bytes / bandwidth)."""
    launches: int = 0
    """Nodes that run: views, constants and branches not taken are none."""


def demand(device: Device, precision: str | None, nodes: Iterable[NodeCost], to: PeakPrecision | None = None) -> Demand:
    """What nodes ask of a device, by kind; of an NPU, by the model as a whole.

    Of NPUs only times of whole models are published, with the work and the weights of each. So nothing finer can be
    calibrated: all arithmetic is one convolution (``conv``), and what a model spends on moves and on operators without
    products is in its slowness. Weights that the chip of an NPU without a memory of its own does not hold come over the
    host's link for every run (``stream``).

    Args:
        device: With a peak.
        precision: What the model computes in.
        nodes: Of one run, each with its costs.
        to: Precision that the model would be converted to; the device states a peak for it. ``None``: its own, or
            the highest that the device has.
    """
    at, peak = precision_on(device, to or precision)
    assert peak is not None, "a device without a peak has no roofline"
    scale = WIDTH_BITS[at] / WIDTH_BITS[precision] if at is not None and precision is not None else 1.0
    running = [node for node in nodes if node.times != 0 and node.op not in VIEWS and (node.flops or node.bytes)]
    if device.kind == "npu":
        return _as_a_whole(device, peak.value, running, scale)
    bandwidth = device.bandwidth_bytes_per_s
    roofline_ms: dict[OpClass, float] = {}
    for node in running:
        memory_ms = (node.bytes or 0) * scale / bandwidth.value * 1e3 if bandwidth is not None else 0.0
        kind = op_class(node)
        roofline_ms[kind] = roofline_ms.get(kind, 0.0) + max((node.flops or 0) / peak.value * 1e3, memory_ms)
    return Demand(roofline_ms, sum(node.times or 1 for node in running))


def _as_a_whole(device: Device, peak_ops_per_s: float, nodes: Iterable[NodeCost], scale: float) -> Demand:
    products = [node for node in nodes if node.macs]
    flops, weights = sum(node.flops or 0 for node in products), sum(node.weight_bytes for node in products) * scale
    bandwidth, chip, link = device.bandwidth_bytes_per_s, device.onchip_bytes, device.host_link_bytes_per_s
    memory_ms = weights / bandwidth.value * 1e3 if bandwidth is not None else 0.0
    roofline_ms: dict[OpClass, float] = {"conv": max(flops / peak_ops_per_s * 1e3, memory_ms)}
    if bandwidth is None and chip is not None and link is not None and weights > chip.value:
        roofline_ms["stream"] = (weights - chip.value) / link.value * 1e3
    return Demand(roofline_ms, 0)
