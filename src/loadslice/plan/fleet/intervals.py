"""Figures with their uncertainty: what another run would show, and what modelled times may be wrong by."""

import math

import msgspec
import numpy as np

from loadslice.plan.fleet.judge import Judge, Verdict
from loadslice.sim import replicas, simulate
from loadslice.sim.draws import t_95
from loadslice.sim.room import RecordRoom
from loadslice.spec.uncertainty import perturbed

REPLICAS = 8
REQUESTS_MAX = 2_000_000
"""Over all replicas; longer traffic has fewer of them."""


def intervals(judge: Judge, verdict: Verdict, seed: int) -> dict[str, tuple[float, float]] | None:
    """Figure -> bounds that hold one more run 19 times of 20.

    Each replica has draws of its own, the machine's drift among them, and for modelled times a table that could as well
    be true. ``None``: the traffic is too long to be simulated more than once here.
    """
    total = len(judge.traffic.arrival_ns)
    number = min(REPLICAS, REQUESTS_MAX // max(total, 1))
    if number < 3:
        return None
    rng = np.random.default_rng(seed)
    figures: dict[str, list[float]] = {}
    room = RecordRoom()
    for replica in range(seed + 1, seed + 1 + number):  # the fleet was chosen for how well the draws of `seed` went
        drawn = perturbed(judge.design.latency, rng)
        prepared = judge.with_latency(drawn).prepared(verdict.counts, verdict.boxes, verdict.policy)
        assert prepared is not None, "it was simulated before"
        run = simulate.run(replicas.in_run(prepared, replica), seed=replica, stages=False, room=room)
        again = judge.summed(run, verdict.counts, verdict.boxes, verdict.policy)
        for name, value in _figures(again):
            figures.setdefault(name, []).append(value)
    return {name: _interval(name, values) for name, values in figures.items() if len(values) == number}


def _interval(name: str, values: list[float]) -> tuple[float, float]:
    """Of one more value. Modelled times are wrong by a factor, so bounds of latencies are found in logarithms."""
    if not name.startswith("latency_ms.") or min(values) <= 0:
        return replicas.interval(values)
    logs = np.log(values)
    half = t_95(len(values) - 1) * float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / len(values))
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def _figures(verdict: Verdict) -> list[tuple[str, float]]:
    known = {f"latency_ms.{name}": value for name, value in msgspec.structs.asdict(verdict.latency_ms).items()}
    known |= {
        "throughput_per_s": verdict.throughput_per_s,
        "goodput_per_s": verdict.goodput_per_s,
        "error_rate": verdict.error_rate,
        "energy_j": verdict.energy_j,
    }
    return [(name, float(value)) for name, value in known.items() if value is not None]
