import numpy as np
import polars as pl
import pytest

from loadslice.evaluate.missed import missed
from loadslice.sim import simulate
from loadslice.spec.latency import MISSES_MAX, Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Stage

PIPELINE = Pipeline(
    version=1, pipeline="p", engines={"e": Engine(backend="twin")}, stages=[Stage(name="s", variant="v", engine="e")]
)


def table(mean_ms: float = 20.0) -> LatencyTable:
    times = Milliseconds(samples=[mean_ms * share for share in (0.6, 0.9, 1.0, 1.1, 1.4)])
    return LatencyTable(entries=[Entry(variant="v", engine="e", batch=1, latency_ms=times, basis="measured")])


def sent(requests: int = 150) -> pl.DataFrame:
    return pl.DataFrame({"arrival_s": np.cumsum(np.random.default_rng(1).exponential(0.03, requests))})


def served_ms(seed: int, mean_ms: float = 20.0) -> np.ndarray:
    """What a machine that is as the table says, or slower, would have answered in."""
    return simulate.latency_ms(simulate.run(simulate.prepare(sent(), PIPELINE, table(mean_ms)), seed=seed))


def test_a_rehearsal_that_is_one_more_run_of_the_model_lies_as_far_off_as_runs_do() -> None:
    squares = [missed(sent(), served_ms(1000 + number), PIPELINE, table()) for number in range(12)]
    assert 0.6 < np.sqrt(np.mean([one for one in squares if one is not None])) < 1.5


def test_a_rehearsal_that_queued_as_the_model_does_not_lies_further_off_but_counts_no_more_than_the_most() -> None:
    (apart, far) = (missed(sent(), served_ms(1000, mean_ms), PIPELINE, table()) for mean_ms in (24.0, 60.0))
    assert apart is not None
    assert apart > 2.0
    assert far == pytest.approx(MISSES_MAX**2)


def test_requests_that_warmed_up_are_left_out_of_the_prediction_too() -> None:
    together = pl.DataFrame({"arrival_s": np.zeros(40)})  # forty at once wait for each other
    both = pl.concat([together, sent().with_columns(pl.col("arrival_s") + 5.0)])
    kept, all_ = (missed(both, served_ms(1000), PIPELINE, table(), skip=skip) for skip in (40, 0))
    assert kept is not None
    assert all_ is not None
    assert kept < 4.0 < 10.0 < all_


def test_of_a_handful_of_requests_nothing_is_said() -> None:
    assert missed(sent(), np.full(5, 20.0), PIPELINE, table()) is None
