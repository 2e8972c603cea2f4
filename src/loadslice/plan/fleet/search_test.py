import itertools
from dataclasses import replace

import numpy as np
import pytest

from loadslice.plan.fleet import mix
from loadslice.plan.fleet.candidate import Policy
from loadslice.plan.fleet.judge import Verdict
from loadslice.plan.fleet.mix import Demands
from loadslice.plan.fleet.problem import fixed_per_hour, packed, purchase
from loadslice.plan.fleet.search import Seeker
from loadslice.plan.fleet.specimen import problem
from loadslice.spec.simulation import LatencyMs

NOBODY = LatencyMs(p50=1.0, p95=1.0, p99=1.0, mean=1.0)


def verdict(counts: np.ndarray, boxes: np.ndarray, misses: float) -> Verdict:
    return Verdict(counts, boxes, Policy(), misses <= 1, True, NOBODY, 0.0, 1.0, 1.0, None, {}, 10, misses)


def strength_needed(asked, rng) -> tuple[np.ndarray, float]:
    """A promise that needs more than the load: some weighted number of engines, so that more never breaks it."""
    weights = rng.uniform(0.5, 2.0, len(asked.engines))
    relaxed = mix.solve(asked)
    base = float(weights @ relaxed.mix.counts) if relaxed is not None else 1.0
    return weights, base * rng.uniform(1.0, 1.8)


@pytest.mark.parametrize("seed", range(12))
def test_the_fleet_found_is_the_cheapest_of_all_that_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = problem(rng, types=3, buckets=2, kinds=2, most=4)
    weights, needed = strength_needed(asked, rng)

    def judge(counts, boxes):
        return verdict(counts, boxes, needed / max(float(weights @ counts), 1e-9))

    found = Seeker(asked, judge, lambda: 0.0).cheapest()
    best = np.inf
    for each in itertools.product(range(5), repeat=3):
        counts = np.array(each)
        standing = packed(asked, counts)
        flow = mix.flow(asked, counts)
        if standing is None or flow is None or weights @ counts < needed:
            continue
        if purchase(asked, counts, standing.machines) > asked.purchase_max:
            continue
        best = min(best, flow.cost_per_hour + fixed_per_hour(asked, counts, standing.machines))
    assert found.proven
    if not np.isfinite(best):
        assert found.best is None
    else:
        assert found.best is not None
        assert found.best.mix.cost_per_hour == pytest.approx(best, rel=2e-5)


def test_where_no_number_of_engines_helps_few_simulations_prove_it() -> None:
    asked = problem(np.random.default_rng(1), types=3, buckets=2, kinds=2, most=9)
    found = Seeker(asked, lambda counts, boxes: verdict(counts, boxes, 1.2), lambda: 0.0).cheapest()
    assert found.best is None
    assert found.proven
    assert found.nearest is not None
    assert found.simulated <= 2


def test_nothing_is_cheaper_than_what_costs_nothing() -> None:
    asked = problem(np.random.default_rng(1), types=3, buckets=2, kinds=2, most=4)
    nothing = {name: np.zeros_like(getattr(asked, name)) for name in ("per_hour", "box_per_hour", "per_busy_s")}
    free = replace(asked, **nothing)
    found = Seeker(free, lambda counts, boxes: verdict(counts, boxes, 0.5), lambda: 0.0).cheapest()
    assert found.best is not None
    assert (found.proven, found.best.mix.cost_per_hour) == (True, 0.0)


def test_a_verdict_is_asked_for_once() -> None:
    asked = problem(np.random.default_rng(2), types=3, buckets=2, kinds=2, most=4)
    seen: list[tuple[int, ...]] = []

    def judge(counts, boxes):
        seen.append(tuple(int(count) for count in counts))
        return verdict(counts, boxes, 0.5)

    seeker = Seeker(asked, judge, lambda: 0.0)
    seeker.cheapest()
    seeker.cheapest()
    assert len(seen) == len(set(seen))


def test_a_group_that_must_be_there_is_there() -> None:
    asked = problem(np.random.default_rng(4), types=4, buckets=2, kinds=2, most=5)
    found = Seeker(asked, lambda counts, boxes: verdict(counts, boxes, 0.5), lambda: 0.0)
    best = found.cheapest(Demands(one_of=((1,), (2, 3)))).best
    assert best is not None
    assert best.mix.counts[1] > 0
    assert best.mix.counts[2] + best.mix.counts[3] > 0
