"""Every exact algorithm against every assignment there is, on hundreds of small random problems."""

import itertools

import numpy as np
import pytest

from loadslice.plan.placement import chain, greedy, mincut, relaxation, specimen
from loadslice.plan.placement.problem import (
    FOREVER_NS,
    HOST,
    Int64,
    Link,
    Problem,
    Tensor,
    bottleneck_ns,
    contract,
    cost,
    latency_ns,
    loads_ns,
    runs,
    stuck,
)


def every_assignment(problem: Problem) -> list[Int64]:
    return [np.array(each) for each in itertools.product(range(problem.devices), repeat=problem.ops)]


def naive_loads(problem: Problem, device: Int64) -> list[int]:
    """The definition, tensor by tensor."""
    loads = [0] * problem.devices
    for op in range(problem.ops):
        loads[device[op]] += int(problem.op_ns[op, device[op]])
    for t, tensor in enumerate(problem.tensors):
        home = None if tensor.maker == HOST else int(device[tensor.maker])
        there = {int(device[reader]) for reader in tensor.readers if reader != HOST} - {home}
        for each in there:
            loads[each] += int(problem.move_ns[t, each])
        if home is not None and (there or HOST in tensor.readers):
            loads[home] += int(problem.move_ns[t, home])
    return loads


def test_loads_are_the_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        problem = specimen.problem(12, rng, devices=3)
        device = rng.integers(0, 3, 12)
        assert loads_ns(problem, device).tolist() == naive_loads(problem, device)
        parts = cost(problem, device)
        assert (parts.compute_ns + parts.move_ns).tolist() == naive_loads(problem, device)
        assert parts.latency_ns == latency_ns(problem, device)
        assert parts.bottleneck_ns == bottleneck_ns(problem, device)


def test_a_transfer_costs_the_same_alone_and_among_others() -> None:
    sizes = [0, 1, 999, 123_457, 5, None]
    links = (Link(), Link(20_000, 3e8), Link(7, 1.7e10))
    problem = Problem(np.ones((7, 3), np.int64), tuple(Tensor(i, (i + 1,), n) for i, n in enumerate(sizes)), links)
    assert problem.move_ns.tolist() == [[link.transfer_ns(size) for link in links] for size in sizes]


def test_a_tensor_that_three_operators_read_on_one_device_is_paid_once() -> None:
    times = np.array([[10, 500], [500, 10], [500, 10], [500, 10]], np.int64)
    tensors = (Tensor(0, (1, 2, 3), 2_000),)
    problem = Problem(times, tensors, (Link(), Link(100, 1e9)))
    parts = cost(problem, np.array([0, 1, 1, 1]))
    assert (parts.latency_ns, parts.sync_ns, parts.transfers, parts.nbytes) == (10 + 30 + 100 + 2_000, 100, 1, 2_000)


def test_minimum_cut_finds_what_trying_every_assignment_finds() -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(1)
    for round_ in range(300):
        problem = specimen.problem(int(rng.integers(1, 11)), rng)
        if round_ % 3 == 0:  # neither device is the host
            problem = Problem(problem.op_ns, problem.tensors, (Link(3_000, 2e9), problem.links[1]))
        found = mincut.place_two(problem)
        best = min(latency_ns(problem, device) for device in every_assignment(problem))
        assert found.value_ns == found.bound_ns == best == latency_ns(problem, found.device)
        assert found.gap == 0


def test_minimum_cut_never_moves_a_tensor_that_cannot_travel() -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(2)
    for _ in range(100):
        base = specimen.problem(9, rng, unsupported_share=0.0)
        tensors = tuple(
            Tensor(
                t.maker,
                t.readers,
                None if rng.random() < 0.4 and t.maker != HOST and HOST not in t.readers else t.nbytes,
            )
            for t in base.tensors
        )
        problem = Problem(base.op_ns, tensors, base.links)
        found = mincut.place_two(problem)
        assert found.value_ns == min(latency_ns(problem, device) for device in every_assignment(problem))
        assert cost(problem, found.device).possible


def test_a_tensor_that_no_assignment_can_handle_is_found() -> None:
    rng = np.random.default_rng(12)
    seen = set()
    for _ in range(200):
        base = specimen.problem(6, rng, devices=3, unsupported_share=0.5)
        tensors = tuple(Tensor(t.maker, t.readers, None if rng.random() < 0.4 else t.nbytes) for t in base.tensors)
        times = base.op_ns.copy()
        times[rng.random(6) < 0.4, 0] = FOREVER_NS
        times[(times >= FOREVER_NS).all(axis=1), 0] = 5
        problem = Problem(times, tensors, base.links)
        able = any(cost(problem, device).possible for device in every_assignment(problem))
        assert (stuck(problem) is None) == able
        seen.add(able)
    assert seen == {True, False}


def test_work_beyond_the_range_of_the_flow_is_still_proven_to_a_millionth() -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(3)
    base = specimen.problem(400, rng)
    seconds = np.where(base.op_ns < FOREVER_NS, base.op_ns * 1_000, FOREVER_NS)
    problem = Problem(seconds, base.tensors, (Link(), Link(10_000_000, 1e6)))
    found = mincut.place_two(problem)
    assert found.value_ns > 2**32
    assert 0 <= found.gap < 1e-6


