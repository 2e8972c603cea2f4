"""`loadslice plan` on a language file: split prompts from answers or not, and on how many engines."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl
import yaml

from loadslice.app.language_profile import stated_profile
from loadslice.app.output import check_folder, emit, keep, progress
from loadslice.spec import prices as prices_file
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp, write_bytes
from loadslice.spec.language import Language, load_language
from loadslice.spec.language_plan import SCHEMA, Estimate, LanguageFleet, LanguagePlan
from loadslice.spec.language_profile import SCHEMA as PROFILE_SCHEMA
from loadslice.spec.language_profile import load_profile

if TYPE_CHECKING:
    from loadslice.sim.language_world import Fitted

FILE, FLEET = "plan.json", "fleet.yaml"
STRETCH_MIN = 20
"""Requests of a stretch: of fewer, percentiles say nothing."""
TOOLS = ("numba", "numpy")


class Asked(NamedTuple):
    """What is to be planned."""

    trace: Path
    language: Path
    profile: Path | None
    first_token_ms: float
    between_tokens_ms: float
    quantile: float
    completed_share: float
    threads: int
    stretches: int
    seed: int
    speed: float
    scale_tokens: float
    apart: bool
    prices: Path | None
    years: float | None
    out: Path | None
    as_json: bool


def plan_language(asked: Asked) -> LanguagePlan:
    """Plan and tell.

    Raises:
        InputError: A file cannot be used, or the trace is too short for so many stretches.
    """
    from loadslice.plan.language import Limits, apart, candidates, judged
    from loadslice.plan.language_rent import rents
    from loadslice.sim.language_world import fit_context, surroundings
    from loadslice.workload import trace as trace_file

    language = load_language(asked.language)
    if asked.profile is None:
        profile = stated_profile(language, stamp(PROFILE_SCHEMA, inputs={"language": asked.language}))
    else:
        profile = load_profile(asked.profile, language)
    if asked.apart:
        profile = apart(profile)
    check_folder(asked.out)
    fitted = fit_context(trace_file.read(asked.trace).frame, language.context, asked.scale_tokens)
    stretches = cut(fitted.trace, asked.stretches)
    limits = Limits(asked.first_token_ms, asked.between_tokens_ms, asked.quantile, asked.completed_share)
    priced = None if asked.prices is None else prices_file.load(asked.prices)
    rent = None if priced is None else rents(language, priced, str(asked.prices), asked.years)
    offered = list(candidates(language, profile, asked.threads, asked.between_tokens_ms, rent))
    if not offered:
        raise InputError(f"--threads {asked.threads}: no engine of the language file has so few.")
    with progress("simulating fleets", offered, len(offered)) as bar:
        fleets = [judged(one, stretches, limits, speed=asked.speed, seed=asked.seed) for one in bar]
    currency = None if priced is None else priced.currency
    plan = _plan(asked, language, fitted, fleets, surroundings(language, profile).basis, currency)
    keep(plan, asked.out, FILE)
    chosen = next((one for one in offered if one.name == plan.recommended), None)
    if asked.out is not None and chosen is not None:
        write_bytes(asked.out / FLEET, _yaml(chosen.language, chosen.policy))
    emit(plan, as_json=asked.as_json, text=lambda: lines(plan))
    return plan


def _plan(
    asked: Asked,
    language: Language,
    fitted: "Fitted",
    fleets: list[LanguageFleet],
    basis: str,
    currency: str | None,
) -> LanguagePlan:
    from loadslice.plan.language import price_of, recommended, verdict

    fleets = sorted(fleets, key=lambda fleet: (price_of(fleet), fleet.name))
    chosen = recommended(fleets)
    threads = chosen.threads if chosen is not None else max(fleet.threads for fleet in fleets)
    if chosen is not None and not _has_both(fleets, threads):
        threads = min((fleet.threads for fleet in fleets if fleet.structure == "split"), default=threads)
    said, advantage, why = verdict(fleets, threads, currency)
    inputs = {"trace": asked.trace, "language": asked.language, "profile": asked.profile, "prices": asked.prices}
    return LanguagePlan(
        stamp=stamp(SCHEMA, inputs=inputs, seed=asked.seed, tools=TOOLS),
        first_token_ms=asked.first_token_ms,
        between_tokens_ms=asked.between_tokens_ms,
        quantile=asked.quantile,
        completed_share=asked.completed_share,
        rate_per_s=len(fitted.trace) / max(1e-9, float(fitted.trace["arrival_s"][-1])) * asked.speed,
        scale_tokens=asked.scale_tokens,
        prompts_cut=fitted.prompts_cut,
        answers_cut=fitted.answers_cut,
        requests=len(fitted.trace),
        stretches=asked.stretches,
        fleets=fleets,
        currency=currency,
        years=asked.years,
        recommended=None if chosen is None else chosen.name,
        verdict=said,
        advantage=advantage,
        why=why,
        basis=basis,
        warnings=_warnings(fitted, language, apart=asked.apart or asked.profile is None),
    )


def cut(trace: pl.DataFrame, count: int) -> list[pl.DataFrame]:
    """Stretches of equally many requests, each with times from its first.

    Raises:
        InputError: They would be too short.
    """
    each = len(trace) // count
    if each < STRETCH_MIN:
        raise InputError(
            f"--stretches {count}: {len(trace)} requests make stretches of {each}, at least {STRETCH_MIN} are needed."
        )
    found = []
    for index in range(count):
        part = trace.slice(index * each, each)
        found.append(part.with_columns(arrival_s=pl.col("arrival_s") - part["arrival_s"][0]))
    return found


def _has_both(fleets: Sequence[LanguageFleet], threads: int) -> bool:
    return {one.structure for one in fleets if one.threads == threads} == {"shared", "split"}


def _warnings(fitted: "Fitted", language: Language, *, apart: bool) -> list[str]:
    found = []
    prompts, answers = fitted.prompts_cut, fitted.answers_cut
    if prompts or answers:
        found.append(
            f"{prompts:,} prompts and {answers:,} answers were cut to fit the context of {language.context} tokens; "
            "--scale-tokens makes all of them smaller alike."
        )
    if apart:
        found.append("Engines are taken to have cores and memory of their own; what they do to each other is left out.")
    else:
        found.append("Two engines of one kind are taken to slow each other as much as the most that was measured.")
    return found


def _yaml(language: Language, policy: str) -> bytes:
    router = msgspec.structs.replace(language.router, policy=policy)
    plain = msgspec.to_builtins(msgspec.structs.replace(language, router=router))
    text = yaml.safe_dump(plain, sort_keys=False, width=110)
    return f"# Written by `loadslice plan`; `loadslice serve` and `simulate` take it as it is.\n{text}".encode()


def lines(plan: LanguagePlan) -> Iterator[str]:
    """A plan for a person."""
    yield (
        f"{plan.requests:,} requests at {plan.rate_per_s:.3g}/s in {plan.stretches} stretches; {plan.quantile:.0%} of "
        f"first tokens within {plan.first_token_ms:g} ms, of gaps within {plan.between_tokens_ms:g} ms ({plan.basis})"
    )
    yield (
        f"  {'fleet':44} {'threads':>7} {_rent_head(plan)}{'capacity/s':>10} {'(19 of 20)':>16} "
        f"{'first token':>11} {'between':>8} {'completed':>9} {'holds':>6}"
    )
    for fleet in plan.fleets:
        span = f"{max(0.0, fleet.capacity_per_s.low):.3g} to {fleet.capacity_per_s.high:.3g}"
        yield (
            f"  {fleet.name:44} {fleet.threads:7} {_rent(fleet)}{fleet.capacity_per_s.mean:10.3g} {span:>16} "
            f"{_ms(fleet.first_token_ms)} ms {_ms(fleet.between_tokens_ms, 5)} ms {fleet.completed_share.mean:9.1%} "
            f"{fleet.holds_share:6.0%}"
        )
    yield f"  {'least' if plan.currency is None else 'cheapest'} that holds: {plan.recommended or 'none of these'}"
    yield f"  split or not: {plan.verdict}; {plan.why}"
    for warning in plan.warnings:
        yield f"  note: {warning}"


def _rent_head(plan: LanguagePlan) -> str:
    return "" if plan.currency is None else f"{plan.currency + '/h':>9} "


def _rent(fleet: LanguageFleet) -> str:
    return "" if fleet.per_hour is None else f"{fleet.per_hour:9.3g} "


def _ms(value: Estimate, width: int = 8) -> str:
    return f"{value.mean:{width},.0f}"
