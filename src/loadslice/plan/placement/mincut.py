"""Latency-optimal assignment of any graph to two devices: a minimum cut.

Operators on the source's side run on device 0, the others on device 1. An operator is tied to each terminal by what it
would cost on the other device. A tensor is paid once per device, however many operators read it there, through two
helper vertices: u -> p (the price), p -> reader (endless) is cut once when u stays on side 0 and any reader does not;
reader -> q, q -> u is its mirror. Stone, "Multiprocessor scheduling with the aid of network flow algorithms", IEEE TSE
3(1), 1977; max-flow equals min-cut, so the flow proves the cut.
"""

from dataclasses import dataclass

import numpy as np

from loadslice.plan.placement.problem import FOREVER_NS, HOST, Int64, Placement, Problem, latency_ns
from loadslice.spec.errors import MissingExtraError

CAPACITY_MAX = 2**30 - 1
"""SciPy's flow is 32-bit and silently wrong beyond; all finite capacities together stay below this."""


@dataclass(frozen=True, slots=True)
class _Network:
    """A flow network; operators are its first vertices."""

    source: int
    sink: int
    vertices: int
    ends: Int64
    """``[2, edges]``: tail and head; no two edges have the same."""
    price_ns: Int64
    fixed_ns: int
    """What every assignment pays, beside the cut."""


def place_two(problem: Problem) -> Placement:
    """The assignment with the least latency on two devices, with its proof.

    Capacities are whole nanoseconds up to about a second of total work; beyond, they are rounded down to a coarser
    unit, and the gap says what that leaves open (some 1e-6).

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        import scipy.sparse  # type: ignore[import-untyped]
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("plan", "the latency-optimal placement on two devices") from error
    assert problem.devices == 2
    network = _network(problem)
    finite = network.price_ns < FOREVER_NS
    prices = network.price_ns
    unit = -(-int(prices[finite].sum()) // CAPACITY_MAX) or 1
    # Above every cut of finite edges, so that no least cut contains it unless all do.
    capacities = np.where(finite, prices // unit, CAPACITY_MAX + 1).astype(np.int32)
    shape = (network.vertices, network.vertices)
    graph = scipy.sparse.csr_matrix((capacities, network.ends), shape=shape)
    flow = maximum_flow(graph, network.source, network.sink)
    left = graph - flow.flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    device = np.ones(problem.ops, np.int64)
    reached = breadth_first_order(left, network.source, return_predecessors=False)
    device[reached[reached < problem.ops]] = 0
    value = latency_ns(problem, device)
    bound = network.fixed_ns + int(flow.flow_value) * unit
    assert bound <= value
    return Placement(device, value, bound, "minimum cut")


def _network(problem: Problem) -> _Network:
    source, sink = problem.ops, problem.ops + 1
    of_host = problem.makers == HOST
    # A tensor that the host reads goes down wherever it is made; another device only has to fetch it from there. What
    # the host makes belongs to no operator: each device that reads it fetches it.
    returned = problem.to_host & ~of_host
    on = problem.op_ns.copy()
    np.add.at(on, problem.makers[returned], problem.move_ns[returned])
    fetched = of_host | returned
    onto_one = problem.move_ns[:, 1] + np.where(fetched, 0, problem.move_ns[:, 0])
    onto_zero = problem.move_ns[:, 0] + np.where(fetched, 0, problem.move_ns[:, 1])
    tails, heads = np.where(of_host, source, problem.makers), np.where(of_host, sink, problem.makers)
    # What an operator costs on either device is fixed; only the difference takes part in the flow.
    least = on.min(axis=1)
    extra = np.where(on < FOREVER_NS, on - least[:, None], FOREVER_NS)
    ops = np.arange(problem.ops)
    edges = [
        (np.full(problem.ops, source), ops, extra[:, 1]),
        (ops, np.full(problem.ops, sink), extra[:, 0]),
    ]
    edge_tensor, edge_reader = problem.edges
    readers = np.bincount(edge_tensor, minlength=len(problem.tensors))
    alone = readers[edge_tensor] == 1
    t, reader = edge_tensor[alone], edge_reader[alone]
    edges += [(tails[t], reader, onto_one[t]), (reader, heads[t], onto_zero[t])]
    several = np.flatnonzero(readers > 1)
    out = np.zeros(len(problem.tensors), np.int64)
    out[several] = sink + 1 + np.arange(len(several))
    back = out + len(several)
    t, reader = edge_tensor[~alone], edge_reader[~alone]
    endless = np.full(len(t), FOREVER_NS)
    edges += [(tails[several], out[several], onto_one[several]), (out[t], reader, endless)]
    edges += [(back[several], heads[several], onto_zero[several]), (reader, back[t], endless)]
    vertices = sink + 1 + 2 * len(several)
    ends, price_ns = _merged(edges, vertices)
    return _Network(source, sink, vertices, ends, price_ns, int(least.sum()))


def _merged(edges: list[tuple[Int64, Int64, Int64]], vertices: int) -> tuple[Int64, Int64]:
    """Edges of one tail and head as one; those that cost nothing left out."""
    tails, heads, prices = (np.concatenate(column) for column in zip(*edges, strict=True))
    costly = prices > 0
    keys, place = np.unique(tails[costly] * vertices + heads[costly], return_inverse=True)
    price_ns = np.zeros(len(keys), np.int64)
    np.add.at(price_ns, place, prices[costly])
    return np.stack([keys // vertices, keys % vertices]), np.minimum(price_ns, FOREVER_NS)
