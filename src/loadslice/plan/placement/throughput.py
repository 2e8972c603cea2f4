"""Assignment for a pipeline of requests: the least largest load, with a proven gap.

min Z, Z >= sum_i t[i, d] b[i, d] + sum_u x[u, d] c[u, d] for each device d; c[u, d] >= |b[v, d] - b[w, d]| for maker v
and every reader w of tensor u: it crosses the link of d. NP-hard (partition is a case of it), so: the linear relaxation
bounds Z from below; its rounding, improved by single moves, bounds it from above; CP-SAT works on what lies between
until the gap is small enough or time is up. Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
Operators", NeurIPS 2020, treats the same objective.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from loadslice.plan.placement import greedy
from loadslice.plan.placement.problem import (
    FOREVER_NS,
    HOST,
    Int64,
    Placement,
    Problem,
    bottleneck_ns,
    loads_ns,
)
from loadslice.spec.errors import MissingExtraError

ROUNDS_MAX = 50
"""Passes of the local search; it ends by itself after some ten."""


def place_pipeline(
    problem: Problem, *, seconds: float = 10.0, gap: float = 0.0, workers: int = 2, starts: Iterable[Int64] = ()
) -> Placement:
    """The least bottleneck found, and how far it can be from the best.

    Args:
        problem: What is placed; every operator runs somewhere.
        seconds: Time for CP-SAT; what comes before takes about one more at 500 operators.
        gap: Stop when this close to the bound, as a share of it.
        workers: Threads of CP-SAT.
        starts: Assignments to start from beside our own.

    Raises:
        MissingExtraError: SciPy or OR-Tools is not installed.
    """
    bound, shares = relax(problem)
    candidates = [*starts, *_rounded(problem, shares)]
    device = min((improve(problem, each) for each in candidates), key=lambda each: bottleneck_ns(problem, each))
    found = Placement(device, bottleneck_ns(problem, device), bound, "relaxation and local search")
    return found if found.gap <= gap else _cp_sat(problem, found, seconds, gap, workers)


def relax(problem: Problem) -> tuple[int, npt.NDArray[np.float64]]:
    """The linear relaxation: a lower bound on every assignment's bottleneck, and ``b``, ``[operators, devices]``.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        import scipy.optimize  # type: ignore[import-untyped]
        import scipy.sparse  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("plan", "throughput slices") from error
    ops, devices, tensors = problem.ops, problem.devices, len(problem.tensors)
    unit = float(np.where(problem.op_ns < FOREVER_NS, problem.op_ns, 0).max(initial=1))
    last = (ops + tensors) * devices  # variables: b, c, then Z
    can = (problem.op_ns < FOREVER_NS).ravel()
    moves = (problem.move_ns < FOREVER_NS).ravel()
    upper = np.concatenate([can, moves, [np.inf]])
    rows, columns, values = _crossing_rows(problem)
    count = int(rows[-1]) + 1 if len(rows) else 0
    loads = np.arange(count, count + devices)
    prices = np.concatenate([np.where(can, problem.op_ns.ravel(), 0), np.where(moves, problem.move_ns.ravel(), 0)])
    rows = np.concatenate([rows, np.tile(loads, ops + tensors), loads])
    columns = np.concatenate([columns, np.arange(last), np.full(devices, last)])
    values = np.concatenate([values, prices / unit, np.full(devices, -1.0)])
    answer = scipy.optimize.linprog(
        c=np.eye(1, last + 1, last).ravel(),
        A_ub=scipy.sparse.csr_matrix((values, (rows, columns)), shape=(count + devices, last + 1)),
        b_ub=np.zeros(count + devices),
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
    for plus, minus, t in _pairs(problem):
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


def _pairs(problem: Problem) -> Iterable[tuple[int, int | None, int]]:
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


def _rounded(problem: Problem, shares: npt.NDArray[np.float64]) -> list[Int64]:
    """Whole assignments from fractional ones: the largest share, and on two devices every useful threshold."""
    supported = np.where(problem.op_ns < FOREVER_NS, shares, -1.0)
    found = [supported.argmax(axis=1).astype(np.int64), greedy.fastest(problem)]
    if problem.devices == 2:
        levels = np.unique(np.round(shares[:, 1], 6))
        between = (levels[1:] + levels[:-1]) / 2
        picked = between[np.linspace(0, len(between) - 1, min(len(between), 16)).astype(int)] if len(between) else []
        found += [(shares[:, 1] > level).astype(np.int64) for level in picked]
    return found


def improve(problem: Problem, device: Int64) -> Int64:
    """Move single operators while that lowers the largest load, or keeps it and lowers the sum.

    Deterministic: operators in order, first better device taken.
    """
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
                if (max(new), sum(new)) < (max(loads), sum(loads)):
                    loads, moved = new, True
                    break
                at[op] = home
        if not moved:
            break
    return np.array(at, np.int64)


def _cp_sat(problem: Problem, start: Placement, seconds: float, gap: float, workers: int) -> Placement:
    """Continue from a start with CP-SAT; the better answer and the better bound of the two are kept."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingExtraError("plan", "throughput slices") from error
    model = cp_model.CpModel()
    places, crosses, bottleneck = _cp_variables(problem, model, start)
    for plus, minus, t in _pairs(problem):
        for d in range(problem.devices):
            if minus is None:
                model.add_implication(places[plus][d], crosses[t][d])
            else:
                model.add_bool_or(places[plus][d].negated(), places[minus][d], crosses[t][d])
    for d in range(problem.devices):
        work = [int(problem.op_ns[i, d]) * places[i][d] for i in range(problem.ops) if problem.op_ns[i, d] < FOREVER_NS]
        moves = [int(row[d]) * crosses[t][d] for t, row in enumerate(problem.move_ns) if 0 < row[d] < FOREVER_NS]
        model.add(bottleneck >= sum(work) + sum(moves))
    model.minimize(bottleneck)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.relative_gap_limit = gap
    status = solver.solve(model)
    bound = max(start.bound_ns, int(solver.best_objective_bound))
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        device = np.array([[solver.value(each) for each in row] for row in places], np.int64).argmax(axis=1)
        value = bottleneck_ns(problem, device)
        if value < start.value_ns:
            return Placement(device.astype(np.int64), value, min(bound, value), "CP-SAT")
    return Placement(start.device, start.value_ns, min(bound, start.value_ns), start.method)


def _cp_variables(problem: Problem, model: Any, start: Placement) -> tuple[list[list[Any]], list[list[Any]], Any]:
    """``b``, ``c`` and ``Z``, with what is impossible ruled out and the start as a hint."""
    places, crosses = [], []
    for op in range(problem.ops):
        row = [model.new_bool_var(f"b{op}_{d}") for d in range(problem.devices)]
        model.add_exactly_one(row)
        for d, variable in enumerate(row):
            if problem.op_ns[op, d] >= FOREVER_NS:
                model.add(variable == 0)
            model.add_hint(variable, int(start.device[op]) == d)
        places.append(row)
    for t in range(len(problem.tensors)):
        row = [model.new_bool_var(f"c{t}_{d}") for d in range(problem.devices)]
        for d, variable in enumerate(row):
            if problem.move_ns[t, d] >= FOREVER_NS:
                model.add(variable == 0)
        crosses.append(row)
    return places, crosses, model.new_int_var(start.bound_ns, start.value_ns, "Z")
