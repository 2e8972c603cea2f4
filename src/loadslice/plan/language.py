"""Split prompts from answers or not? Fleets of a language file's engines, judged by the simulator on stretches.

Every fleet is given the same stretches of the trace with the same luck. What counts is the rate up to which both limits
hold, the time to the first token and the time between two tokens: on equal threads, or for equal rent where prices are
given, whoever has more of it wins, and only when the difference is beyond what stretches differ by.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from loadslice.plan.language_rent import Rent, of_fleet
from loadslice.sim.draws import t_95
from loadslice.sim.language import summarise
from loadslice.sim.language_compare import run_router
from loadslice.sim.language_world import prefix_capacity, surroundings
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language, LanguageEngine, Link, RouterPolicy, check_language
from loadslice.spec.language_plan import Estimate, LanguageFleet, Structure, Verdict
from loadslice.spec.language_profile import LanguageProfile
from loadslice.spec.language_simulation import LanguageSimulation, Tail

CAPACITY_STEPS = 7
"""Halvings of the search for a capacity: within 3 % of it."""
CAPACITY_MOST = 64.0
"""Times the asked pace, where the search ends."""
STEP_SHARES = (0.75, 0.5)
"""Of the limit between two tokens: what steps may be expected to take, so that longer ones keep it too."""


class Limits(NamedTuple):
    """What is promised."""

    first_token_ms: float
    between_tokens_ms: float
    quantile: float
    """0.5, 0.95 or 0.99."""
    completed_share: float


class Candidate(NamedTuple):
    """A fleet before it is judged."""

    name: str
    structure: Structure
    prefill: int
    decode: int
    chunk: int | None
    step_ms_max: float | None
    policy: RouterPolicy
    language: Language
    profile: LanguageProfile
    per_hour: float | None = None
    """Rent of all engines, purchases spread over years."""

    @property
    def threads(self) -> int:
        """Of all engines."""
        return sum(engine.threads for engine in self.language.engines.values())


def roles_of(language: Language) -> tuple[str | None, str]:
    """The engines that fleets are made of: one that only computes prompts, and one that does both.

    Raises:
        InputError: None does both.
    """
    only = [name for name, engine in language.engines.items() if set(engine.roles) == {"prefill"}]
    both = [name for name, engine in language.engines.items() if set(engine.roles) == {"prefill", "decode"}]
    if not both:
        raise InputError(
            "no engine has both roles, prefill and decode; without one there is nothing to compare a split with."
        )
    return (only[0] if only else None), both[0]


def apart(profile: LanguageProfile) -> LanguageProfile:
    """A profile of engines that have cores and memory of their own: none slows another."""
    return msgspec.structs.replace(profile, beside={name: {} for name in profile.engines})


def candidates(
    language: Language,
    profile: LanguageProfile,
    threads_max: int,
    between_tokens_ms: float,
    rent: Mapping[str, Rent] | None = None,
) -> Iterator[Candidate]:
    """Fleets of up to so many threads: shared ones and splits of every proportion.

    Shared engines take whole prompts, chunks, or so much of a prompt that a step keeps well under the limit between two
    tokens. A split hands every prompt over, or asks the router, with and without that limit on steps.

    Args:
        language: Checked.
        profile: Of its engines.
        threads_max: Of a fleet.
        between_tokens_ms: The limit.
        rent: Of an hour of each engine; default: not known.
    """
    prefill, both = roles_of(language)

    def per_hour(first: int, second: int) -> float | None:
        if rent is None:
            return None
        return of_fleet(rent, {both: second} | ({} if prefill is None else {prefill: first}))

    each = language.engines[both].threads
    chunks = sorted({language.engines[both].chunk or 64, 4 * (language.engines[both].chunk or 64)})
    limits = [share * between_tokens_ms for share in STEP_SHARES]
    ways: list[tuple[str, int | None, float | None]] = [("whole prompts", None, None)]
    ways += [(f"chunks of {chunk}", chunk, None) for chunk in chunks]
    ways += [(f"steps up to {limit_ms:g} ms", None, limit_ms) for limit_ms in limits]
    for count in range(1, threads_max // each + 1):
        for how, chunk, limit_ms in ways:
            fleet, costs = _built(language, profile, None, 0, both, count, chunk, limit_ms)
            name, rented = f"{count} shared, {how}", per_hour(0, count)
            yield Candidate(name, "shared", 0, count, chunk, limit_ms, "always-local", fleet, costs, rented)
    if prefill is None:
        return
    own = language.engines[prefill].threads
    routers: list[tuple[str, RouterPolicy, float | None]] = [
        ("always-remote", "always-remote", None),
        ("cost", "cost", None),
        (f"cost, steps up to {limits[0]:g} ms", "cost", limits[0]),
    ]
    for first in range(1, threads_max // own + 1):
        for second in range(1, (threads_max - first * own) // each + 1):
            for how, policy, limit_ms in routers:
                fleet, costs = _built(language, profile, prefill, first, both, second, chunks[0], limit_ms)
                name, rented = f"{first} for prompts, {second} for answers, {how}", per_hour(first, second)
                yield Candidate(name, "split", first, second, chunks[0], limit_ms, policy, fleet, costs, rented)


def _built(
    language: Language,
    profile: LanguageProfile,
    prefill: str | None,
    first: int,
    both: str,
    second: int,
    chunk: int | None,
    limit_ms: float | None,
) -> tuple[Language, LanguageProfile]:
    """A language file and a profile with so many engines of each kind, all linked."""
    engines: dict[str, LanguageEngine] = {}
    kinds: dict[str, str] = {}
    for index in range(first):
        assert prefill is not None
        engines[f"prompts-{index + 1}"] = language.engines[prefill]
        kinds[f"prompts-{index + 1}"] = prefill
    for index in range(second):
        engine = language.engines[both]
        step_tokens = max(engine.step_tokens, language.context) if chunk is None else engine.step_tokens
        engines[f"answers-{index + 1}"] = msgspec.structs.replace(
            engine, chunk=chunk, step_tokens=step_tokens, step_ms_max=limit_ms
        )
        kinds[f"answers-{index + 1}"] = both
    known = {(one.from_, one.to): one for one in profile.handovers}
    given = next((link for link in language.links if (link.from_, link.to) == (prefill, both)), None)
    slots = given.slots if given is not None else 4
    links, handovers = [], []
    for source in engines:
        for target in engines:
            if kinds[source] == prefill and kinds[target] == both:
                links.append(Link(from_=source, to=target, slots=slots))
                found = known.get((kinds[source], kinds[target]))
                if found is not None:
                    handovers.append(msgspec.structs.replace(found, from_=source, to=target))
    beside = {name: _company(name, kinds, profile) for name in engines}
    fleet = check_language(msgspec.structs.replace(language, engines=engines, links=links), "fleet")
    costs = msgspec.structs.replace(
        profile,
        engines={name: profile.engines[kind] for name, kind in kinds.items()},
        handovers=handovers,
        beside=beside,
    )
    return fleet, costs


def _company(name: str, kinds: dict[str, str], profile: LanguageProfile) -> dict[str, float]:
    """What others do to an engine: as measured between their kinds; between two of one kind, the most it met."""
    mine = profile.beside.get(kinds[name], {})
    most = max(mine.values(), default=0.0)
    return {other: mine.get(kinds[other], most) for other in kinds if other != name}


def judged(
    candidate: Candidate, stretches: Sequence[pl.DataFrame], limits: Limits, *, speed: float, seed: int
) -> LanguageFleet:
    """Simulate a fleet on every stretch, at the asked pace and at those that find its capacity."""
    around = surroundings(candidate.language, candidate.profile)
    prefix = prefix_capacity(candidate.language, None)

    def said(stretch: pl.DataFrame, pace: float, seed: int) -> LanguageSimulation:
        run = run_router(stretch, around, candidate.policy, seed=seed, speed=pace, prefix_tokens=prefix)
        return summarise(run, around.basis, way_ms=around.way_ms)

    capacity, first, between, completed, holding = [], [], [], [], 0
    for number, stretch in enumerate(stretches):
        run = said(stretch, speed, seed + number)
        first.append(at(run.first_token_ms, limits.quantile))
        between.append(at(run.between_tokens_ms, limits.quantile))
        completed.append(run.outcomes["completed"] / run.requests)
        holding += keeps(run, limits)
        rate_per_s = len(stretch) / max(1e-9, float(stretch["arrival_s"][-1]))
        pace = _capacity(lambda pace, one=stretch, luck=seed + number: keeps(said(one, pace, luck), limits), speed)  # type: ignore[misc]
        capacity.append(pace * rate_per_s)
    return LanguageFleet(
        name=candidate.name,
        structure=candidate.structure,
        prefill=candidate.prefill,
        decode=candidate.decode,
        threads=candidate.threads,
        per_hour=candidate.per_hour,
        seats=max(engine.seats for engine in candidate.language.engines.values() if "decode" in engine.roles),
        chunk=candidate.chunk,
        step_ms_max=candidate.step_ms_max,
        policy=candidate.policy,
        capacity_per_s=estimate(capacity),
        first_token_ms=estimate(first),
        between_tokens_ms=estimate(between),
        completed_share=estimate(completed),
        holds_share=holding / len(stretches),
    )


def keeps(said: LanguageSimulation, limits: Limits) -> bool:
    """Whether a run keeps what is promised."""
    return (
        said.outcomes["completed"] >= limits.completed_share * said.requests
        and at(said.first_token_ms, limits.quantile) <= limits.first_token_ms
        and at(said.between_tokens_ms, limits.quantile) <= limits.between_tokens_ms
    )


def at(tail: Tail, quantile: float) -> float:
    """One of a tail's percentiles; 0 where there is none: a run without a second token keeps any limit between two."""
    value = {0.5: tail.p50, 0.95: tail.p95, 0.99: tail.p99}[quantile]
    return 0.0 if value is None else value


