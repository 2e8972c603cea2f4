"""Decomposed operators as exporters write them, found again.

Both the rewrites and the operator tables use these: a compiler that fuses a pattern runs operators it would otherwise
leave to the host.
"""

import math
from collections.abc import Callable

import onnx

from loadslice.graph.rewrites.links import Links, Match
from loadslice.graph.steps import attribute_values

TOLERANCE = 2e-3
"""Relative; constants may be stored as fp16 or be dequantised from 8 bits."""


def erf_gelu(links: Links, *, through_quantisation: bool = False) -> list[Match]:
    """``x * 0.5 * (1 + erf(x / sqrt(2)))``, the factors in any order.

    Args:
        links: Of the graph.
        through_quantisation: Also where quantise-dequantise pairs stand between the nodes; they are part of the match.
    """
    found = []
    for place, node in enumerate(links.nodes):
        if node.op_type == "Erf":
            match = _erf_gelu_at(links, place, through=through_quantisation)
            if match is not None:
                found.append(match)
    return found


def _erf_gelu_at(links: Links, erf: int, *, through: bool) -> Match | None:
    scaled = links.nodes[erf].input[0]
    pairs = _pair_before(links, scaled) if through else []
    scale = links.made_by(links.origin(scaled) if through else scaled, "Div", "Mul")
    if scale is None:
        return None
    # A quantised constant is off by up to half a step of 1/255.
    tolerance = 1e-2 if through else TOLERANCE
    if scale.op_type == "Div":
        x = scale.input[0] if _near(links.scalar(scale.input[1]), math.sqrt(2.0), tolerance) else None
    else:
        x = links.other(scale, math.sqrt(0.5), tolerance=tolerance)
    if x is None:
        return None
    nodes = [links.maker[scale.output[0]], *pairs, erf]
    step = _next(links, links.nodes[erf].output[0], through=through)
    if step is None or links.nodes[step[0]].op_type != "Add":
        return None
    add = links.nodes[step[0]]
    if links.other(add, 1.0, tolerance=tolerance) != step[1]:
        return None
    nodes += [*step[2], step[0]]
    origin = links.origin if through else _same
    factors, last = _factors(links, add.output[0], x, nodes, through=through)
    half = [name for name in factors if _near(links.scalar(name), 0.5, tolerance)]
    rest = [origin(name) for name in factors if name not in half]
    if not half and len(rest) == 1:
        # x * 0.5 was computed first.
        first = links.made_by(rest[0], "Mul")
        inner = links.other(first, 0.5, tolerance=tolerance) if first is not None else None
        if inner is None or first is None or origin(inner) != origin(x):
            return None
        nodes.append(links.maker[rest[0]])
    elif len(half) != 1 or rest != [origin(x)]:
        return None
    return Match(tuple(sorted(nodes)), (x,), last)


def _factors(links: Links, name: str, x: str, nodes: list[int], *, through: bool) -> tuple[list[str], str]:
    """What the products after a tensor multiply it with, two at most, and the last product."""
    factors: list[str] = []
    for _ in range(2):
        step = _next(links, name, through=through)
        if step is None or links.nodes[step[0]].op_type != "Mul":
            break
        node = links.nodes[step[0]]
        factors.append(node.input[1] if node.input[0] == step[1] else node.input[0])
        nodes += [*step[2], step[0]]
        name = node.output[0]
        if _is_half_of(links, factors[0], x):
            break
    return factors, name


def _is_half_of(links: Links, name: str, x: str) -> bool:
    """The first factor already is x * 0.5, so that no second product belongs to the pattern."""
    first = links.made_by(name, "Mul")
    return first is not None and links.other(first, 0.5, tolerance=TOLERANCE) == x


def _next(links: Links, name: str, *, through: bool) -> tuple[int, str, list[int]] | None:
    step = links.reader(name)
    return step if step is not None and (through or not step[2]) else None


def _pair_before(links: Links, name: str) -> list[int]:
    if links.origin(name) == name:
        return []
    back = links.maker[name]
    return [links.maker[links.nodes[back].input[0]], back]


def _same(name: str) -> str:
    return name


def _near(value: float | None, wanted: float, tolerance: float) -> bool:
    return value is not None and abs(value - wanted) <= tolerance * abs(wanted)


