"""The order in which ONNX Runtime executes a graph's nodes: it is not the file's, and memory depends on it."""

from collections.abc import Sequence

from loadslice.graph.steps import Step


def execution_order(steps: Sequence[Step]) -> list[Step]:
    """Nodes as ONNX Runtime's sequential executor takes them by default.

    Depth first from the nodes that nobody reads, the last of the file first; of a node's makers the last in the file
    first; a node comes after all its makers.

    Args:
        steps: Nodes of one graph in the file's order.
    """
    makers = {name: index for index, step in enumerate(steps) for name in step.node.output if name}
    above = [sorted({makers[name] for name in reads(step) if name in makers}) for step in steps]
    read = {maker for each in above for maker in each}
    pending = [(index, False) for index in range(len(steps)) if index not in read]
    seen = [False] * len(steps)
    order = []
    while pending:
        index, done = pending.pop()
        if done:
            order.append(steps[index])
        elif not seen[index]:
            seen[index] = True
            pending.append((index, True))
            pending += [(maker, False) for maker in above[index] if not seen[maker]]
    return order


def reads(step: Step) -> list[str]:
    """Names a node reads, those its subgraphs read from outside included."""
    names = [name for name in step.node.input if name]
    for body in step.bodies:
        names += [name for inner in body.steps for name in reads(inner)]
        names += [info.name for info in body.graph.output]
    return names
