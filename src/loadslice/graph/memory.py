"""Peak activation memory: what is alive at once while the nodes run in the file's order.

A tensor lives from the node that makes it to the last that reads it; inputs live from the start until then, outputs to
the end. Weights and everything computed from them alone are not activations. Views share their input's memory. A
subgraph's own peak comes on top of what is alive around it. No in-place reuse and no allocator slack: a runtime may
need somewhat less (it overwrites) or more (its arena).
"""

from collections.abc import Iterable

from loadslice.graph.costs import VIEWS
from loadslice.graph.shapes import Body, Step
from loadslice.graph.values import Value


def peak_activation_bytes(body: Body, inputs: Iterable[str]) -> int | None:
    """Largest sum of live activation bytes over one run.

    Args:
        body: A walked graph.
        inputs: Names of the tensors it is given; for a subgraph, those it gets new in each round.

    Returns:
        Bytes; ``None`` when the size of any activation is unknown.
    """
    storage: dict[str, str] = {}
    sizes: dict[str, int] = {}

    def born(name: str, value: Value, shares: str | None) -> bool:
        if value.constant or not name:
            return True
        root = storage.get(shares, "") if shares is not None else ""
        storage[name] = root or name
        if not root:
            if value.nbytes is None:
                return False
            sizes[name] = value.nbytes
        return True

    for name in inputs:
        if not born(name, body.env[name], None):
            return None
    for step in body.steps:
        shares = step.node.input[0] if step.node.op_type in VIEWS and len(step.node.input) else None
        for name, value in zip(step.node.output, step.outputs, strict=True):
            if not born(name, value, shares):
                return None
    return _sweep(body, storage, sizes)


def _sweep(body: Body, storage: dict[str, str], sizes: dict[str, int]) -> int | None:
    last: dict[str, int] = {}
    for index, step in enumerate(body.steps):
        for name in reads(step):
            if name in storage:
                last[storage[name]] = index
    for info in body.graph.output:
        if info.name in storage:
            last[storage[info.name]] = len(body.steps)
    made = {
        storage[name] for step in body.steps for name in step.node.output if name in storage and storage[name] == name
    }
    alive = sum(size for root, size in sizes.items() if root not in made)
    peak = alive
    for index, step in enumerate(body.steps):
        own = [name for name in step.node.output if name in sizes]
        inside = _inside(step)
        if inside is None:
            return None
        made_now = sum(sizes[name] for name in own)
        # An If's outputs are its branch's, already in the branch's own peak; a Loop fills its outputs as it goes.
        peak = max(peak, alive + (max(inside, made_now) if step.node.op_type == "If" else inside + made_now))
        alive += made_now
        done = {storage[name] for name in [*reads(step), *own] if name in storage}
        alive -= sum(sizes[root] for root in done if last.get(root, index) <= index)
    return peak


def _inside(step: Step) -> int | None:
    """Peak of a node's subgraphs: they run one after another, so the largest counts."""
    peaks = []
    for body in step.bodies:
        if body.times == 0:
            continue
        peak = peak_activation_bytes(body, [info.name for info in body.graph.input])
        if peak is None:
            return None
        peaks.append(peak)
    return max(peaks, default=0)


def reads(step: Step) -> list[str]:
    """Names a node reads, those its subgraphs read from outside included."""
    names = [name for name in step.node.input if name]
    for body in step.bodies:
        names += [name for inner in body.steps for name in reads(inner)]
        names += [info.name for info in body.graph.output]
    return names
