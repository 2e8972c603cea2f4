"""Latency-optimal assignment of a chain of segments to any number of devices, by dynamic programming.

T[i, d] = t[i, d] + min over d' of (T[i-1, d'] + x[i-1, d', d]); O(L D^2). Bellman, Dynamic Programming, 1957; Viterbi's
recursion. Segments of a model lie between its legal cuts, where one main tensor crosses.
"""

from collections.abc import Sequence

import numpy as np

from loadslice.plan.placement.mincut import place_two
from loadslice.plan.placement.problem import FOREVER_NS, HOST, Int64, Placement, Problem, contract, latency_ns
from loadslice.plan.placement.relaxation import place_many


def best_chain(segment_ns: Int64, change_ns: Int64) -> tuple[int, Int64]:
    """The cheapest path.

    Args:
        segment_ns: ``[segments, devices]``.
        change_ns: ``[segments - 1, devices, devices]``, from and to; zero on the diagonals.

    Returns:
        Its cost, and the device of each segment.
    """
    segments, devices = segment_ns.shape
    best = segment_ns[0]
    came_from = np.zeros((segments, devices), np.int64)
    for i in range(1, segments):
        through = best[:, None] + change_ns[i - 1]
        came_from[i] = through.argmin(axis=0)
        best = through.min(axis=0) + segment_ns[i]
    path = np.zeros(segments, np.int64)
    path[-1] = best.argmin()
    for i in range(segments - 1, 0, -1):
        path[i - 1] = came_from[i, path[i]]
    return int(best.min()), path


def place_chain(problem: Problem, segments: Sequence[int], mains: Sequence[int]) -> Placement:
    """Latency-optimal among the assignments that change device only at the given cuts.

    Main tensors and what a segment alone exchanges with the host are priced exactly. Side tensors (masks, positions,
    inputs of several segments) are paid once per device whatever the path, which a chain cannot express: left out, the
    path's cost is a lower bound on every path; paid at each change, it is another candidate. The better of the two by
    true cost is returned with that bound, so the gap is what side tensors leave open, usually nothing.

    Args:
        problem: What is placed.
        segments: Segment of each operator, rising from 0.
        mains: Tensor that crosses the cut after each segment but the last.
    """
    of_op = np.asarray(segments, np.int64)
    count = len(mains) + 1
    assert of_op.min(initial=0) >= 0
    assert of_op.max(initial=0) == count - 1
    segment = of_op.tolist()
    for cut, main in enumerate(mains):
        tensor = problem.tensors[main]
        assert tensor.maker != HOST
        assert segment[tensor.maker] == cut
        assert any(reader != HOST and segment[reader] == cut + 1 for reader in tensor.readers)
    segment_ns = np.zeros((count, problem.devices), np.int64)
    np.add.at(segment_ns, of_op, problem.op_ns)
    main_change = _changes(problem, range(count - 1), mains, count - 1)
    side_cuts: list[int] = []
    sides: list[int] = []
    for t, tensor in enumerate(problem.tensors):
        inside = [segment[reader] for reader in tensor.readers if reader != HOST]
        if tensor.maker == HOST:
            if len(set(inside)) == 1:
                segment_ns[inside[0]] += problem.move_ns[t]
            continue
        home = segment[tensor.maker]
        if HOST in tensor.readers:
            segment_ns[home] += problem.move_ns[t]
        for cut in range(home, max(inside, default=home)):
            if mains[cut] != t:
                side_cuts.append(cut)
                sides.append(t)
    bound, free = best_chain(np.minimum(segment_ns, FOREVER_NS), main_change)
    charged = main_change + _changes(problem, side_cuts, sides, count - 1)
    _, paid = best_chain(np.minimum(segment_ns, FOREVER_NS), charged)
    value, path = min(((latency_ns(problem, path[of_op]), path) for path in (free, paid)), key=lambda pair: pair[0])
    return Placement(path[of_op], value, min(bound, value), "chain")


def place_segments(problem: Problem, segments: Sequence[int], mains: Sequence[int]) -> Placement:
    """As `place_chain`; where side tensors leave a gap, the segments are placed as a graph, which prices them exactly.

    Raises:
        MissingExtraError: There is a gap to close and SciPy is not installed.
    """
    found = place_chain(problem, segments, mains)
    if found.gap == 0:
        return found
    of_op = np.asarray(segments, np.int64)
    small = contract(problem, of_op)
    start = np.array([found.device[np.argmax(of_op == segment)] for segment in range(small.ops)], np.int64)
    closer = place_two(small) if problem.devices == 2 else place_many(small, [start])
    bound = max(found.bound_ns, closer.bound_ns)
    best = found if found.value_ns <= closer.value_ns else closer
    device = found.device if best is found else closer.device[of_op]
    return Placement(device, best.value_ns, min(bound, best.value_ns), f"chain and {closer.method}")


def _changes(problem: Problem, at: Sequence[int], tensors: Sequence[int], cuts: int) -> Int64:
    """``[cuts, from, to]``: crossing tensors go down one link and up another; those the host reads are down already."""
    found = np.zeros((cuts, problem.devices, problem.devices), np.int64)
    crossing = np.asarray(tensors, np.int64)
    move_ns = problem.move_ns[crossing]
    down_ns = np.where(problem.to_host[crossing, None], 0, move_ns)
    np.add.at(found, np.asarray(at, np.int64), down_ns[:, :, None] + move_ns[:, None, :])
    found[:, np.arange(problem.devices), np.arange(problem.devices)] = 0
    return np.minimum(found, FOREVER_NS)
