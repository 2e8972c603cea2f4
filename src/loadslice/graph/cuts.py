"""How a walked model can be cut: its operators, the tensors between them, and the legal cuts.

Operators are the nodes a runtime executes for each request, in the file's order; what depends on constants alone is
part of every slice that reads it. A cut is legal where one main tensor crosses. Besides it only side tensors may:
inputs of the model, and what is made of inputs or shapes without a multiply-accumulate, each at most half the main
tensor's size. Masks, positions and shape arithmetic are such, so transformers can be cut between blocks.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadslice.graph.costs import work
from loadslice.graph.operands import UnknownCostError
from loadslice.graph.order import reads
from loadslice.graph.shapes import model_inputs
from loadslice.graph.steps import Body, Step

CALLER = -1
"""Maker of the model's inputs, reader of its outputs."""

SIDE_SHARE_MAX = 0.5
"""Of the main tensor's bytes; an attention mask of one sequence is a third of its hidden state in small models."""

_SHAPE_ONLY = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that operators hand on."""

    name: str
    maker: int
    """Operator, or `CALLER`."""
    readers: tuple[int, ...]
    """Operators in order, and `CALLER` last for an output of the model."""
    nbytes: int | None
    """``None``: its size is not known before the run, or it is no tensor."""
    heavy: bool
    """A multiply-accumulate lies upstream."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A model as operators and edges."""

    ops: tuple[Step, ...]
    keys: tuple[str, ...]
    """A name of each operator that no other has: its node's, or its first output's."""
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Between operators ``after`` and ``after + 1``."""

    after: int
    main: int
    """Edge that crosses."""
    sides: tuple[int, ...]
    """Edges that cross beside it."""


def flow(body: Body, *, unread: bool = True) -> Flow:
    """Operators and edges of a walked model's top level.

    Args:
        body: The walked model.
        unread: With the operators that no output needs: a runtime runs them all the same, and a slice of nothing else
            would have no output.
    """
    needed = {info.name for info in body.graph.output}
    kept = []
    for step in reversed(body.steps):
        if unread or needed.intersection(step.node.output):
            needed.update(reads(step))
            kept.append(step)
    ops = tuple(step for step in reversed(kept) if step.node.op_type != "Constant" and not step.folded)
    makers = {info.name: CALLER for info in model_inputs(body.graph)}
    heavy = dict.fromkeys(makers, False)
    readers: dict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(ops):
        wanted = [name for name in dict.fromkeys(reads(step)) if name in makers]
        for name in wanted:
            readers[name].append(index)
        weighs = step.node.op_type not in _SHAPE_ONLY and (_heavy(step) or any(heavy[name] for name in wanted))
        for name in step.node.output:
            if name:
                makers[name] = index
                heavy[name] = weighs
    for info in body.graph.output:
        if info.name in makers:
            readers[info.name].append(CALLER)
    edges = [
        Edge(name, makers[name], tuple(readers[name]), body.env[name].nbytes, heavy[name])
        for name in makers
        if name in readers
    ]
    return Flow(ops, tuple(_keys(ops)), tuple(edges))


def _heavy(step: Step) -> bool:
    if step.bodies:
        return True
    try:
        return work(step).macs > 0
    except UnknownCostError:
        return True


def _keys(ops: Sequence[Step]) -> Iterable[str]:
    count: dict[str, int] = defaultdict(int)
    for step in ops:
        count[step.node.name] += 1
    for step in ops:
        named = step.node.name and count[step.node.name] == 1
        yield step.node.name if named else next((name for name in step.node.output if name), step.node.op_type)


def legal_cuts(graph: Flow) -> list[Cut]:
    """Legal cuts in the file's order, each with another main tensor.

    A main tensor is made in the segment before its cut and read in the one after, so that segments form a chain. Where
    one main tensor could be cut at several places, the one with the fewest side bytes is kept, the first of equals.
    """
    found: list[Cut] = []
    for candidate in _candidates(graph):
        main = graph.edges[candidate.main]
        if found and found[-1].main == candidate.main:
            before = found[-2].after if len(found) > 1 else -1
            if _side_bytes(graph, candidate) < _side_bytes(graph, found[-1]) and main.maker > before:
                found[-1] = candidate
            continue
        previous = found[-1] if found else None
        if previous is not None:
            handed_on = any(previous.after < reader <= candidate.after for reader in graph.edges[previous.main].readers)
            if main.maker <= previous.after or not handed_on:
                continue
        found.append(candidate)
    while found and not any(reader > found[-1].after for reader in graph.edges[found[-1].main].readers):
        found.pop()
    return found


def _candidates(graph: Flow) -> Iterable[Cut]:
    """Every place where one main tensor crosses, whatever its neighbours."""
    born: dict[int, list[int]] = defaultdict(list)
    for index, edge in enumerate(graph.edges):
        born[edge.maker].append(index)
    last = [max(edge.readers) for edge in graph.edges]
    alive = {edge for edge in born[CALLER] if last[edge] > CALLER}
    for after in range(len(graph.ops) - 1):
        alive = {edge for edge in [*alive, *born[after]] if last[edge] > after}
        main = _main(graph, alive)
        if main is not None:
            yield Cut(after, main, tuple(sorted(alive - {main})))


def _main(graph: Flow, alive: Iterable[int]) -> int | None:
    """The main tensor among those that cross; ``None``: there is none, or several."""
    crossing = [(index, graph.edges[index]) for index in alive]
    made = [(index, edge) for index, edge in crossing if edge.maker != CALLER]
    heavy = [index for index, edge in made if edge.heavy]
    if len(heavy) > 1 or not made or any(edge.nbytes is None for _, edge in crossing):
        return None
    main = heavy[0] if heavy else max(made, key=lambda pair: (pair[1].nbytes or 0, -pair[0]))[0]
    limit = SIDE_SHARE_MAX * (graph.edges[main].nbytes or 0)
    return main if all((edge.nbytes or 0) <= limit for index, edge in crossing if index != main) else None


def _side_bytes(graph: Flow, cut: Cut) -> int:
    return sum(graph.edges[edge].nbytes or 0 for edge in cut.sides)
