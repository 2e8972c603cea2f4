"""Static shapes, and what they let be computed beforehand.

Why: NPU compilers run fixed shapes only, one compiled model per bucket; with the shapes fixed, the shape arithmetic
that exporters write around every Reshape is constant, and a Reshape of constant target is one they can take.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from loadslice.graph.load import graphs
from loadslice.graph.rewrites.edit import Rewritten, copied, exact, forget_types, replace_nodes, sweep
from loadslice.graph.rewrites.links import STANDARD
from loadslice.graph.shapes import infer, model_inputs
from loadslice.graph.steps import Step
from loadslice.spec.errors import InputError


class StaticShapes:
    """Every open input fixed at one shape."""

    name = "static-shapes"
    title = "inputs fixed at the given shapes"

    def __init__(self, shapes: Mapping[str, list[int]]) -> None:
        self.shapes = shapes

    def requires(self, model: onnx.ModelProto) -> str | None:
        """See `loadslice.graph.rewrites.Rewrite.requires`."""
        open_inputs = [info for info in model_inputs(model.graph) if _is_open(info)]
        if not open_inputs:
            return "every input already has a fixed shape"
        missing = [info.name for info in open_inputs if info.name not in self.shapes]
        return f"input '{missing[0]}' is open; give --shape {missing[0]}=..." if missing else None

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """See `loadslice.graph.rewrites.Rewrite.call`."""
        after = copied(model)
        fixed = 0
        for info in model_inputs(after.graph):
            if _is_open(info):
                sizes = info.type.tensor_type.shape
                del sizes.dim[:]
                for size in self.shapes[info.name]:
                    sizes.dim.add().dim_value = size
                sizes.SetInParent()
                fixed += 1
        forget_types(after)
        found = infer(after, self.shapes).env
        for info in after.graph.output:
            shape = found[info.name].shape if info.name in found else None
            if shape is not None and None not in shape:
                del info.type.tensor_type.shape.dim[:]
                for known in shape:
                    info.type.tensor_type.shape.dim.add().dim_value = known or 0
                info.type.tensor_type.shape.SetInParent()
        return Rewritten(after, fixed)

    def ensures(self, after: onnx.ModelProto) -> None:
        """See `loadslice.graph.rewrites.Rewrite.ensures`."""
        assert not any(_is_open(info) for info in model_inputs(after.graph))


def _is_open(info: onnx.ValueInfoProto) -> bool:
    if not info.type.HasField("tensor_type"):
        return False
    kind = info.type.tensor_type
    return not kind.HasField("shape") or any(dim.dim_value <= 0 for dim in kind.shape.dim)


class FoldConstants:
    """Nodes whose result is known before the run: constants, shape arithmetic at fixed shapes, identities."""

    name = "fold-constants"
    title = "what is known before the run, stored instead of computed"

    def requires(self, model: onnx.ModelProto) -> str | None:
        """See `loadslice.graph.rewrites.Rewrite.requires`."""
        body = infer(model, {})
        outputs = _outputs(model)
        if any(_known(step) or _identity(step, outputs) for step in body.steps):
            return None
        return "nothing in the model is known before the run"

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """See `loadslice.graph.rewrites.Rewrite.call`."""
        after = copied(model)
        changes = 0
        # What is stored tells shapes that were open before, and they make more known.
        while folded := _fold(after):
            changes += folded
        return Rewritten(after, changes, exact(model))

    def ensures(self, after: onnx.ModelProto) -> None:
        """See `loadslice.graph.rewrites.Rewrite.ensures`."""
        assert not any(_known(step) for step in infer(after, {}).steps)


def _fold(model: onnx.ModelProto) -> int:
    """One pass; returns how many nodes are gone."""
    graph = model.graph
    instead: dict[int, list[onnx.NodeProto]] = {}
    same: dict[str, str] = {}
    outputs = _outputs(model)
    for place, step in enumerate(infer(model, {}).steps):
        if _known(step):
            _store_outputs(graph, step)
            instead[place] = []
        elif _identity(step, outputs):
            same[step.node.output[0]] = step.node.input[0]
            instead[place] = []
    replace_nodes(graph, instead)
    _rename_reads(graph, same)
    sweep(graph)
    return len(instead)


def _known(step: Step) -> bool:
    """Its outputs are known: computed while the shapes were, or a Constant that the file holds whole.

    What is made of a default that the caller may override is not.
    """
    if step.bodies or step.node.domain not in STANDARD:
        return False
    if step.node.op_type == "Constant":
        return any(attribute.name == "value" for attribute in step.node.attribute) or step.outputs[0].data is not None
    return all(
        value.data is not None and not value.overridable
        for name, value in zip(step.node.output, step.outputs, strict=True)
        if name
    )


def _store_outputs(graph: onnx.GraphProto, step: Step) -> None:
    tensor = next((a.t for a in step.node.attribute if a.name == "value"), None)
    if step.node.op_type == "Constant" and tensor is not None:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = step.node.output[0]
        return
    for name, value in zip(step.node.output, step.outputs, strict=True):
        if name and value.data is not None:
            graph.initializer.append(
                numpy_helper.from_array(np.ascontiguousarray(value.data).reshape(value.data.shape), name)
            )


def _outputs(model: onnx.ModelProto) -> set[str]:
    return {info.name for graph, _ in graphs(model.graph) for info in graph.output}


def _identity(step: Step, outputs: set[str]) -> bool:
    """An Identity between two inner tensors; one that makes a model output must stay to make it."""
    return step.node.op_type == "Identity" and step.node.domain in STANDARD and step.node.output[0] not in outputs


def _rename_reads(graph: onnx.GraphProto, same: Mapping[str, str]) -> None:
    def root(name: str) -> str:
        while name in same:
            name = same[name]
        return name

    for inner, _ in graphs(graph):
        for node in inner.node:
            for place, name in enumerate(node.input):
                node.input[place] = root(name)
    for info in graph.output:
        if root(info.name) != info.name:
            raise InputError(f"output '{info.name}' would be renamed by folding.")
