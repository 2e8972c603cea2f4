"""What `loadslice simulate` says of a language file: several routers side by side on one trace."""

import msgspec

from loadslice.spec.files import Stamp
from loadslice.spec.language import RouterPolicy
from loadslice.spec.language_simulation import LanguageSimulation, Tail

SCHEMA = "language-simulation/1"


class ClassFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one class."""

    requests: int
    completed: int
    first_token_ms: Tail
    whole_ms: Tail


class RouterResult(msgspec.Struct, frozen=True, kw_only=True):
    """One router policy on the whole trace."""

    policy: RouterPolicy
    simulation: LanguageSimulation
    """Of the first seed."""
    classes: dict[str, ClassFigures]
    interval_95: dict[str, tuple[float, float]] | None
    """By figure: holds one more run 19 times of 20; null for one run."""


class LanguageReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    stamp: Stamp
    seed: int
    replicas: int
    speed: float
    scale_tokens: float
    prompts_cut: int
    """Prompts that were longer than the context leaves room for, and were cut to it."""
    answers_cut: int
    """Answers longer than half the context, cut to that."""
    context: int
    basis: str
    """Where times come from."""
    routers: list[RouterResult]
    simulated_requests_per_s: float
    """Per second of processor time, over all runs."""
    warnings: list[str]
