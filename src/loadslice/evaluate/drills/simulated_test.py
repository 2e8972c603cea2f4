"""Drills on a pipeline that keeps its promises, and on one that was made to break each."""

import msgspec
import pytest

from loadslice.evaluate.drills import simulated
from loadslice.evaluate.drills.stage import Ground, NotApplicableError, ground
from loadslice.spec.drill import DRILLS
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Breaker, ClassLimits, Engine, Failover, Pipeline, Queue, Stage, check

TIMES = {("prep", "host"): 2.0, ("det", "npu"): 10.0, ("det", "cpu"): 30.0, ("post", "host"): 1.0}
TABLE = LatencyTable(
    entries=[
        Entry(variant=stage, engine=engine, batch=1, latency_ms=Milliseconds(p50=ms, p90=1.1 * ms, p99=1.2 * ms),
              basis="modelled")
        for (stage, engine), ms in TIMES.items()
    ]
)  # fmt: skip

PIPELINE = check(
    Pipeline(
        version=1,
        pipeline="p",
        deadline_ms=1000.0,
        engines={
            "npu": Engine(backend="twin", queue=Queue(limit=32, overflow_at=16)),
            "cpu": Engine(backend="twin", queue=Queue(limit=32)),
            "host": Engine(backend="python", max_inflight=2),
        },
        stages=[
            Stage(name="prep", variant="prep", engine="host"),
            Stage(
                name="det", variant="det", engines=["npu", "cpu"], timeout_ms=800.0,
                failover=Failover(to="cpu", share=0.3), breaker=Breaker(open_ms=1000.0, min_calls=10, window=20),
            ),
            Stage(name="post", variant="post", engine="host"),
        ],
    ),
    "test",
)  # fmt: skip


@pytest.fixture(scope="module")
def field() -> Ground:
    return ground(PIPELINE, TABLE, 1)


def test_capacity_is_that_of_the_slowest_engine(field: Ground) -> None:
    assert field.capacity_per_s == pytest.approx(100.0, rel=0.05)
    assert field.busiest == "npu"
    assert field.lone_ms == pytest.approx(13.0, rel=0.1)


@pytest.mark.parametrize("name", sorted(set(simulated.SIMULATED) - {"low-class-burst"}))
def test_a_sound_pipeline_keeps_the_promise(field: Ground, name: str) -> None:
    found = simulated.SIMULATED[name](field)
    assert found.held is True, found.figure
    assert found.basis == "simulated"
    assert found.seed == 1
    assert found.promise == next(drill.promise for drill in DRILLS if drill.name == name)


def test_the_avalanche_has_teeth(field: Ground) -> None:
    found = simulated.avalanche(field)
    assert float(found.figures["naive_after_share"] or 0) < 0.2
    assert float(found.figures["goodput_after_share"] or 0) >= 0.95


def test_the_flapping_breaker_really_changed(field: Ground) -> None:
    assert float(simulated.flapping(field).figures["transitions_per_minute"] or 0) > 1


def test_a_floor_for_the_lowest_class_lets_it_crowd_out_the_top_one() -> None:
    generous = msgspec.structs.replace(PIPELINE, deadline_ms=100.0, classes={"sheddable": ClassLimits(floor=0.95)})
    found = simulated.low_class_burst(ground(generous, TABLE, 1))
    assert float(found.figures["top_class_share"] or 1) < 0.9
    assert not found.held


def test_one_seed_gives_one_result(field: Ground) -> None:
    assert simulated.backup_full(field) == simulated.backup_full(field)


@pytest.mark.parametrize("name", ["overflow", "backup-full", "flapping", "stage-full"])
def test_what_the_pipeline_has_not_is_not_applicable(name: str) -> None:
    bare = check(
        Pipeline(
            version=1, pipeline="p", engines={"npu": Engine(backend="twin")},
            stages=[Stage(name="det", variant="det", engine="npu")],
        ),
        "test",
    )  # fmt: skip
    with pytest.raises(NotApplicableError):
        simulated.SIMULATED[name](ground(bare, TABLE, 1))
