"""How much more a fleet carries, and larger fleets where latency or throughput is what counts."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from loadslice.plan.fleet import mix as mixes
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.problem import allowed, fixed_per_hour
from loadslice.plan.fleet.search import Fleet
from loadslice.spec.plan import Objective

CARRIES_MAX = 8.0
"""Times the recorded traffic; beyond, growth is a matter of years that nobody plans."""
STEPS = 6
"""Halvings; the answer is within 1.5 % of 8."""
GAIN = 0.02
"""An engine that gains less is not added."""
ROUNDS = 6


def carries(judge: Judge, fleet: Fleet) -> float:
    """The largest multiple of the recorded traffic under which a fleet keeps the promise; at least 1 where it does.

    The same requests come closer together. Found by halving, each step a simulation.
    """
    verdict = fleet.verdict
    assert verdict is not None
    assert verdict.holds
    low, high = 1.0, CARRIES_MAX
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        faster = judge.at_speed(middle).under(verdict.counts, verdict.boxes, verdict.policy)
        if faster is not None and faster.holds:
            low = middle
        else:
            high = middle
    return low


def grow(fleet: Fleet, judge: Judge, objective: Objective, tell: Callable[[str], None]) -> Fleet:
    """Add the engine that helps most, again and again, while there is money and room and it helps.

    Args:
        fleet: Holds.
        judge: Simulates.
        objective: ``latency``: P99 falls; ``throughput``: more traffic is carried.
        tell: Progress in words.
    """
    best, worth = fleet, _worth(judge, fleet, objective)
    for _ in range(ROUNDS):
        step: tuple[float, Fleet] | None = None
        for k in range(len(judge.problem.engines)):
            larger = _larger(judge, best, k)
            if larger is None or not larger.holds:
                continue
            gained = _worth(judge, larger, objective)
            if gained > worth * (1 + GAIN) and (step is None or gained > step[0]):
                step = gained, larger
        if step is None:
            break
        worth, best = step
        tell(f"{objective}: grown to {int(best.mix.counts.sum())} engines")
    return best


def _worth(judge: Judge, fleet: Fleet, objective: Objective) -> float:
    assert fleet.verdict is not None
    if objective == "throughput":
        return carries(judge, fleet)
    p99 = fleet.verdict.latency_ms.p99
    return 0.0 if p99 is None else 1.0 / p99


def _larger(judge: Judge, fleet: Fleet, k: int) -> Fleet | None:
    problem = judge.problem
    counts = fleet.mix.counts.copy()
    counts[k] += 1
    if counts[k] > problem.count_max[k] or not np.any(np.isfinite(problem.work_s[:, :, k])):
        return None
    standing = allowed(problem, counts)
    if standing is None:
        return None
    flow = mixes.flow(problem, counts)
    verdict = judge(counts, standing.machines)
    if flow is None or verdict is None:
        return None
    cost = flow.cost_per_hour + fixed_per_hour(problem, counts, standing.machines)
    return Fleet(replace(flow, boxes=standing.machines, cost_per_hour=cost), verdict)
