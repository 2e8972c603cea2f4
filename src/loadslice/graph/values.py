"""What is known of one tensor before anything runs: type, shape, and the contents where they are small and fixed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Shape = tuple[int | None, ...]

KNOWN_ELEMENTS_MAX = 4096
"""Contents are followed up to this size: shape arithmetic is small, weights are not."""

_WIDTHS = {
    64: "DOUBLE INT64 UINT64 COMPLEX64",
    32: "FLOAT INT32 UINT32",
    16: "FLOAT16 BFLOAT16 INT16 UINT16",
    8: "INT8 UINT8 BOOL FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0",
    6: "FLOAT6E2M3 FLOAT6E3M2",
    4: "INT4 UINT4 FLOAT4E2M1",
    2: "INT2 UINT2",
    128: "COMPLEX128",
}
"""Bits to the types' names: an older onnx lacks the numbers of the newest."""

_BITS: dict[int, int] = {
    number: bits
    for bits, names in _WIDTHS.items()
    for name, number in TensorProto.DataType.items()
    if name in names.split()
}

_FOLLOWED: set[int] = {
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BOOL,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.UINT16,
    TensorProto.INT16,
    TensorProto.UINT32,
    TensorProto.INT32,
    TensorProto.UINT64,
    TensorProto.INT64,
}

_EVALUATED_OPS = """Abs Add And ArgMax ArgMin Cast CastLike Ceil Clip Concat ConstantOfShape CumSum Div Equal Expand
Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg
NonZero Not Or Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round ScatterElements ScatterND Sign Slice Split
Sqrt Squeeze Sub Tile Transpose Unsqueeze Where Xor"""
_EVALUATED = frozenset(_EVALUATED_OPS.split())
"""Operators whose result is computed here when all inputs are known: what exporters build shapes from."""

_EVALUATION_ERRORS = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)
"""What onnx's reference operators raise on operands that do not fit; the result then stays unknown."""


def element_bits(data_type: int) -> int:
    """Bits of one element; 0 for strings and undefined, whose size the type does not give."""
    return _BITS.get(data_type, 0)


def dtype_name(data_type: int) -> str:
    """ONNX's name of an element type in lower case, for instance ``float`` or ``int8``."""
    try:
        return str(TensorProto.DataType.Name(data_type)).lower()
    except ValueError:
        return f"type {data_type}"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor (or sequence, or nothing known) flowing along an edge."""

    type: onnx.TypeProto | None
    data: npt.NDArray[np.generic] | None = None
    """Contents, where known before the run."""
    constant: bool = False
    """It does not depend on the model's inputs: a runtime computes it once, at load."""
    stored_bytes: int = 0
    """Weights of the file it is made of; a dequantised weight is still stored as integers."""
    overridable: bool = False
    """It is, or is made of, a stored tensor that the caller may replace by an input: runtimes do not fold those."""

    @property
    def elem_type(self) -> int:
        """ONNX element type; 0 when unknown or not a tensor."""
        return int(self.type.tensor_type.elem_type) if self.type is not None else 0

    @property
    def shape(self) -> Shape | None:
        """Dimensions, ``None`` where open; ``None`` when not even the rank is known."""
        if self.type is None or not self.type.tensor_type.HasField("shape"):
            return None
        return tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            for dim in self.type.tensor_type.shape.dim
        )

    @property
    def elements(self) -> int | None:
        """Number of elements, when every dimension is known."""
        shape = self.shape
        if shape is None:
            return None
        known = [dim for dim in shape if dim is not None]
        return math.prod(known) if len(known) == len(shape) else None

    @property
    def nbytes(self) -> int | None:
        """Bytes in memory, when shape and element size are known."""
        elements, bits = self.elements, element_bits(self.elem_type)
        return (elements * bits + 7) // 8 if elements is not None and bits else None


def tensor_type(elem_type: int, shape: Shape | None) -> onnx.TypeProto:
    """A tensor type; ``None`` leaves a dimension or the rank open."""
    return helper.make_tensor_type_proto(elem_type, shape)


def stored_value(tensor: onnx.TensorProto, nbytes: int) -> Value:
    """The value of a tensor that the file stores.

    Args:
        tensor: Initializer or attribute.
        nbytes: Its stored bytes.
    """
    known = (
        tensor.data_location != TensorProto.EXTERNAL
        and tensor.data_type in _FOLLOWED
        and math.prod(tensor.dims) <= KNOWN_ELEMENTS_MAX
    )
    data = None
    if known:
        try:
            data = numpy_helper.to_array(tensor)
        except _EVALUATION_ERRORS:  # its bytes and its dims disagree; the type still stands
            data = None
    return Value(tensor_type(tensor.data_type, tuple(tensor.dims)), data, constant=True, stored_bytes=nbytes)


def evaluate(node: onnx.NodeProto, opset: int, inputs: list[Value | None], outputs: list[Value]) -> list[Value]:
    """Compute a node's outputs where its inputs are known and all of them are small.

    Args:
        node: A node of the default domain.
        opset: Version of that domain.
        inputs: Its inputs in order; ``None`` for one left out.
        outputs: What shape inference said about its outputs.

    Returns:
        The outputs, with contents where they could be computed.
    """
    if node.op_type in {"Shape", "Size"}:
        return _shape_of(node, inputs, outputs)
    sizes_known = all(out.elements is not None and out.elements <= KNOWN_ELEMENTS_MAX for out in outputs)
    feeds = {}
    for name, value in zip(node.input, inputs, strict=True):
        if value is None and not name:
            continue
        if value is None or value.data is None:
            return outputs
        feeds[name] = value.data
    if node.op_type not in _EVALUATED or not feeds or not (sizes_known or node.op_type == "NonZero"):
        return outputs
    try:
        with np.errstate(all="ignore"):
            results = _run(node, opset, feeds)
    except _EVALUATION_ERRORS:
        return outputs
    return [_with_data(value, result) for value, result in zip(outputs, results, strict=True)]


def _run(
    node: onnx.NodeProto, opset: int, feeds: dict[str, npt.NDArray[np.generic]]
) -> Sequence[npt.NDArray[np.generic]]:
    axes = next((attribute.ints for attribute in node.attribute if attribute.name == "axes"), None)
    if node.op_type == "Unsqueeze" and axes is not None:
        # onnx 1.23 runs Unsqueeze of opset 11 as that of 13, which wants its axes as an input, and fails.
        return [np.expand_dims(feeds[node.input[0]], tuple(axes))]
    return list(ReferenceEvaluator(node, opsets={"": opset}).run(None, feeds))


def _with_data(value: Value, result: object) -> Value:
    if not isinstance(result, np.ndarray | np.generic) or result.dtype.kind not in "biuf":
        return value
    data = np.asarray(result)
    elem_type = helper.np_dtype_to_tensor_dtype(data.dtype)
    return replace(value, type=tensor_type(elem_type, data.shape), data=data)


def _shape_of(node: onnx.NodeProto, inputs: list[Value | None], outputs: list[Value]) -> list[Value]:
    shape = inputs[0].shape if inputs and inputs[0] is not None else None
    if shape is None:
        return outputs
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))] if node.op_type == "Shape" else shape
    known = [dim for dim in part if dim is not None]
    if len(known) != len(part):
        return outputs
    data = np.array(known if node.op_type == "Shape" else math.prod(known), dtype=np.int64)
    return [replace(outputs[0], type=tensor_type(TensorProto.INT64, data.shape), data=data)]
