"""How long placements take and how near to the best they are proven to be, on random graphs (synthetic)."""

import time

import numpy as np

from loadslice.plan.placement import chain, greedy, mincut, relaxation, specimen, throughput
from loadslice.plan.placement.problem import bottleneck_ns, latency_ns

SEED = 0


def run() -> dict[str, float | int | str]:
    """Place graphs of 500 and 2,000 operators.

    Returns:
        Milliseconds and seconds of wall time, proven gaps in per cent, and what the greedy rules cost above the best.
    """
    rng = np.random.default_rng(SEED)
    mincut.place_two(specimen.problem(10, rng))  # imports SciPy
    large = specimen.problem(2_000, rng)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    best = mincut.place_two(large)
    cut_ms, cut_cpu_ms = (time.perf_counter() - begin) * 1e3, (time.process_time() - begin_cpu) * 1e3
    line = specimen.chain(2_000, rng, devices=3)
    begin = time.perf_counter()
    along = chain.place_chain(line, range(2_000), [t + 2 for t in range(1_999)])
    chain_ms = (time.perf_counter() - begin) * 1e3
    three = specimen.problem(500, rng, devices=3)
    begin = time.perf_counter()
    many = relaxation.place_many(three)
    many_s = time.perf_counter() - begin
    middles = [specimen.problem(500, rng) for _ in range(10)]
    begin = time.perf_counter()
    quick = [throughput.place_pipeline(each, gap=0.01) for each in middles]
    quick_s = (time.perf_counter() - begin) / len(middles)
    middle = middles[0]
    begin = time.perf_counter()
    long = throughput.place_pipeline(middle, seconds=8.0)
    long_s = time.perf_counter() - begin
    latency = mincut.place_two(middle)
    return {
        "min_cut_2000_ms": cut_ms,
        "min_cut_2000_cpu_ms": cut_cpu_ms,
        "min_cut_2000_gap_pct": 100 * best.gap,
        "priority_2000_above_pct": 100 * (latency_ns(large, greedy.by_priority(large, [1, 0])) / best.value_ns - 1),
        "fastest_2000_above_pct": 100 * (latency_ns(large, greedy.fastest(large)) / best.value_ns - 1),
        "chain_2000_of_3_ms": chain_ms,
        "chain_2000_of_3_gap_pct": 100 * along.gap,
        "any_500_of_3_s": many_s,
        "any_500_of_3_gap_pct": 100 * many.gap,
        "throughput_500_s": quick_s,
        "throughput_500_gap_pct_worst_of_10": 100 * max(each.gap for each in quick),
        "throughput_500_cp_sat_s": long_s,
        "throughput_500_cp_sat_gap_pct": 100 * long.gap,
        "latency_plan_as_pipeline_above_pct": 100 * (bottleneck_ns(middle, latency.device) / long.value_ns - 1),
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:>36} {value}")
