import numpy as np
import polars as pl
import pytest

from loadslice.sim import replicas, simulate
from loadslice.sim.model_error import of_draw
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds, ModelError
from loadslice.spec.pipeline import Engine, Pipeline, Stage

PIPELINE = Pipeline(
    version=1,
    pipeline="p",
    engines={"gpu": Engine(backend="twin", active_w=100.0, idle_w=10.0), "cpu": Engine(backend="twin")},
    stages=[Stage(name="a", variant="a", engine="gpu"), Stage(name="b", variant="b", engine="cpu")],
    max_requests=64,
)
TRACE = pl.DataFrame({"arrival_s": np.arange(40) * 0.1})


def table(sd: float | None) -> LatencyTable:
    error = None if sd is None else ModelError(device="g", device_sd=sd, model_sd=0.0, freedom=1000, why="a test")
    basis = "measured" if sd is None else "modelled"
    times = Milliseconds(mean=10.0, family="constant")
    return LatencyTable(
        entries=[
            Entry(variant="a", engine="gpu", batch=1, latency_ms=times, energy_j=1.0, basis=basis, error=error),  # type: ignore[arg-type]
            Entry(variant="b", engine="cpu", batch=1, latency_ms=times, basis="measured"),
        ]
    )


def test_only_the_modelled_engine_differs_and_by_one_factor() -> None:
    prepared = simulate.prepare(TRACE, PIPELINE, table(0.3))
    drawn = of_draw(prepared, table(0.3), seed=5)
    means, drawn_means = prepared.service.scale[..., 0], drawn.service.scale[..., 0]
    factor = drawn_means[0, 0, 0, 0] / means[0, 0, 0, 0]
    assert factor != 1.0
    assert drawn_means[1, 1, 0, 0] == means[1, 1, 0, 0]
    assert drawn.energy.joules[0, 0, 0, 0] == pytest.approx(factor)
    assert of_draw(prepared, table(0.3), seed=5).service.scale[0, 0, 0, 0, 0] == drawn.service.scale[0, 0, 0, 0, 0]


def test_a_measured_table_is_simulated_as_it_is() -> None:
    prepared = simulate.prepare(TRACE, PIPELINE, table(None))
    assert of_draw(prepared, table(None), seed=5) is prepared


def test_the_interval_holds_the_models_error() -> None:
    known, unsure = table(None), table(0.3)
    _, narrow = replicas.run(simulate.prepare(TRACE, PIPELINE, known), seed=0, replicas=12, latency=known)
    run, wide = replicas.run(simulate.prepare(TRACE, PIPELINE, unsure), seed=0, replicas=12, latency=unsure)
    assert run.basis == "simulated on modelled times"
    assert narrow["latency_ms.p50"][1] - narrow["latency_ms.p50"][0] < 0.01
    low, high = wide["latency_ms.p50"]
    # Of 20 ms, 10 may be off by exp(+-0.6) 19 times of 20: 15.5 to 28.2.
    assert 11 < low < 18
    assert 23 < high < 36
