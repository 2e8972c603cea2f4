"""Layer normalisation, written out or as one operator.

Why both ways: some compilers know only the operator, some only the written-out form, and a quantiser places its
rounding between the nodes of the written-out form.
"""

from typing import Any

import numpy as np
import onnx
from onnx import helper

from loadslice.graph.rewrites.edit import (
    Rewritten,
    attribute,
    copied,
    count,
    exact,
    float_type,
    forget_types,
    opset,
    replace_nodes,
    store,
    sweep,
)
from loadslice.graph.rewrites.links import STANDARD, Links, Match
from loadslice.graph.rewrites.patterns import layer_norm
from loadslice.graph.shapes import infer

OPSET_MIN = 17
"""The first standard operator set with LayerNormalization."""

AXES_INPUT_OPSET = 18
"""From here ReduceMean takes its axes as an input."""


class FuseLayerNorm:
    """Every written-out normalisation of the last axis with a scale and a shift."""

    name = "fuse-layer-norm"
    title = "written-out layer normalisation as one operator"

    def requires(self, model: onnx.ModelProto) -> str | None:
        """See `loadslice.graph.rewrites.Rewrite.requires`."""
        if not _whole(Links(model.graph)):
            return "the model has no written-out layer normalisation with a scale and a shift"
        return f"it needs opset {OPSET_MIN} or later; lift it first" if opset(model) < OPSET_MIN else None

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """See `loadslice.graph.rewrites.Rewrite.call`."""
        after = copied(model)
        links = Links(after.graph)
        instead: dict[int, list[onnx.NodeProto]] = {}
        matches = _whole(links)
        for match in matches:
            last = links.maker[match.output]
            instead |= {place: [] for place in match.nodes}
            instead[last] = [
                helper.make_node(
                    "LayerNormalization",
                    list(match.inputs),
                    [match.output],
                    f"{links.nodes[last].name or match.output}_norm",
                    axis=-1,
                    epsilon=match.numbers["epsilon"],
                )
            ]
        replace_nodes(after.graph, instead)
        sweep(after.graph)
        forget_types(after)
        return Rewritten(after, sum(len(match.nodes) for match in matches), exact(model))

    def ensures(self, after: onnx.ModelProto) -> None:
        """See `loadslice.graph.rewrites.Rewrite.ensures`."""
        assert count(after, "LayerNormalization")
        assert not _whole(Links(after.graph))


def _whole(links: Links) -> list[Match]:
    return [match for match in layer_norm(links) if len(match.inputs) == 3]


class SplitLayerNorm:
    """Every LayerNormalization of the last axis whose mean and deviation nobody reads."""

    name = "split-layer-norm"
    title = "the operator LayerNormalization written out"

    def requires(self, model: onnx.ModelProto) -> str | None:
        """See `loadslice.graph.rewrites.Rewrite.requires`."""
        if not any(_splittable(node) for node in model.graph.node):
            return "the model has no LayerNormalization over the last axis"
        return None

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """See `loadslice.graph.rewrites.Rewrite.call`."""
        after = copied(model)
        graph = after.graph
        axes = store(graph, "layer_norm_axes", np.array([-1], np.int64)) if opset(after) >= AXES_INPUT_OPSET else None
        env = infer(model, {}).env
        instead = {
            place: _written_out(graph, node, axes, float_type(env, node.input[0]))
            for place, node in enumerate(graph.node)
            if _splittable(node)
        }
        replace_nodes(graph, instead)
        forget_types(after)
        return Rewritten(after, len(instead), exact(model))

    def ensures(self, after: onnx.ModelProto) -> None:
        """See `loadslice.graph.rewrites.Rewrite.ensures`."""
        assert not any(_splittable(node) for node in after.graph.node)


def _splittable(node: onnx.NodeProto) -> bool:
    return (
        node.op_type == "LayerNormalization"
        and node.domain in STANDARD
        and attribute(node, "axis", -1) == -1
        and not any(node.output[1:])
    )


def _written_out(
    graph: onnx.GraphProto, node: onnx.NodeProto, axes: str | None, dtype: np.dtype[np.generic]
) -> list[onnx.NodeProto]:
    x, y = node.input[0], node.output[0]
    epsilon = store(graph, f"{y}_epsilon", np.array(attribute(node, "epsilon", 1e-5), dtype))
    two = store(graph, f"{y}_two", np.array(2.0, dtype))
    made: list[onnx.NodeProto] = []

    def add(op: str, inputs: list[str], part: str, **attributes: Any) -> str:
        made.append(helper.make_node(op, inputs, [f"{y}_{part}"], f"{y}_{part}_node", **attributes))
        return f"{y}_{part}"

    def mean(of: str, part: str) -> str:
        if axes is not None:
            return add("ReduceMean", [of, axes], part, keepdims=1)
        return add("ReduceMean", [of], part, axes=[-1], keepdims=1)

    centre = add("Sub", [x, mean(x, "mean")], "centred")
    variance = mean(add("Pow", [centre, two], "squared"), "variance")
    root = add("Sqrt", [add("Add", [variance, epsilon], "shifted")], "deviation")
    result = add("Div", [centre, root], "normalised")
    result = add("Mul", [result, node.input[1]], "scaled")
    if len(node.input) > 2 and node.input[2]:
        add("Add", [result, node.input[2]], "moved")
    made[-1].output[0] = y
    made[-1].name = f"{node.name or y}_last"
    return made
