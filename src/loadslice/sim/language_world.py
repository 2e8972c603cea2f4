"""What surrounds the token desk in a simulation, from a language profile; and traces made to fit a model's context."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.tables import Company
from loadslice.sim import language_layout as layout
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Fault
from loadslice.spec.language import Language, StepCost
from loadslice.spec.language_profile import (
    NOISE_AT,
    SHAPE_ROWS,
    LanguageProfile,
    costs_of,
    modelled_engines,
    with_links,
)

_NS_PER_S = 1_000_000_000
DRAWN_POINTS = 2001
LEAST_PLACE = 1e-3
"""Of a normal distribution, which has no least value."""


class Surroundings(NamedTuple):
    """Arguments of `language.run_language`, and what its figures rest on."""

    language: Language
    costs: dict[str, StepCost] | None
    shape: NDArray[np.float64] | None
    noise: NDArray[np.float64] | None
    beside: Company | None
    handover_noise: NDArray[np.float64] | None
    way_ms: float
    """Between a client and the desk."""
    basis: str
    cold: NDArray[np.int64] | None = None
    reshape: NDArray[np.int64] | None = None
    told: dict[str, StepCost] | None = None
    """Costs that the desk is told; ``None``: those that are."""
    told_beside: Company | None = None
    """The same of what company costs."""


def surroundings(
    language: Language, profile: LanguageProfile | None, told: LanguageProfile | None = None
) -> Surroundings:
    """Lower a profile; without one, the costs that the language file states.

    Args:
        language: Checked.
        profile: Of these engines.
        told: The one that the server has, where another says what its engines really took.
    """
    if profile is None:
        return Surroundings(language, None, None, None, None, None, 0.0, "costs as the language file states them")
    names = list(language.engines)
    seats = max(engine.seats for engine in language.engines.values())
    shape = np.ones((len(names), seats + 1))
    noise = np.zeros((len(names), DRAWN_POINTS))
    for index, name in enumerate(names):
        times = profile.engines[name]
        shape[index] = np.interp(np.arange(seats + 1), SHAPE_ROWS, times.shape)
        if times.noise:
            noise[index] = evenly(times.noise)
    used = {name: profile.engines[name] for name in names}
    modelled = modelled_engines(used)
    basis = "measured costs"
    if modelled:
        whose = "all engines" if len(modelled) == len(used) else ", ".join(modelled)
        basis = f"modelled costs of {whose}" + ("" if len(modelled) == len(used) else ", measured ones of the others")
    parts = [evenly(one.noise or lognormal_parts(one.relative_sd)) for one in profile.handovers]
    return Surroundings(
        with_links(language, profile),
        costs_of(profile),
        shape,
        noise,
        profile.beside,
        np.mean(parts, axis=0) if parts else None,
        0.0 if profile.serving is None else profile.serving.request_ms,
        basis,
        np.array([round(profile.engines[name].cold_ms * 1e6) for name in names], np.int64),
        np.array([round(profile.engines[name].reshape_ms * 1e6) for name in names], np.int64),
        None if told is None else costs_of(told),
        None if told is None else told.beside,
    )


def lognormal_parts(sd: float) -> list[float]:
    """Quantiles around a mean of 1, where only a spread is known."""
    spread = math.sqrt(math.log(1 + sd * sd))
    places = [NormalDist().inv_cdf(min(max(at, LEAST_PLACE), 1 - LEAST_PLACE)) for at in NOISE_AT]
    return [math.exp(spread * one - spread * spread / 2) for one in places]


def evenly(quantiles: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles at even shares, from which the simulator draws."""
    return np.interp(np.linspace(0, 1, DRAWN_POINTS), NOISE_AT, quantiles)


class Fitted(NamedTuple):
    """A trace that fits a context."""

    trace: pl.DataFrame
    prompts_cut: int
    answers_cut: int


def fit_context(trace: pl.DataFrame, context: int, scale: float = 1.0) -> Fitted:
    """Scale a trace's tokens, then cut what a context does not hold.

    An answer has at most half the context, a prompt what its answer leaves; prefix blocks beyond a cut prompt go.

    Args:
        trace: With ``tokens_in`` and ``tokens_out``; any other trace is given back as it is.
        context: Tokens of prompt and answer together.
        scale: Above 0; scaled tokens are rounded up.
    """
    if "tokens_in" not in trace.columns or "tokens_out" not in trace.columns:
        return Fitted(trace, 0, 0)
    scaled = trace.with_columns(
        (pl.col(name) * scale).ceil().clip(1, None).cast(pl.Int32) for name in ("tokens_in", "tokens_out")
    )
    answer = pl.col("tokens_out").clip(1, context // 2)
    fitted = scaled.with_columns(tokens_out=answer).with_columns(
        tokens_in=pl.min_horizontal(pl.col("tokens_in"), context - pl.col("tokens_out").fill_null(1)).cast(pl.Int32)
    )
    cut = scaled["tokens_in"] > fitted["tokens_in"]
    answers_cut = int((scaled["tokens_out"] > fitted["tokens_out"]).sum())
    if "blocks" in fitted.columns and cut.any():
        lengths = scaled["blocks"].list.len()
        per_block = (scaled["tokens_in"] / lengths).filter(lengths > 0).max()
        assert isinstance(per_block, float)
        fitted = fitted.with_columns(blocks=pl.col("blocks").list.head((pl.col("tokens_in") / per_block).ceil()))
    return Fitted(fitted, int(cut.sum()), answers_cut)


def fault_rows(faults: Sequence[Fault], language: Language) -> NDArray[np.int64]:
    """Lower faults to rows of `language_layout`, in time order.

    Raises:
        InputError: A kind that engines of language models do not have here.
    """
    names = list(language.engines)
    rows: list[tuple[int, int, int, int]] = []
    for fault in faults:
        if fault.kind == "wrong":
            raise InputError(
                f"fault at {fault.at_s:g} s: kind 'wrong' is not simulated for language models: no two answers are "
                "alike, so nothing would notice it. slow, hang, down and crash are."
            )
        begins, ends = round(fault.at_s * _NS_PER_S), round((fault.at_s + fault.for_s) * _NS_PER_S)
        engine = names.index(fault.engine)
        if fault.kind == "slow":
            rows.append((begins, engine, layout.FAULT_SLOW, round((fault.factor or 1.0) * c.PPM)))
            rows.append((ends, engine, layout.FAULT_SLOW, c.PPM))
        elif fault.kind == "hang":
            rows.append((begins, engine, layout.FAULT_HANG, 0))
            rows.append((ends, engine, layout.FAULT_MOVE, 0))
        else:
            rows.append((begins, engine, layout.FAULT_DOWN, 0))
            rows.append((ends, engine, layout.FAULT_UP, 0))
    return np.array(sorted(rows), np.int64).reshape(-1, layout.FAULT_COLUMNS)


def prefix_capacity(language: Language, tokens: int | None) -> Mapping[str, int]:
    """Prompt tokens that each engine keeps: so many where it computes prompts, or what its file says."""
    return {
        name: engine.prefix_tokens if tokens is None else tokens
        for name, engine in language.engines.items()
        if "prefill" in engine.roles
    }
