"""The cost router beside a strict split and beside shared engines with chunks, by simulation: no machine is measured.

Costs are those of `examples/chat/stated.yaml`, one quiet core. With a core for each engine, slower by a tenth while the
other computes, a split stands beside two engines that share all work. With two threads for each engine on the same two
cores, where each takes twice as long while the other computes, it stands beside one engine of two threads, whose steps
take `TWO_THREADS` of the time. Ratios above 1.05 are where the router loses; only loads at which both others keep up
are among them.
"""

import os
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from benchmarks.language_bench import LONG_SHARE, MIX_LONG, MIX_SHORT, MIX_TOKENS
from benchmarks.language_runs import REPOSITORY, Tails, trace_of
from loadslice.sim.language import run_language, summarise
from loadslice.sim.language_world import fit_context
from loadslice.spec.language import Language, LanguageEngine, RouterPolicy, load_language

STATED = REPOSITORY / "examples" / "chat" / "stated.yaml"
TWO_THREADS = 0.6
"""Of the time on one: what two threads take for a step."""
BESIDE, CROWDED = 0.1, 1.0
"""By which share a step is longer while the other engine computes: on a core of its own, and on the same two cores."""
RATES_PER_S = (1.0, 2.0, 3.0)
TRACES = {"conv": 0.45, "code": 0.15}
"""Paces of the traces, tokens a tenth."""
SCALE = 0.1
REQUESTS = int(os.environ.get("LANGUAGE_REQUESTS", "1500"))
SEEDS = 3


class Way(NamedTuple):
    """One way to serve."""

    language: Language
    beside: dict[str, dict[str, float]]


STEP_MS = 36.0
"""Three steps of one sequence alone: what a step may take in the ways that keep steps short."""
SPLIT, COST, COST_SHORT = "split, always", "split, cost", "split, cost, short steps"
WHOLE, CHUNKS, SHORT = "shared, whole prompts", "shared, chunks of 64", "shared, short steps"


def run() -> dict[str, Any]:
    """Every load, every way."""
    figures: dict[str, Any] = {}
    for load, traces in loads().items():
        for cores, ways in fleets().items():
            found = {name: tails_of(way, traces) for name, way in ways.items()}
            for name, tails in found.items():
                told = ", ".join(f"{field} {value:.1f}" for field, value in tails._asdict().items())
                figures[f"{load}, {cores}: {name}, ms"] = told
            for field in ("first_p50", "first_p95", "first_p99", "between_p99"):
                better = min(getattr(found[name], field) for name in (SPLIT, CHUNKS))
                figures[f"{load}, {cores}: {field} of the better"] = getattr(found[COST], field) / better
            for name in (COST, COST_SHORT, SHORT):
                whole = found[name].between_p99 / found[WHOLE].between_p99
                figures[f"{load}, {cores}: {name}, between_p99 of whole prompts"] = whole
    return figures


def fleets() -> dict[str, dict[str, Way]]:
    """A strict split, one with the router, and engines that share all work; by whose cores the engines have."""
    stated = load_language(STATED)
    one = stated.engines["decode"]
    assert one.cost is not None
    keys = ("step_ms", "token_us", "row_us", "attend_ns")
    cost = msgspec.structs.replace(one.cost, **{key: TWO_THREADS * getattr(one.cost, key) for key in keys})
    wide = {name: msgspec.structs.replace(engine, threads=2, cost=cost) for name, engine in stated.engines.items()}
    return {
        "a core each": split(stated, BESIDE) | shared({"first": one, "second": one}),
        "the same cores": split(msgspec.structs.replace(stated, engines=wide), CROWDED)
        | shared({"both": wide["decode"]}),
    }


def split(language: Language, beside: float) -> dict[str, Way]:
    """Always, and as the router says."""
    company = {"prefill": {"decode": beside}, "decode": {"prefill": beside}}

    def way(policy: RouterPolicy, step_ms_max: float | None = None) -> Way:
        router = msgspec.structs.replace(language.router, policy=policy)
        answers = msgspec.structs.replace(language.engines["decode"], step_ms_max=step_ms_max)
        engines = language.engines | {"decode": answers}
        return Way(msgspec.structs.replace(language, router=router, engines=engines), company)

    return {SPLIT: way("always-remote"), COST: way("cost"), COST_SHORT: way("cost", STEP_MS)}


def shared(engines: dict[str, LanguageEngine]) -> dict[str, Way]:
    """Every engine does all work, slower by a tenth beside others."""
    company = {name: {other: BESIDE for other in engines if other != name} for name in engines}

    def way(**changes: float | None) -> Way:
        kinds = {name: msgspec.structs.replace(engine, **changes) for name, engine in engines.items()}
        return Way(msgspec.structs.replace(load_language(STATED), engines=kinds, links=[]), company)

    return {
        WHOLE: way(chunk=None, step_tokens=2048),
        CHUNKS: way(),
        SHORT: way(chunk=None, step_tokens=2048, step_ms_max=STEP_MS),
    }


def loads() -> dict[str, list[pl.DataFrame]]:
    """Traces by load: drawn ones, and stretches of the public ones."""
    context = load_language(STATED).context
    found = {f"mix, {rate:g}/s": [drawn(rate, seed) for seed in range(SEEDS)] for rate in RATES_PER_S}
    for name, pace in TRACES.items():
        whole = fit_context(trace_of(name), context, SCALE).trace
        found[f"{name} at {pace:g}"] = [
            part.with_columns(arrival_s=(pl.col("arrival_s") - part["arrival_s"][0]) / pace)
            for part in (whole.slice(number * REQUESTS, REQUESTS) for number in range(SEEDS))
        ]
    return found


def drawn(rate_per_s: float, seed: int) -> pl.DataFrame:
    """Poisson arrivals, most prompts short."""
    draws = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "arrival_s": np.cumsum(draws.exponential(1 / rate_per_s, REQUESTS)),
            "tokens_in": np.where(draws.random(REQUESTS) < LONG_SHARE, MIX_LONG, MIX_SHORT),
            "tokens_out": np.full(REQUESTS, MIX_TOKENS),
        }
    )


def tails_of(way: Way, traces: list[pl.DataFrame]) -> Tails:
    """Percentiles, means over the traces."""
    rows = []
    for seed, trace in enumerate(traces):
        said = summarise(run_language(trace, way.language, seed=seed, beside=way.beside), "stated")
        first, between = said.first_token_ms, said.between_tokens_ms
        rows.append([value or 0.0 for tail in (first, between) for value in (tail.p50, tail.p95, tail.p99)])
    return Tails(*np.mean(rows, axis=0).tolist())
