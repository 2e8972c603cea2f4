"""Portraits of tokens against what can be counted by hand or by brute force."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.workload.tokens import BLOCK, findings, held, hits, lines, load_of


def trace(*rows: tuple[float, int, int], **more: pl.Series) -> pl.DataFrame:
    frame = pl.DataFrame(
        rows, schema={"arrival_s": pl.Float64, "tokens_in": pl.Int32, "tokens_out": pl.Int32}, orient="row"
    )
    return frame.with_columns(**more)


def test_a_prompt_holds_its_blocks_from_arrival_until_its_last_token() -> None:
    # 40 tokens are two blocks; the answer's 25th token needs a third.
    kv = held(np.array([0.0]), np.array([40]), np.array([60]), 100.0)
    assert kv.tokens_max == 4 * BLOCK  # the answer's 57th token needs a fourth
    assert kv.tokens_p50 == 3 * BLOCK  # two blocks for 2.5 s of 6
    assert kv.tokens_mean == pytest.approx((2 * 2.5 + 3 * 3.2 + 4 * 0.3) / 6 * BLOCK)
    assert kv.requests_max == 1


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=6),
)
@settings(deadline=None, max_examples=50)
def test_held_blocks_are_those_that_counting_every_millisecond_finds(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows)
    at, prompt, answer = (np.array(column) for column in zip(*rows, strict=True))
    kv = held(at.astype(float), prompt, answer, 1000.0)
    most = 0
    for half in range(2 * 200):
        now_s = half / 2 + 0.25
        inside = [-(-(one + int(now_s - began)) // BLOCK) for began, one, more in rows if began <= now_s < began + more]
        most = max(most, sum(inside))
    assert kv.tokens_max == most * BLOCK


def test_prefixes_are_whole_leading_blocks_and_never_a_prompts_last_token() -> None:
    chains, prompt = [[1, 2], [1, 3], [1, 2], [4, 2]], np.array([20, 20, 20, 20])
    assert hits(chains, prompt, 10, 100) == (10 + 19, 2)
    assert hits(chains, prompt, 10, 0) == (0, 0)


def test_a_small_cache_drops_what_was_used_least_recently() -> None:
    chains, prompt = [[1], [2], [1], [3], [1], [2]], np.array([11] * 6)
    assert hits(chains, prompt, 10, 2) == (20, 2)


def test_caches_find_more_the_larger_they_are_and_all_that_can_be_found_in_the_end() -> None:
    draws = np.random.default_rng(3)
    blocks = pl.Series([[int(one) for one in draws.integers(0, 3, 4).cumsum()] for _ in range(200)])
    load = load_of(trace(*[(float(at), 40, 5) for at in range(200)], blocks=blocks), cache_tokens=10**9)
    assert load is not None
    assert load.prefixes is not None
    shares = [one.hit_share for one in load.prefixes.caches]
    assert shares == sorted(shares)
    assert shares[-1] == load.prefixes.ideal_share > 0.2
    assert "prefix_reuse" in {finding.code for finding in findings(load)}


def test_a_trace_without_tokens_has_no_such_part() -> None:
    assert load_of(pl.DataFrame({"arrival_s": [0.0, 1.0]})) is None


def test_what_is_the_work_is_said() -> None:
    heavy = load_of(trace((0, 4000, 10), (1, 4000, 10)))
    light = load_of(trace((0, 40, 400), (1, 40, 400)))
    assert heavy is not None
    assert light is not None
    assert next(finding.code for finding in findings(heavy)) == "prefill_heavy"
    assert next(finding.code for finding in findings(light)) == "decode_heavy"
    assert any("KV held" in line for line in lines(heavy))
