"""Operators outside the ONNX standard: ONNX Runtime's, seen as the standard operator they compute.

`canonical` maps an operator to the standard one with the same arithmetic, so that shapes and costs have one rule each.
Attention and block-quantised products have no standard twin here and get their own.
Source: ONNX Runtime's operator documentation, docs/ContribOperators.md.
"""

from collections.abc import Callable, Mapping

import onnx
from onnx import TensorProto, helper

from loadslice.graph.values import Shape, Value, tensor_type

Attributes = Mapping[str, object]

CANONICAL: dict[str, tuple[str, tuple[int, ...]]] = {
    "FusedConv": ("Conv", (0, 1, 2)),
    "NhwcFusedConv": ("NhwcConv", (0, 1, 2)),
    "FusedGemm": ("Gemm", (0, 1, 2)),
    "QGemm": ("Gemm", (0, 3, 6)),
    "MatMulIntegerToFloat": ("MatMul", (0, 1)),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearSigmoid": ("Sigmoid", (0,)),
    "QLinearLeakyRelu": ("LeakyRelu", (0,)),
    "QLinearSoftmax": ("Softmax", (0,)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearReduceMean": ("ReduceMean", (0,)),
    "DynamicQuantizeLSTM": ("LSTM", (0, 1, 2, 3, 4, 5, 6, 7)),
    # Standard operators that are quantised: same inputs as the float one, at other places.
    "QLinearConv": ("Conv", (0, 3, 8)),
    "QLinearMatMul": ("MatMul", (0, 3)),
    "ConvInteger": ("Conv", (0, 1)),
    "MatMulInteger": ("MatMul", (0, 1)),
}

_SAME_AS_FIRST_OPS = """BiasGelu FastGelu QuickGelu Gelu BiasSoftmax SimplifiedLayerNormalization
SkipLayerNormalization SkipSimplifiedLayerNormalization GroupNorm RotaryEmbedding GroupNormalization
MeanVarianceNormalization LayerNormalization LpNormalization"""
_SAME_AS_FIRST = frozenset(_SAME_AS_FIRST_OPS.split())
"""Output 0 has the shape and type of input 0."""

_FLOAT_OUTPUT = frozenset({"MatMulIntegerToFloat", "DynamicQuantizeMatMul"})


def canonical(node: onnx.NodeProto, inputs: list[Value | None]) -> tuple[str, list[Value | None]]:
    """The standard operator with the same arithmetic and its inputs; the node's own when it is standard."""
    if node.op_type not in CANONICAL:
        return node.op_type, inputs
    op, places = CANONICAL[node.op_type]
    return op, [inputs[place] if place < len(inputs) else None for place in places]


def infer(node: onnx.NodeProto, inputs: list[Value | None], attributes: Attributes) -> list[onnx.TypeProto] | None:
    """Output types of an operator that has no ONNX schema; ``None`` when there is no rule for it."""
    first = inputs[0] if inputs else None
    if first is None or first.type is None:
        return None
    if node.op_type in _SAME_AS_FIRST:
        return [first.type]
    if node.op_type in _FLOAT_OUTPUT:
        product = _matmul_shape(first.shape, _shape_at(inputs, 1))
        return [tensor_type(TensorProto.FLOAT, product)]
    rule = _RULES.get(node.op_type)
    return rule(inputs, attributes) if rule is not None else None


def standard_node(node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The node rewritten as its standard twin, for shape inference; ``None`` when it has none."""
    if node.op_type not in CANONICAL or node.op_type in _FLOAT_OUTPUT:
        return None
    op, places = CANONICAL[node.op_type]
    if op == "NhwcConv":
        return None
    names = [node.input[place] if place < len(node.input) else "" for place in places]
    twin = helper.make_node(op, names, list(node.output[:1]))
    twin.attribute.extend(node.attribute)
    return twin


def _shape_at(inputs: list[Value | None], place: int) -> Shape | None:
    value = inputs[place] if place < len(inputs) else None
    return value.shape if value is not None else None


def _matmul_shape(left: Shape | None, right: Shape | None) -> Shape | None:
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    rank = max(len(left), len(right)) - 2
    pairs = zip(*((1,) * (rank + 2 - len(one)) + tuple(one[:-2]) for one in (left, right)), strict=True)
    # A side of 1 is repeated; beside any other the open one can only be that other or 1.
    batch = [b if a == 1 else a if b == 1 or a is not None else b for a, b in pairs]
    return (*batch, left[-2], right[-1])


def _matmul_nbits(inputs: list[Value | None], attributes: Attributes) -> list[onnx.TypeProto] | None:
    first, width = inputs[0], attributes.get("N")
    assert first is not None
    if first.shape is None or not first.shape or not isinstance(width, int):
        return None
    return [tensor_type(first.elem_type, (*first.shape[:-1], width))]


def _fused_matmul(inputs: list[Value | None], attributes: Attributes) -> list[onnx.TypeProto] | None:
    first = inputs[0]
    assert first is not None
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        return None
    left, right = first.shape, _shape_at(inputs, 1)
    if left is not None and attributes.get("transA") and len(left) >= 2:
        left = (*left[:-2], left[-1], left[-2])
    if right is not None and attributes.get("transB") and len(right) >= 2:
        right = (*right[:-2], right[-1], right[-2])
    shape = _matmul_shape(left, right)
    return None if shape is None else [tensor_type(first.elem_type, shape)]


def _attention(inputs: list[Value | None], attributes: Attributes) -> list[onnx.TypeProto] | None:
    """`Attention`: input [batch, sequence, width], packed weights [width, q + k + v]; output [batch, sequence, v]."""
    first, weights = inputs[0], _shape_at(inputs, 1)
    assert first is not None
    if first.shape is None or len(first.shape) != 3 or not weights:
        return None
    sizes = attributes.get("qkv_hidden_sizes")
    packed = weights[-1]
    if isinstance(sizes, list) and len(sizes) == 3:
        value_width: int | None = int(sizes[2])
    else:
        value_width = packed // 3 if packed is not None else None
    return [tensor_type(first.elem_type, (first.shape[0], first.shape[1], value_width))]


def _multi_head_attention(inputs: list[Value | None], attributes: Attributes) -> list[onnx.TypeProto] | None:
    """`MultiHeadAttention`, `GroupQueryAttention`: query [batch, sequence, width] in front, all in one or not."""
    query, value = inputs[0], _shape_at(inputs, 2)
    assert query is not None
    if query.shape is None or len(query.shape) != 3:
        return None
    grouped = isinstance(attributes.get("kv_num_heads"), int)
    if grouped and not any(inputs[1:3]):
        return _all_in_one(query, attributes)
    if not value:
        return None
    width = query.shape[-1] if grouped or len(value) != 3 else value[-1]
    return [tensor_type(query.elem_type, (query.shape[0], query.shape[1], width))]


def _all_in_one(query: Value, attributes: Attributes) -> list[onnx.TypeProto] | None:
    """Query, keys and values side by side along the last axis; the query's heads come out."""
    heads, shared = attributes.get("num_heads"), attributes.get("kv_num_heads")
    if query.shape is None or not isinstance(heads, int) or not isinstance(shared, int):
        return None
    width = query.shape[-1]
    return [
        tensor_type(
            query.elem_type, (*query.shape[:2], None if width is None else width // (heads + 2 * shared) * heads)
        )
    ]


def _embed_layer_normalization(inputs: list[Value | None], _: Attributes) -> list[onnx.TypeProto] | None:
    ids, table = inputs[0], inputs[2] if len(inputs) > 2 else None
    assert ids is not None
    if ids.shape is None or table is None or not table.shape:
        return None
    return [tensor_type(table.elem_type, (*ids.shape, table.shape[-1]))]


def _qlinear_concat(inputs: list[Value | None], attributes: Attributes) -> list[onnx.TypeProto] | None:
    """`QLinearConcat`: scale and zero point of the output, then tensor, scale and zero point for each input."""
    parts, axis = [value for value in inputs[2::3] if value is not None], attributes.get("axis")
    shapes = [part.shape for part in parts if part.shape is not None]
    if not shapes or len(shapes) != len(parts) or not isinstance(axis, int):
        return None
    first = shapes[0]
    if any(len(shape) != len(first) for shape in shapes) or not -len(first) <= axis < len(first):
        return None
    axis %= len(first)
    along = [shape[axis] for shape in shapes]
    joined = None if None in along else sum(size or 0 for size in along)
    return [tensor_type(parts[0].elem_type, (*first[:axis], joined, *first[axis + 1 :]))]


_RULES: dict[str, Callable[[list[Value | None], Attributes], list[onnx.TypeProto] | None]] = {
    "MatMulNBits": _matmul_nbits,
    "MatMulBnb4": _matmul_nbits,
    "FusedMatMul": _fused_matmul,
    "QLinearConcat": _qlinear_concat,
    "Attention": _attention,
    "QAttention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _multi_head_attention,
    "EmbedLayerNormalization": _embed_layer_normalization,
}
