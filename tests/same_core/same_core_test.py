"""One core: interpreted, compiled, simulated and replayed runs take the same decisions, byte for byte."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk, events, kernel
from loadslice.policy.tables import fresh
from loadslice.sim import loop, simulate
from loadslice.sim.journal import effects_sha256
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import CLASSES, Batch, Engine, Failover, Pipeline, Queue, Stage, check

REQUESTS = 400


def busy_plan() -> Pipeline:
    """Everything at once: two stages, three engines, batching, windows, buckets, failover, timeouts, deadlines."""
    return check(
        Pipeline(
            version=1,
            pipeline="busy",
            engines={
                "npu": Engine(backend="twin", queue=Queue(limit=6, overflow_at=2), active_w=5, idle_w=1),
                "gpu": Engine(backend="twin", max_inflight=2, queue=Queue(limit=8), active_w=70, idle_w=20),
                "cpu": Engine(backend="twin", queue=Queue(limit=4, wait_limit_ms=30), active_w=40, idle_w=10),
            },
            stages=[
                Stage(
                    name="s",
                    variant="s",
                    engines=["npu", "gpu"],
                    buckets=[[32], [64]],
                    batch={"npu": Batch(size=4, window_ms=3), "gpu": Batch(size=8, window_ms=1)},
                    timeout_ms=60,
                    failover=Failover(to="gpu", share=0.3),
                ),
                Stage(name="t", variant="t", engines=["cpu", "gpu"], prefer="fastest"),
            ],
            max_requests=64,
            deadline_ms=150,
        ),
        "test",
    )


def busy_run(seed: int) -> simulate.Run:
    draws = np.random.default_rng(seed)
    trace = pl.DataFrame(
        {
            "arrival_s": np.cumsum(draws.gamma(0.4, 0.004 / 0.4, REQUESTS)),
            "items": draws.integers(1, 5, REQUESTS),
            "class": draws.choice(list(CLASSES), REQUESTS),
        }
    )
    times = [("s", "npu", 6.0), ("s", "gpu", 4.0), ("t", "cpu", 8.0), ("t", "gpu", 3.0)]
    latency = LatencyTable(
        entries=[
            Entry(
                variant=variant,
                engine=engine,
                batch=1,
                latency_ms=Milliseconds(p50=mean, p90=1.5 * mean)
                if engine == "cpu"
                else Milliseconds(mean=mean, family="lognormal", cv=0.4),
                basis="modelled",
            )
            for variant, engine, mean in times
        ],
        drift=Drift(period_ms=40.0, likeness=0.3),
    )
    return simulate.run(simulate.prepare(trace, busy_plan(), latency, seed=seed), seed=seed, journal=True)


def fingerprint(run: simulate.Run) -> dict[str, str]:
    return {
        "digest": simulate.digest(run),
        "effects": effects_sha256(run.record.effects[: run.record.counts[loop.N_EFFECTS]]),
        "state": hashlib.sha256(b"".join(array.tobytes() for array in run.state)).hexdigest(),
    }


def test_the_busy_run_is_busy() -> None:
    """A comparison of empty runs would prove nothing."""
    ended = set(busy_run(1).record.reason.tolist())
    assert {1, 3, 4, 5} <= set(busy_run(1).record.outcome.tolist())
    assert len(ended) >= 5
    assert busy_run(1).state.stages[0, c.G_SENT] > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_replaying_the_event_log_gives_the_same_decisions(seed: int) -> None:
    run = busy_run(seed)
    logged = run.record.events[: run.record.counts[loop.N_EVENTS]]
    state = fresh(run.tables, run.pipeline.max_requests)
    effects = np.zeros_like(run.record.effects)
    scratch = np.zeros((state.members.shape[1], 2), np.int64)
    count = events.decide(logged, run.tables, state, scratch, effects)
    assert count == run.record.counts[loop.N_EFFECTS]
    assert effects[:count].tobytes() == run.record.effects[:count].tobytes()
    for ours, theirs in zip(state, run.state, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("disable_jit", ["1", ""])
def test_another_process_another_hash_seed_jit_on_or_off_same_bytes(disable_jit: str) -> None:
    here = {seed: fingerprint(busy_run(seed)) for seed in (1, 2)}
    script = "import json, same_core_test as s; print(json.dumps({k: s.fingerprint(s.busy_run(k)) for k in (1, 2)}))"
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "NUMBA_DISABLE_JIT": disable_jit or "0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    printed = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True, timeout=280
    ).stdout
    assert {int(seed): found for seed, found in json.loads(printed).items()} == here


@pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="this is the compiled pass")
def test_kernels_really_compiled() -> None:
    run = busy_run(1)
    assert loop.run.signatures, "the loop ran interpreted"
    desk.on_drain(0, run.tables, fresh(run.tables, 8))
    assert desk.on_drain.signatures, "a live call ran interpreted"


def test_an_edit_of_any_source_of_compiled_code_moves_the_cache() -> None:
    assert kernel.source_hash() == kernel.source_hash()
    assert kernel._folder is None or kernel._folder.name == kernel.source_hash()
