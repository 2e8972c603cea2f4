"""Split or not, where the answer is plain."""

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.plan.language import (
    Candidate,
    Limits,
    apart,
    at,
    candidates,
    estimate,
    judged,
    recommended,
    roles_of,
    verdict,
)
from loadslice.plan.language_rent import Rent, of_fleet, rents
from loadslice.sim.language_test import fleet, prompts
from loadslice.sim.language_world_test import profile
from loadslice.spec.errors import InputError
from loadslice.spec.language_plan import LanguageFleet
from loadslice.spec.language_simulation import Tail
from loadslice.spec.prices import Part, Prices

LIMITS = Limits(first_token_ms=2000, between_tokens_ms=40, quantile=0.99, completed_share=0.99)


def stretches(tokens_in: int, tokens_out: int, gap_s: float) -> list[pl.DataFrame]:
    draws = np.random.default_rng(1)
    arrivals = [np.cumsum(draws.exponential(gap_s, 60)) for _ in range(3)]
    return [prompts(*[(float(at_s), tokens_in, tokens_out) for at_s in one - one[0]]) for one in arrivals]


def all_of(traces: list[pl.DataFrame], limits: Limits = LIMITS, threads: int = 2) -> list[LanguageFleet]:
    return [judged(one, traces, limits, speed=1.0, seed=0) for one in offered(threads, limits)]


def offered(threads: int, limits: Limits = LIMITS) -> list[Candidate]:
    return list(candidates(fleet(chunk=64), profile(), threads, limits.between_tokens_ms))


def test_fleets_of_all_kinds_are_offered_up_to_the_threads() -> None:
    all_kinds = offered(3)
    assert {one.threads for one in all_kinds} == {1, 2, 3}
    assert {(one.prefill, one.decode) for one in all_kinds if one.structure == "split"} == {(1, 1), (1, 2), (2, 1)}
    split = next(one for one in all_kinds if (one.prefill, one.decode) == (1, 2))
    assert {(link.from_, link.to) for link in split.language.links} == {
        ("prompts-1", "answers-1"),
        ("prompts-1", "answers-2"),
    }
    shared = [one for one in all_kinds if one.structure == "shared"]
    assert {one.chunk for one in shared} == {None, 64, 256}
    assert {one.step_ms_max for one in shared} == {None, 30, 20}
    limited = next(one for one in shared if one.step_ms_max == 30)
    assert {engine.step_ms_max for engine in limited.language.engines.values()} == {30}


def test_long_prompts_and_a_tight_limit_between_tokens_ask_for_a_split() -> None:
    # Beside a step of 10 ms a limit of 24 leaves prompts a dozen tokens of 1 ms each, and steps by the score.
    fleets = all_of(stretches(300, 40, 0.7), LIMITS._replace(between_tokens_ms=24))
    said, advantage, why = verdict(fleets, 2)
    assert said == "split"
    assert advantage is not None
    assert advantage.low > 0
    assert "threads" in why
    chosen = recommended(fleets)
    assert chosen is not None
    assert chosen.structure == "split"


def test_steps_kept_under_the_limit_save_a_split_where_the_limit_has_room() -> None:
    fleets = all_of(stretches(300, 40, 0.7))
    capacity_per_s = {fleet.name: fleet.capacity_per_s.mean for fleet in fleets}
    assert capacity_per_s["2 shared, steps up to 30 ms"] > 2 * capacity_per_s["2 shared, whole prompts"]
    assert verdict(fleets, 2)[0] == "shared"


def test_short_prompts_leave_a_split_nothing_to_take_away() -> None:
    fleets = all_of(stretches(4, 60, 0.4))
    assert verdict(fleets, 2)[0] in ("shared", "no difference")


def test_limits_that_nothing_keeps_are_said_to_be_so() -> None:
    tight = Limits(first_token_ms=1, between_tokens_ms=1, quantile=0.5, completed_share=1)
    fleets = all_of(stretches(100, 10, 1.0), tight)
    assert recommended(fleets) is None
    assert verdict(fleets, 2)[0] == "none holds"
    assert verdict(fleets, 1)[:2] == ("none holds", None)


def test_no_engine_of_both_roles_is_refused() -> None:
    language = fleet()
    only = {name: engine for name, engine in language.engines.items() if name == "prefill"}
    with pytest.raises(InputError, match="both roles"):
        roles_of(msgspec.structs.replace(language, engines=only))


