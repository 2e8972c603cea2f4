"""The source model made ready for quantisers: simplified, every node named, per-channel scales in its operator set.

Nothing here changes what the model computes; `squeeze` runs the result against the source.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import psutil
from onnx import helper

from loadslice.backends import probe
from loadslice.graph import census
from loadslice.graph.load import MODEL_BYTES_MAX, load
from loadslice.spec.errors import InputError, MissingExtraError

HEAVY = ("Conv", "MatMul", "Gemm")
"""Operators that carry nearly all of the work. Quantising the others, too, cost a text recogniser 15 points."""

OPSET_MIN = 13
"""Per-channel DequantizeLinear came with it."""

COPIES_IN_MEMORY = 12
"""Candidates are timed by turns, so all are loaded at once: the source twice, fused twice, and a dozen smaller ones.
Measured on a decoder of 650 MB with ten candidates: 8 GB."""

_SATURATING = ("Softmax", "Sigmoid", "LogSoftmax")
_PASSING = ("Identity", "Cast", "Reshape", "Squeeze")


@dataclass(frozen=True)
class Prepared:
    """A model that quantisers take.

    Attributes:
        path: The file.
        heavy: Names of heavy nodes whose weight is stored in the model, in the model's order.
        kinds: Node name to operator type, of ``heavy``.
        product_share: Of the weights of ``heavy``, those of matrix products, 0 to 1.
        attention: It multiplies activations with a softmax: what quantisers call a transformer.
        notes: What could not be done.
    """

    path: Path
    heavy: list[str]
    kinds: dict[str, str]
    product_share: float
    attention: bool
    notes: list[str]


def check_memory(path: Path) -> None:
    """Refuse a model that cannot be squeezed in the memory there is.

    Raises:
        InputError: Not a model, or too large.
    """
    _, dtypes = census.weights(load(path))
    if sum(dtypes.values()) > MODEL_BYTES_MAX:
        raise InputError(
            f"{path}: {sum(dtypes.values())} bytes of weights are more than the {MODEL_BYTES_MAX} that one ONNX file "
            "can hold. Squeeze a part of it: cut it with `loadslice slice`."
        )
    needed = COPIES_IN_MEMORY * sum(dtypes.values())
    limit = probe.memory_limit_bytes()
    available = min(psutil.virtual_memory().available, limit or psutil.virtual_memory().total)
    if needed > available:
        raise InputError(
            f"{path}: squeezing {sum(dtypes.values())} bytes of weights takes about {needed} bytes of memory, "
            f"{available} are free. Use a larger machine."
        )


def prepare(path: Path, out: Path) -> Prepared:
    """Write a simplified copy.

    Args:
        path: An ``.onnx`` file.
        out: File to write.

    Raises:
        InputError: Not a model.
        MissingExtraError: ``onnxslim`` is absent.
    """
    notes: list[str] = []
    model = _upgraded(_slim(load(path, weights=True), notes), notes)
    _name_nodes(model.graph)
    onnx.save(model, out)
    stored = {tensor.name for tensor in model.graph.initializer}
    heavy = [
        node
        for node in model.graph.node
        if node.op_type in HEAVY and len(node.input) > 1 and stored.intersection(node.input[:2])
    ]
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    weights = {node.name: max(sizes.get(name, 0) for name in node.input[:2]) for node in heavy}
    products = sum(weights[node.name] for node in heavy if node.op_type != "Conv")
    return Prepared(
        path=out,
        heavy=[node.name for node in heavy],
        kinds={node.name: node.op_type for node in heavy},
        product_share=products / max(1, sum(weights.values())),
        attention=_attends(model.graph),
        notes=notes,
    )


def fix_shapes(path: Path, out: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write a copy whose inputs have one shape each, everything that followed from the shape folded.

    Dimensions are overwritten one by one: mapping them by their symbol breaks on models that use one symbol for two.

    Raises:
        InputError: A shape that the model cannot have.
    """
    model = onnx.load(path)
    del model.graph.value_info[:]
    for info in model.graph.input:
        if info.name not in shapes:
            continue
        dims = info.type.tensor_type.shape.dim
        given = shapes[info.name]
        if len(dims) != len(given):
            raise InputError(f"{path}: input '{info.name}' has rank {len(dims)}, the shape given has {len(given)}.")
        for dim, size in zip(dims, given, strict=True):
            if dim.dim_value > 0 and dim.dim_value != size:
                raise InputError(f"{path}: input '{info.name}': a dimension is fixed at {dim.dim_value}, given {size}.")
            dim.Clear()
            dim.dim_value = size
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    model = onnx.shape_inference.infer_shapes(_slim(model, []), data_prop=True)
    _name_nodes(model.graph)
    onnx.save(model, out)


def before_saturation(path: Path, out: Path) -> Path:
    """The model with the input of its last softmax or sigmoid as its output; ``path`` itself where there is none.

    Layers are ranked there: behind a saturated softmax a layer that ruins the model and a harmless one look alike.
    """
    model = onnx.load(path)
    maker = {name: node for node in model.graph.node for name in node.output}
    name = model.graph.output[0].name
    while name in maker and maker[name].op_type in _PASSING:
        name = maker[name].input[0]
    if name not in maker or maker[name].op_type not in _SATURATING:
        return path
    logits = maker[name].input[0]
    if logits not in maker:
        return path
    dtype = model.graph.output[0].type.tensor_type.elem_type
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(logits, dtype, None))
    used = {logits}
    kept = []
    for node in reversed(model.graph.node):
        if used.intersection(node.output):
            kept.append(node)
            used.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    onnx.save(model, out)
    return out


def _slim(model: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    try:
        import onnxslim
    except ModuleNotFoundError as error:
        raise MissingExtraError("squeeze", "simplifying a model (onnxslim)") from error
    try:
        slimmed = onnxslim.slim(model)
    except Exception as error:  # noqa: BLE001 - a simplifier's failure costs speed, not truth; the note says it
        notes.append(f"onnxslim cannot simplify the model ({_first_line(error)}); it is used as it is.")
        return model
    assert isinstance(slimmed, onnx.ModelProto)
    return slimmed


def _upgraded(model: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    version = next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 0)
    if version >= OPSET_MIN:
        return model
    # Only ever upwards: down-conversion makes invalid graphs.
    try:
        return onnx.version_converter.convert_version(model, 17)
    except Exception as error:  # noqa: BLE001 - its C++ errors have no base of their own; the note says what follows
        notes.append(f"operator set {version} cannot be raised to 17 ({_first_line(error)}): INT8 may fail.")
        return model


def _name_nodes(graph: onnx.GraphProto) -> None:
    seen: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}"
        seen.add(node.name)


def _attends(graph: onnx.GraphProto) -> bool:
    """Whether a softmax's result reaches a MatMul."""
    soft = {name for node in graph.node if node.op_type == "Softmax" for name in node.output}
    for node in graph.node:
        if node.op_type in (*_PASSING, "Transpose", "Dropout") and soft.intersection(node.input):
            soft.update(node.output)
    return any(node.op_type == "MatMul" and soft.intersection(node.input) for node in graph.node)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]
