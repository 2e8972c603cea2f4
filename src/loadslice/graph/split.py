"""One Conv, MatMul or Gemm as two halves: for two devices, or two banks of one, that share it.

By output channel each half has its part of the weights and reads the whole input (a grouped convolution reads the
channels of its groups); by batch each half has all weights and reads its rows. A Concat joins them. Every output
element is computed by the same operands in the same way as before, so the outputs are equal; a runtime whose kernel
orders a sum by the size of its operands may differ in the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from loadslice.graph.cuts import flow
from loadslice.graph.load import graphs
from loadslice.graph.shapes import constant_attribute_tensor
from loadslice.graph.slicing import slice_model
from loadslice.graph.steps import Body, attribute_values
from loadslice.spec.errors import InputError

By = Literal["channel", "batch"]

SPLIT_OPS = ("Conv", "Gemm", "MatMul")

SLICE_INPUTS_SINCE = 10
"""Operator set since which Slice takes its bounds as inputs."""


@dataclass(frozen=True, slots=True)
class Halves:
    """How one operator is shared."""

    by: By
    units: int
    """Output channels; rows are known by the caller."""
    step: int
    """A part must be a multiple of this: the channels of one group of a convolution, else 1."""


@dataclass(slots=True)
class _Parts:
    """Nodes and stored tensors of two halves as they are made."""

    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)

    def store(self, name: str, array: npt.NDArray[np.generic]) -> str:
        self.stored.append(numpy_helper.from_array(np.ascontiguousarray(array), f"{self.prefix}.{name}"))
        return f"{self.prefix}.{name}"

    def part(self, tensor: str, half: int, start: int, end: int, axis: int) -> str:
        """A Slice of a tensor that is known only at run time."""
        names = [
            self.store(f"{tensor}.{what}{half}", np.array([value], np.int64))
            for what, value in (("from", start), ("to", end), ("axis", axis))
        ]
        out = f"{self.prefix}.{tensor}.half{half}"
        if not any(out in node.output for node in self.nodes):
            self.nodes.append(helper.make_node("Slice", [tensor, *names], [out], name=out))
        return out


def split_node(model: onnx.ModelProto, node_name: str, first_units: int, by: By) -> onnx.ModelProto:
    """The model with one operator as two halves and a Concat.

    Args:
        model: From `load`, weights included; not changed.
        node_name: A Conv, MatMul or Gemm at the top of the graph.
        first_units: Output channels or rows of the first half; the second has the rest.
        by: What is divided.

    Raises:
        InputError: No such node, one that cannot be divided so, or a part of nothing or of everything.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    place, node = _find(result, node_name)
    parts = _Parts(f"{node_name}.split")
    weights = _stored(result)
    outputs = [f"{parts.prefix}.half{half}" for half in (0, 1)]
    divide: Callable[..., int] = {"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul}[node.op_type]
    axis = divide(node, weights, parts, outputs, first_units, by)
    parts.nodes.append(helper.make_node("Concat", outputs, [node.output[0]], name=f"{parts.prefix}.merge", axis=axis))
    del graph.node[place]
    for new in reversed(parts.nodes):
        graph.node.insert(place, new)
    graph.initializer.extend(parts.stored)
    _drop_unused(graph)
    return result


def channels(model: onnx.ModelProto, node_name: str) -> Halves:
    """Output channels of an operator, and in which steps they can be divided.

    Raises:
        InputError: No such node, or one whose weights the file does not store.
    """
    _, node = _find(model, node_name)
    weight = _weight(node, _stored(model))
    attributes = attribute_values(node)
    if node.op_type == "Conv":
        groups = _integer(attributes, "group", 1)
        return Halves("channel", weight.shape[0], weight.shape[0] // groups if groups > 1 else 1)
    axis = 0 if node.op_type == "Gemm" and _integer(attributes, "transB", 0) else -1
    return Halves("channel", weight.shape[axis], 1)


def _integer(attributes: dict[str, object], name: str, default: int) -> int:
    value = attributes.get(name, default)
    assert isinstance(value, int)
    return value


def _find(model: onnx.ModelProto, node_name: str) -> tuple[int, onnx.NodeProto]:
    found = [(place, node) for place, node in enumerate(model.graph.node) if node.name == node_name]
    if len(found) != 1:
        raise InputError(f"node '{node_name}': the model has {len(found)} nodes of that name at its top, not one.")
    place, node = found[0]
    if node.op_type not in SPLIT_OPS or node.domain not in {"", "ai.onnx"}:
        raise InputError(f"node '{node_name}' is a {node.op_type}; only {', '.join(SPLIT_OPS)} can be shared.")
    opset = next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 1)
    if opset < SLICE_INPUTS_SINCE:
        raise InputError(f"node '{node_name}': operator set {opset} is too old, sharing needs {SLICE_INPUTS_SINCE}.")
    return place, node


def _stored(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Tensors the file stores, by the name they are read under."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensor = next((a.t for a in node.attribute if a.HasField("t")), None) or constant_attribute_tensor(node)
            if tensor is not None:
                found[node.output[0]] = tensor
    return found


def _weight(node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> npt.NDArray[np.generic]:
    if node.input[1] not in stored:
        raise InputError(f"node '{node.name}': its weights '{node.input[1]}' are not stored in the file.")
    return numpy_helper.to_array(stored[node.input[1]])


def _ranges(node: onnx.NodeProto, units: int, first_units: int, step: int = 1) -> list[tuple[int, int]]:
    if not 0 < first_units < units or first_units % step:
        raise InputError(
            f"node '{node.name}': a first part of {first_units} of {units}; it must be from {step} to {units - step}"
            f"{f' in steps of {step}' if step > 1 else ''}."
        )
    return [(0, first_units), (first_units, units)]


_REST = 2**31 - 1
"""End of a Slice that goes to the end of an axis of any length."""


def _half(node: onnx.NodeProto, half: int, inputs: list[str], output: str, **changed: int) -> onnx.NodeProto:
    made = helper.make_node(node.op_type, inputs, [output], name=f"{node.name}.half{half}", domain=node.domain)
    made.attribute.extend(attribute for attribute in node.attribute if attribute.name not in changed)
    made.attribute.extend(helper.make_attribute(name, value) for name, value in changed.items())
    return made


def _by_rows(node: onnx.NodeProto, parts: _Parts, outputs: list[str], first_rows: int, axis: int = 0) -> int:
    """Each half has its rows of the first operand, along ``axis`` of it, and all of the others."""
    for half, (start, end) in enumerate([(0, first_rows), (first_rows, _REST)]):
        rows = parts.part(node.input[0], half, start, end, axis)
        parts.nodes.append(_half(node, half, [rows, *node.input[1:]], outputs[half]))
    return 0


def _conv(
    node: onnx.NodeProto,
    stored: dict[str, onnx.TensorProto],
    parts: _Parts,
    outputs: list[str],
    first_units: int,
    by: By,
) -> int:
    if by == "batch":
        return _by_rows(node, parts, outputs, first_units)
    weight = _weight(node, stored)
    groups = _integer(attribute_values(node), "group", 1)
    per_group = weight.shape[0] // groups
    for half, (start, end) in enumerate(_ranges(node, weight.shape[0], first_units, per_group if groups > 1 else 1)):
        source, changed = node.input[0], {}
        if groups > 1:
            own = (start // per_group, end // per_group)
            source = parts.part(source, half, own[0] * weight.shape[1], own[1] * weight.shape[1], 1)
            changed = {"group": own[1] - own[0]}
        inputs = [source, parts.store(f"weight{half}", weight[start:end])]
        if len(node.input) > 2 and node.input[2]:
            inputs.append(_vector(node.input[2], stored, parts, half, start, end, 0))
        parts.nodes.append(_half(node, half, inputs, outputs[half], **changed))
    return 1


def _vector(
    name: str, stored: dict[str, onnx.TensorProto], parts: _Parts, half: int, start: int, end: int, axis: int
) -> str:
    """A part of a bias: cut in the file where it is stored, at run time where it is not."""
    if name not in stored:
        return parts.part(name, half, start, end, axis)
    array = numpy_helper.to_array(stored[name])
    index: list[slice] = [slice(None)] * array.ndim
    index[axis] = slice(start, end)
    return parts.store(f"bias{half}", array[tuple(index)])


def _matmul(
    node: onnx.NodeProto,
    stored: dict[str, onnx.TensorProto],
    parts: _Parts,
    outputs: list[str],
    first_units: int,
    by: By,
) -> int:
    if by == "batch":
        if node.input[1] not in stored or len(stored[node.input[1]].dims) > 2:
            raise InputError(f"node '{node.name}': shared by batch only when its second operand is a stored matrix.")
        return _by_rows(node, parts, outputs, first_units)
    weight = _weight(node, stored)
    if weight.ndim < 2:
        raise InputError(f"node '{node.name}': its second operand is a vector, which has no output channels.")
    for half, (start, end) in enumerate(_ranges(node, weight.shape[-1], first_units)):
        part = parts.store(f"weight{half}", weight[..., start:end])
        parts.nodes.append(_half(node, half, [node.input[0], part], outputs[half]))
    return -1


def _gemm(
    node: onnx.NodeProto,
    stored: dict[str, onnx.TensorProto],
    parts: _Parts,
    outputs: list[str],
    first_units: int,
    by: By,
) -> int:
    attributes = attribute_values(node)
    bias = node.input[2] if len(node.input) > 2 else ""
    if bias and bias not in stored:
        raise InputError(f"node '{node.name}': its third operand '{bias}' is not stored in the file.")
    if by == "batch":
        rows = list(stored[bias].dims) if bias else []
        if len(rows) == 2 and rows[0] > 1:
            raise InputError(f"node '{node.name}': its third operand has rows of its own; share it by channel.")
        return _by_rows(node, parts, outputs, first_units, axis=_integer(attributes, "transA", 0))
    weight = _weight(node, stored)
    axis = 0 if _integer(attributes, "transB", 0) else 1
    for half, (start, end) in enumerate(_ranges(node, weight.shape[axis], first_units)):
        part = weight[start:end] if axis == 0 else weight[:, start:end]
        inputs = [node.input[0], parts.store(f"weight{half}", part)]
        if bias:
            shape = list(stored[bias].dims)
            wide = bool(shape) and shape[-1] == weight.shape[axis] and weight.shape[axis] > 1
            inputs.append(_vector(bias, stored, parts, half, start, end, -1) if wide else bias)
        parts.nodes.append(_half(node, half, inputs, outputs[half]))
    return 1


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Remove the weights that only the whole operator read."""
    read = {name for inner, _ in graphs(graph) for node in inner.node for name in node.input}
    read |= {info.name for inner, _ in graphs(graph) for info in (*inner.output, *inner.input)}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)
    for node in [node for node in graph.node if node.op_type == "Constant" and node.output[0] not in read]:
        graph.node.remove(node)


def half_models(
    model: onnx.ModelProto, body: Body, as_filed: Body, node_name: str
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The two halves of a split operator as models of their own; joining their outputs is left to the caller.

    Args:
        model: From `split_node`.
        body: That model, walked at the given shapes.
        as_filed: That model, walked without.
        node_name: Of the operator that was split.
    """
    graph = flow(body)
    names = [step.node.name for step in graph.ops]
    found = []
    for half in (0, 1):
        ops = [
            op
            for op, name in enumerate(names)
            if name == f"{node_name}.half{half}"
            or (name.startswith(f"{node_name}.split.") and name.endswith(f".half{half}"))
        ]
        found.append(slice_model(model, body, as_filed, graph, ops, f"half{half}"))
    return found[0], found[1]