def _capacity(holds: Callable[[float], bool], speed: float) -> float:
    """The largest pace found that holds, 0: not even a sixty-fourth of the asked one."""
    low, high = speed / 64, speed * CAPACITY_MOST
    if not holds(low):
        return 0.0
    if holds(high):
        return high
    # First where it breaks, by powers of two, then halving what is between.
    for _ in range(13):
        if low * 2 >= high or not holds(low * 2):
            high = min(high, low * 2)
            break
        low *= 2
    for _ in range(CAPACITY_STEPS - 2):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of stretches, and where it lies 19 times of 20."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean=mean, low=mean, high=mean, each=list(values))
    half = t_95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean=mean, low=mean - half, high=mean + half, each=list(values))


def price_of(fleet: LanguageFleet) -> float:
    """What a fleet costs: rent, or threads where that is not known."""
    return fleet.threads if fleet.per_hour is None else fleet.per_hour


def recommended(fleets: Sequence[LanguageFleet]) -> LanguageFleet | None:
    """The cheapest fleet that holds on every stretch; of several, the one with the most capacity."""
    holding = [fleet for fleet in fleets if fleet.holds_share == 1]
    return min(holding, key=lambda fleet: (price_of(fleet), -fleet.capacity_per_s.mean), default=None)


def verdict(
    fleets: Sequence[LanguageFleet], threads: int, currency: str | None = None
) -> tuple[Verdict, Estimate | None, str]:
    """Split or not, between the best of both structures; why, in one sentence.

    Args:
        fleets: Judged.
        threads: Fleets of so many are compared.
        currency: Of rents: all fleets are compared then, by what one of it an hour buys; on equal threads all the same
            where some fleet is there already and costs nothing.
    """
    if any(fleet.per_hour == 0 for fleet in fleets):
        currency = None
    compared = [fleet for fleet in fleets if currency is not None or fleet.threads == threads]
    among = f"fleet of {threads} threads" if currency is None else "fleet"

    def worth(fleet: LanguageFleet) -> list[float]:
        return [one / ((fleet.per_hour or 1.0) if currency is not None else 1.0) for one in fleet.capacity_per_s.each]

    best = {}
    for structure in ("shared", "split"):
        mine = [fleet for fleet in compared if fleet.structure == structure]
        if mine:
            best[structure] = max(mine, key=lambda fleet: float(np.mean(worth(fleet))))
    if len(best) < 2:
        return "none holds", None, f"there is no split and no shared {among} to compare."
    shared, split = best["shared"], best["split"]
    if max(shared.capacity_per_s.mean, split.capacity_per_s.mean) <= 0:
        return "none holds", None, f"no {among} keeps the limits at a sixty-fourth of the asked pace."
    parts = [(two - one) / max(one, two, 1e-9) for one, two in zip(worth(shared), worth(split), strict=True)]
    advantage = estimate(parts)
    unit = "requests/s" if currency is None else f"requests/s for one {currency} an hour"
    told = (
        f"{'' if currency else f'with {threads} threads, '}'{split.name}' keeps the limits up to "
        f"{np.mean(worth(split)):.3g} {unit} and '{shared.name}' up to {np.mean(worth(shared)):.3g}: "
        f"{advantage.mean:+.0%} ({advantage.low:+.0%} to {advantage.high:+.0%}) for the split, in parts of the larger."
    )
    if advantage.low > 0:
        return "split", advantage, told
    if advantage.high < 0:
        return "shared", advantage, told
    return "no difference", advantage, told
