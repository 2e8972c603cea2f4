import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from loadslice.plan.fleet import mix
from loadslice.plan.fleet.mix import Demands
from loadslice.plan.fleet.problem import Problem, in_racks, packed
from loadslice.plan.fleet.specimen import problem


def brute_force(asked: Problem, demands: Demands) -> float:
    """Every fleet up to the most of each type, its flow by a linear program."""
    best = np.inf
    for counts in itertools.product(*(range(int(most) + 1) for most in asked.count_max)):
        fleet = np.array(counts)
        standing = packed(asked, fleet)
        if (
            standing is None
            or not in_racks(asked, standing)
            or any((fleet <= small).all() for small in demands.too_small)
        ):
            continue
        boxes = standing.machines
        if any(fleet[list(group)].sum() == 0 for group in demands.one_of):
            continue
        fixed = float(fleet @ asked.per_hour + boxes @ asked.box_per_hour)
        paid = float(fleet @ asked.purchase + boxes @ asked.box_purchase)
        if asked.owned is not None:
            there = np.minimum(np.concatenate([fleet, boxes]), asked.owned)
            fixed -= float(there @ asked.spared_per_hour)
            paid -= float(there @ np.concatenate([asked.purchase, asked.box_purchase]))
        if paid > asked.purchase_max:
            continue
        flow = cheapest_flow(asked, fleet, demands.rho)
        if flow is not None:
            best = min(best, fixed + flow)
    return best


def cheapest_flow(asked: Problem, fleet: np.ndarray, rho: float) -> float | None:
    total = 0.0
    for t in range(len(asked.seconds)):
        work = asked.work_s[t]
        kinds, types = work.shape
        possible = np.isfinite(work)
        cost = np.where(possible, work, 0) * asked.per_busy_s / asked.hours
        serve = np.kron(np.eye(kinds), np.ones(types))
        room = np.zeros((types, kinds * types))
        for k in range(types):
            room[k, k::types] = np.where(possible[:, k], work[:, k], 0)
        found = linprog(
            cost.ravel(),
            A_ub=room,
            b_ub=rho * asked.slots * fleet * asked.seconds[t],
            A_eq=serve,
            b_eq=np.ones(kinds),
            bounds=[(0, 1 if ok else 0) for ok in possible.ravel()],
        )
        if found.status != 0:
            return None
        total += found.fun
    return total


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_no_fleet_of_all_that_are_possible_is_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = problem(rng, types=int(rng.integers(2, 4)), buckets=2, kinds=2, most=3)
    if rng.random() < 0.5:
        bought = np.concatenate([asked.per_hour, asked.box_per_hour])
        owned = rng.integers(0, 3, len(bought))
        asked = replace(asked, owned=owned, spared_per_hour=bought * rng.uniform(0, 1, len(bought)))
    if rng.random() < 0.5:
        asked = replace(asked, per_rack_w=float(rng.uniform(400, 1500)), racks_max=int(rng.integers(1, 3)))
    demands = Demands(
        rho=float(rng.uniform(0.5, 1.0)),
        too_small=tuple(rng.integers(0, 2, len(asked.engines)) for _ in range(rng.integers(0, 3))),
        one_of=((0,),) if rng.random() < 0.3 else (),
    )
    best = brute_force(asked, demands)
    found = solved_in_machines(asked, demands)
    if not np.isfinite(best):
        assert found is None
    else:
        assert found is not None
        assert found == pytest.approx(best, rel=1e-6)


def solved_in_machines(asked: Problem, demands: Demands) -> float | None:
    from loadslice.plan.fleet.search import Search, Seeker

    seeker = Seeker(asked, lambda *_: None, lambda: 0.0)
    found = seeker._solve(asked, demands, Search())
    return None if found is None else found.mix.cost_per_hour


def test_a_fleet_that_failed_is_cut_off_with_everything_smaller() -> None:
    asked = problem(np.random.default_rng(3), types=3, buckets=3, kinds=2, most=6)
    first = mix.solve(asked)
    assert first is not None
    again = mix.solve(asked, Demands(too_small=(first.mix.counts,)))
    assert again is not None
    assert (again.mix.counts > first.mix.counts).any()
    assert again.mix.cost_per_hour >= first.mix.cost_per_hour


def test_work_that_no_offered_type_can_run_has_no_mix() -> None:
    asked = problem(np.random.default_rng(3), types=2, buckets=1, kinds=2, most=6)
    asked.work_s[:, 1, :] = np.inf
    assert mix.solve(asked) is None


def test_what_is_served_adds_up_and_no_type_is_busier_than_its_time() -> None:
    asked = problem(np.random.default_rng(5), types=4, buckets=6, kinds=3, most=8)
    found = mix.solve(asked, Demands(rho=0.7))
    assert found is not None
    np.testing.assert_allclose(found.mix.share.sum(axis=2), 1.0, atol=1e-6)
    assert found.mix.busy.max() <= 0.7 + 1e-6
