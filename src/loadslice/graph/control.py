"""Control flow seen before it runs: which branch, how many rounds, and the shapes that come out.

- If: a known condition takes one branch; otherwise both are walked and only what they agree on is known.
- Loop: the rounds are the trip count when it is known and the body never stops early; otherwise unknown.
- Scan: the rounds are the length of the scanned axis.

Carried values keep the dimensions that a round leaves unchanged; others are open.
"""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from loadslice.graph.steps import Body
from loadslice.graph.values import Shape, Value, tensor_type

OPERATORS = frozenset({"If", "Loop", "Scan"})

SCAN_BATCHED = 8
"""The last opset whose Scan has a batch of sequences."""

WalkGraph = Callable[[onnx.GraphProto, dict[str, Value], str], Body]
Types = list[onnx.TypeProto | None]


def walk(
    node: onnx.NodeProto,
    inputs: list[Value | None],
    env: dict[str, Value],
    walk_graph: WalkGraph,
    path: str,
    *,
    opset: int,
) -> tuple[Types, list[Body]]:
    """Walk the subgraphs of a control-flow node.

    Args:
        node: If, Loop or Scan.
        inputs: Its inputs.
        env: What the subgraphs may read from outside.
        walk_graph: Walks one graph.
        path: Where this node is, for the scope of the nodes inside.
        opset: Version of the standard operator set.

    Returns:
        Output types, and the walked bodies with their number of executions.
    """
    graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}

    def inside(name: str, extra: dict[str, Value]) -> Body:
        return walk_graph(graphs[name], {**env, **extra}, f"{path}/{name}/")

    if node.op_type == "If":
        return _if(inputs, inside)
    if node.op_type == "Loop":
        return _loop(graphs["body"], inputs, inside)
    return (_scan if opset > SCAN_BATCHED else _scan_batched)(node, graphs["body"], inputs, inside)


def _outputs(body: Body) -> list[Value]:
    return [body.env.get(info.name, Value(info.type)) for info in body.graph.output]


def _if(inputs: list[Value | None], inside: Callable[[str, dict[str, Value]], Body]) -> tuple[Types, list[Body]]:
    then, other = inside("then_branch", {}), inside("else_branch", {})
    condition = _scalar(inputs[0])
    if condition is None:
        then.alternative = other.alternative = True
        pairs = zip(_outputs(then), _outputs(other), strict=False)
        return [_common(a.type, b.type) for a, b in pairs], [then, other]
    taken, left = (then, other) if condition else (other, then)
    left.times = 0
    return [value.type for value in _outputs(taken)], [then, other]


def _loop(
    graph: onnx.GraphProto, inputs: list[Value | None], inside: Callable[[str, dict[str, Value]], Body]
) -> tuple[Types, list[Body]]:
    trips, condition = (inputs[0] if inputs else None), (inputs[1] if len(inputs) > 1 else None)
    names = [info.name for info in graph.input]
    first = {
        name: Value(tensor_type(kind, ()))
        for name, kind in zip(names, (TensorProto.INT64, TensorProto.BOOL), strict=False)
    }
    carried = dict(zip(names[2:], [_fresh(value) for value in inputs[2:]], strict=False))
    body = _settled(carried, first, inside, skip=1)
    started = condition is None or _scalar(condition) == 1
    body.times = _scalar(trips) if started and _never_stops(graph, body) else 0 if _scalar(condition) == 0 else None
    results = _outputs(body)[1:]
    types: Types = [value.type for value in results[: len(carried)]]
    types += [_stacked(value.type, body.times, 0) for value in results[len(carried) :]]
    return types, [body]


def _never_stops(graph: onnx.GraphProto, body: Body) -> bool:
    """The body's condition is always true: it is stored as true, or handed through from outside."""
    if not graph.output or len(graph.input) < 2:
        return False
    name = graph.output[0].name
    makers = {out: node for node in graph.node for out in node.output}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    return name == graph.input[1].name or (name in body.env and _scalar(body.env[name]) == 1)