def test_chain_finds_what_trying_every_path_finds() -> None:
    rng = np.random.default_rng(4)
    proven = 0
    for _ in range(200):
        devices = int(rng.integers(2, 4))
        problem = specimen.chain(8 if devices == 2 else 5, rng, devices=devices)
        found = chain.place_chain(problem, range(problem.ops), [t + 2 for t in range(problem.ops - 1)])
        best = min(latency_ns(problem, device) for device in every_assignment(problem))
        assert found.bound_ns <= best <= found.value_ns == latency_ns(problem, found.device)
        proven += found.value_ns == best
    assert proven >= 180


def test_segments_with_side_tensors_are_proven_optimal() -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(9)
    proven = 0
    for round_ in range(100):
        devices = 2 + round_ % 2
        problem = specimen.chain(8 if devices == 2 else 5, rng, devices=devices)
        found = chain.place_segments(problem, range(problem.ops), [t + 2 for t in range(problem.ops - 1)])
        best = min(latency_ns(problem, device) for device in every_assignment(problem))
        assert found.bound_ns <= best <= found.value_ns == latency_ns(problem, found.device)
        assert found.gap == 0 if devices == 2 else found.gap < 0.08
        proven += found.value_ns == best
    assert proven >= 98


def test_any_operator_on_any_of_three_devices_is_near_its_bound() -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(10)
    equal = 0
    for _ in range(100):
        problem = specimen.problem(6, rng, devices=3)
        found = relaxation.place_many(problem)
        best = min(latency_ns(problem, device) for device in every_assignment(problem))
        assert found.bound_ns <= best <= found.value_ns == latency_ns(problem, found.device)
        equal += found.value_ns == best
    assert equal >= 95


def test_a_group_costs_what_its_operators_cost_together() -> None:
    rng = np.random.default_rng(11)
    for _ in range(50):
        problem = specimen.problem(12, rng, devices=3, unsupported_share=0.0)
        groups = np.sort(np.concatenate([np.arange(5), rng.integers(0, 5, 7)]))
        device = rng.integers(0, 3, 5)
        assert loads_ns(contract(problem, groups), device).tolist() == loads_ns(problem, device[groups]).tolist()


def test_chain_without_side_tensors_is_proven_optimal() -> None:
    rng = np.random.default_rng(5)
    for round_ in range(200):
        ops, devices = (8, 2) if round_ % 2 else (5, 3)
        base = specimen.chain(ops, rng, devices=devices)
        tensors = tuple(t for t in base.tensors if t.nbytes is not None and t.nbytes > 500)
        problem = Problem(base.op_ns, tensors, base.links)
        found = chain.place_chain(problem, range(ops), [t + 1 for t in range(ops - 1)])
        best = min(latency_ns(problem, device) for device in every_assignment(problem))
        assert found.value_ns == found.bound_ns == best


def test_a_segment_moves_as_one() -> None:
    rng = np.random.default_rng(6)
    problem = specimen.chain(9, rng)
    segments = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    found = chain.place_chain(problem, segments, [2 + 2, 5 + 2])
    options = [np.repeat(np.array(each), 3) for each in itertools.product((0, 1), repeat=3)]
    best = min(latency_ns(problem, device) for device in options)
    assert found.bound_ns <= best <= found.value_ns <= 1.01 * best
    assert any((found.device == device).all() for device in options)


def test_greedy_is_never_better_than_the_optimum_and_priority_is_far_off() -> None:
    pytest.importorskip("scipy")
    problem = specimen.problem(500, np.random.default_rng(7))
    best = mincut.place_two(problem).value_ns
    by_priority = latency_ns(problem, greedy.by_priority(problem, [1, 0]))
    fastest = latency_ns(problem, greedy.fastest(problem))
    assert best < fastest < by_priority
    assert by_priority / best > 1.4
    assert greedy.single(problem, 1) is None
    assert latency_ns(problem, np.zeros(500, np.int64)) > best


def test_priority_takes_the_first_device_that_can() -> None:
    times = np.array([[5, FOREVER_NS, 1], [5, 900, 1], [5, FOREVER_NS, FOREVER_NS]], np.int64)
    problem = Problem(times, (), (Link(), Link(), Link()))
    assert greedy.by_priority(problem, [1, 2, 0]).tolist() == [2, 1, 0]
    assert greedy.fastest(problem).tolist() == [2, 2, 0]


def fewest_slices(problem: Problem, device: Int64) -> int:
    """Over every order in which the operators can run."""
    needs = [{t.maker for t in problem.tensors if op in t.readers and t.maker != HOST} for op in range(problem.ops)]
    states = {(frozenset[int](), -1): 0}
    best = problem.ops
    while states:
        following: dict[tuple[frozenset[int], int], int] = {}
        for (done, last), slices in states.items():
            if len(done) == problem.ops:
                best = min(best, slices)
            for op in range(problem.ops):
                if op not in done and needs[op] <= done:
                    key = (done | {op}, int(device[op]))
                    following[key] = min(following.get(key, 99), slices + (device[op] != last))
        states = following
    return best


def test_no_order_of_two_devices_has_fewer_slices() -> None:
    rng = np.random.default_rng(8)
    for _ in range(60):
        problem = specimen.problem(9, rng)
        device = rng.integers(0, 2, 9)
        found = runs(problem, device)
        assert len(found) == fewest_slices(problem, device)
        done: set[int] = set()
        for where, ops in found:
            done |= set(ops)
            assert all(device[op] == where for op in ops)
            assert all(t.maker in done for t in problem.tensors if t.maker != HOST and set(t.readers) & set(ops))
        assert done == set(range(9))