def layer_norm(links: Links) -> list[Match]:
    """Layer normalisation over the last axis, written out.

    mean, subtract, square, mean, add epsilon, square root, divide, and a scale and a shift where constants follow.
    ``inputs`` is x, or x, scale, shift.
    """
    found = []
    for place, node in enumerate(links.nodes):
        if node.op_type == "Div":
            match = _layer_norm_at(links, place)
            if match is not None:
                found.append(match)
    return found


def _layer_norm_at(links: Links, place: int) -> Match | None:
    divide = links.nodes[place]
    root = links.made_by(divide.input[1], "Sqrt")
    centre = links.made_by(divide.input[0], "Sub")
    add = links.made_by(root.input[0], "Add") if root is not None else None
    if root is None or centre is None or add is None:
        return None
    epsilon, variance = next(
        ((links.scalar(a), b) for a, b in (add.input, add.input[::-1]) if links.scalar(a) is not None), (None, "")
    )
    spread = links.made_by(variance, "ReduceMean")
    square = links.made_by(spread.input[0], "Pow", "Mul") if spread is not None else None
    mean = links.made_by(centre.input[1], "ReduceMean")
    if epsilon is None or spread is None or square is None or mean is None or mean.input[0] != centre.input[0]:
        return None
    again = _squared(links, square)
    if again is None or _centre_of(links, again, centre) is None or not (_last(links, spread) and _last(links, mean)):
        return None
    outputs = [mean.output[0], centre.output[0], square.output[0], spread.output[0], add.output[0], root.output[0]]
    second = links.maker[again]
    nodes = {place, second, *(links.maker[name] for name in outputs)}
    if not all(links.inner(name, nodes) for name in {*outputs, again}):
        return None
    scaled = _scale_and_shift(links, divide.output[0])
    if scaled is None:
        return Match(tuple(sorted(nodes)), (centre.input[0],), divide.output[0], {"epsilon": epsilon})
    more, scale, shift, last = scaled
    return Match(tuple(sorted([*nodes, *more])), (centre.input[0], scale, shift), last, {"epsilon": epsilon})


def _squared(links: Links, square: onnx.NodeProto) -> str | None:
    """What a node squares."""
    if square.op_type == "Pow":
        return square.input[0] if links.scalar(square.input[1]) == 2.0 else None
    return square.input[0] if square.input[0] == square.input[1] else None


def _centre_of(links: Links, name: str, centre: onnx.NodeProto) -> str | None:
    """The squared tensor is the centred one, or a second copy of the same subtraction."""
    if name == centre.output[0]:
        return name
    twin = links.made_by(name, "Sub")
    return name if twin is not None and list(twin.input) == list(centre.input) else None


def _last(links: Links, reduce: onnx.NodeProto) -> bool:
    """A mean over the last axis alone that keeps it."""
    attributes = attribute_values(reduce)
    axes = attributes.get("axes")
    if axes is None and len(reduce.input) > 1:
        stored = links.constant(reduce.input[1])
        axes = stored.reshape(-1).tolist() if stored is not None else None
    return axes == [-1] and attributes.get("keepdims", 1) == 1


def _scale_and_shift(links: Links, name: str) -> tuple[list[int], str, str, str] | None:
    """The product and the sum with constants of one axis that follow a normalisation."""
    nodes, constants = [], []
    for op in ("Mul", "Add"):
        step = _next(links, name, through=False)
        if step is None or links.nodes[step[0]].op_type != op:
            return None
        node = links.nodes[step[0]]
        other = node.input[1] if node.input[0] == name else node.input[0]
        value = links.constant(other)
        if value is None or value.ndim != 1 or value.size == 1:
            return None
        nodes.append(step[0])
        constants.append(other)
        name = node.output[0]
    return nodes, constants[0], constants[1], name


def scale_softmax(links: Links) -> list[Match]:
    """A product with a constant and the softmax of it."""
    found = []
    for place, node in enumerate(links.nodes):
        scale = links.made_by(node.input[0], "Mul", "Div") if node.op_type == "Softmax" else None
        if scale is not None and any(links.scalar(name) is not None for name in scale.input):
            data = scale.input[1] if links.scalar(scale.input[0]) is not None else scale.input[0]
            if links.inner(scale.output[0], {place}):
                found.append(Match((links.maker[scale.output[0]], place), (data,), node.output[0]))
    return found


PATTERNS: dict[str, Callable[[Links], list[Match]]] = {
    "erf-gelu": erf_gelu,
    "layer-norm": layer_norm,
    "scale-softmax": scale_softmax,
}
