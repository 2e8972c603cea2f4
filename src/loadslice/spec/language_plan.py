"""What `loadslice plan` says of a language file: split prompts from answers or not, on how many engines."""

from typing import Literal

import msgspec

from loadslice.spec.files import Stamp
from loadslice.spec.language import RouterPolicy

SCHEMA = "language-plan/1"

Structure = Literal["shared", "split"]
"""shared: every engine computes prompts and answers. split: some compute prompts for the others."""
Verdict = Literal["split", "shared", "no difference", "none holds"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over stretches of the trace: its mean, and where that mean lies 19 times of 20."""

    mean: float
    low: float
    high: float
    each: list[float]
    """By stretch."""


class LanguageFleet(msgspec.Struct, frozen=True, kw_only=True):
    """One way to use engines."""

    name: str
    structure: Structure
    prefill: int
    """Engines that only compute prompts."""
    decode: int
    """Engines that decode; they compute prompts too when the router says so."""
    threads: int
    """Of all engines: what the fleet costs where no prices are given."""
    per_hour: float | None
    """Rent of all engines, purchases spread over years; null: no prices are given."""
    seats: int
    """Of each engine that decodes."""
    chunk: int | None
    """Of each engine that decodes; null: whole prompts."""
    step_ms_max: float | None
    """What a step there may take while somebody decodes in it, by taking less of a prompt; null: any time."""
    policy: RouterPolicy
    capacity_per_s: Estimate
    """Requests per second up to which the limits hold."""
    first_token_ms: Estimate
    """At the asked pace and quantile."""
    between_tokens_ms: Estimate
    completed_share: Estimate
    holds_share: float
    """Of stretches on which the limits hold at the asked pace."""


class LanguagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    stamp: Stamp
    first_token_ms: float
    between_tokens_ms: float
    quantile: float
    """Of requests, and of gaps, that keep the limits."""
    completed_share: float
    """Of requests that must be completed."""
    rate_per_s: float
    """Of the trace at the asked pace."""
    scale_tokens: float
    prompts_cut: int
    answers_cut: int
    requests: int
    stretches: int
    fleets: list[LanguageFleet]
    """Every one that was simulated, of the least threads first."""
    currency: str | None
    """Of the prices; null: none are given."""
    years: float | None
    """Over which purchases are spread; null: nothing is bought."""
    recommended: str | None
    """The cheapest fleet whose limits hold on every stretch, by rent or else by threads; of several, the one with the
    most capacity."""
    verdict: Verdict
    """Between the best of both structures: by capacity for the rent, or else by capacity at the threads of the
    recommended fleet, or of the largest that was tried."""
    advantage: Estimate | None
    """Of the best split fleet over the best shared one, in parts of the larger; stretch by stretch. Null: no such
    two."""
    why: str
    basis: str
    warnings: list[str]
