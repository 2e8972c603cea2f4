"""Made-up problems for tests and benchmarks. No number in them was measured."""

import numpy as np
import polars as pl

from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.problem import Problem
from loadslice.plan.fleet.setting import POLICIES, set_up
from loadslice.spec.budget import Budget, Money, Power, Slo
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.offers import Box, Offer, Offers
from loadslice.spec.pipeline import Engine, Pipeline, Stage, check


def problem(rng: np.random.Generator, *, types: int, buckets: int, kinds: int, most: int) -> Problem:
    """Types of different speed, price and power, some unable to run some classes; traffic with a tide.

    Args:
        rng: Draws.
        types: At least 1; half of them stand on cores, half on cards.
        buckets: Hours.
        kinds: Classes of work; type 0 can run them all.
        most: Engines of each type.
    """
    speed = rng.uniform(0.5, 8.0, (kinds, types))
    tide = 1.0 + 0.8 * np.sin(np.linspace(0, 2 * np.pi, buckets, endpoint=False))
    asked_s = rng.uniform(600, 3600, kinds)
    work = tide[:, None, None] * (asked_s[:, None] / speed)[None] * max(1, most) / 3
    unable = rng.random((kinds, types)) < 0.2
    unable[:, 0] = False
    work[:, unable] = np.inf
    cards = np.arange(types) % 2
    idle_w = rng.uniform(2, 40, types)
    return Problem(
        engines=tuple(f"type{k}" for k in range(types)),
        boxes=("server", "large"),
        box_of=rng.integers(0, 2, types),
        takes=np.stack([np.where(cards == 1, 1, 4), cards], axis=1),
        room=np.array([[8, 2], [16, 4]]),
        slots=rng.integers(1, 3, types),
        seconds=np.full(buckets, 3600.0),
        work_s=work,
        per_hour=rng.uniform(0.02, 0.6, types) + idle_w * 3e-4,
        box_per_hour=np.array([0.1, 0.15]),
        per_busy_s=rng.uniform(5, 300, types) / 1000 * 0.3 / 3600,
        purchase=rng.uniform(0, 8000, types),
        box_purchase=np.array([2500.0, 4000.0]),
        watts=np.stack([idle_w, idle_w + rng.uniform(5, 300, types)], axis=1),
        box_watts=np.array([60.0, 90.0]),
        rack_units=np.array([1.0, 2.0]),
        count_max=np.full(types, most),
        box_max=np.full(2, 4096),
        purchase_max=float(rng.choice([np.inf, 60_000.0])),
        per_box_w=float(rng.choice([np.inf, 800.0])),
    )


OFFERS = Offers(
    version=1,
    currency="EUR",
    boxes={"server": Box(cores=32, cards=4, price_purchase=4000.0, idle_w=80.0, rack_units=2.0)},
    engines={
        "cpu": Offer(kind="cpu", box="server", cores=8, price_purchase=0.0, idle_w=8.0, active_w=60.0),
        "gpu": Offer(kind="gpu", box="server", cards=1, price_purchase=2500.0, idle_w=16.0, active_w=72.0),
        "npu": Offer(kind="npu", box="server", cards=1, price_purchase=300.0, idle_w=1.0, active_w=8.0),
    },
)
BUDGET = Budget(
    slo=Slo(p99_ms=60.0, error_rate=0.001),
    power=Power(tariff_per_kwh=0.25, cooling_factor=1.4),
    money=Money(currency="EUR", horizon_years=3),
)
TIMES_MS = {"cpu": {1: 9.0}, "gpu": {1: 3.0, 4: 4.5, 16: 12.0}, "npu": {1: 4.0}}


def pipeline() -> Pipeline:
    """One model that runs anywhere."""
    return check(
        Pipeline(
            version=1,
            pipeline="specimen",
            engines={name: Engine(backend="twin") for name in TIMES_MS},
            stages=[Stage(name="classify", variant="classify", engines=list(TIMES_MS))],
            deadline_ms=1000.0,
        ),
        "specimen",
    )


def latency() -> LatencyTable:
    """Times of the three."""
    return LatencyTable(
        entries=[
            Entry(
                variant="classify",
                engine=name,
                batch=rows,
                latency_ms=Milliseconds(p50=ms, p90=1.1 * ms, p99=1.3 * ms),
                basis="modelled",
            )
            for name, known in TIMES_MS.items()
            for rows, ms in known.items()
        ]
    )


def judged(trace: pl.DataFrame, budget: Budget = BUDGET) -> tuple[Problem, Judge]:
    """The three types on a trace, ready to be searched."""
    setting = set_up(trace, pipeline(), latency(), OFFERS, budget)
    judge = Judge(setting.lowered.problem, setting.design, setting.traffic, budget.slo, POLICIES, seed=0)
    return setting.lowered.problem, judge
