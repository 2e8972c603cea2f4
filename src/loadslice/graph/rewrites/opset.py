"""The standard operator set lifted to a later version, by ONNX's own converter.

Why: compilers are tested on recent sets and some operators (LayerNormalization 17, Gelu 20) only exist there.
"""

import onnx
from onnx import version_converter

from loadslice.graph.load import MODEL_BYTES_MAX, graphs
from loadslice.graph.rewrites.edit import Rewritten, copied, opset
from loadslice.graph.rewrites.links import STANDARD
from loadslice.spec.errors import InputError


class LiftOpset:
    """The whole model at one opset."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.name = f"lift-opset-{to}"
        self.title = f"the standard operators at opset {to}"

    def requires(self, model: onnx.ModelProto) -> str | None:
        """See `loadslice.graph.rewrites.Rewrite.requires`."""
        latest = onnx.defs.onnx_opset_version()
        if self.to > latest:
            return f"opset {self.to} is newer than the {latest} that onnx {onnx.__version__} knows"
        if model.ByteSize() > MODEL_BYTES_MAX:
            return "the model with its weights is larger than the converter can take (2 GiB)"
        if opset(model) >= self.to:
            return f"the model is at opset {opset(model)} already"
        return None

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """See `loadslice.graph.rewrites.Rewrite.call`."""
        before = copied(model)
        used = {node.domain for graph, _ in graphs(before.graph) for node in graph.node}
        imports = [entry for entry in before.opset_import if entry.domain in STANDARD or entry.domain in used]
        kept = [onnx.OperatorSetIdProto.FromString(entry.SerializeToString()) for entry in imports]
        del before.opset_import[:]
        before.opset_import.extend(kept)
        try:
            after = version_converter.convert_version(before, self.to)
        except (version_converter.ConvertError, RuntimeError, ValueError, TypeError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise InputError(
                f"opset {opset(model)} cannot be lifted to {self.to}: {lines[-1] if lines else error}."
            ) from error
        return Rewritten(after, len(after.graph.node))

    def ensures(self, after: onnx.ModelProto) -> None:
        """See `loadslice.graph.rewrites.Rewrite.ensures`."""
        assert opset(after) == self.to
