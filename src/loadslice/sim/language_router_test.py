"""The cost router beside a strict split, on engines with cores of their own and on engines that share them."""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.tables import fresh, lower
from loadslice.sim.language import run_language, summarise
from loadslice.sim.language_test import fleet
from loadslice.spec.language import Language, RouterPolicy, crowding, load_language
from loadslice.spec.route import Route

STATED = Path(__file__).parents[3] / "examples" / "chat" / "stated.yaml"


def company(longer: float) -> dict[str, dict[str, float]]:
    return {"prefill": {"decode": longer}, "decode": {"prefill": longer}}


def drawn(rate_per_s: float, seed: int, requests: int = 1500) -> pl.DataFrame:
    """Poisson arrivals, three of ten prompts long."""
    draws = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "arrival_s": np.cumsum(draws.exponential(1 / rate_per_s, requests)),
            "tokens_in": np.where(draws.random(requests) < 0.3, 400, 24),
            "tokens_out": np.full(requests, 32),
        }
    )


@pytest.mark.parametrize("longer", [0.1, 1.0])
@pytest.mark.parametrize("rate_per_s", [1.0, 2.0])
def test_no_figure_is_worse_than_a_strict_splits(longer: float, rate_per_s: float) -> None:
    """First tokens and the longest gaps, whether engines have cores of their own or both have the same two."""
    stated = load_language(STATED)
    if longer == 1.0:  # two threads each, on both cores: six tenths of the time on one
        one = stated.engines["decode"].cost
        assert one is not None
        keys = ("step_ms", "token_us", "row_us", "attend_ns")
        cost = msgspec.structs.replace(one, **{key: 0.6 * getattr(one, key) for key in keys})
        engines = {name: msgspec.structs.replace(engine, cost=cost) for name, engine in stated.engines.items()}
        stated = msgspec.structs.replace(stated, engines=engines)

    def figures(policy: RouterPolicy) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        router = msgspec.structs.replace(stated.router, policy=policy)
        language = msgspec.structs.replace(stated, router=router)
        found = []
        for seed in range(3):
            run = run_language(drawn(rate_per_s, seed), language, seed=seed, beside=company(longer))
            said = summarise(run, "stated")
            first, between = said.first_token_ms, said.between_tokens_ms
            found.append((first.p50, first.p95, first.p99, between.p99))
        means: np.ndarray[tuple[int], np.dtype[np.float64]] = np.array(found, np.float64).mean(0)
        return means

    assert (figures("cost") <= 1.06 * figures("always-remote")).all()


def routed(language: Language, longer: float) -> Route:
    """Where a prompt is computed beside eight answers, the other engine idle."""
    tables = lower(language, beside=company(longer))
    state = fresh(tables, 64)
    state.engines[:, c.N_LATE_PPM] = 64 * c.PPM  # as many may come late as will
    none = np.zeros(2, np.int64)
    names = list(language.engines)
    state.engines[names.index("decode"), c.N_MET_PPM] = 8 * c.PPM
    desk.on_arrival(0, tables, state, 0, 1, 100, 10, c.FOREVER, c.FOREVER, none)
    return Route(int(state.effects[0, c.F_C]))


def test_what_company_takes_from_those_who_decode_is_charged() -> None:
    language = fleet("cost")
    assert routed(language, 0.0) is Route.REMOTE_FASTER
    # Nearly as much is taken from them beside it as on their own engine; and the hand-over comes on top.
    assert routed(language, 1000.0) is Route.LOCAL_FASTER


def test_threads_say_what_company_costs_where_nobody_has_measured_it() -> None:
    language = fleet()
    wide = msgspec.structs.replace(language.engines["decode"], threads=2)
    assert crowding(language, 2) == company(0.0)
    assert crowding(msgspec.structs.replace(language, engines={**language.engines, "decode": wide}), 2) == company(0.5)
    elsewhere = msgspec.structs.replace(wide, device="GPU.0")
    assert crowding(msgspec.structs.replace(language, engines={**language.engines, "decode": elsewhere}), 1) == {
        "prefill": {}
    }
