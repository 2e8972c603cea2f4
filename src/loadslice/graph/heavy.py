"""Cost rules of operators that need more than an element count: products, recurrences, attention, pooling."""

import math
from collections.abc import Callable

import numpy as np

from loadslice.graph.operands import Operands, UnknownCostError, Work


def _conv(node: Operands) -> Work:
    """Weights [out, in / group, *kernel]; every output element sums in / group x kernel products."""
    out, weights = math.prod(node.output_shape()), node.shape(1)
    return Work(out * math.prod(weights[1:]), out if node.has(2) else 0)


def _nhwc_conv(node: Operands) -> Work:
    return _conv(node)


def _conv_transpose(node: Operands) -> Work:
    """Weights [in, out / group, *kernel]; every input element is spread over out / group x kernel outputs."""
    return Work(
        math.prod(node.shape(0)) * math.prod(node.shape(1)[1:]), math.prod(node.output_shape()) if node.has(2) else 0
    )


def _deform_conv(node: Operands) -> Work:
    """A convolution whose every tap is interpolated from four neighbours (7 operations)."""
    base = _conv(node)
    out = node.output_shape()
    taps = math.prod(node.shape(1)[2:]) * node.shape(0)[1] * math.prod(out[2:]) * out[0]
    return Work(base.macs, base.other + 7 * taps)


def _matmul(node: Operands) -> Work:
    return Work(math.prod(node.output_shape()) * node.shape(0)[-1])


def _fused_matmul(node: Operands) -> Work:
    inner = node.shape(0)[-2 if node.integer("transA", 0) else -1]
    return Work(math.prod(node.output_shape()) * inner)


def _gemm(node: Operands) -> Work:
    inner = node.shape(0)[0 if node.integer("transA", 0) else -1]
    out = math.prod(node.output_shape())
    return Work(out * inner, out if node.has(2) else 0)


def _matmul_nbits(node: Operands) -> Work:
    """Weights are packed in blocks; K and N are attributes. Unpacking is 2 operations a weight, once."""
    rows = math.prod(node.shape(0)[:-1])
    k, n = node.integer("K"), node.integer("N")
    return Work(rows * k * n, 2 * k * n)


