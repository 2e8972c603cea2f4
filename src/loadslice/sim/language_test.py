"""Simulated language models against what can be worked out by hand."""

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy.tokens import columns as c
from loadslice.sim import language_layout as layout
from loadslice.sim.language import LanguageRun, gap_tail, run_language, summarise
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language, LanguageEngine, Link, Router, StepCost, check_language

COST = StepCost(step_ms=10, token_us=1000, row_us=1000)


def fleet(policy: str = "always-remote", *, links: bool = True, **changes: object) -> Language:
    engines = {"decode": LanguageEngine(backend="none", cost=COST, **changes)}  # type: ignore[arg-type]
    if links:
        engines["prefill"] = LanguageEngine(backend="none", roles=("prefill",), seats=1, step_tokens=4096, cost=COST)
    return check_language(
        Language(
            version=1,
            language="x",
            model="none",
            engines=engines,
            links=[Link(from_="prefill", to="decode", base_ms=2, token_us=10)] if links else [],
            router=Router(policy=policy),  # type: ignore[arg-type]
            context=4096,
        ),
        "test",
    )


def prompts(*rows: tuple[float, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["arrival_s", "tokens_in", "tokens_out"], orient="row")


def times_ms(run: LanguageRun, column: int) -> list[float]:
    return [float(one) for one in run.record.answers[:, column] / 1e6]


def test_one_prompt_alone_takes_a_step_for_its_prompt_and_one_for_every_further_token() -> None:
    run = run_language(prompts((0, 100, 4)), fleet(links=False))
    # 10 + 100 * 1 ms, then three steps of 10 + 1 ms.
    assert times_ms(run, layout.A_FIRST_NS) == [110.0]
    assert times_ms(run, layout.A_END_NS) == [110.0 + 3 * 11.0]


def test_a_handed_over_prompt_has_its_first_token_from_the_prefilling_engine() -> None:
    run = run_language(prompts((0, 100, 3)), fleet())
    assert times_ms(run, layout.A_FIRST_NS) == [110.0]
    # The hand-over takes 2 + 100 * 0.01 ms and stands between the first token and the second.
    assert times_ms(run, layout.A_END_NS) == [110.0 + 3.0 + 2 * 11.0]
    assert summarise(run, "test").handovers == 1


def test_a_long_prompt_stalls_those_who_decode_when_local_and_not_when_remote() -> None:
    trace = prompts((0, 10, 40), (0.1, 400, 2))
    gaps = {
        policy: summarise(run_language(trace, fleet(policy)), "test").between_tokens_ms
        for policy in ("always-local", "always-remote")
    }
    assert gaps["always-remote"].p99 is not None
    assert gaps["always-remote"].p99 < 20
    assert gaps["always-local"].p99 is not None
    assert gaps["always-local"].p99 > 200  # one of forty takes 411


def test_chunks_and_a_limit_on_steps_bound_what_a_long_prompt_does_to_others() -> None:
    trace = prompts((0, 10, 60), (0.1, 400, 2))
    run = run_language(trace, fleet(links=False, chunk=64))
    chunked = summarise(run, "test").between_tokens_ms.p99
    limited = summarise(run_language(trace, fleet(links=False, step_ms_max=40)), "test").between_tokens_ms.p99
    assert chunked is not None
    assert 60 < chunked < 90
    assert limited is not None
    assert limited < 45


def test_a_prefix_that_is_cached_is_not_computed_again() -> None:
    trace = prompts((0, 1024, 2), (5, 1024, 2)).with_columns(blocks=pl.Series([[1, 2], [1, 3]]))
    engine = fleet(links=False, step_tokens=4096)
    cold = run_language(trace, engine)
    warm = run_language(trace, engine, prefix_tokens={"decode": 4096})
    first = [b - a for a, b in zip((0, 5000), times_ms(cold, layout.A_FIRST_NS), strict=True)]
    assert first == [1034.0, 1034.0]
    assert times_ms(warm, layout.A_FIRST_NS)[1] - 5000 == 10.0 + 512
    assert summarise(warm, "test").prefix_hit_share == 0.25


def test_a_cache_drops_what_was_used_least_recently() -> None:
    rows = [(float(10 * at), 1024, 1) for at in range(4)]
    trace = prompts(*rows).with_columns(blocks=pl.Series([[1, 2], [3, 4], [1, 2], [3, 4]]))
    engine = fleet(links=False, step_tokens=4096)
    assert summarise(run_language(trace, engine, prefix_tokens={"decode": 1024}), "t").prefix_hit_share == 0
    all_kept = summarise(run_language(trace, engine, prefix_tokens={"decode": 2048}), "t").prefix_hit_share
    assert all_kept == pytest.approx(2 * 1023 / 4096)


def test_an_engine_lost_in_the_middle_loses_no_request() -> None:
    faults = np.array([[150_000_000, 0, layout.FAULT_DOWN, 0], [400_000_000, 0, layout.FAULT_UP, 0]], np.int64)
    two = fleet(links=False)
    two = check_language(
        Language(
            version=1,
            language="x",
            model="none",
            context=4096,
            engines={"a": two.engines["decode"], "b": two.engines["decode"]},
        ),
        "test",
    )
    run = run_language(prompts(*[(0.01 * at, 50, 20) for at in range(20)]), two, faults=faults)
    said = summarise(run, "test")
    assert said.outcomes["completed"] == 20
    assert said.fallbacks > 0


def test_waiting_for_one_seat_is_first_come_first_served_whichever_way_a_prompt_goes() -> None:
    # Long prompts go to the prefilling engine, short ones stay: neither may starve the other of the one seat.
    rows = [(0.001 * at, 300 if at % 2 else 10, 5) for at in range(20)]
    run = run_language(prompts(*rows), fleet("length", seats=1))
    first = run.record.answers[:, layout.A_FIRST_NS]
    order = np.argsort(first, kind="stable")
    assert int(np.abs(order - np.arange(20)).max()) <= 4


def test_overload_diverges() -> None:
    rows = [(0.05 * at, 100, 20) for at in range(2000)]
    wide = fleet(links=False, queue=10_000, seats=4)
    said = summarise(run_language(prompts(*rows), wide), "test")
    assert said.first_token_ms.p99 is not None
    assert said.first_token_ms.p99 > 10_000 or said.outcomes["rejected"] > 0


def test_a_trace_without_tokens_is_refused_with_what_reads_one() -> None:
    with pytest.raises(InputError, match="azure-llm"):
        run_language(pl.DataFrame({"arrival_s": [0.0]}), fleet(links=False))


def test_prompts_are_computed_beside_answers_only_as_long_as_few_tokens_come_late_for_it() -> None:
    # Prompts of a third of a second come faster than one engine computes them, beside answers that go on.
    rows = [(0.25 * at, 300, 60) for at in range(400)]

    def gaps_p99_ms(policy: str, late_share: float) -> tuple[float | None, int]:
        router = Router(policy=policy, penalty=0, late_share=late_share)  # type: ignore[arg-type]
        language = msgspec.structs.replace(fleet(seats=64, chunk=64), router=router)
        said = summarise(run_language(prompts(*rows), language), "test")
        return said.between_tokens_ms.p99, said.routes["local_faster"]

    split_ms, _ = gaps_p99_ms("always-remote", 0.0)
    free_ms, free = gaps_p99_ms("cost", 1.0)
    spared_ms, spared = gaps_p99_ms("cost", 0.002)
    assert split_ms is not None
    assert free_ms is not None
    assert spared_ms is not None
    assert free_ms > 2 * split_ms
    assert spared_ms < 1.05 * split_ms
    assert 0 < spared < free


def test_percentiles_between_tokens_lie_between_values_as_numpy_has_them() -> None:
    gaps_ms = np.exp(np.random.default_rng(5).normal(3, 1, 37))
    counts = np.zeros(layout.GAP_BINS, np.int64)
    for gap_ms in gaps_ms:
        counts[int(np.log(gap_ms * 1e3) * layout.GAP_BINS_PER_E)] += 1
    said = gap_tail(counts)
    assert [said.p50, said.p95, said.p99] == pytest.approx(np.percentile(gaps_ms, [50, 95, 99]).tolist(), rel=0.01)


def test_the_desk_may_be_told_other_costs_than_steps_have() -> None:
    slow = StepCost(step_ms=100, token_us=10_000, row_us=10_000)
    run = run_language(prompts((0, 100, 1)), fleet(links=False), told={"decode": slow})
    assert times_ms(run, layout.A_FIRST_NS) == [110.0]
    assert run.tables.engines[0, c.E_STEP_NS] == 100_000_000


def test_the_first_step_after_a_pause_is_longer() -> None:
    run = run_language(
        prompts((0, 100, 2), (0.115, 100, 1), (5, 100, 1)), fleet(links=False), cold=np.array([7_000_000])
    )
    # Who comes meanwhile shares the next step, of 111 ms, whose caches are warm; those of seconds later are not.
    assert times_ms(run, layout.A_FIRST_NS) == [117.0, 117.0 + 111.0, 5117.0]


def test_a_desk_goes_on_with_what_it_has_learned() -> None:
    fast = run_language(prompts((0, 100, 4)), fleet(links=False))
    known = fast.state.engines.copy()
    known[:, c.N_SCALE_PPM] = 3_000_000
    again = run_language(prompts((0, 100, 1)), fleet(links=False), learned=known)
    assert again.state.engines[0, c.N_SCALE_PPM] == pytest.approx(3_000_000 * 7 / 8 + 1_000_000 / 8, rel=0.01)
    assert again.state.engines[0, c.N_STEPS] == 1


def test_a_step_with_other_tokens_than_the_one_before_is_longer() -> None:
    run = run_language(prompts((0, 100, 4), (0.2, 5, 1)), fleet(links=False), reshape=np.array([7_000_000]))
    # A prompt of 110 ms, 7 for the first shape; a first step of one token, 7 again; two more as they are.
    assert times_ms(run, layout.A_END_NS)[0] == 117.0 + 18.0 + 2 * 11.0
    assert times_ms(run, layout.A_FIRST_NS)[1] == 200.0 + 15.0 + 7.0


def test_hand_overs_are_drawn_from_their_quantiles() -> None:
    twice = run_language(prompts((0, 100, 2)), fleet(), handover_noise=np.array([2.0, 2.0]))
    assert times_ms(twice, layout.A_END_NS) == [110.0 + 6.0 + 11.0]


def test_the_desk_may_be_told_other_company_than_there_is() -> None:
    told = {"decode": {"prefill": 0.5}, "another": {"decode": 9.0}}
    run = run_language(prompts((0, 100, 2)), fleet(), told_beside=told)
    assert run.tables.links[:, :, c.K_BESIDE_PPM].tolist() == [[0, 500_000], [0, 0]]
    assert times_ms(run, layout.A_END_NS) == [110.0 + 3.0 + 11.0]
