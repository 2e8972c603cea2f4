"""The simulator against queueing theory: closed forms it must land on, each inside a 99 % interval of replicas.

Theory is written out here from the textbooks (Kleinrock, Queueing Systems I and II; Gross and Harris, Fundamentals of
Queueing Theory), not taken from the code under test. Times are milliseconds, rates per millisecond.
"""

import math
import os

import numpy as np
import polars as pl
import pytest

from loadslice.sim import record as r
from loadslice.sim import simulate
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import OUTCOMES, Outcome
from loadslice.spec.pipeline import CLASSES, Batch, Engine, Pipeline, Queue, Stage, check

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="millions of requests want the compiled loop"
)

REQUESTS = 150_000
REPLICAS = 12
T_99 = 3.106
"""Student's t, 11 degrees of freedom, two-sided 99 %."""

WARM_UP = 0.1


def pipeline(stages: int = 1, *, servers: int = 1, limit: int = 100_000, batch: int = 1) -> Pipeline:
    engines = {f"e{s}": Engine(backend="twin", max_inflight=servers, queue=Queue(limit=limit)) for s in range(stages)}
    return check(
        Pipeline(
            version=1,
            pipeline="queue",
            engines=engines,
            stages=[
                Stage(name=f"s{s}", variant=f"v{s}", engine=f"e{s}", batch={f"e{s}": Batch(size=batch)})
                for s in range(stages)
            ],
            max_requests=200_000,
        ),
        "test",
    )


def times(*families: Milliseconds) -> LatencyTable:
    return LatencyTable(
        entries=[
            Entry(variant=f"v{s}", engine=f"e{s}", batch=1, latency_ms=family, basis="modelled")
            for s, family in enumerate(families)
        ]
    )


CONSTANT = Milliseconds(mean=1.0, family="constant")
EXPONENTIAL = Milliseconds(mean=1.0, family="exponential")


def poisson(rate_per_ms: float, seed: int, **columns: object) -> pl.DataFrame:
    draws = np.random.default_rng(seed)
    arrival_s = np.cumsum(draws.exponential(1 / rate_per_ms, REQUESTS)) / 1000
    return pl.DataFrame({"arrival_s": arrival_s, **columns})


def replicas(plan: Pipeline, latency: LatencyTable, rate_per_ms: float) -> list[simulate.Run]:
    return [
        simulate.run(simulate.prepare(poisson(rate_per_ms, seed), plan, latency), seed=seed)
        for seed in range(1, REPLICAS + 1)
    ]