def _einsum(node: Operands) -> Work:
    """Contracted in one go: every point of the index space multiplies its factors and, where summed, adds."""
    equation = str(node.attributes.get("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    sizes: dict[str, int] = {}
    spread: tuple[int, ...] = ()
    for place, term in enumerate(operands):
        shape = node.shape(place)
        before, dots, after = term.partition("...")
        hidden = len(shape) - len(before) - len(after) if dots else 0
        spread = np.broadcast_shapes(spread, shape[len(before) : len(before) + hidden])
        shown = shape[: len(before)] + shape[len(before) + hidden :]
        for label, size in zip(before + after, shown, strict=True):
            # A side of 1 is repeated.
            sizes[label] = max(sizes.get(label, 1), size)
    if not arrow:
        result = "".join(label for label in sizes if terms.count(label) == 1)
    points = math.prod(sizes.values()) * math.prod(spread)
    is_summed = bool(set(sizes) - set(result))
    if len(operands) == 1:
        return Work(other=points if is_summed else 0)
    products = (len(operands) - 1) * points
    return Work(products) if is_summed else Work(other=products)


def _variadic(node: Operands) -> Work:
    return Work(other=max(len(node.inputs) - 1, 0) * math.prod(node.output_shape()))


def _mean(node: Operands) -> Work:
    return Work(other=len(node.inputs) * math.prod(node.output_shape()))


def _pool(node: Operands) -> Work:
    kernel = node.attributes.get("kernel_shape")
    if not isinstance(kernel, list):
        raise UnknownCostError("attribute 'kernel_shape' is missing")
    return Work(other=math.prod(node.output_shape()) * math.prod(kernel))


def _lrn(node: Operands) -> Work:
    return Work(other=math.prod(node.output_shape()) * (2 * node.integer("size") + 4))


def _resize(node: Operands) -> Work:
    """Nearest copies; linear chains 2-point blends (3 operations) over the resized axes, cubic 4-point ones (7)."""
    mode = str(node.attributes.get("mode", "nearest"))
    out, before = node.output_shape(), node.shape(0)
    axes = sum(a != b for a, b in zip(out, before, strict=True))
    if mode == "nearest":
        return Work()
    if mode == "linear":
        return Work(other=math.prod(out) * 3 * (2**axes - 1))
    return Work(other=math.prod(out) * 7 * sum(4**k for k in range(axes)))


def _grid_sample(node: Operands) -> Work:
    out = node.output_shape()
    mode = str(node.attributes.get("mode", "linear"))
    per = {"nearest": 2, "linear": 9, "bilinear": 9, "cubic": 35, "bicubic": 35}.get(mode)
    if per is None:
        raise UnknownCostError(f"GridSample mode '{mode}' has no cost rule")
    return Work(other=math.prod(out) * per)


def _top_k(node: Operands) -> Work:
    """Comparisons of a selection heap: log2(k + 1) for each input element."""
    axis = node.integer("axis", -1)
    kept = node.output_shape()[axis]
    return Work(other=math.prod(node.shape(0)) * max(math.ceil(math.log2(kept + 1)), 1))


def _recurrent(gates: int, pointwise: int, biases: int) -> Callable[[Operands], Work]:
    """X [steps, batch, in], W [directions, gates x hidden, in], R [directions, gates x hidden, hidden].

    The quantised twin has W and R the other way round; one side of R is the hidden size in either.
    """

    def rule(node: Operands) -> Work:
        first = node.shape(0)
        steps, batch, width = first
        directions, *sides = node.shape(2)
        hidden = min(sides)
        cells = steps * batch * directions * hidden
        return Work(cells * gates * (width + hidden), cells * (pointwise + (biases if node.has(3) else 0)))

    return rule


def _attended(queries: int, keys: int, heads_width: int, value_width: int, heads: int) -> Work:
    """Scores, softmax and weighted sum of one attention over ``queries`` rows."""
    scores = queries * keys * heads_width
    return Work(scores + queries * keys * value_width, 6 * queries * keys * heads)


def _packed_attention(node: Operands) -> Work:
    """ONNX Runtime's `Attention`: projects [batch, sequence, width] to q, k and v itself; a past lengthens the keys."""
    batch, sequence, width = node.shape(0)
    packed = node.shape(1)[-1]
    heads = node.integer("num_heads")
    value_width = node.output_shape()[-1]
    past = 0
    if node.has(4) and node.op == "Attention":
        past = node.shape(4)[-2]
    keys = sequence + past
    core = _attended(batch * sequence, keys, (packed - value_width) // 2, value_width, heads)
    projected = batch * sequence * packed
    return Work(core.macs + projected * width, core.other + projected)


def _multi_head(node: Operands) -> Work:
    """[batch, sequence, heads x size] query, key, value; `GroupQueryAttention` shares keys and may have all in one."""
    batch, sequence, width = node.shape(0)
    out_width = node.output_shape()[-1]
    past = node.shape(6)[-2] if node.op == "MultiHeadAttention" and node.has(6) else 0
    if node.op == "GroupQueryAttention":
        past = _shared_past(node)
        width = out_width  # its first input may hold keys and values, too
    value = node.shape(2) if node.has(2) or node.op != "GroupQueryAttention" else (sequence, width)
    keys = (value[-2] if len(value) >= 2 else sequence) + past
    return _attended(batch * sequence, keys, width, out_width, node.integer("num_heads"))


def _shared_past(node: Operands) -> int:
    """The cache of GroupQueryAttention may be a fixed buffer that present shares: its fill is not in the shapes."""
    return node.shape(3)[-2] if node.has(3) else 0


def _onnx_attention(node: Operands) -> Work:
    """The standard `Attention` (from opset 23): [batch, heads, sequence, size] or [batch, sequence, heads x size]."""
    query, key, value = node.shape(0), node.shape(1), node.shape(2)
    past = node.shape(4)[-2] if node.has(4) else 0
    if len(query) == 4:
        batch, heads, sequence, size = query
        return _attended(batch * sequence, key[-2] + past, heads * size, heads * value[-1], heads)
    heads, shared = node.integer("q_num_heads"), node.integer("kv_num_heads")
    batch, sequence, width = query
    return _attended(batch * sequence, key[-2] + past, width, value[-1] // shared * heads, heads)


def _attention(node: Operands) -> Work:
    return _packed_attention(node) if "num_heads" in node.attributes else _onnx_attention(node)


def _embed_layer_normalization(node: Operands) -> Work:
    """Three table rows added (2), then a layer normalisation (7)."""
    return Work(other=9 * math.prod(node.output_shape()))


def _fourier(node: Operands) -> Work:
    """5 n log2 n operations for a transform of n points."""
    points = node.shape(0)
    n = points[-2] if len(points) >= 2 else points[-1]
    return Work(other=math.ceil(5 * math.prod(points) * math.log2(max(n, 2))))


def _stft(node: Operands) -> Work:
    out = node.output_shape()  # [batch, frames, bins, 2]
    frame = node.shape(2)[0] if node.has(2) else 2 * (out[2] - 1)
    return Work(other=math.ceil(out[0] * out[1] * frame * (1 + 5 * math.log2(max(frame, 2)))))


RULES: dict[str, Callable[[Operands], Work]] = {
    "Conv": _conv,
    "NhwcConv": _nhwc_conv,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "MatMul": _matmul,
    "FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    "MatMulNBits": _matmul_nbits,
    "MatMulBnb4": _matmul_nbits,
    "Einsum": _einsum,
    "Sum": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "Mean": _mean,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "LRN": _lrn,
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _grid_sample,
    "TopK": _top_k,
    # Pointwise work per cell: three sigmoids (4 each), two tanh, five products and sums; a bias add per gate and side.
    "LSTM": _recurrent(4, 12 + 2 + 5, 8),
    "GRU": _recurrent(3, 8 + 1 + 5, 6),
    "RNN": _recurrent(1, 2, 2),
    "Attention": _attention,
    "QAttention": _packed_attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _multi_head,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "DFT": _fourier,
    "STFT": _stft,
}
