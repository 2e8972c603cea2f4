"""What a twin computes: the model at the device's precision, as near as a processor without it comes.

int8: a model that carries quantise and dequantise pairs runs as it is, through ONNX Runtime's integer kernels. One
without them has its large weights rounded to int8, symmetric, a scale for each output channel; its activations stay
float, because their ranges need calibration. fp16 and bf16: weights, inputs and outputs are rounded and the sums
between are fp32, as most devices accumulate. Anything else runs as the file has it. Each is said in words.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Precision
from loadslice.spec.work import Tensor

_QUANTISED = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "DynamicQuantizeLinear"}
_CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}
"""Where the second operand of a node has its output channels."""

INT8_MAX = 127


def rounded(path: Path, precision: Precision) -> tuple[onnx.ModelProto | None, str]:
    """A model with its weights at a precision.

    Args:
        path: A model.
        precision: Of the device.

    Returns:
        The changed model, ``None`` where the file runs as it is; and what is computed, in words.

    Raises:
        InputError: Not a model, or one that int8 cannot be had of.
    """
    try:
        model = onnx.load(str(path))
    except Exception as error:
        raise InputError(f"{path}: not an ONNX model: {str(error).strip().partition(chr(10))[0]}") from error
    if any(node.op_type in _QUANTISED for node in model.graph.node):
        return None, "int8 by the model's own quantisation" if precision == "int8" else "as the model is quantised"
    if precision == "int8":
        _round_weights(model, _to_int8)
        return model, "int8 weights, float activations (the model is not quantised)"
    if precision == "fp16" or precision == "bf16":
        _round_all(model, halved(precision))
        return model, f"{precision} weights, inputs and outputs, fp32 sums"
    if precision == "fp32":
        return None, "fp32"
    return None, f"as the file has it, not {precision}"


def halved(precision: Precision) -> Callable[[Tensor], Tensor]:
    """Rounding of fp32 tensors to a 16-bit type and back; tensors of other types pass."""

    def through(tensor: Tensor) -> Tensor:
        if tensor.dtype != np.float32:
            return tensor
        if precision == "fp16":
            # Beyond fp16's range there is infinity, there as here.
            with np.errstate(over="ignore"):
                return tensor.astype(np.float16).astype(np.float32)
        bits = np.ascontiguousarray(tensor).view(np.uint32)
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(tensor), kept.view(np.float32), tensor)

    return through


def _round_weights(model: onnx.ModelProto, to: Callable[[Tensor, int], Tensor]) -> None:
    axes = {
        node.input[1]: 0 if node.op_type == "Gemm" and _is_transposed(node) else _CHANNEL_AXIS[node.op_type]
        for node in model.graph.node
        if node.op_type in _CHANNEL_AXIS and len(node.input) > 1
    }
    for stored in model.graph.initializer:
        if stored.name in axes and stored.data_type == onnx.TensorProto.FLOAT:
            values = to(numpy_helper.to_array(stored), axes[stored.name])
            stored.CopyFrom(numpy_helper.from_array(values, stored.name))


def _is_transposed(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "transB" and attribute.i for attribute in node.attribute)


def _to_int8(weights: Tensor, axis: int) -> Tensor:
    """Symmetric, per channel: the largest magnitude of a channel is 127 steps."""
    if weights.ndim == 0:
        return weights
    others = tuple(place for place in range(weights.ndim) if place != axis % weights.ndim)
    steps = np.abs(weights).max(axis=others, keepdims=True) / INT8_MAX
    steps = np.where(steps > 0, steps, 1)
    return (np.round(weights / steps) * steps).astype(np.float32)


def _round_all(model: onnx.ModelProto, to: Callable[[Tensor], Tensor]) -> None:
    for stored in model.graph.initializer:
        if stored.data_type == onnx.TensorProto.FLOAT:
            stored.CopyFrom(numpy_helper.from_array(to(numpy_helper.to_array(stored)), stored.name))
