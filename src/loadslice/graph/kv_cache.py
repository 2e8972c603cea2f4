"""The KV cache of a decoder: inputs that a run hands back longer, a position for each new token.

Found by structure, not by name: a floating-point input with an open axis is a cache when it is only moved until a
Concat along that axis (or an attention operator of ONNX Runtime takes it as its past), and what comes out is only moved
until an output of the model.
"""

from collections.abc import Iterable

import onnx
from onnx import TensorProto, helper

from loadslice.graph.costs import VIEWS
from loadslice.graph.inputs import declared_shape
from loadslice.graph.order import reads
from loadslice.graph.shapes import model_inputs
from loadslice.graph.steps import Body, Step
from loadslice.graph.values import element_bits
from loadslice.spec.inspection import KvCache

_MOVED = VIEWS | {"Transpose", "Slice", "Split", "Gather", "Concat", "Expand", "Cast"}

_PAST_INPUTS = {"GroupQueryAttention": (3, 4), "MultiHeadAttention": (6, 7), "DecoderMaskedMultiHeadAttention": (5, 6)}
"""Where ONNX Runtime's attention operators take a past key and value."""

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT8, TensorProto.FLOAT8E4M3FN}


def kv_cache(model: onnx.ModelProto, body: Body) -> KvCache | None:
    """The cache of a decoder; ``None``: this model hands nothing on that grows.

    Args:
        model: Its declared inputs say which axes are open.
        body: The same model, walked.
    """
    readers: dict[str, list[Step]] = {}
    for step in body.steps:
        for name in reads(step):
            readers.setdefault(name, []).append(step)
    ends = {info.name for info in body.graph.output}
    found = []
    for info in model_inputs(model.graph):
        shape = declared_shape(info)
        if info.type.tensor_type.elem_type not in _FLOATS or shape is None or len(shape) < 3:
            continue
        axis = _grown_axis(info.name, shape, readers, ends)
        if axis is not None:
            found.append((info, shape, axis))
    if not found:
        return None
    per_token = 0
    for info, shape, axis in found:
        sizes = [dim for place, dim in enumerate(shape) if place not in {axis, _batch_axis(shape, axis)}]
        if not all(isinstance(dim, int) for dim in sizes):
            return None
        elements = 1
        for dim in sizes:
            elements *= int(dim or 0)
        per_token += elements * element_bits(info.type.tensor_type.elem_type) // 8
    now = [body.env[info.name].nbytes for info, _, _ in found]
    return KvCache(
        inputs=[info.name for info, _, _ in found],
        axis=found[0][2],
        bytes_per_token=per_token,
        bytes=None if None in now else sum(size or 0 for size in now),
    )


def _batch_axis(shape: list[int | str | None], grown: int) -> int | None:
    """The first other open axis: rows of a batch, each with a cache of its own."""
    return next((place for place, dim in enumerate(shape) if place != grown and not isinstance(dim, int)), None)


def _grown_axis(name: str, shape: list[int | str | None], readers: dict[str, list[Step]], ends: set[str]) -> int | None:
    """The axis of an input that comes back longer."""
    for step, place in _joins(name, readers):
        if step.node.op_type == "Concat":
            axis = helper.get_attribute_value(next(a for a in step.node.attribute if a.name == "axis"))
            axis = axis % len(shape) if -len(shape) <= axis < len(shape) else axis
            # The past comes first; what is new follows it.
            grows = place == 0 and 0 <= axis < len(shape) and not isinstance(shape[axis], int)
            if grows and _reaches(step.node.output[0], readers, ends):
                return int(axis)
        elif place in _PAST_INPUTS.get(step.node.op_type, ()):
            # [batch, heads, positions, size], in each of these operators.
            return len(shape) - 2
    return None


def _joins(name: str, readers: dict[str, list[Step]]) -> Iterable[tuple[Step, int]]:
    """Where a tensor, moved or not, is read by something that could lengthen it."""
    pending, seen = [name], {name}
    while pending:
        current = pending.pop()
        for step in readers.get(current, []):
            place = list(step.node.input).index(current) if current in step.node.input else -1
            if step.node.op_type in _PAST_INPUTS or (step.node.op_type == "Concat" and len(step.node.input) > 1):
                yield step, place
            elif step.node.op_type in _MOVED and place == 0:
                fresh = [out for out in step.node.output if out and out not in seen]
                seen.update(fresh)
                pending += fresh


def _reaches(name: str, readers: dict[str, list[Step]], ends: set[str]) -> bool:
    """A tensor comes out of the model with nothing but moves in between."""
    pending, seen = [name], {name}
    while pending:
        current = pending.pop()
        if current in ends:
            return True
        for step in readers.get(current, []):
            if step.node.op_type in _MOVED:
                fresh = [out for out in step.node.output if out and out not in seen]
                seen.update(fresh)
                pending += fresh
    return False
