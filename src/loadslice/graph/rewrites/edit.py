"""Changing a graph: replace nodes, drop what nobody reads, name new tensors."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.load import graphs
from loadslice.graph.rewrites.links import STANDARD
from loadslice.graph.shapes import INITIALIZERS_ARE_INPUTS_BEFORE, model_inputs
from loadslice.graph.steps import Env

T = TypeVar("T", onnx.NodeProto, onnx.TensorProto, onnx.ValueInfoProto)

EXACT = 1e-4
"""Tolerance of a rewrite that is an identity of real numbers: float32 sums in another order, many layers deep."""


HALF = 5e-3
"""The same in float16, which keeps three decimal digits."""


class Rewritten(NamedTuple):
    """A rewritten model and how many of the original's nodes were changed."""

    model: onnx.ModelProto
    changes: int
    tolerance: float = EXACT
    """Largest difference allowed, relative to the largest absolute output."""


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that may be changed; a rewrite never touches what it was given.

    Old files list every stored tensor among the inputs, where it is a constant all the same. The copy says so as newer
    ones do: a rewrite may store another tensor and drop this one.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if copy.ir_version < INITIALIZERS_ARE_INPUTS_BEFORE:
        own = [_duplicate(info) for info in model_inputs(copy.graph)]
        del copy.graph.input[:]
        copy.graph.input.extend(own)
        copy.ir_version = INITIALIZERS_ARE_INPUTS_BEFORE
    return copy


def replace_nodes(graph: onnx.GraphProto, instead: Mapping[int, Iterable[onnx.NodeProto]]) -> None:
    """Put nodes in the place of others, in one pass; an empty list removes."""
    nodes: list[onnx.NodeProto] = []
    for place, node in enumerate(graph.node):
        nodes.extend(instead.get(place, [node]))
    kept = [_duplicate(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _duplicate(message: T) -> T:
    """What stays when the list that held it is emptied."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def store(graph: onnx.GraphProto, name: str, value: npt.NDArray[np.generic]) -> str:
    """Add a stored tensor under a free name and return the name."""
    taken = {tensor.name for tensor in graph.initializer} | {out for node in graph.node for out in node.output}
    free = name
    while free in taken:
        free += "_"
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), free))
    return free


def forget_types(model: onnx.ModelProto) -> None:
    """Drop the declared types of inner tensors: after a rewrite some are of tensors that are gone."""
    for graph, _ in graphs(model.graph):
        del graph.value_info[:]


def sweep(graph: onnx.GraphProto) -> None:
    """Remove nodes nobody reads, then stored tensors nobody reads; inputs stay, and so do their defaults."""
    while True:
        read = {info.name for info in graph.output}
        for inner, _ in graphs(graph):
            read |= {name for node in inner.node for name in node.input}
            read |= {info.name for info in inner.output}
        useless: dict[int, list[onnx.NodeProto]] = {
            place: [] for place, node in enumerate(graph.node) if not any(out in read for out in node.output)
        }
        if not useless:
            break
        replace_nodes(graph, useless)
    read |= {info.name for info in graph.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) != len(graph.initializer):
        stored = [_duplicate(tensor) for tensor in kept]
        del graph.initializer[:]
        graph.initializer.extend(stored)


def exact(model: onnx.ModelProto) -> float:
    """Tolerance of an exact rewrite at the precision of a model's inputs and weights."""
    types = {tensor.data_type for tensor in model.graph.initializer}
    types |= {info.type.tensor_type.elem_type for info in model.graph.input}
    return HALF if TensorProto.FLOAT16 in types else EXACT


def float_type(env: Env, name: str) -> np.dtype[np.generic]:
    """Type for constants that meet a tensor; float32 where the tensor's own is unknown or no type of NumPy's."""
    elem_type = env[name].elem_type if name in env else TensorProto.FLOAT
    if elem_type not in (TensorProto.FLOAT16, TensorProto.DOUBLE):
        return np.dtype(np.float32)
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


def opset(model: onnx.ModelProto) -> int:
    """Version of the standard operator set; 0 when the model imports none."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in STANDARD), 0)


def attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    """A number among a node's attributes."""
    for found in node.attribute:
        if found.name == name:
            value = helper.get_attribute_value(found)
            return float(value) if isinstance(value, int | float) else default
    return default


def count(model: onnx.ModelProto, op: str) -> int:
    """Standard nodes of one operator, at the top of the graph."""
    return sum(1 for node in model.graph.node if node.op_type == op and node.domain in STANDARD)
