import numpy as np
import polars as pl
import pytest

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp
from loadslice.spec.portrait import Portrait
from loadslice.workload import synth
from loadslice.workload.portrait import SCHEMA, portray
from loadslice.workload.trace import Trace

STAMP = Stamp(schema=SCHEMA, loadslice="0")
START = "2024-03-04T08:00:00+00:00"


def portrait(gaps: np.ndarray, start: str | None = START) -> Portrait:
    rng = np.random.default_rng(5)
    length = rng.lognormal(5, 1, len(gaps))
    frame = pl.DataFrame(
        {
            "arrival_s": np.cumsum(gaps),
            "tokens_in": length.astype(np.int32),
            "tokens_out": (length * rng.lognormal(0, 0.5, len(gaps))).astype(np.int32),
            "class": rng.choice(["critical", "sheddable"], len(gaps), p=[0.8, 0.2]),
        }
    )
    return portray(Trace(frame, {} if start is None else {"start_utc": start}), "x", STAMP)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_a_drawn_trace_has_the_rate_the_burstiness_and_the_sizes(cv: float) -> None:
    rng = np.random.default_rng(1)
    source = portrait(rng.gamma(1 / cv**2, cv**2 / 5, 50_000))
    drawn = portray(synth.draw(source, hours=6, scale=2.0, seed=3), "y", STAMP)
    assert drawn.rate_per_s.mean == pytest.approx(2 * source.rate_per_s.mean, rel=0.05)
    assert drawn.arrival.interarrival_cv == pytest.approx(cv, rel=0.1)
    assert drawn.tokens_in.p50 == pytest.approx(source.tokens_in.p50, rel=0.05)
    assert drawn.tokens_in.p99 == pytest.approx(source.tokens_in.p99, rel=0.1)
    pair = "tokens_in,tokens_out"
    assert drawn.size_rank_correlation[pair] == pytest.approx(source.size_rank_correlation[pair], abs=0.03)
    assert drawn.class_share["critical"] == pytest.approx(0.8, abs=0.02)
    assert drawn.start_utc.startswith("2024-03-04T08:00")


def test_a_drawn_day_follows_the_hour_curve() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.random(200_000)) * 86_400
    times = times[rng.random(len(times)) < 0.55 + 0.45 * np.sin(2 * np.pi * times / 86_400)]
    source = portrait(np.diff(times, prepend=0.0))
    drawn = portray(synth.draw(source, hours=24, scale=1.0, seed=0), "y", STAMP)
    then, now = (
        np.array([np.nan if rate is None else rate for rate in found.arrival.hour_of_week]) for found in (source, drawn)
    )
    both = ~np.isnan(then) & ~np.isnan(now) & (then > 0.1)
    assert both.sum() >= 20
    assert np.abs(now[both] / then[both] - 1).max() < 0.2


def test_the_same_seed_draws_the_same_trace() -> None:
    source = portrait(np.ones(100))
    first, again, other = (synth.draw(source, 1, 1.0, seed).frame for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


def test_a_portrait_without_a_wall_clock_draws_a_trace_without_one() -> None:
    assert "start_utc" not in synth.draw(portrait(np.ones(100), None), 1, 1.0, 0).meta


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="Change --hours or --scale"):
        synth.draw(portrait(np.ones(100)), 24, 1e9, 0)
    with pytest.raises(InputError, match="no rate"):
        synth.draw(portrait(np.ones(1)), 24, 1.0, 0)
