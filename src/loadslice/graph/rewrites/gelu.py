"""Erf-GELU as one operator, so that quantisation cannot break it.

Why: compilers fuse ``x * 0.5 * (1 + erf(x / sqrt 2))`` in a float model, but a quantiser puts its pairs between those
nodes; the fusion then no longer fires and Erf, which the device lacks, cuts the graph in two. Run before quantising
this is exact; on a quantised model it takes the inner pairs out, which brings the result nearer to the float model's.
"""

import onnx
from onnx import helper

from loadslice.graph.rewrites.edit import Rewritten, copied, count, exact, forget_types, opset, replace_nodes, sweep
from loadslice.graph.rewrites.links import Links
from loadslice.graph.rewrites.patterns import erf_gelu

OPSET_MIN = 20
"""The first standard operator set with Gelu."""

UNQUANTISED = 0.1
"""Tolerance where inner rounding goes away: some steps of an 8-bit output."""


class FuseGelu:
    """Every Erf-GELU of the top graph."""

    name = "fuse-gelu"
    title = "Erf-GELU as the operator Gelu, kept whole under quantisation"

    def requires(self, model: onnx.ModelProto) -> str | None:
        """See `loadslice.graph.rewrites.Rewrite.requires`."""
        if not erf_gelu(Links(model.graph), through_quantisation=True):
            return "the model has no GELU written with Erf"
        lacking = f"it needs opset {OPSET_MIN} or later; lift it first"
        return lacking if opset(model) < OPSET_MIN else None

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """See `loadslice.graph.rewrites.Rewrite.call`."""
        after = copied(model)
        links = Links(after.graph)
        instead: dict[int, list[onnx.NodeProto]] = {}
        matches = erf_gelu(links, through_quantisation=True)
        for match in matches:
            last = links.maker[match.output]
            name = f"{links.nodes[last].name or match.output}_gelu"
            # What else reads an inner tensor keeps its maker; `sweep` takes out those that nobody reads any more.
            instead[last] = [helper.make_node("Gelu", list(match.inputs), [match.output], name)]
        replace_nodes(after.graph, instead)
        sweep(after.graph)
        forget_types(after)
        changes = sum(len(match.nodes) for match in matches)
        pairs = any(links.nodes[place].op_type == "QuantizeLinear" for match in matches for place in match.nodes)
        return Rewritten(after, changes, UNQUANTISED if pairs else exact(model))

    def ensures(self, after: onnx.ModelProto) -> None:
        """See `loadslice.graph.rewrites.Rewrite.ensures`."""
        assert count(after, "Gelu")
        assert not erf_gelu(Links(after.graph), through_quantisation=True)