def stage_times_ms(run: simulate.Run, stage: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Queueing and sojourn times at a stage after the warm-up, completed requests only."""
    lines = run.record.timeline[int(WARM_UP * REQUESTS) :, stage]
    lines = lines[lines[:, r.T_DONE_NS] >= 0]
    wait = (lines[:, r.T_DISPATCHED_NS] - lines[:, r.T_ENQUEUED_NS]) / 1e6
    return wait, (lines[:, r.T_DONE_NS] - lines[:, r.T_ENQUEUED_NS]) / 1e6


def assert_inside(values: list[float], theory: float) -> None:
    """The mean of replicas is within its own 99 % interval of theory, and the interval is narrow enough to mean it."""
    mean = float(np.mean(values))
    half = T_99 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    assert half < 0.1 * theory, f"interval {mean} +- {half} is too wide to test {theory}"
    assert abs(mean - theory) <= max(half, 1e-3 * theory), f"{mean} +- {half} does not hold {theory}"


def erlang_c(servers: int, load: float) -> float:
    """P(wait) in M/M/c; load = rate x mean service in Erlangs."""
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = load * blocking / (k + load * blocking)
    return blocking / (1 - load / servers * (1 - blocking))


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_m_d_1_mean_wait(rho: float) -> None:
    waits = [float(stage_times_ms(run)[0].mean()) for run in replicas(pipeline(), times(CONSTANT), rho)]
    assert_inside(waits, rho / (2 * (1 - rho)))


def test_m_m_c_mean_wait_and_its_p99() -> None:
    servers, rho = 4, 0.8
    runs = replicas(pipeline(servers=servers), times(EXPONENTIAL), rho * servers)
    waiting = erlang_c(servers, rho * servers)
    assert_inside([float(stage_times_ms(run)[0].mean()) for run in runs], waiting / (servers * (1 - rho)))
    p99 = math.log(waiting / 0.01) / (servers * (1 - rho))
    assert_inside([float(np.percentile(stage_times_ms(run)[0], 99)) for run in runs], p99)


def test_m_g_1_by_pollaczek_and_khinchine() -> None:
    rho, cv = 0.7, 1.5
    latency = times(Milliseconds(mean=1.0, family="lognormal", cv=cv))
    waits = [float(stage_times_ms(run)[0].mean()) for run in replicas(pipeline(), latency, rho)]
    assert_inside(waits, rho * (1 + cv * cv) / (2 * (1 - rho)))


@pytest.mark.parametrize(
    "family", [CONSTANT, EXPONENTIAL, Milliseconds(mean=1.0, family="lognormal", cv=2.0)], ids=lambda f: f.family
)
def test_erlang_b_blocks_the_same_whatever_the_service_distribution(family: Milliseconds) -> None:
    servers, load = 5, 4.0
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = load * blocking / (k + load * blocking)
    rejected = []
    for run in replicas(pipeline(servers=servers, limit=0), times(family), load):
        after = run.record.outcome[int(WARM_UP * REQUESTS) :]
        rejected.append(float((after == Outcome.REJECTED).mean()))
    assert_inside(rejected, blocking)


def test_two_classes_without_preemption_by_cobham() -> None:
    shares, rho = (0.4, 0.6), 0.8
    names = (CLASSES[0], CLASSES[3])
    waits: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(1, REPLICAS + 1):
        draws = np.random.default_rng(1000 + seed)
        classes = draws.choice(list(names), REQUESTS, p=shares)
        trace = poisson(rho, seed).with_columns(pl.Series("class", classes))
        run = simulate.run(simulate.prepare(trace, pipeline(), times(EXPONENTIAL)), seed=seed)
        wait = stage_times_ms(run)[0]
        for name in names:
            waits[name].append(float(wait[classes[int(WARM_UP * REQUESTS) :] == name].mean()))
    residual = rho  # lambda E[S^2] / 2 with E[S^2] = 2
    high, low = shares[0] * rho, rho
    assert_inside(waits[names[0]], residual / (1 - high))
    assert_inside(waits[names[1]], residual / ((1 - high) * (1 - low)))


def test_a_tandem_of_two_by_jackson() -> None:
    rate, second_ms = 0.6, 1.2
    latency = times(EXPONENTIAL, Milliseconds(mean=second_ms, family="exponential"))
    runs = replicas(pipeline(2), latency, rate)
    for stage, mean_ms in enumerate((1.0, second_ms)):
        sojourn = [float(stage_times_ms(run, stage)[1].mean()) for run in runs]
        assert_inside(sojourn, mean_ms / (1 - rate * mean_ms))


def test_batch_service_with_batch_dependent_time() -> None:
    """Service (1, b) with time base + row * m: an embedded chain on the number left behind at departures."""
    base, row, size, rate = 1.0, 0.25, 8, 2.0
    latency = LatencyTable(
        entries=[
            Entry(
                variant="v0",
                engine="e0",
                batch=rows,
                latency_ms=Milliseconds(mean=base + row * rows, family="constant"),
                basis="modelled",
            )
            for rows in range(1, size + 1)
        ]
    )
    waits = [float(stage_times_ms(run)[0].mean()) for run in replicas(pipeline(batch=size), latency, rate)]
    assert_inside(waits, bulk_wait_ms(base, row, size, rate))


def bulk_wait_ms(base: float, row: float, size: int, rate: float, states: int = 400) -> float:
    """Mean wait of M/D(m)/1 with bulk service of at most ``size``, by the embedded chain and renewal reward."""
    moves = np.zeros((states, states))
    cycle, queue_time = np.zeros(states), np.zeros(states)
    for left in range(states):
        batch = max(1, min(left, size))
        service = base + row * batch
        waiting = max(0, left - batch)
        idle = 1 / rate if left == 0 else 0.0
        cycle[left] = idle + service
        queue_time[left] = waiting * service + rate * service * service / 2
        pmf = np.exp([-rate * service + k * math.log(rate * service) - math.lgamma(k + 1) for k in range(states)])
        moves[left, waiting:] = pmf[: states - waiting]
    moves[:, -1] += 1 - moves.sum(axis=1)
    system = np.vstack([moves.T - np.eye(states), np.ones(states)])
    chain = np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]
    return float(chain @ queue_time / (chain @ cycle) / rate)


def test_littles_law_holds_in_every_run() -> None:
    for run in replicas(pipeline(), times(EXPONENTIAL), 0.7)[:3]:
        arrived, left = run.traffic.arrival_ns, run.record.end_ns
        span = int(left.max())
        steps = np.concatenate([arrived, left])
        order = np.argsort(steps, kind="stable")
        inside = np.cumsum(np.concatenate([np.ones(len(arrived)), -np.ones(len(left))])[order])
        area = float((inside[:-1] * np.diff(steps[order])).sum())
        assert area / span == pytest.approx(len(arrived) / span * float((left - arrived).mean()), rel=1e-9)


def test_the_engine_is_never_idle_beside_work() -> None:
    run = replicas(pipeline(), times(CONSTANT), 0.9)[0]
    ends = np.sort(run.record.end_ns)
    starts = np.maximum(run.traffic.arrival_ns, np.concatenate([[0], ends[:-1]]))
    assert (ends - starts == 1_000_000).all()


def test_more_servers_never_wait_longer() -> None:
    means = []
    for servers in (4, 5, 6):
        run = simulate.run(simulate.prepare(poisson(3.6, 1), pipeline(servers=servers), times(EXPONENTIAL)), seed=1)
        means.append(float(stage_times_ms(run)[0].mean()))
    assert means == sorted(means, reverse=True)


def test_overload_diverges_and_never_flatters() -> None:
    """At 29 times the capacity nearly everything waits for as long as the queue is, or is refused."""
    plan = pipeline(limit=1000)
    result = simulate.summarise(simulate.run(simulate.prepare(poisson(29.0, 1), plan, times(CONSTANT))))
    assert result.outcomes["completed"] / REQUESTS == pytest.approx(1 / 29, rel=0.3)
    assert result.latency_ms.p50 == pytest.approx(1000, rel=0.02)
    assert sum(result.outcomes[name] for name in OUTCOMES) == REQUESTS
