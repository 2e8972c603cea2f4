"""Activation memory: a plan of every buffer over one run, as ONNX Runtime's sequential executor makes it.

Rules, in the order they are asked for each output of a node:

1. An output of the model has a buffer of its own. Any other alias shares its input's, whatever else reads it.
2. A kernel that may work in place takes its input's buffer when it is the last reader and the sizes are equal.
3. Otherwise a buffer of the same shape and element size that has become free is taken over; it then stays allocated in
   between.
4. Otherwise a new buffer is allocated.

Buffers are freed after their last reader; one that has none may be taken over, and otherwise stays to the end. The
model's inputs are the caller's: they stay for the whole run and are never written over; outputs live from the node
that makes them to the end. Weights, and what a runtime computes from them alone at load, are no activations. A
subgraph's own peak comes on top of what is alive around it; an If's outputs are there before its branch runs. Kernels'
scratch and an allocator's rounding are not in the plan.

`ALIASES` and `IN_PLACE` are what ONNX Runtime's CPU kernels do; `memory_test` asks an installed runtime.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from onnx import helper

from loadslice.graph.order import execution_order, reads
from loadslice.graph.steps import Body, Step
from loadslice.graph.values import Shape, Value, element_bits
from loadslice.spec.inspection import LiveTensor, MemoryPlan

ALIASES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""The output is the input's buffer under another name."""

_IN_PLACE_OPS = """Relu Sigmoid Tanh LeakyRelu Elu Selu Celu HardSigmoid Softplus Softsign ThresholdedRelu Shrink Clip
Softmax LogSoftmax Cast"""
IN_PLACE = frozenset(_IN_PLACE_OPS.split())
"""The first output may overwrite the first input. Arithmetic (Add, Mul, ...) does not, in this runtime."""

SHOWN_MAX = 5
"""Tensors named at the peak, largest first."""

_NOTHING = MemoryPlan(input_bytes=0, arena_bytes=0, peak_bytes=0, at=None, tensors=[], unshared_bytes=0)

_CALLER = 1
"""A reader that never finishes: it holds the model's inputs and outputs."""


@dataclass(slots=True)
class _Buffer:
    """One allocation, handed on from tensor to tensor."""

    shape: Shape
    width_bits: int
    nbytes: int
    begin: int
    end: int
    """First and last node it is held for."""
    readers: int = 0
    """Still to come."""
    tensors: list[str] = field(default_factory=list)
    outside: bool = False
    """The caller's, the surrounding graph's or a weight: not ours to free, take over or count."""

    @property
    def kind(self) -> tuple[Shape, int]:
        """What a tensor must match to take the buffer over."""
        return self.shape, self.width_bits


@dataclass(slots=True)
class _Pool:
    """Buffers while nodes are walked."""

    uses: dict[str, int]
    """Readers of each tensor."""
    handed_out: frozenset[str]
    """Outputs of the graph."""
    outputs_given: bool
    of: dict[str, _Buffer] = field(default_factory=dict)
    free: list[_Buffer] = field(default_factory=list)
    """Latest first."""
    made: list[_Buffer] = field(default_factory=list)


def plan(body: Body, inputs: Sequence[str], *, folded: bool = True, outputs_given: bool = False) -> MemoryPlan | None:
    """Largest sum of live activation bytes over one run.

    Args:
        body: A walked graph.
        inputs: Names of the tensors it is given; for a subgraph, those it gets new in each round.
        folded: What depends on weights alone was computed at load. False for a runtime told not to optimise.
        outputs_given: The graph writes its outputs where the caller wants them: an If's branch does.

    Returns:
        The plan; ``None`` when the size of any activation is unknown.
    """
    given = [body.env[name].nbytes if name in body.env else None for name in inputs]
    every = [step for step in body.steps if step.node.op_type != "Constant" and not (folded and step.folded)]
    # A runtime numbers the nodes of an expansion after all others, and its order goes by numbers.
    plain = [step for step in every if step.node.op_type != "HardSwish"]
    steps = execution_order([*plain, *(part for step in every for part in _expanded(step))])
    inside = [_inside(step, folded=folded) for step in steps]
    made = _buffers(body, steps, outputs_given=outputs_given)
    if made is None or any(size is None for size in given) or any(one is None for one in inside):
        return None
    input_bytes = sum(size or 0 for size in given)
    totals = _totals(made, [one.peak_bytes if one is not None else 0 for one in inside])
    peak = max(totals, default=0)
    at = totals.index(peak) if totals else 0
    largest = sorted((one for one in made if one.begin <= at <= one.end), key=lambda one: -one.nbytes)[:SHOWN_MAX]
    return MemoryPlan(
        input_bytes=input_bytes,
        arena_bytes=peak,
        peak_bytes=input_bytes + peak,
        at=steps[at].name if steps else None,
        tensors=[LiveTensor(name=one.tensors[-1], bytes=one.nbytes) for one in largest],
        unshared_bytes=input_bytes
        + sum(_size(value) for step in steps for value in step.outputs)
        + sum(one.unshared_bytes for one in inside if one is not None),
    )


