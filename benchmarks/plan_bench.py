"""How fast fleets are found: the exact mix of 10 device types over 24 hours, and 1,000 fleets on a million requests.

All of it is synthetic. The thousand fleets are every mix of up to nine engines of three types; what is simulated, what
a bound settles, what a simulated fleet settles and what a sample of the traffic settles is counted apart.
"""

import itertools
import os
import time
from typing import Any

import numpy as np
import polars as pl

from loadslice.plan.fleet import mix, specimen
from loadslice.plan.fleet.mix import Demands
from loadslice.plan.sweep import local, sweep
from loadslice.sim import simulate

SEED = 0
REQUESTS = 1_000_000
RATE_PER_S = 900.0


def cores() -> int:
    """That may be used here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run() -> dict[str, Any]:
    """Solve mixes, then sweep a thousand fleets.

    Returns:
        Seconds of wall time, and how the fleets were settled.
    """
    mix.solve(specimen.problem(np.random.default_rng(SEED), types=2, buckets=1, kinds=1, most=2))  # imports SciPy
    took_s = []
    for seed in range(10):
        problem = specimen.problem(np.random.default_rng(seed), types=10, buckets=24, kinds=6, most=60)
        began = time.perf_counter()
        answer = mix.solve(problem, Demands(rho=0.8))
        took_s.append(time.perf_counter() - began)
        assert answer is not None
        assert answer.mix.cost_per_hour <= answer.bound_per_hour * (1 + 1e-6)
    simulate.warm()
    draws = np.random.default_rng(SEED)
    hour = np.arange(REQUESTS) / RATE_PER_S / (REQUESTS / RATE_PER_S) * 2 * np.pi
    gaps_s = draws.exponential(1.0, REQUESTS) / (RATE_PER_S * (1 + 0.4 * np.sin(hour)))
    trace = pl.DataFrame({"arrival_s": np.cumsum(gaps_s)})
    problem, judge = specimen.judged(trace)
    fleets = [np.array(counts, np.int64) for counts in itertools.product(range(10), repeat=3)]
    began = time.perf_counter()
    began_cpu = time.process_time()
    least = sweep(problem, fleets, local(judge, cores()), front=False)
    cheapest_s, cheapest_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    began, began_cpu = time.perf_counter(), time.process_time()
    part = judge.sample()
    assert part is not None
    swept = sweep(problem, fleets, local(judge, cores()), sample=local(part, cores()))
    sweep_s, sweep_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    assert swept.cheapest is not None
    assert swept.cheapest == least.cheapest
    return {
        "mix_10_types_24_hours_s_median": float(np.median(took_s)),
        "mix_10_types_24_hours_s_worst_of_10": max(took_s),
        "cheapest_of_1000_fleets_s": cheapest_s,
        "cheapest_of_1000_fleets_cpu_s": cheapest_cpu_s,
        "load_average_1m": os.getloadavg()[0],
        "cheapest_of_1000_simulated": len(least.verdicts),
        "cheapest_of_1000_bounded": least.bounded,
        "sweep_1000_fleets_s": sweep_s,
        "sweep_1000_fleets_cpu_s": sweep_cpu_s,
        "sweep_simulated": len(swept.verdicts),
        "sweep_bounded": swept.bounded,
        "sweep_smaller_than_one_that_failed": swept.smaller,
        "sweep_dearer_than_one_that_holds": swept.dearer,
        "sweep_settled_by_sample": swept.estimated,
        "sweep_sampled": swept.sampled,
        "sweep_sample_error": swept.sample_error,
        "sweep_requests_simulated": swept.requests,
        "sweep_cheapest": " + ".join(
            f"{count} x {name}" for name, count in zip(problem.engines, fleets[swept.cheapest], strict=True) if count
        ),
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:>40} {value}")
