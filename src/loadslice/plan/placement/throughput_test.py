"""The throughput placement against every assignment there is, and its proof on large problems."""

import itertools

import numpy as np
import pytest

from loadslice.plan.placement import mincut, relaxation, specimen, throughput
from loadslice.plan.placement.problem import FOREVER_NS, HOST, Problem, Tensor, bottleneck_ns, loads_ns

pytest.importorskip("scipy")


def best_ns(problem: Problem) -> int:
    options = itertools.product(range(problem.devices), repeat=problem.ops)
    return min(bottleneck_ns(problem, np.array(each)) for each in options)


def test_the_relaxation_is_never_above_the_best() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        problem = specimen.problem(int(rng.integers(1, 8)), rng, devices=int(rng.integers(2, 4)))
        bound, shares = relaxation.relax(problem, "max")
        assert 0 < bound <= best_ns(problem)
        assert shares.sum(axis=1) == pytest.approx(1)


def test_cp_sat_finds_what_trying_every_assignment_finds() -> None:
    pytest.importorskip("ortools")
    rng = np.random.default_rng(1)
    for round_ in range(40):
        problem = specimen.problem(10, rng) if round_ % 2 else specimen.problem(7, rng, devices=3)
        found = throughput.place_pipeline(problem, seconds=20)
        assert found.value_ns == best_ns(problem) == bottleneck_ns(problem, found.device)
        assert found.gap == 0


def test_five_hundred_operators_are_within_one_percent_of_the_bound() -> None:
    """Without CP-SAT: rounding the relaxation and moving single operators is enough."""
    for seed in range(3):
        problem = specimen.problem(500, np.random.default_rng(seed))
        found = throughput.place_pipeline(problem, gap=0.01)
        assert found.value_ns == bottleneck_ns(problem, found.device)
        assert 0 < found.bound_ns <= found.value_ns <= 1.01 * found.bound_ns


def test_latency_and_throughput_want_different_slices() -> None:
    problem = specimen.problem(300, np.random.default_rng(3))
    fast = mincut.place_two(problem)
    busy = throughput.place_pipeline(problem, gap=0.02)
    assert bottleneck_ns(problem, fast.device) > 1.1 * busy.value_ns
    assert loads_ns(problem, busy.device).sum() > fast.value_ns


def test_a_better_start_is_kept_and_a_move_never_makes_it_worse() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        problem = specimen.problem(30, rng, devices=3)
        start = np.where(problem.op_ns.argmin(axis=1) == 1, 1, 0).astype(np.int64)
        better = relaxation.improve(problem, start, "max")
        assert bottleneck_ns(problem, better) <= bottleneck_ns(problem, start)
        assert (problem.op_ns[np.arange(30), better] < FOREVER_NS).all()


def test_what_cannot_travel_stays_together() -> None:
    pytest.importorskip("ortools")
    times = np.array([[10_000, 9_000], [10_000, 9_000]], np.int64)
    tensors = (Tensor(0, (1,), None), Tensor(1, (HOST,), 10))
    problem = Problem(times, tensors, specimen.problem(2, np.random.default_rng(0)).links)
    found = throughput.place_pipeline(problem, seconds=5)
    assert found.device[0] == found.device[1]
    assert found.value_ns == best_ns(problem)
