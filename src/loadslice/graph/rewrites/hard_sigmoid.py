"""HardSigmoid as a clip: ``max(0, min(1, a x + b)) = clip(6 a x + 6 b, 0, 6) / 6``.

Why: quantisers turn HardSigmoid into an activation clipped at 1 that NPUs for microcontrollers leave to the CPU, while
one clipped at 6 is the most common activation there is.
"""

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
)
from loadslice.graph.shapes import infer


class HardSigmoidToClip:
    """Every HardSigmoid of the top graph."""

    name = "hard-sigmoid-to-clip"
    title = "HardSigmoid as multiply, add, clip at 6, divide"

    def requires(self, model: onnx.ModelProto) -> str | None:
        """See `loadslice.graph.rewrites.Rewrite.requires`."""
        if not count(model, "HardSigmoid"):
            return "the model has no HardSigmoid"
        return "it needs opset 11 or later (Clip with inputs); lift it first" if opset(model) < 11 else None

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """See `loadslice.graph.rewrites.Rewrite.call`."""
        after = copied(model)
        graph = after.graph
        env = infer(model, {}).env
        shared: dict[np.dtype[np.generic], list[str]] = {}
        instead = {}
        for place, node in enumerate(graph.node):
            if node.op_type != "HardSigmoid":
                continue
            y = node.output[0]
            dtype = float_type(env, node.input[0])
            if dtype not in shared:
                bounds = {"low": 0.0, "high": 6.0, "sixth": 1 / 6}
                shared[dtype] = [
                    store(graph, f"hard_sigmoid_{name}_{dtype}", np.array(value, dtype))
                    for name, value in bounds.items()
                ]
            low, high, sixth = shared[dtype]
            slope = store(graph, f"{y}_slope", np.array(6 * attribute(node, "alpha", 0.2), dtype))
            shift = store(graph, f"{y}_shift", np.array(6 * attribute(node, "beta", 0.5), dtype))
            instead[place] = [
                helper.make_node("Mul", [node.input[0], slope], [f"{y}_scaled"], f"{y}_scale"),
                helper.make_node("Add", [f"{y}_scaled", shift], [f"{y}_shifted"], f"{y}_add"),
                helper.make_node("Clip", [f"{y}_shifted", low, high], [f"{y}_clipped"], f"{y}_clip"),
                helper.make_node("Mul", [f"{y}_clipped", sixth], [y], f"{node.name or y}_divide"),
            ]
        replace_nodes(graph, instead)
        forget_types(after)
        return Rewritten(after, len(instead), exact(model))

    def ensures(self, after: onnx.ModelProto) -> None:
        """See `loadslice.graph.rewrites.Rewrite.ensures`."""
        assert not count(after, "HardSigmoid")
