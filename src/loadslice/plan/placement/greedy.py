"""What is done without a cost model of transfers: one device, the runtimes' rule, the fastest device per operator."""

from collections.abc import Sequence

import numpy as np

from loadslice.plan.placement.problem import FOREVER_NS, Int64, Problem


def single(problem: Problem, device: int) -> Int64 | None:
    """Everything on one device; ``None`` when it cannot run some operator."""
    if (problem.op_ns[:, device] >= FOREVER_NS).any():
        return None
    return np.full(problem.ops, device, np.int64)


def by_priority(problem: Problem, priority: Sequence[int]) -> Int64:
    """Each operator on the first device of a list that can run it.

    This is how ONNX Runtime's execution providers claim nodes, in the order they are registered, and what OpenVINO's
    HETERO mode documents for itself: device peculiarities and transfers are not considered.

    Args:
        problem: What is placed; every operator runs somewhere.
        priority: All devices, first choice first.
    """
    order = np.array(priority)
    can = problem.op_ns[:, order] < FOREVER_NS
    assert can.any(axis=1).all()
    chosen: Int64 = order[can.argmax(axis=1)].astype(np.int64)
    return chosen


def fastest(problem: Problem) -> Int64:
    """Each operator where it alone is fastest; transfers are not considered."""
    chosen: Int64 = problem.op_ns.argmin(axis=1).astype(np.int64)
    return chosen
