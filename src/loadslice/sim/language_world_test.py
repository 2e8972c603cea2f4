"""Simulations on a profile: what it says of the world has the effect it should have."""

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.sim import language_layout as layout
from loadslice.sim.language import LanguageRun, run_language, summarise
from loadslice.sim.language_compare import compare, intervals
from loadslice.sim.language_test import COST, fleet, prompts
from loadslice.sim.language_world import fault_rows, fit_context, prefix_capacity, surroundings
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Fault
from loadslice.spec.files import Stamp
from loadslice.spec.language_profile import (
    NOISE_AT,
    NOISE_POINTS,
    SHAPE_ROWS,
    EngineTimes,
    HandoverTime,
    LanguageProfile,
    ServingTime,
)
from loadslice.spec.outcome import Outcome


def times(**changes: object) -> EngineTimes:
    plain = EngineTimes(
        backend="none",
        basis="measured",
        source="made up",
        threads=1,
        cost=COST,
        shape=[1.0] * len(SHAPE_ROWS),
        noise=[],
        fit_error_p50=None,
        fit_error_max=None,
        adopt_us_per_token=None,
        kv_bytes_per_token=None,
        memory_bytes=None,
        steps=[],
    )
    return msgspec.structs.replace(plain, **changes)


def profile(**changes: object) -> LanguageProfile:
    plain = LanguageProfile(
        stamp=Stamp(schema="language-profile/1", loadslice="0"),
        language="x",
        model_sha256="",
        context=4096,
        engines={"prefill": times(), "decode": times()},
        handovers=[
            HandoverTime(from_="prefill", to="decode", base_ms=2, token_us=10, relative_sd=0, of_prefill=None, n=1)
        ],
        beside={},
        serving=None,
        load_average_1m=None,
        load_average_1m_after=None,
    )
    return msgspec.structs.replace(plain, **changes)


def first_ms(trace: pl.DataFrame, known: LanguageProfile, policy: str = "always-remote") -> float:
    (result,) = compare(trace, surroundings(fleet(policy), known), [policy], seed=0, replicas=1)  # type: ignore[list-item]
    assert result.simulation.first_token_ms.p50 is not None
    return result.simulation.first_token_ms.p50


ONE = prompts((0, 100, 4))


def test_a_profile_stands_before_the_costs_of_the_file_and_the_way_to_the_server_is_added() -> None:
    assert first_ms(ONE, profile()) == pytest.approx(110)
    slow = times(cost=msgspec.structs.replace(COST, step_ms=30))
    assert first_ms(ONE, profile(engines={"prefill": slow, "decode": times()})) == pytest.approx(130)
    served = ServingTime(request_ms=7, seconds=1, requests=1)
    assert first_ms(ONE, profile(serving=served)) == pytest.approx(117)


def test_shape_and_noise_multiply_steps() -> None:
    shape = [2.0, *[1.0] * (len(SHAPE_ROWS) - 1)]
    assert first_ms(ONE, profile(engines={"prefill": times(shape=shape), "decode": times()})) == pytest.approx(220)
    noise = [1.5] * NOISE_POINTS
    assert first_ms(ONE, profile(engines={"prefill": times(noise=noise), "decode": times()})) == pytest.approx(165)


def test_company_slows_those_who_have_it() -> None:
    # The second prompt is computed while the first one's answer is decoded.
    trace = prompts((0, 10, 400), (1, 400, 2))
    alone = summarise_whole(trace, profile())
    beside = summarise_whole(trace, profile(beside={"prefill": {"decode": 0.5}}))
    assert beside == pytest.approx(alone + 0.5 * 410, abs=15)


def test_a_step_is_slowed_only_while_its_neighbour_computes() -> None:
    # A prompt of 1010 ms beside an answer that ends after 300 ms of it, at half its pace until then.
    trace = prompts((0, 10, 2), (0.5, 1000, 2))
    company = profile(beside={"prefill": {"decode": 1.0}})
    kept = fault_rows([Fault(at_s=0.0, for_s=10, engine="decode", kind="slow", factor=78.0)], fleet())
    around = surroundings(fleet("always-remote"), company)
    run = run_language(trace, around.language, around.costs, shape=around.shape, beside=around.beside, faults=kept)
    decoded_ms = run.record.answers[0, layout.A_END_NS] / 1e6
    first_ms = run.record.answers[1, layout.A_FIRST_NS] / 1e6
    assert 700 < decoded_ms < 1000
    # Of the time until the neighbour ends, half is lost.
    assert first_ms == pytest.approx(500 + 1010 + (decoded_ms - 500) / 2, abs=0.01)


