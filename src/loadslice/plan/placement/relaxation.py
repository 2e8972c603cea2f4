"""The linear relaxation of placement: a lower bound for any number of devices, and good assignments near it.

b[i, d] is operator i on device d, c[u, d] tensor u over d's link: c[u, d] >= |b[v, d] - b[w, d]| for its maker v and
every reader w. Each device's load is sum_i t[i, d] b[i, d] + sum_u x[u, d] c[u, d]; the goal is the sum of loads
(latency) or the largest (pace). With b and c between 0 and 1 instead of either, HiGHS solves it at once.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadslice.plan.placement import greedy
from loadslice.plan.placement.problem import FOREVER_NS, HOST, Int64, Placement, Problem, latency_ns, loads_ns
from loadslice.spec.errors import MissingExtraError

Goal = Literal["sum", "max"]

ROUNDS_MAX = 50
"""Passes of the local search; it ends by itself after some ten."""


def place_many(problem: Problem, starts: Iterable[Int64] = ()) -> Placement:
    """A low latency on any number of devices, any operator anywhere, and how far from the best it can be.

    Args:
        problem: What is placed; every operator runs somewhere.
        starts: Assignments to start from beside our own.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    bound, shares = relax(problem, "sum")
    found = [improve(problem, each, "sum") for each in [*starts, *rounded(problem, shares)]]
    device = min(found, key=lambda each: latency_ns(problem, each))
    value = latency_ns(problem, device)
    # The bound is a millionth off for the solver's tolerance: what lies within it is the best there is to prove.
    return Placement(device, value, min(bound, value), "relaxation and local search")