def _scan(
    node: onnx.NodeProto,
    graph: onnx.GraphProto,
    inputs: list[Value | None],
    inside: Callable[[str, dict[str, Value]], Body],
) -> tuple[Types, list[Body]]:
    ints = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    scanned = next((attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0)
    scanned = min(max(scanned, 0), len(inputs))
    states = len(inputs) - scanned
    axes = [*ints.get("scan_input_axes", []), *[0] * scanned][:scanned]
    slices, rounds = {}, None
    for info, value, axis in zip(graph.input[states:], inputs[states:], axes, strict=False):
        shape = value.shape if value is not None else None
        if value is None or shape is None or not -len(shape) <= axis < len(shape):
            slices[info.name] = Value(info.type)
            continue
        axis %= len(shape)
        rounds = shape[axis] if rounds is None else rounds
        slices[info.name] = Value(tensor_type(value.elem_type, (*shape[:axis], *shape[axis + 1 :])))
    carried = {info.name: _fresh(value) for info, value in zip(graph.input[:states], inputs[:states], strict=False)}
    body = _settled(carried, slices, inside, skip=0)
    body.times = rounds
    results = _outputs(body)
    out_axes = [*ints.get("scan_output_axes", []), *[0] * len(results)]
    types: Types = [value.type for value in results[:states]]
    types += [_stacked(value.type, rounds, axis) for value, axis in zip(results[states:], out_axes, strict=False)]
    return types, [body]


def _scan_batched(
    node: onnx.NodeProto,
    graph: onnx.GraphProto,
    inputs: list[Value | None],
    inside: Callable[[str, dict[str, Value]], Body],
) -> tuple[Types, list[Body]]:
    """Scan of opset 8: lengths come first, and a row of the batch is scanned after the other."""
    rows = next((value.shape[0] for value in inputs[1:] if value is not None and value.shape), None)
    types, bodies = _scan(node, graph, [_one_row(value) for value in inputs[1:]], inside)
    (body,) = bodies
    body.times = None if rows is None or body.times is None else rows * body.times
    return [_stacked(kind, rows, 0) for kind in types], bodies


def _one_row(value: Value | None) -> Value | None:
    shape = value.shape if value is not None else None
    return Value(tensor_type(value.elem_type, shape[1:])) if value is not None and shape else value


def _settled(
    carried: dict[str, Value],
    fixed: dict[str, Value],
    inside: Callable[[str, dict[str, Value]], Body],
    skip: int,
) -> Body:
    """Walk a body until its carried values have the shape they are fed back with.

    Dimensions that a round changes become open; the second walk then cannot contradict itself.
    """
    body = inside("body", {**fixed, **carried})
    after = _outputs(body)[skip : skip + len(carried)]
    settled = {
        name: Value(_common(before.type, now.type)) for (name, before), now in zip(carried.items(), after, strict=False)
    }
    if all(settled[name].shape == carried[name].shape for name in settled):
        return body
    return inside("body", {**fixed, **carried, **settled})


def _fresh(value: Value | None) -> Value:
    """A carried value: its type is known, its contents change from round to round."""
    return Value(value.type if value is not None else None)


def _common(first: onnx.TypeProto | None, second: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """What two types agree on."""
    if first is None or second is None or not first.HasField("tensor_type"):
        return first if second is None else None
    a, b = Value(first).shape, Value(second).shape
    elem = first.tensor_type.elem_type
    if a is None or b is None or len(a) != len(b):
        return tensor_type(elem, None)
    agreed: Shape = tuple(x if x == y else None for x, y in zip(a, b, strict=True))
    return tensor_type(elem, agreed)


def _stacked(kind: onnx.TypeProto | None, rounds: int | None, axis: int) -> onnx.TypeProto | None:
    """The type of one output per round, stacked along an axis."""
    shape = Value(kind).shape
    if kind is None or shape is None:
        return kind
    axis = axis % (len(shape) + 1)
    return tensor_type(kind.tensor_type.elem_type, (*shape[:axis], rounds, *shape[axis:]))


def _scalar(value: Value | None) -> int | None:
    if value is None or value.data is None or value.data.size != 1:
        return None
    number = int(np.asarray(value.data, dtype=np.int64).reshape(()))
    return max(number, 0)
