"""Policy numbers around a fleet that was found: batch, window, preference, share of overflow.

One number is changed at a time, the change that serves the objective best is kept, and so on until none does: a walk
uphill, not a proof. Every step is a simulation on the recorded traffic.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from loadslice.plan.fleet.candidate import Policy
from loadslice.plan.fleet.judge import Judge, Verdict
from loadslice.plan.fleet.problem import Int64s
from loadslice.spec.plan import Objective

WINDOWS_MS = (0.0, 2.0, 5.0, 10.0)
ROWS = (1, 4, 8, 32)
SHARES = (0.3, 1.0)
BETTER = 0.01
"""Less than a hundredth better is luck of the draw."""
ROUNDS = 2


def tune(judge: Judge, start: Verdict, objective: Objective, *, kinds: int, jobs: int) -> Verdict:
    """The best policy numbers found for a fleet.

    Args:
        judge: Simulates.
        start: The fleet under the policy it was found with.
        objective: What is improved; cost improves energy, for the engines are paid either way.
        kinds: Engine types in the fleet; with one there is nothing to prefer.
        jobs: Simulations at a time.
    """
    best = start
    seen = {start.policy}
    with ThreadPoolExecutor(jobs) as pool:
        for _ in range(ROUNDS):
            tried = [policy for policy in dict.fromkeys(_around(best.policy, kinds)) if policy not in seen]
            seen.update(tried)
            before = best
            for verdict in pool.map(partial(judge.under, best.counts, best.boxes), tried):
                if verdict is not None and is_better(verdict, best, objective):
                    best = verdict
            if best is before:
                break
    return best


def _around(policy: Policy, kinds: int) -> Iterator[Policy]:
    for window_ms in WINDOWS_MS:
        yield replace(policy, name="searched", window_ms=window_ms)
    for rows in ROWS:
        yield replace(policy, name="searched", rows_most=rows)
    if kinds > 1:
        yield replace(policy, name="searched", prefer="cheapest")
        for share in SHARES:
            yield replace(policy, name="searched", prefer="static", failover_share=share, overflow_at=2)


def is_better(one: Verdict, other: Verdict, objective: Objective) -> bool:
    """Keeps the promise where the other does not, or serves the objective better, or as well with a shorter P99."""
    if one.holds != other.holds:
        return one.holds
    if not one.holds:
        return one.misses < other.misses * (1 - BETTER)
    first, second = score(one, objective), score(other, objective)
    if abs(first - second) <= BETTER * abs(second):
        return _p99(one) < _p99(other) * (1 - BETTER)
    return first < second


def score(verdict: Verdict, objective: Objective) -> float:
    """What an objective wants little of."""
    if objective == "throughput":
        return -verdict.goodput_per_s
    if objective == "latency" or verdict.energy_j is None:
        return _p99(verdict)
    return verdict.energy_j


def _p99(verdict: Verdict) -> float:
    return float("inf") if verdict.latency_ms.p99 is None else verdict.latency_ms.p99


def described(policy: Policy, counts: Int64s) -> dict[str, str]:
    """The numbers by what they are called in a pipeline file."""
    said = {"prefer": policy.prefer if counts.sum() > 1 else "static", "batch.window_ms": f"{policy.window_ms:g}"}
    if policy.rows_most < 1 << 16:
        said["batch.size"] = f"at most {policy.rows_most}"
    if policy.failover_share is not None:
        said["failover.share"] = f"{policy.failover_share:g}"
        said["queue.overflow_at"] = str(policy.overflow_at)
    return said
