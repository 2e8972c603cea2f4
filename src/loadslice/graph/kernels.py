"""Which of a model's nodes each kernel of a runtime stands for, after the runtime has fused and renamed.

A runtime's graph is not the file's. What survives are names: the tensor a fused kernel writes keeps its name, and most
kernels keep their node's. So each kernel is anchored at the file's nodes that it shares a name with, and covers them
and everything above them up to the next anchored node. A kernel without any anchor (a change of layout, for instance)
is counted with the one that reads it. Kernels that cover a common node are one group: their time is measured, and how
it divides among the nodes of the group is not.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from loadslice.graph.cuts import Flow
from loadslice.graph.measure import KernelRun, Profile

_LAYOUT_SUFFIX = "_nchwc"
"""ONNX Runtime appends it to the name of a tensor that a kernel now makes in blocks of channels."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of the graph that ran, with its time in a middling run."""

    name: str
    op: str
    time_us: float
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels and the file's operators they cover, both in order."""

    kernels: tuple[Kernel, ...]
    ops: tuple[int, ...]
    """Operators of the `Flow`; empty: nothing of the file is recognised in these kernels."""

    @property
    def time_us(self) -> float:
        """Of all its kernels."""
        return sum(kernel.time_us for kernel in self.kernels)


def midmean(values: Sequence[float]) -> float:
    """Mean of the middle half: as deaf to outliers as a median, and finer than the clock's tick.

    Args:
        values: At least one.
    """
    ordered = np.sort(np.asarray(values, float))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def top_level(run: Sequence[KernelRun]) -> list[KernelRun]:
    """One run's kernels without those inside control flow, whose time their If, Loop or Scan already has.

    Args:
        run: By begin, of equals the longer first.
    """
    kept: list[KernelRun] = []
    for kernel in run:
        inside = kept and kernel.begin_us < kept[-1].end_us and kept[-1].op in {"If", "Loop", "Scan"}
        if not inside:
            kept.append(kernel)
    return kept


def kernels(profile: Profile) -> list[Kernel]:
    """The kernels of the graph that ran, in execution order, each with the midmean of its times."""
    times: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for run in profile.runs:
        seen: Counter[tuple[str, str]] = Counter()
        for kernel in top_level(run):
            key = (kernel.name, kernel.op)
            times[*key, seen[key]].append(float(kernel.dur_us))
            seen[key] += 1
    nodes: dict[tuple[str, str], list[onnx.NodeProto]] = defaultdict(list)
    for node in profile.model.graph.node:
        nodes[node.name, node.op_type].append(node)
    found = []
    for (name, op, place), each in times.items():
        same = nodes.get((name, op), [])
        node = same[place] if place < len(same) else onnx.NodeProto()
        found.append(Kernel(name, op, midmean(each), tuple(_reads(node)), tuple(filter(None, node.output))))
    return found


def _reads(node: onnx.NodeProto) -> list[str]:
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            names += [name for inner in attribute.g.node for name in _reads(inner)]
    return names


def groups(graph: Flow, ran: Sequence[Kernel]) -> list[Group]:
    """Kernels with the operators they cover, in the order of their first kernel.

    Args:
        graph: The model's operators; those with unique names are recognised by them.
        ran: From `kernels`.
    """
    anchors = _anchors(graph, ran)
    leader = list(range(len(ran)))

    def root(place: int) -> int:
        while leader[place] != place:
            place = leader[place]
        return place

    readers = {name: place for place in reversed(range(len(ran))) for name in ran[place].reads}
    for place, kernel in enumerate(ran):
        if not anchors[place]:
            reader = next((readers[name] for name in kernel.makes if name in readers), place)
            leader[root(place)] = root(reader)
    owner: dict[int, int] = {}
    for place, ops in enumerate(anchors):
        for op in ops:
            leader[root(place)] = root(owner.setdefault(op, place))
    covered = _covered(graph, owner)
    members: dict[int, list[int]] = defaultdict(list)
    for place in range(len(ran)):
        members[root(place)].append(place)
    ops_of: dict[int, list[int]] = defaultdict(list)
    for op, place in covered.items():
        ops_of[root(place)].append(op)
    return [
        Group(tuple(ran[place] for place in places), tuple(sorted(ops_of[head]))) for head, places in members.items()
    ]


def _anchors(graph: Flow, ran: Sequence[Kernel]) -> list[list[int]]:
    """For each kernel the operators it shares a name with."""
    makers = {name: index for index, step in enumerate(graph.ops) for name in step.node.output if name}
    named = {key: index for index, key in enumerate(graph.keys)}
    found = []
    for kernel in ran:
        plain = kernel.name.removesuffix(_LAYOUT_SUFFIX)
        own = [makers[name] for name in kernel.makes if name in makers]
        by_name = [table[plain] for table in (named, makers) if plain in table]
        found.append(list(dict.fromkeys([*own, *by_name])))
    return found


def _covered(graph: Flow, owner: Mapping[int, int]) -> dict[int, int]:
    """Operator to the kernel that covers it: its anchor, or the first of those that need it."""
    above: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        for reader in edge.readers:
            if edge.maker >= 0 and reader >= 0:
                above[reader].append(edge.maker)
    covered = dict(owner)
    for op, place in sorted(owner.items(), key=lambda pair: pair[1]):
        pending = [op]
        while pending:
            for maker in above[pending.pop()]:
                if maker not in covered:
                    covered[maker] = place
                    pending.append(maker)
    return covered
