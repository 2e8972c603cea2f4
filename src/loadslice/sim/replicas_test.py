import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.sim import replicas, simulate
from loadslice.sim.course import Prepared
from loadslice.sim.faults_test import TIMES, plan
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds

NOISY = LatencyTable(
    entries=[
        Entry(
            variant="v",
            engine=engine,
            batch=1,
            latency_ms=Milliseconds(mean=10.0, family="exponential"),
            basis="modelled",
        )
        for engine in ("npu", "cpu")
    ]
)


def prepared(latency: LatencyTable) -> Prepared:
    return simulate.prepare(pl.DataFrame({"arrival_s": np.arange(300) * 0.012}), plan(), latency)


def test_intervals_of_a_deterministic_model_are_points() -> None:
    _, intervals = replicas.run(prepared(TIMES), seed=0, replicas=5)
    low, high = intervals["latency_ms.p50"]
    assert low == high == 10.0


def test_the_interval_holds_one_more_run_about_nineteen_times_of_twenty() -> None:
    inside = 0
    for trial in range(40):
        _, intervals = replicas.run(prepared(NOISY), seed=1000 * trial, replicas=8)
        low, high = intervals["latency_ms.p95"]
        p95 = simulate.summarise(simulate.run(prepared(NOISY), seed=1000 * trial + 500)).latency_ms.p95
        assert p95 is not None
        inside += low <= p95 <= high
    # 40 trials at 95 %: fewer than 34 has a chance below 1 %.
    assert inside >= 34


def of_rehearsals(misses: float, runs: int) -> Drift:
    return Drift(period_ms=1.0, likeness=0.0, misses=misses, missed_runs=runs)


def covered(leaves_out: float, rehearsals: int) -> float:
    """Share of next runs inside, of a world whose runs spread by more than the simulator draws."""
    draw, inside = np.random.default_rng(1), 0
    for _ in range(1500):
        typical = draw.normal(100.0, 2.0, 20).tolist()
        # Three figures of one run, more alike than not.
        shared = draw.standard_normal((rehearsals, 1))
        seen = leaves_out * (0.8 * shared + 0.6 * draw.standard_normal((rehearsals, 3)))
        left_out = replicas.left_out(typical, of_rehearsals(float(np.sqrt(np.mean(seen**2))), rehearsals))
        low, high = replicas.interval(typical, left_out)
        inside += low <= draw.normal(100.0, 2.0 * leaves_out) <= high
    return inside / 1500


@pytest.mark.parametrize(
    ("leaves_out", "rehearsals", "least", "most"),
    [(1.0, 1, 0.94, 0.99), (1.0, 9, 0.94, 0.975), (2.0, 3, 0.90, 0.96), (2.0, 9, 0.935, 0.965)],
)
def test_19_of_20_next_runs_are_inside_though_the_model_leaves_something_out(
    leaves_out: float, rehearsals: int, least: float, most: float
) -> None:
    assert least <= covered(leaves_out, rehearsals) <= most


def test_what_no_rehearsal_was_held_to_is_not_widened_and_a_good_one_never_narrows() -> None:
    values = [9.0, 10.0, 11.0]
    assert replicas.left_out(values, None) == replicas.left_out(values, Drift(period_ms=1.0, likeness=0.0)) == 0.0
    assert replicas.left_out(values, of_rehearsals(0.0, 5)) == 0.0
    assert replicas.left_out(values, of_rehearsals(3.0, 1)) > replicas.left_out(values, of_rehearsals(1.0, 1)) > 0.0


def test_a_simulation_whose_rehearsals_missed_has_a_wider_interval() -> None:
    found = []
    for misses in (None, 4.0):
        drift = None if misses is None else of_rehearsals(misses, 2)
        table = msgspec.structs.replace(NOISY, drift=drift)
        found.append(replicas.run(prepared(table), seed=0, replicas=8, latency=table)[1]["latency_ms.p95"])
    (narrow, wide) = (high - low for low, high in found)
    assert wide > 2 * narrow


def test_late_requests_keep_their_order_and_are_late_by_the_seed_alone() -> None:
    late = msgspec.structs.replace(TIMES, arrival_ms=Milliseconds(samples=[0.0, 1.0, 40.0]))
    even, machine = prepared(TIMES), prepared(late)
    first, again, other = (replicas.unevenly_late(machine, seed).traffic.arrival_ns for seed in (1, 1, 2))
    behind_ns = first - even.traffic.arrival_ns
    assert (np.diff(first) >= 0).all()
    assert behind_ns.min() >= 0
    assert 0 < np.quantile(behind_ns, 0.25) < 20e6 < behind_ns.max() <= 40e6
    assert (first == again).all()
    assert (first != other).any()
    assert replicas.in_run(even, 1).traffic is even.traffic, "nobody is late where nobody was seen to be"
