"""Every node's cost over one run, and the sums: what a walked model asks for."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import onnx
from onnx import TensorProto

from loadslice.graph.costs import traffic, work
from loadslice.graph.load import graphs, stored_bytes
from loadslice.graph.operands import UnknownCostError
from loadslice.graph.shapes import constant_attribute_tensor
from loadslice.graph.steps import Body, Step
from loadslice.graph.values import dtype_name
from loadslice.spec.inspection import NodeCost, OpCount, UnknownOp

_PRECISION: dict[int, str] = {
    TensorProto.FLOAT: "fp32",
    TensorProto.DOUBLE: "fp64",
    TensorProto.FLOAT16: "fp16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "int8",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "int4",
    TensorProto.FLOAT8E4M3FN: "fp8",
    TensorProto.FLOAT8E4M3FNUZ: "fp8",
    TensorProto.FLOAT8E5M2: "fp8",
    TensorProto.FLOAT8E5M2FNUZ: "fp8",
}


def weights(model: onnx.ModelProto) -> tuple[int, dict[str, int]]:
    """Parameters, and stored bytes by element type, over the graph and all subgraphs.

    Weights are initializers and Constant nodes alike: exporters use either. Block-packed 4-bit weights
    (`MatMulNBits`) count their logical elements, K x N.
    """
    parameters = 0
    size: Counter[str] = Counter()
    packed = _packed_elements(model)
    for graph, _ in graphs(model.graph):
        for tensor in _weight_tensors(graph):
            parameters += packed.get(tensor.name) or _elements(tensor)
            size[dtype_name(tensor.data_type)] += stored_bytes(tensor)
        for sparse in graph.sparse_initializer:
            size[dtype_name(sparse.indices.data_type)] += stored_bytes(sparse.indices)
    return parameters, dict(size.most_common())


def _weight_tensors(graph: onnx.GraphProto) -> Iterable[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in {"", "ai.onnx"}:
            plain = constant_attribute_tensor(node)
            if plain is not None:
                yield plain
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                if attribute.HasField("sparse_tensor"):
                    yield attribute.sparse_tensor.values


def _elements(tensor: TensorProto) -> int:
    elements = 1
    for dim in tensor.dims:
        elements *= dim
    return elements


def _packed_elements(model: onnx.ModelProto) -> dict[str, int]:
    packed = {}
    for graph, _ in graphs(model.graph):
        for node in graph.node:
            if node.op_type in {"MatMulNBits", "MatMulBnb4"} and len(node.input) > 1:
                sizes = {attribute.name: attribute.i for attribute in node.attribute}
                packed[node.input[1]] = sizes.get("K", 0) * sizes.get("N", 0)
    return packed


def node_costs(body: Body, notes: list[str], times: int | None = 1) -> list[NodeCost]:
    """Cost of every node over one run, Constant nodes left out.

    Args:
        body: A walked graph.
        notes: Gains a line for each assumption made.
        times: Executions of this graph per run; ``None``: known only at run time.
    """
    costs = []
    for step in body.steps:
        if step.node.op_type != "Constant":
            costs.append(_node_cost(step, times))
        if any(inner.alternative for inner in step.bodies):
            costs += _costlier(step, notes, times)
            continue
        for inner in step.bodies:
            rounds = 0 if 0 in (times, inner.times) else None if None in (times, inner.times) else times * inner.times  # type: ignore[operator]
            costs += node_costs(inner, notes, rounds)
    return costs


def _costlier(step: Step, notes: list[str], times: int | None) -> list[NodeCost]:
    """Both branches of an If that is decided at run time; the cheaper one counts nothing."""
    totals = [sum(cost.flops or 0 for cost in node_costs(branch, [], times)) for branch in step.bodies]
    taken = totals.index(max(totals))
    if times != 0:
        names = ["then_branch", "else_branch"]
        notes.append(
            f"{step.name}: its condition is known only at run time; {names[taken]}, the costlier branch, is counted."
        )
    costs = []
    for place, branch in enumerate(step.bodies):
        costs += node_costs(branch, notes if place == taken else [], times if place == taken else 0)
    return costs


def _node_cost(step: Step, times: int | None) -> NodeCost:
    shapes = [list(value.shape) if value.shape is not None else None for value in step.outputs]
    times = 0 if step.folded else times
    macs = flops = size = None
    weight_size = 0
    reason = "it runs a number of rounds known only at run time" if times is None else None
    if times == 0:
        macs = flops = size = 0
    elif times is not None:
        try:
            arithmetic = work(step)
            macs, flops = arithmetic.macs * times, arithmetic.flops * times
            moved, read = traffic(step)
            size, weight_size = moved * times, read * times
        except UnknownCostError as error:
            reason = f"{error} ({step.trouble})" if step.trouble and "shape" in str(error) else str(error)
    return NodeCost(
        name=step.name,
        op=step.node.op_type,
        scope=step.scope,
        times=times,
        macs=macs,
        flops=flops,
        bytes=size,
        weight_bytes=weight_size,
        output_shapes=shapes,
        reason=reason,
    )


def op_counts(model: onnx.ModelProto, costs: list[NodeCost]) -> list[OpCount]:
    """Operators by type, heaviest first."""
    counts = Counter(node.op_type for graph, _ in graphs(model.graph) for node in graph.node)
    by_op = defaultdict(list)
    for cost in costs:
        by_op[cost.op].append(cost)
    found = [
        OpCount(
            type=op,
            count=count,
            flops=total(cost.flops for cost in by_op[op]),
            bytes=total(cost.bytes for cost in by_op[op]),
        )
        for op, count in counts.items()
    ]
    return sorted(found, key=lambda op: (op.type == "Constant", -(op.flops or 0), -op.count, op.type))


def unknown_ops(costs: list[NodeCost]) -> list[UnknownOp]:
    """Operator types with nodes of unknown cost, most frequent first, with the first reason met."""
    reasons: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for cost in costs:
        if cost.reason is not None:
            counts[cost.op] += 1
            reasons.setdefault(cost.op, cost.reason)
    return [UnknownOp(type=op, count=count, reason=reasons[op]) for op, count in counts.most_common()]


def total(numbers: Iterable[int | None]) -> int | None:
    """Their sum; ``None`` when any is unknown."""
    result = 0
    for number in numbers:
        if number is None:
            return None
        result += number
    return result


def precision(body: Body) -> str | None:
    """The element type of the multiply-accumulates, by share; a dequantised operand counts as it was stored."""
    shares: Counter[int] = Counter()
    makers = {name: step for step in _all_steps(body) for name in step.node.output}
    for step in _all_steps(body):
        try:
            macs = work(step).macs
        except UnknownCostError:
            macs = 1 if step.node.op_type in {"Conv", "MatMul", "Gemm"} else 0
        if macs and step.inputs and step.inputs[0] is not None:
            maker = makers.get(step.node.input[0])
            source = (
                maker.inputs[0] if maker is not None and maker.node.op_type == "DequantizeLinear" else step.inputs[0]
            )
            shares[source.elem_type if source is not None else 0] += macs
    return _PRECISION.get(shares.most_common(1)[0][0]) if shares else None


def _all_steps(body: Body) -> Iterable[Step]:
    for step in body.steps:
        yield step
        for inner in step.bodies:
            yield from _all_steps(inner)
