import numpy as np
import polars as pl

from loadslice.workload import sample
from loadslice.workload.trace import Trace


def trace(rows: int = 5000) -> Trace:
    rng = np.random.default_rng(0)
    gaps = rng.exponential(10.0, rows)
    gaps[2000:2100] = 0.001
    frame = pl.DataFrame(
        {
            "arrival_s": np.cumsum(gaps),
            "tokens_in": rng.lognormal(5, 1, rows).astype(np.int32),
            "tokens_out": rng.lognormal(4, 1, rows).astype(np.int32),
        }
    )
    return Trace(frame, {"source": "x"})


def test_the_longest_the_most_complex_and_the_burst_are_kept() -> None:
    whole = trace()
    found = sample.representative(whole, 200, seed=1)
    assert found.frame.height == 200
    assert found.frame["tokens_out"].max() == whole.frame["tokens_out"].max()
    assert found.frame["tokens_in"].max() == whole.frame["tokens_in"].max()
    burst = set(whole.frame["arrival_s"][2000:2079].to_list())
    assert burst <= set(found.frame["arrival_s"].to_list())
    assert (found.frame["arrival_s"].diff().drop_nulls() >= 0).all()
    assert "its rates are not the service's" in found.notes[-1]


def test_the_fair_draw_keeps_the_middle_where_it_is_and_every_part_of_the_day() -> None:
    whole = trace()
    found = sample.representative(whole, 400, seed=1).frame
    drawn = found.filter(
        ~pl.col("arrival_s").is_between(whole.frame["arrival_s"][2000], whole.frame["arrival_s"][2100])
    )
    assert 0.7 < drawn["tokens_in"].median() / whole.frame["tokens_in"].median() < 1.6
    hours = (whole.frame["arrival_s"] // 3600).n_unique()
    assert (found["arrival_s"] // 3600).n_unique() == hours


def test_no_request_is_taken_twice_and_the_seed_decides() -> None:
    whole = trace()
    first, again, other = (sample.representative(whole, 300, seed).frame["arrival_s"].to_list() for seed in (1, 1, 2))
    assert len(set(first)) == 300
    assert first == again
    assert first != other


def test_small_samples_and_short_traces_are_no_trouble() -> None:
    whole = trace(50)
    for n in (1, 2, 3, 49, 50, 99):
        assert sample.representative(whole, n, 0).frame.height == min(n, 50)
    bare = Trace(whole.frame.select("arrival_s"), {})
    assert sample.representative(bare, 10, 0).frame.height == 10
