"""What one execution of a node costs: multiply-accumulates, other scalar operations, bytes.

The tables below are the whole convention. A multiply-accumulate is two FLOPs; every other scalar operation in an
operator's defining formula is one, transcendental functions included (hardware takes 5 to 30 cycles for those: FLOPs
are work, not time). Quantised operators count like the float ones, plus `REQUANTISE` per output element. Operators that
only move or name data have no FLOPs, and views move no bytes. An operator in none of the tables has no known cost, and
that is what is reported.
"""

import math
from collections.abc import Callable

from loadslice.graph import contrib, heavy
from loadslice.graph.operands import Operands, UnknownCostError, Work
from loadslice.graph.steps import Step
from loadslice.graph.values import Value

_PER_OUTPUT_ROWS = (
    (
        1,
        """Add Sub Mul Div Neg Abs Reciprocal Sqrt Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh
        Atanh Floor Ceil Round Sign Mod Pow Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not BitwiseAnd
        BitwiseOr BitwiseXor BitwiseNot BitShift IsNaN IsInf Relu Where CumSum""",
    ),
    (2, "Clip LeakyRelu PRelu ThresholdedRelu Hardmax"),  # max and min; or compare, multiply
    (2, "BatchNormalization"),  # scale and shift, folded from the running statistics
    (2, "DequantizeLinear"),  # subtract, multiply
    (3, "Shrink Softsign Softplus"),  # for instance abs, add, divide
    (3, "RotaryEmbedding"),  # two products and a sum
    (4, "Elu HardSigmoid"),  # for instance multiply, add, max, min
    (4, "Sigmoid"),  # negate, exp, add, divide
    (4, "QuantizeLinear"),  # divide, round, add, saturate
    (5, "Celu Selu HardSwish Swish Mish"),
    (5, "Gelu"),  # multiply, erf, add, multiply, multiply
    (6, "BiasGelu QuickGelu"),
    (6, "DynamicQuantizeLinear"),  # also the range of the input
    (9, "FastGelu"),  # tanh form
)
PER_OUTPUT_ELEMENT = {op: cost for cost, names in _PER_OUTPUT_ROWS for op in names.split()}
"""Scalar operations per element of the first output."""

_PER_INPUT_ROWS = (
    (1, "ReduceSum ReduceMax ReduceMin ReduceProd ReduceMean GlobalAveragePool GlobalMaxPool ArgMax ArgMin"),
    (2, "ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp GlobalLpPool LpNormalization"),
    (4, "RMSNormalization SimplifiedLayerNormalization"),  # square, mean, normalise, scale
    (5, "SkipSimplifiedLayerNormalization MeanVarianceNormalization"),
    (5, "Softmax LogSoftmax"),  # running maximum, subtract, exp, running sum, divide
    (6, "BiasSoftmax"),
    # mean, subtract, square, variance, normalise, scale, shift
    (7, "LayerNormalization GroupNormalization GroupNorm InstanceNormalization"),
    (8, "SkipLayerNormalization"),
)
PER_INPUT_ELEMENT = {op: cost for cost, names in _PER_INPUT_ROWS for op in names.split()}
"""Scalar operations per element of the first input: reductions and normalisations."""

_MOVES = """Concat Transpose Gather GatherElements GatherND Scatter ScatterElements ScatterND Slice Split Expand Tile
Pad Cast CastLike ConstantOfShape Range EyeLike OneHot DepthToSpace SpaceToDepth Trilu ReverseSequence NonZero Compress
QLinearConcat Shape Size Constant RandomNormal RandomUniform RandomNormalLike RandomUniformLike If Loop Scan
CenterCropPad Col2Im MaxUnpool Dropout"""
MOVES = frozenset(_MOVES.split())
"""No arithmetic on the data; the bytes still move."""

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Optional", "OptionalGetElement"})
"""The output is the input's memory under another name."""

READS_WHAT_IT_WRITES = frozenset(
    {"Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress", "EmbedLayerNormalization"}
)
"""Of the first input only the selected part is read."""

REQUANTISE = 3
"""Scale, round and add the zero point, per output element of an integer product."""

_SHAPE_ONLY = frozenset({"Shape", "Size", "ConstantOfShape"})
_QUANTISED = frozenset(
    op for op in contrib.CANONICAL if op.startswith("QLinear") or op in {"QGemm", "DynamicQuantizeMatMul"}
)


def work(step: Step) -> Work:
    """Arithmetic of one execution of a node, the bodies of control flow excluded.

    Raises:
        UnknownCostError: No rule, or a shape it needs is open.
    """
    node = step.node
    if node.domain not in {"", "ai.onnx", "com.microsoft"}:
        raise UnknownCostError(f"no cost rule for operator {node.domain}::{node.op_type}")
    op, inputs = contrib.canonical(node, step.inputs)
    operands = Operands(op, inputs, step.outputs, step.attributes)
    try:
        result = _rule(op)(operands)
        if node.op_type in _QUANTISED:
            result = Work(result.macs, result.other + REQUANTISE * math.prod(operands.output_shape()))
    except (IndexError, KeyError, ValueError, TypeError, ArithmeticError) as error:
        raise UnknownCostError(f"its attributes do not fit its inputs ({type(error).__name__}: {error})") from error
    if result.macs < 0 or result.other < 0:
        raise UnknownCostError("its attributes do not fit its inputs")
    return result


def _rule(op: str) -> Callable[[Operands], Work]:
    if op in heavy.RULES:
        return heavy.RULES[op]
    if op in PER_OUTPUT_ELEMENT:
        return lambda operands: Work(other=PER_OUTPUT_ELEMENT[op] * math.prod(operands.output_shape()))
    if op in PER_INPUT_ELEMENT:
        return lambda operands: Work(other=PER_INPUT_ELEMENT[op] * math.prod(operands.shape(0)))
    if op in MOVES or op in VIEWS:
        return _nothing
    raise UnknownCostError(f"no cost rule for operator {op}")


def _nothing(_: Operands) -> Work:
    return Work()


def traffic(step: Step) -> tuple[int, int]:
    """Bytes that one execution reads and writes, and the stored weight bytes among them.

    Raises:
        UnknownCostError: A size is open.
    """
    op = step.node.op_type
    if op in VIEWS or op == "Constant" or step.bodies:
        return 0, 0
    written = sum(_size(value, "output") for name, value in zip(step.node.output, step.outputs, strict=True) if name)
    if op in _SHAPE_ONLY:
        return written, 0
    seen: set[int] = set()
    read = weights = 0
    for place, value in enumerate(step.inputs):
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        size = value.stored_bytes if value.constant and value.stored_bytes else _size(value, f"input {place}")
        if op in READS_WHAT_IT_WRITES and place == _data_input(op):
            size = min(size, written)
        read += size
        weights += size if value.constant else 0
    return read + written, weights


def _data_input(op: str) -> int:
    return 2 if op == "EmbedLayerNormalization" else 0


def _size(value: Value | None, what: str) -> int:
    size = value.nbytes if value is not None else None
    if size is None:
        raise UnknownCostError(f"the size of its {what} is unknown")
    return size
