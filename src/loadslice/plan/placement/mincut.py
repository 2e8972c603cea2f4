"""Latency-optimal assignment of any graph to two devices: a minimum cut.

Operators on the source's side run on device 0, the others on device 1. An operator is tied to each terminal by what it
would cost on the other device. A tensor is paid once per device, however many operators read it there, through two
helper vertices: u -> p (the price), p -> reader (endless) is cut once when u stays on side 0 and any reader does not;
reader -> q, q -> u is its mirror. Stone, "Multiprocessor scheduling with the aid of network flow algorithms", IEEE TSE
3(1), 1977; max-flow equals min-cut, so the flow proves the cut.
"""

import numpy as np

from loadslice.plan.placement.problem import FOREVER_NS, HOST, Placement, Problem, latency_ns
from loadslice.spec.errors import MissingExtraError

CAPACITY_MAX = 2**30 - 1
"""SciPy's flow is 32-bit and silently wrong beyond; all finite capacities together stay below this."""


class _Network:
    """Edges of a flow network as they are found; parallel ones are one."""

    def __init__(self, ops: int) -> None:
        self.source, self.sink, self.vertices = ops, ops + 1, ops + 2
        self.price_ns: dict[tuple[int, int], int] = {}

    def vertex(self) -> int:
        self.vertices += 1
        return self.vertices - 1

    def edge(self, tail: int, head: int, price_ns: int) -> None:
        if price_ns > 0:
            self.price_ns[tail, head] = min(self.price_ns.get((tail, head), 0) + price_ns, FOREVER_NS)


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
    network, fixed_ns = _network(problem)
    prices = np.array(list(network.price_ns.values()), np.int64)
    ends = np.array(list(network.price_ns), np.int32).reshape(-1, 2).T
    finite = prices < FOREVER_NS
    unit = -(-int(prices[finite].sum()) // CAPACITY_MAX) or 1
    # Above every cut of finite edges, so that no least cut contains it unless all do.
    capacities = np.where(finite, prices // unit, CAPACITY_MAX + 1).astype(np.int32)
    shape = (network.vertices, network.vertices)
    graph = scipy.sparse.csr_matrix((capacities, ends), shape=shape)
    flow = maximum_flow(graph, network.source, network.sink)
    left = graph - flow.flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    device = np.ones(problem.ops, np.int64)
    reached = breadth_first_order(left, network.source, return_predecessors=False)
    device[reached[reached < problem.ops]] = 0
    value = latency_ns(problem, device)
    bound = fixed_ns + int(flow.flow_value) * unit
    assert bound <= value
    return Placement(device, value, bound, "minimum cut")


def _network(problem: Problem) -> tuple[_Network, int]:
    """The network, and what every assignment pays."""
    network = _Network(problem.ops)
    on = problem.op_ns.copy()
    for t, tensor in enumerate(problem.tensors):
        readers = [reader for reader in tensor.readers if reader != HOST]
        zero_ns, one_ns = (int(price) for price in problem.move_ns[t])
        if tensor.maker == HOST:
            # No operator owns it: each device that reads it fetches it.
            _pay_once(network, network.source, readers, one_ns, network.sink, zero_ns)
        elif HOST in tensor.readers:
            # It goes down to the host wherever it is made; another device only has to fetch it from there.
            on[tensor.maker] += problem.move_ns[t]
            _pay_once(network, tensor.maker, readers, one_ns, tensor.maker, zero_ns)
        else:
            both = zero_ns + one_ns
            _pay_once(network, tensor.maker, readers, both, tensor.maker, both)
    # What an operator costs on either device is fixed; only the difference takes part in the flow.
    least = on.min(axis=1)
    extra = np.where(on < FOREVER_NS, on - least[:, None], FOREVER_NS)
    for op, (zero_ns, one_ns) in enumerate(extra.tolist()):
        network.edge(network.source, op, one_ns)
        network.edge(op, network.sink, zero_ns)
    return network, int(least.sum())


def _pay_once(network: _Network, tail: int, readers: list[int], onto_one_ns: int, head: int, onto_zero_ns: int) -> None:
    """Price a tensor: made on ``tail``'s side and read on device 1, or made on ``head``'s side and read on device 0."""
    if len(readers) == 1:
        network.edge(tail, readers[0], onto_one_ns)
        network.edge(readers[0], head, onto_zero_ns)
    elif readers:
        for price_ns, outwards in ((onto_one_ns, True), (onto_zero_ns, False)):
            if price_ns <= 0:
                continue
            helper = network.vertex()
            network.edge(*((tail, helper) if outwards else (helper, head)), price_ns)
            for reader in readers:
                network.edge(*((helper, reader) if outwards else (reader, helper)), FOREVER_NS)