def _expanded(step: Step) -> list[Step]:
    """The nodes a runtime runs for one that it has no kernel for: HardSwish is x times HardSigmoid of x."""
    node = step.node
    if node.op_type != "HardSwish":
        return []
    inner = f"{node.output[0]}/HardSigmoid"
    gate = helper.make_node("HardSigmoid", [node.input[0]], [inner])
    product = helper.make_node("Mul", [node.input[0], inner], [node.output[0]], name=step.name)
    return [
        Step(gate, step.scope, step.opset, step.inputs, step.outputs),
        Step(product, step.scope, step.opset, [*step.inputs, *step.outputs], step.outputs),
    ]


def _size(value: Value) -> int:
    return value.nbytes or 0


def _totals(made: Sequence[_Buffer], inside: Sequence[int]) -> list[int]:
    """Bytes held while each node runs."""
    change = [0] * (len(inside) + 1)
    for buffer in made:
        change[buffer.begin] += buffer.nbytes
        change[buffer.end + 1] -= buffer.nbytes
    totals = []
    alive = 0
    for index, within in enumerate(inside):
        alive += change[index]
        totals.append(alive + within)
    return totals


def _buffers(body: Body, steps: Sequence[Step], *, outputs_given: bool) -> list[_Buffer] | None:
    """Every buffer of a run with the nodes it is held for; ``None`` when a size is unknown."""
    uses: Counter[str] = Counter(name for step in steps for name in reads(step))
    handed_out = frozenset(info.name for info in body.graph.output)
    uses.update(dict.fromkeys(handed_out, _CALLER))
    pool = _Pool(uses, handed_out, outputs_given)
    for index, step in enumerate(steps):
        for place, (name, value) in enumerate(zip(step.node.output, step.outputs, strict=True)):
            if name and not _give(step, index, place, value, pool):
                return None
        unread = [name for name in step.node.output if name and not uses[name]]
        for name in [*reads(step), *unread]:
            buffer = pool.of.get(name)
            if buffer is None or buffer.outside:
                continue
            buffer.readers -= 0 if name in unread else 1
            buffer.end = len(steps) - 1 if name in unread else index
            if buffer.readers == 0:
                pool.free.insert(0, buffer)
    for name in handed_out & pool.of.keys():
        pool.of[name].end = len(steps) - 1
    return pool.made


def _give(step: Step, index: int, place: int, value: Value, pool: _Pool) -> bool:
    """Find a buffer for one output; False when its size is unknown."""
    name = step.node.output[place]
    buffer = _taken_over(step, place, value, pool)
    if buffer is None:
        if value.nbytes is None or value.shape is None:
            return False
        nbytes = 0 if pool.outputs_given and name in pool.handed_out else value.nbytes
        buffer = _Buffer(value.shape, element_bits(value.elem_type), nbytes, index, index)
        pool.made.append(buffer)
    buffer.readers += pool.uses[name]
    buffer.tensors.append(name)
    pool.of[name] = buffer
    return True


def _taken_over(step: Step, place: int, value: Value, pool: _Pool) -> _Buffer | None:
    """The buffer an output gets without allocating; ``None``: it needs one of its own."""
    op, name = step.node.op_type, step.node.output[place]
    first = step.node.input[0] if len(step.node.input) else ""
    source = pool.of.get(first)
    standard = step.node.domain in {"", "ai.onnx"} and place == 0
    if name in pool.handed_out or value.shape is None:
        return None
    if standard and op in ALIASES:
        return source if source is not None else _Buffer((), 0, 0, 0, 0, outside=True)
    kind = (value.shape, element_bits(value.elem_type))
    before = step.inputs[0] if step.inputs else None
    if standard and op in IN_PLACE and source is not None and before is not None:
        same = (before.shape, element_bits(before.elem_type)) == kind
        if same and source.readers == 1 and not source.outside:
            return source
    if not value.shape:
        return None
    for at, buffer in enumerate(pool.free):
        if buffer.kind == kind:
            return pool.free.pop(at)
    return None


def _inside(step: Step, *, folded: bool) -> MemoryPlan | None:
    """The largest plan of a node's subgraphs, which run one after another; ``None``: a size in one is unknown."""
    largest = _NOTHING
    for body in step.bodies:
        if body.times == 0:
            continue
        names = [info.name for info in body.graph.input]
        inner = plan(body, names, folded=folded, outputs_given=step.node.op_type == "If")
        if inner is None:
            return None
        largest = max(largest, inner, key=lambda each: each.peak_bytes)
    return largest