def test_company_is_carried_over_to_every_pair_and_can_be_left_out() -> None:
    known = profile(beside={"prefill": {"decode": 0.3}, "decode": {"prefill": 0.2}})
    split = next(one for one in candidates(fleet(chunk=64), known, 3, 40) if (one.prefill, one.decode) == (1, 2))
    assert split.profile.beside["answers-1"] == {"prompts-1": 0.2, "answers-2": 0.2}
    alone = next(one for one in candidates(fleet(chunk=64), apart(known), 3, 40) if (one.prefill, one.decode) == (1, 2))
    assert set(alone.profile.beside["answers-1"].values()) == {0.0}


def test_estimates_hold_their_mean() -> None:
    one = estimate([1.0, 2.0, 3.0])
    assert one.low < one.mean == 2 < one.high
    assert estimate([5.0]).low == 5
    assert at(Tail(p50=None, p95=None, p99=None, mean=None), 0.95) == 0


def test_what_a_fleet_costs_is_rent_where_that_is_known() -> None:
    prices = Prices(currency="EUR", parts={"decode": Part(rent_per_hour=0.1), "prefill": Part(rent_per_hour=2.0)})
    rent = rents(fleet(chunk=64), prices, "prices.yaml")
    priced = list(candidates(fleet(chunk=64), profile(), 3, 40, rent))
    assert {one.per_hour for one in priced if (one.prefill, one.decode) == (1, 2)} == {2.2}
    traces = stretches(300, 40, 0.7)
    limits = LIMITS._replace(between_tokens_ms=500)
    fleets = [judged(one, traces, limits, speed=1.0, seed=0) for one in priced]
    # An engine for prompts at twenty times the price is not worth it where the limits leave room.
    said, advantage, why = verdict(fleets, 2, "EUR")
    assert said == "shared"
    assert advantage is not None
    assert advantage.high < -0.5
    assert "EUR an hour" in why
    chosen = recommended(fleets)
    assert chosen is not None
    assert chosen.structure == "shared"
    assert verdict([msgspec.structs.replace(one, per_hour=None) for one in fleets], 2)[0] != "none holds"


def test_what_is_there_and_costs_nothing_is_compared_on_equal_threads() -> None:
    def made(name: str, structure: str, per_hour: float, capacity: float) -> LanguageFleet:
        each = estimate([capacity, capacity * 1.01, capacity * 0.99])
        return LanguageFleet(
            name=name,
            structure=structure,  # type: ignore[arg-type]
            prefill=0,
            decode=2,
            threads=2,
            per_hour=per_hour,
            seats=1,
            chunk=None,
            step_ms_max=None,
            policy="cost",
            capacity_per_s=each,
            first_token_ms=each,
            between_tokens_ms=each,
            completed_share=each,
            holds_share=1.0,
        )

    # A cent an hour must not turn a tenth of the capacity into ten times its worth.
    said, _, why = verdict([made("owned", "shared", 0.0, 10.0), made("rented", "split", 0.01, 1.0)], 2, "EUR")
    assert said == "shared"
    assert why.startswith("with 2 threads")


def test_a_price_that_is_missing_or_a_purchase_without_years_is_asked_for() -> None:
    bought = Prices(currency="EUR", parts={"decode": Part(purchase=100.0)})
    with pytest.raises(InputError, match=r"engine 'decode' has a purchase. Say over how many years .* --years 3"):
        rents(fleet(links=False), bought, "prices.yaml")
    with pytest.raises(InputError, match=r"prices.yaml: parts: engine 'decode' has neither"):
        rents(fleet(), Prices(currency="EUR"), "prices.yaml")


def test_a_purchase_is_spread_over_its_years_and_what_is_owned_is_not_bought() -> None:
    hours = 2 * 365.25 * 24
    parts = {"decode": Part(purchase=2 * hours, spares_share=0.5, owned=1), "prefill": Part(rent_per_hour=3.0)}
    rent = rents(fleet(), Prices(currency="EUR", parts=parts), "prices.yaml", years=2)
    # Two an hour for each that is bought; half of the price a year for spare parts of every one.
    assert of_fleet(rent, {"decode": 1}) == pytest.approx(2.0)
    assert of_fleet(rent, {"decode": 3, "prefill": 2}) == pytest.approx(3 * 2.0 + 2 * 2.0 + 2 * 3.0)


def test_engines_of_one_part_own_what_there_is_of_it_together() -> None:
    rent = {name: Rent("cpu", 0.0, 1.0, owned=2) for name in ("a", "b")}
    assert of_fleet(rent, {"a": 2, "b": 2}) == 2.0
    assert of_fleet(rent, {"a": 1, "b": 1}) == 0.0
