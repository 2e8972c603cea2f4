"""Assignment for a pipeline of requests: the least largest load, with a proven gap.

NP-hard (partition is a case of it), so: the linear relaxation (`relaxation`) bounds the largest load from below; its
rounding, improved by single moves, bounds it from above; CP-SAT works on what lies between, with the same variables,
until the gap is small enough or time is up. Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
Operators", NeurIPS 2020, treats the same objective.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from loadslice.plan.placement.problem import FOREVER_NS, Int64, Placement, Problem, bottleneck_ns
from loadslice.plan.placement.relaxation import improve, pairs, relax, rounded
from loadslice.spec.errors import MissingExtraError


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
    bound, shares = relax(problem, "max")
    candidates = [*starts, *rounded(problem, shares)]
    device = min((improve(problem, each, "max") for each in candidates), key=lambda each: bottleneck_ns(problem, each))
    found = Placement(device, bottleneck_ns(problem, device), bound, "relaxation and local search")
    return found if found.gap <= gap else _cp_sat(problem, found, seconds, gap, workers)


def _cp_sat(problem: Problem, start: Placement, seconds: float, gap: float, workers: int) -> Placement:
    """Continue from a start with CP-SAT; the better answer and the better bound of the two are kept."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingExtraError("plan", "throughput slices") from error
    model = cp_model.CpModel()
    places, crosses, bottleneck = _cp_variables(problem, model, start)
    for plus, minus, t in pairs(problem):
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