def relax(problem: Problem, goal: Goal) -> tuple[int, npt.NDArray[np.float64]]:
    """Solve the linear relaxation.

    Args:
        problem: What is placed.
        goal: ``sum`` of all loads, or the ``max`` of them.

    Returns:
        A lower bound on every assignment's goal in ns, and ``b``, ``[operators, devices]``.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        import scipy.optimize  # type: ignore[import-untyped]
        import scipy.sparse  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("plan", "this placement") from error
    ops, devices, tensors = problem.ops, problem.devices, len(problem.tensors)
    unit = float(np.where(problem.op_ns < FOREVER_NS, problem.op_ns, 0).max(initial=1))
    last = (ops + tensors) * devices  # variables: b, c, then Z
    can = (problem.op_ns < FOREVER_NS).ravel()
    moves = (problem.move_ns < FOREVER_NS).ravel()
    upper = np.concatenate([can, moves, [np.inf]])
    rows, columns, values = _crossing_rows(problem)
    count = int(rows[-1]) + 1 if len(rows) else 0
    # One row for each load under Z, or all loads in one row.
    loads = np.arange(count, count + devices) if goal == "max" else np.full(devices, count)
    height = count + (devices if goal == "max" else 1)
    prices = np.concatenate([np.where(can, problem.op_ns.ravel(), 0), np.where(moves, problem.move_ns.ravel(), 0)])
    rows = np.concatenate([rows, np.tile(loads, ops + tensors), np.unique(loads)])
    columns = np.concatenate([columns, np.arange(last), np.full(height - count, last)])
    values = np.concatenate([values, prices / unit, np.full(height - count, -1.0)])
    answer = scipy.optimize.linprog(
        c=np.eye(1, last + 1, last).ravel(),
        A_ub=scipy.sparse.csr_matrix((values, (rows, columns)), shape=(height, last + 1)),
        b_ub=np.zeros(height),
        A_eq=scipy.sparse.csr_matrix(
            (np.ones(ops * devices), (np.repeat(np.arange(ops), devices), np.arange(ops * devices))),
            shape=(ops, last + 1),
        ),
        b_eq=np.ones(ops),
        bounds=np.stack([np.zeros(last + 1), upper], axis=1),
        method="highs",
    )
    assert answer.status == 0, answer.message
    # A millionth off for the solver's own tolerance, so that the bound is one.
    return int(np.floor(answer.fun * unit * (1 - 1e-6))), answer.x[: ops * devices].reshape(ops, devices)


def _crossing_rows(problem: Problem) -> tuple[Int64, Int64, npt.NDArray[np.float64]]:
    """Rows ``b[v, d] - b[w, d] - c[u, d] <= 0`` and their mirrors, as coordinates of a sparse matrix."""
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    row = 0
    for plus, minus, t in pairs(problem):
        for d in range(problem.devices):
            entries = [((problem.ops + t) * problem.devices + d, -1.0), (plus * problem.devices + d, 1.0)]
            if minus is not None:
                entries.append((minus * problem.devices + d, -1.0))
            for column, value in entries:
                rows.append(row)
                columns.append(column)
                values.append(value)
            row += 1
    return np.array(rows, np.int64), np.array(columns, np.int64), np.array(values)


def pairs(problem: Problem) -> Iterable[tuple[int, int | None, int]]:
    """``(v, w, u)``: tensor u crosses a link where v is and w is not; ``None`` for the host, which is nowhere."""
    for t, tensor in enumerate(problem.tensors):
        for reader in tensor.readers:
            if tensor.maker == HOST:
                yield reader, None, t
            elif reader == HOST:
                yield tensor.maker, None, t
            else:
                yield tensor.maker, reader, t
                yield reader, tensor.maker, t


def rounded(problem: Problem, shares: npt.NDArray[np.float64]) -> list[Int64]:
    """Whole assignments from fractional ones: the largest share, and on two devices every useful threshold."""
    supported = np.where(problem.op_ns < FOREVER_NS, shares, -1.0)
    found = [supported.argmax(axis=1).astype(np.int64), greedy.fastest(problem)]
    if problem.devices == 2:
        levels = np.unique(np.round(shares[:, 1], 6))
        between = (levels[1:] + levels[:-1]) / 2
        picked = between[np.linspace(0, len(between) - 1, min(len(between), 16)).astype(int)] if len(between) else []
        found += [(shares[:, 1] > level).astype(np.int64) for level in picked]
    return found


def improve(problem: Problem, device: Int64, goal: Goal) -> Int64:
    """Move single operators while that lowers the goal, or keeps it and lowers the other one.

    Deterministic: operators in order, first better device taken.
    """
    first, second = (max, sum) if goal == "max" else (sum, max)
    near: list[list[int]] = [[] for _ in range(problem.ops)]
    for t, tensor in enumerate(problem.tensors):
        for op in {tensor.maker, *tensor.readers} - {HOST}:
            near[op].append(t)
    at = device.tolist()
    loads = loads_ns(problem, device).tolist()
    op_ns, move_ns = problem.op_ns.tolist(), problem.move_ns.tolist()

    def around(op: int) -> list[int]:
        """Loads that depend on where an operator is."""
        part = [0] * problem.devices
        part[at[op]] += op_ns[op][at[op]]
        for t in near[op]:
            tensor = problem.tensors[t]
            places = {at[reader] for reader in tensor.readers if reader != HOST}
            if tensor.maker != HOST:
                home = at[tensor.maker]
                places.discard(home)
                if places or HOST in tensor.readers:
                    places.add(home)
            for place in places:
                part[place] += move_ns[t][place]
        return part

    for _ in range(ROUNDS_MAX):
        moved = False
        for op in range(problem.ops):
            home, before = at[op], around(op)
            for other in range(problem.devices):
                if other == home or op_ns[op][other] >= FOREVER_NS:
                    continue
                at[op] = other
                new = [load - old + now for load, old, now in zip(loads, before, around(op), strict=True)]
                if (first(new), second(new)) < (first(loads), second(loads)):
                    loads, moved = new, True
                    break
                at[op] = home
        if not moved:
            break
    return np.array(at, np.int64)
