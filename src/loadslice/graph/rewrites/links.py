"""Who makes and who reads each tensor of a graph, and what small constants hold.

Nodes are told by their place in the graph: protobuf hands out a new wrapper at every access, names may be absent.
Quantised models wrap every tensor in QuantizeLinear and DequantizeLinear; `origin` and `reader` look through the pair.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from loadslice.graph.shapes import constant_attribute_tensor

SCALAR_ELEMENTS_MAX = 1
STANDARD = ("", "ai.onnx")
_QUANTISE, _DEQUANTISE = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found: the places of its nodes in the graph, what it reads, and what it makes."""

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    output: str
    numbers: dict[str, float] = field(default_factory=dict)
    """Constants of the pattern, for instance its epsilon."""


class Links:
    """The edges of one graph, subgraphs' reads included."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.nodes = list(graph.node)
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = defaultdict(list)
        self.kept = {info.name for info in graph.output}
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._defaults = {info.name for info in graph.input}
        for place, node in enumerate(self.nodes):
            for name in node.output:
                self.maker[name] = place
            for name in [*node.input, *_read_inside(node)]:
                if name:
                    self.readers[name].append(place)
                    self.kept.update([name] if name not in node.input else [])

    def made_by(self, name: str, *ops: str) -> onnx.NodeProto | None:
        """The node that makes a tensor, when it is a standard one of these operators."""
        node = self.nodes[self.maker[name]] if name in self.maker else None
        return node if node is not None and node.domain in STANDARD and node.op_type in ops else None

    def constant(self, name: str) -> npt.NDArray[np.generic] | None:
        """Contents of a tensor that the file stores; a dequantised one is computed."""
        if name in self._stored:
            return None if name in self._defaults else _array(self._stored[name])
        maker = self.nodes[self.maker[name]] if name in self.maker else None
        if maker is None:
            return None
        if maker.op_type == "Constant":
            tensor = next((a.t for a in maker.attribute if a.HasField("t")), None) or constant_attribute_tensor(maker)
            return _array(tensor) if tensor is not None else None
        if maker.op_type == _DEQUANTISE:
            parts = [self.constant(part) for part in maker.input]
            if any(part is None or part.size != 1 for part in parts):
                return None
            values = [float(part.reshape(())) for part in parts if part is not None]
            return np.asarray((values[0] - (values[2] if len(values) > 2 else 0.0)) * values[1])
        return None

    def scalar(self, name: str) -> float | None:
        """A constant's only element."""
        value = self.constant(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == SCALAR_ELEMENTS_MAX else None

    def other(self, node: onnx.NodeProto, value: float, *, tolerance: float) -> str | None:
        """The other input of a two-input node that reads this constant (relative tolerance)."""
        for place in (0, 1):
            number = self.scalar(node.input[place])
            if number is not None and abs(number - value) <= tolerance * abs(value):
                return str(node.input[1 - place])
        return None

    def origin(self, name: str) -> str:
        """The tensor behind a quantise-dequantise pair; the tensor itself when there is none."""
        back = self.made_by(name, _DEQUANTISE)
        quantise = self.made_by(back.input[0], _QUANTISE) if back is not None else None
        return str(quantise.input[0]) if quantise is not None else name

    def reader(self, name: str) -> tuple[int, str, list[int]] | None:
        """The only node that reads a tensor, the name it reads it by, and the pair in between."""
        passed: list[int] = []
        for op in (_QUANTISE, _DEQUANTISE):
            readers = self.readers[name]
            if name in self.kept or len(readers) != 1:
                return None
            node = self.nodes[readers[0]]
            if node.op_type != op:
                break
            passed.append(readers[0])
            name = node.output[0]
        readers = self.readers[name]
        return (readers[0], name, passed) if len(readers) == 1 and name not in self.kept else None

    def inner(self, name: str, inside: set[int]) -> bool:
        """A tensor that nothing outside these nodes reads."""
        return name not in self.kept and all(place in inside for place in self.readers[name])


def _read_inside(node: onnx.NodeProto) -> list[str]:
    """Names that the subgraphs of a control-flow node read, its own inputs apart."""
    names = []
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            for inner in graph.node:
                names += [*inner.input, *_read_inside(inner)]
            names += [info.name for info in graph.output]
    return names


def _array(tensor: onnx.TensorProto) -> npt.NDArray[np.generic] | None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.data_type == onnx.TensorProto.STRING:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except ValueError:  # its bytes and its dims disagree
        return None
