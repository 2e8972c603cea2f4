"""Taking a part of a model out as a model of its own.

A slice keeps the names of its tensors, so that slices are joined by name. Its inputs are what its operators read from
outside, its outputs what is read outside. What depends on constants alone (weights, folded nodes) is copied into every
slice that reads it; control flow takes along what its subgraphs read.
"""

from collections.abc import Collection, Sequence

import onnx
from onnx import helper

from loadslice.graph.cuts import CALLER, Flow
from loadslice.graph.load import check_valid
from loadslice.graph.order import reads
from loadslice.graph.shapes import INITIALIZERS_ARE_INPUTS_BEFORE, model_inputs
from loadslice.graph.steps import Body
from loadslice.graph.values import Value, tensor_type
from loadslice.spec.errors import InputError


def boundary(graph: Flow, ops: Collection[int]) -> tuple[list[str], list[str]]:
    """Names that a set of operators reads from outside, and those of its own that are read outside."""
    inside = set(ops)
    needs = [e.name for e in graph.edges if e.maker not in inside and any(r in inside for r in e.readers)]
    gives = [e.name for e in graph.edges if e.maker in inside and any(r not in inside for r in e.readers)]
    return needs, gives


def slice_model(
    model: onnx.ModelProto, body: Body, as_filed: Body, graph: Flow, ops: Sequence[int], name: str
) -> onnx.ModelProto:
    """Some operators of a model as a model.

    Args:
        model: From `load`, weights included.
        body: The model walked at the given shapes.
        as_filed: The model walked without; dimensions that the file leaves open stay open in the slice.
        graph: Operators of ``body``.
        ops: Operators to take, in order; none may depend on one outside that depends on one inside.
        name: Of the new graph.

    Returns:
        A model that is as valid as the whole; see `loadslice.graph.load.check_valid`.

    Raises:
        InputError: The type of a tensor at its border is not known, or it is larger than one file can be.
    """
    needs, gives = boundary(graph, ops)
    needed = {name for op in ops for name in reads(graph.ops[op])}
    taken = {id(graph.ops[op].node) for op in ops}
    nodes = []
    # Backwards, so that a folded node is taken when something that was taken reads it.
    constant = {id(s.node): s for s in body.steps if s.node.op_type == "Constant" or s.folded}
    for step in reversed(body.steps):
        if id(step.node) in taken:
            nodes.append(step.node)
        elif id(step.node) in constant and needed.intersection(step.node.output):
            nodes.append(step.node)
            needed.update(reads(step))
    result = onnx.ModelProto()
    result.ir_version = model.ir_version
    result.producer_name = "loadslice"
    result.opset_import.extend(model.opset_import)
    result.metadata_props.extend(model.metadata_props)
    target = result.graph
    target.name = name
    target.node.extend(reversed(nodes))
    target.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    target.sparse_initializer.extend(s for s in model.graph.sparse_initializer if s.values.name in needed)
    target.input.extend(_info(model, body, as_filed, name) for name in needs)
    target.output.extend(_info(model, body, as_filed, name) for name in gives)
    stored = {tensor.name for tensor in target.initializer}
    if model.ir_version < INITIALIZERS_ARE_INPUTS_BEFORE:
        target.input.extend(info for info in model.graph.input if info.name in stored)
    known = {*needs, *gives}
    made = {name for node in target.node for name in node.output}
    target.value_info.extend(v for v in model.graph.value_info if v.name in made and v.name not in known)
    check_valid(name, result)
    return result


def _info(model: onnx.ModelProto, body: Body, as_filed: Body, name: str) -> onnx.ValueInfoProto:
    """What is known of a tensor at the border; the file's own words for the model's inputs and outputs."""
    declared: list[onnx.ValueInfoProto] = [*model_inputs(model.graph), *model.graph.output]
    for info in declared:
        if info.name == name and info.type.tensor_type.HasField("shape"):
            return info
    value, filed = body.env.get(name, Value(None)), as_filed.env.get(name, Value(None))
    if value.type is None or value.type.WhichOneof("value") is None:
        raise InputError(f"the type of tensor '{name}' is not known, so the model cannot be cut there.")
    kind = value.type
    if kind.HasField("tensor_type"):
        shape = filed.shape
        if shape is None and value.shape is not None:
            shape = (None,) * len(value.shape)
        kind = tensor_type(value.elem_type, shape)
    described: onnx.ValueInfoProto = helper.make_value_info(name, kind)
    return described


def passed_through(model: onnx.ModelProto, graph: Flow) -> list[str]:
    """Outputs of a model that no operator makes: its inputs handed back, and constants.

    No slice has them; a model with such an output is not sliced.
    """
    made = {edge.name for edge in graph.edges if edge.maker != CALLER and CALLER in edge.readers}
    return [info.name for info in model.graph.output if info.name not in made]
