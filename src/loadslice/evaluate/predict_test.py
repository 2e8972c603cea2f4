import numpy as np
import polars as pl
import pytest

from loadslice.evaluate.predict import predict
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Stage

PIPELINE = Pipeline(
    version=1, pipeline="p", engines={"e": Engine(backend="twin")}, stages=[Stage(name="s", variant="v", engine="e")]
)


def table(drift: Drift | None) -> LatencyTable:
    times = Milliseconds(samples=[9.0, 10.0, 11.0])
    return LatencyTable(
        entries=[Entry(variant="v", engine="e", batch=1, latency_ms=times, basis="measured")], drift=drift
    )


def test_an_interval_knows_how_far_runs_differ_and_the_figure_stays_that_of_a_typical_one() -> None:
    draw = np.random.default_rng(0)
    stretch = pl.DataFrame({"arrival_s": np.cumsum(draw.exponential(0.04, 200))})
    still = predict(stretch, PIPELINE, table(None), seed=0, replicas=10)
    drifting = predict(
        stretch, PIPELINE, table(Drift(period_ms=1.0, likeness=0.0, between_runs=0.1)), seed=0, replicas=10
    )
    assert drifting.figures == pytest.approx(still.figures)
    wide, narrow = (found.intervals["p50"].high - found.intervals["p50"].low for found in (drifting, still))
    assert wide > 3 * narrow
