"""The avalanche: a slow spell of 15 s that a naive server never recovers from, and ours does.

Four servers of 100 ms (40/s), Poisson 34/s, clients that wait 1 s and try four times with full-jitter backoff; service
is six times slower for 15 s from t = 60. Goodput is requests answered while their client was still there, per second,
over the arrival rate. The naive variant must collapse here, or the test has lost its teeth.
"""

import numpy as np
import polars as pl
import pytest

from loadslice.sim import simulate
from loadslice.spec.faults import Backoff, Clients, Fault
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import Reason
from loadslice.spec.pipeline import Engine, Pipeline, Queue, Retry, Stage, check

RATE_PER_S = 34.0
SLOW_FROM_S, SLOW_FOR_S = 60.0, 15.0
LATER_S = SLOW_FROM_S + SLOW_FOR_S + 5
END_S = 400.0

FAULT = Fault(at_s=SLOW_FROM_S, for_s=SLOW_FOR_S, engine="e", kind="slow", factor=6.0)
NAIVE = Clients(
    timeout_ms=1000,
    attempts=4,
    backoff=Backoff(base_ms=50, factor=2),
    cancels=False,
    states_deadline=False,
    states_attempt=False,
)
PROPER = Clients(timeout_ms=1000, attempts=4, backoff=Backoff(base_ms=50, factor=2))
TIMES = LatencyTable(
    entries=[
        Entry(
            variant="v",
            engine="e",
            batch=1,
            latency_ms=Milliseconds(mean=100.0, family="constant"),
            basis="modelled",
        )
    ]
)


def servers(queue: int) -> Pipeline:
    return check(
        Pipeline(
            version=1,
            pipeline="four",
            engines={"e": Engine(backend="twin", max_inflight=4, queue=Queue(limit=queue))},
            stages=[Stage(name="s", variant="v", engine="e")],
            max_requests=200_000,
            retry=Retry(budget=0.1, per_s=1.0, reserve=10),
        ),
        "test",
    )


def goodput(plan: Pipeline, clients: Clients, *, faults: list[Fault], seed: int = 1) -> tuple[float, float]:
    """Share of the offered rate that is answered in time: during the fault, and from 5 s after it."""
    draws = np.random.default_rng(seed)
    arrival_s = np.cumsum(draws.exponential(1 / RATE_PER_S, int(RATE_PER_S * END_S)))
    trace = pl.DataFrame({"arrival_s": arrival_s})
    run = simulate.run(simulate.prepare(trace, plan, TIMES, faults=faults, clients=clients), seed=seed)
    answered_s = run.record.end_ns[simulate.in_time(run)] / 1e9 + arrival_s[0]

    def share(start_s: float, end_s: float) -> float:
        offered = ((arrival_s >= start_s) & (arrival_s < end_s)).sum()
        return float(((answered_s >= start_s) & (answered_s < end_s)).sum() / offered)

    return share(SLOW_FROM_S + 1, SLOW_FROM_S + SLOW_FOR_S), share(LATER_S, arrival_s[-1])


def test_without_the_slow_spell_everything_is_answered() -> None:
    assert goodput(servers(100_000), NAIVE, faults=[])[1] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_naive_server_collapses_and_stays_down(seed: int) -> None:
    during, after = goodput(servers(100_000), NAIVE, faults=[FAULT], seed=seed)
    assert during < 0.05
    assert after < 0.05


def test_a_queue_sized_to_the_timeout_alone_does_not_help() -> None:
    assert goodput(servers(40), NAIVE, faults=[FAULT])[1] < 0.2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ours_serves_what_is_possible_and_recovers_within_five_seconds(seed: int) -> None:
    during, after = goodput(servers(20), PROPER, faults=[FAULT], seed=seed)
    assert during > 0.8 / (6 * 0.85)
    assert after >= 0.95


def test_attempts_that_repeat_stay_within_the_budget() -> None:
    draws = np.random.default_rng(1)
    trace = pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / RATE_PER_S, 5000))})
    run = simulate.run(simulate.prepare(trace, servers(20), TIMES, faults=[FAULT], clients=PROPER))
    repeated = run.record.start_ns[5000:] >= 0
    admitted = repeated & (run.record.reason[5000:] != Reason.RETRY_BUDGET)
    span_s = run.record.end_ns.max() / 1e9
    assert repeated.sum() > admitted.sum() > 0
    assert admitted.sum() <= 0.1 * 5000 + span_s + 10