def test_an_engine_that_stands_still_is_given_up_or_moves_again_with_the_step_that_it_had() -> None:
    def run_for(for_s: float) -> LanguageRun:
        faults = fault_rows([Fault(at_s=0.05, for_s=for_s, engine="decode", kind="hang")], fleet(links=False))
        return run_language(prompts((0, 90, 10), (9.2, 90, 10)), fleet(links=False), faults=faults)

    # A prompt of 100 ms, half of it computed when the engine stops, and nine tokens of 11 ms.
    moved = run_for(2).record.answers
    assert moved[:, layout.A_END_NS] / 1e6 == pytest.approx([100 + 9 * 11 + 2000, 9200 + 100 + 9 * 11], abs=0.1)
    # Given up after five seconds, with nobody else to go to; back when it moves again.
    lost = run_for(9).record.answers
    assert lost[:, layout.A_OUTCOME].tolist() == [Outcome.FAILED, Outcome.COMPLETED]
    assert lost[:, layout.A_END_NS] / 1e6 == pytest.approx([5000, 9200 + 100 + 9 * 11], abs=0.1)


def summarise_whole(trace: pl.DataFrame, known: LanguageProfile) -> float:
    (result,) = compare(trace, surroundings(fleet(), known), ["always-remote"], seed=0, replicas=1)
    assert result.simulation.first_token_ms.p99 is not None
    return result.simulation.first_token_ms.p99


def test_an_import_waits_for_the_step_that_runs_and_holds_up_the_next() -> None:
    # Prompts of 100 tokens take 110 ms, the hand-over's halves 1.5 ms each, and another sequence decodes meanwhile.
    trace = prompts((0, 10, 60), (0.2, 100, 3))
    run = run_language(trace, fleet())
    first, end = run.record.answers[1, [layout.A_FIRST_NS, layout.A_END_NS]] / 1e6
    assert first == pytest.approx(310)
    # Up to one step of 11 ms until its KV is read, one that has begun by then, and its own two of 12 ms.
    assert 2 * 12 + 3 < end - first < 2 * 12 + 3 + 2 * 11
    assert summarise(run, "t").outcomes["completed"] == 2


def test_tokens_are_scaled_then_cut_and_both_is_told() -> None:
    trace = prompts((0, 1000, 10), (1, 100, 300), (2, 10, 10)).with_columns(
        blocks=pl.Series([list(range(10)), [1], [2]])
    )
    fitted = fit_context(trace, 200)
    assert fitted.trace["tokens_in"].to_list() == [190, 100, 10]
    assert fitted.trace["tokens_out"].to_list() == [10, 100, 10]
    assert (fitted.prompts_cut, fitted.answers_cut) == (1, 1)
    assert fitted.trace["blocks"].list.len().to_list() == [2, 1, 1]
    small = fit_context(trace, 200, 0.1)
    assert small.trace["tokens_in"].to_list() == [100, 10, 1]
    assert (small.prompts_cut, small.answers_cut) == (0, 0)


def test_faults_are_lowered_in_time_order_and_unknown_kinds_refused() -> None:
    rows = fault_rows(
        [
            Fault(at_s=2, for_s=3, engine="decode", kind="slow", factor=2),
            Fault(at_s=1, for_s=2, engine="prefill", kind="down"),
        ],
        fleet(),
    )
    assert rows[:, layout.X_AT_NS].tolist() == [1e9, 2e9, 3e9, 5e9]
    assert rows[:, layout.X_KIND].tolist() == [layout.FAULT_DOWN, layout.FAULT_SLOW, layout.FAULT_UP, layout.FAULT_SLOW]
    with pytest.raises(InputError, match="wrong"):
        fault_rows([Fault(at_s=2, for_s=3, engine="decode", kind="wrong")], fleet())


def test_routers_meet_the_same_luck_and_runs_with_the_same_seed_are_the_same() -> None:
    noise = np.interp(NOISE_AT, [0, 1], [0.5, 1.5]).tolist()
    around = surroundings(fleet(), profile(engines={"prefill": times(noise=noise), "decode": times(noise=noise)}))
    trace = prompts(*[(0.2 * at, 50, 8) for at in range(60)])
    one, two = (compare(trace, around, ["always-local", "cost"], seed=3, replicas=3) for _ in range(2))
    assert one == two
    assert one[0].interval_95 is not None
    low, high = one[0].interval_95["first_token_ms.p50"]
    assert low < high
    assert set(one[0].classes) == {"critical"}
    assert one[0].classes["critical"].completed == 60


def test_an_interval_of_equal_runs_is_a_point() -> None:
    assert intervals([{"x": 2.0}, {"x": 2.0}]) == {"x": (2.0, 2.0)}


def test_prefix_caches_are_where_prompts_are_computed() -> None:
    assert prefix_capacity(fleet(), 64) == {"decode": 64, "prefill": 64}
    assert prefix_capacity(fleet(), None) == {"decode": 0, "prefill": 0}
