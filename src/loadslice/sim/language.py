"""How would these engines have served this trace of prompts? The token desk in virtual time."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.tables import Company, fresh, lower
from loadslice.sim import language_layout as layout
from loadslice.sim.language_loop import run as run_loop
from loadslice.sim.prefix import fresh_caches
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language, StepCost
from loadslice.spec.language_simulation import LanguageEngineFigures, LanguageSimulation, Tail
from loadslice.spec.outcome import OUTCOMES, Outcome
from loadslice.spec.pipeline import CLASSES
from loadslice.spec.route import ROUTES

_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000

LEARNED = [c.N_SCALE_PPM, c.N_HELD_NS, c.N_LATE_PPM, c.N_MET_PPM, c.N_SECOND_NS]
"""Columns of an engine that say what the desk has learned of it, and how many tokens may still come late."""

DEFAULT_CLASS = "critical"
"""Of a request that states none, as in the live front."""


class LanguageRun(NamedTuple):
    """A finished run."""

    language: Language
    tables: Tables
    state: State
    prompts: layout.Prompts
    record: layout.Record
    end_ns: int
    warnings: list[str]


def lower_prompts(trace: pl.DataFrame, language: Language, speed: float = 1.0) -> tuple[layout.Prompts, list[str]]:
    """Lower a trace with ``tokens_in`` and ``tokens_out``; ``blocks`` are prefix hashes, where it has them.

    Raises:
        InputError: The trace has no tokens.
    """
    warnings: list[str] = []
    for name in ("tokens_in", "tokens_out"):
        if name not in trace.columns or trace[name].null_count() == len(trace):
            raise InputError(
                f"the trace has no {name}: a language model's requests are known by their tokens. "
                "`loadslice trace import --format azure-llm|mooncake|burstgpt` reads traces that have them."
            )
    unknown = int(trace["tokens_in"].null_count() + trace["tokens_out"].null_count())
    if unknown:
        warnings.append(f"{unknown} token counts are unknown and taken as 1")
    arrival_ns = np.round(trace["arrival_s"].to_numpy() / speed * _NS_PER_S).astype(np.int64)
    prompt = np.maximum(1, trace["tokens_in"].fill_null(1).to_numpy().astype(np.int64))
    produce = np.maximum(1, trace["tokens_out"].fill_null(1).to_numpy().astype(np.int64))
    names = trace["class"].fill_null(DEFAULT_CLASS).to_list() if "class" in trace.columns else []
    numbers = {name: index for index, name in enumerate(CLASSES)}
    priority = np.array([numbers[name] for name in names], np.int64) if names else np.full(len(trace), 1, np.int64)
    first_by = np.full(len(trace), c.FOREVER, np.int64)
    deadline = np.full(len(trace), c.FOREVER, np.int64)
    for name, limits in language.classes.items():
        mine = priority == numbers[name]
        if limits.first_token_ms is not None:
            first_by[mine] = arrival_ns[mine] + round(limits.first_token_ms * _NS_PER_MS)
        if limits.deadline_ms is not None:
            deadline[mine] = arrival_ns[mine] + round(limits.deadline_ms * _NS_PER_MS)
    start, blocks, block_tokens = _lower_blocks(trace, prompt)
    return layout.Prompts(
        arrival_ns, priority, prompt, produce, produce.copy(), first_by, deadline, start, blocks, block_tokens
    ), warnings


def _lower_blocks(trace: pl.DataFrame, prompt: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    count = len(trace)
    if "blocks" not in trace.columns or trace["blocks"].null_count() == count:
        return np.zeros(count + 1, np.int64), np.zeros(0, np.int64), 1
    lengths = trace["blocks"].list.len().fill_null(0).to_numpy().astype(np.int64)
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    flat = trace["blocks"].explode().drop_nulls().to_numpy()
    _, dense = np.unique(flat, return_inverse=True)
    # A trace says how long its blocks are only through its prompts: the last block of a prompt may be partly full.
    has = lengths > 0
    block_tokens = int(np.ceil(np.max(prompt[has] / lengths[has]))) if has.any() else 1
    return start, dense.astype(np.int64), block_tokens


def run_language(
    trace: pl.DataFrame,
    language: Language,
    costs: Mapping[str, StepCost] | None = None,
    *,
    told: Mapping[str, StepCost] | None = None,
    seed: int = 0,
    speed: float = 1.0,
    prefix_tokens: Mapping[str, int] | None = None,
    beside: Company | None = None,
    told_beside: Company | None = None,
    shape: NDArray[np.float64] | None = None,
    noise: NDArray[np.float64] | None = None,
    faults: NDArray[np.int64] | None = None,
    handover_noise: NDArray[np.float64] | None = None,
    cold: NDArray[np.int64] | None = None,
    reshape: NDArray[np.int64] | None = None,
    learned: NDArray[np.int64] | None = None,
) -> LanguageRun:
    """Simulate.

    Args:
        trace: With ``tokens_in`` and ``tokens_out``.
        language: Checked.
        costs: Step costs by engine, as measured; default: those of the file.
        told: What the desk is told that they are, where that is something else.
        seed: Of every draw.
        speed: Pace of the trace.
        prefix_tokens: Prompt tokens that each engine's prefix cache holds; default: none.
        beside: ``[first][second]``, by which share a step of the first is longer while the second computes.
        told_beside: What the desk is told that it is, where that is something else.
        shape: [E, most seats + 1] as `language_layout.World` has it; default: steps are as their costs say.
        noise: [E, points] as `language_layout.World` has it; default: drawn with the costs' ``relative_sd``.
        faults: Rows of `language_layout`, in time order.
        handover_noise: [points] quantiles of hand-overs in parts of what links say; default: they take just that.
        cold: [E] ns that the first step after a pause takes longer.
        reshape: [E] ns that a step takes longer which has not as many tokens as the one before.
        learned: [E, ENGINE_COLUMNS] of a desk that has served before, as `State.engines`; what it has learned of its
            engines is where this one begins.

    Raises:
        InputError: The trace has no tokens, or an engine no costs.
    """
    tables = lower(language, told or costs, beside if told_beside is None else told_beside)
    state = fresh(tables, language.max_sequences)
    if learned is not None:
        state.engines[:, LEARNED] = learned[:, LEARNED]
    prompts, warnings = lower_prompts(trace, language, speed)
    count, requests = len(language.engines), len(trace)
    known = costs or {}
    spreads = [known.get(name, engine.cost) for name, engine in language.engines.items()]
    real = lower(language, costs, beside)
    settings = real.engines.astype(np.float64)
    attend_ns = settings[:, (c.E_ATTEND_PS, c.E_PROMPT_ATTEND_PS)] / 1000
    world = layout.World(
        costs=np.column_stack((settings[:, (c.E_STEP_NS, c.E_TOKEN_NS, c.E_ROW_NS)], attend_ns)),
        step_sd=np.array([cost.relative_sd if cost else 0.0 for cost in spreads]),
        beside_ppm=real.links[:, :, c.K_BESIDE_PPM].copy(),
        shape=np.ones((count, state.rows.shape[1] + 1)) if shape is None else shape,
        noise=np.zeros((count, 2)) if noise is None else noise,
        handover_noise=np.ones(2) if handover_noise is None else handover_noise,
        cold_ns=np.zeros(count, np.int64) if cold is None else cold,
        reshape_ns=np.zeros(count, np.int64) if reshape is None else reshape,
        faults=np.zeros((0, layout.FAULT_COLUMNS), np.int64) if faults is None else faults,
    )
    capacities = [(prefix_tokens or {}).get(name, 0) // prompts.block_tokens for name in language.engines]
    different = int(prompts.blocks.max()) + 1 if len(prompts.blocks) else 0
    record = layout.Record(
        answers=np.zeros((requests, layout.ANSWER_COLUMNS), np.int64),
        gaps=np.zeros((count, layout.GAP_BINS), np.int64),
        busy=np.zeros((count, layout.BUSY_COLUMNS), np.int64),
        journal=np.zeros(2, np.int64),
    )
    end_ns = run_loop(
        seed,
        tables,
        state,
        prompts,
        world,
        fresh_caches(different, capacities),
        record,
        layout.hands(tables, state),
    )
    return LanguageRun(language, tables, state, prompts, record, int(end_ns), warnings)


def summarise(run: LanguageRun, basis: str, way_ms: float = 0.0) -> LanguageSimulation:
    """Add a run up; ``way_ms``: what lies between a client and the desk, part of what the client waits."""
    answers, state = run.record.answers, run.state
    done = answers[:, layout.A_OUTCOME] == Outcome.COMPLETED
    arrival_ns = run.prompts.arrival_ns
    span_ns = max(1, run.end_ns)
    counters = state.counters
    has_blocks = len(run.prompts.blocks) > 0
    placed = answers[:, layout.A_PLACED] > 0
    hits = int(answers[placed, layout.A_HIT].sum())
    return LanguageSimulation(
        requests=len(answers),
        outcomes={name: int((answers[:, layout.A_OUTCOME] == code).sum()) for code, name in enumerate(OUTCOMES, 1)},
        routes={
            name: int((answers[placed, layout.A_ROUTE] == code).sum()) for code, name in enumerate(ROUTES) if code > 0
        },
        first_token_ms=tail_of((answers[done, layout.A_FIRST_NS] - arrival_ns[done]) / _NS_PER_MS + way_ms),
        between_tokens_ms=gap_tail(run.record.gaps.sum(axis=0)),
        whole_ms=tail_of((answers[done, layout.A_END_NS] - arrival_ns[done]) / _NS_PER_MS + way_ms),
        tokens_per_s=float(answers[:, layout.A_PRODUCED].sum() / (span_ns / _NS_PER_S)),
        completed_per_s=float(done.sum() / (span_ns / _NS_PER_S)),
        handovers=int(counters[c.C_HANDOVERS]),
        handovers_failed=int(counters[c.C_HANDOVERS_FAILED]),
        leases_expired=int(counters[c.C_LEASES_EXPIRED]),
        fallbacks=int(counters[c.C_FALLBACKS]),
        prefix_hit_share=hits / max(1, int(run.prompts.prompt[placed].sum())) if has_blocks else None,
        engines={name: _engine(run, index, span_ns) for index, name in enumerate(run.language.engines)},
        span_s=span_ns / _NS_PER_S,
        journal_sha256=hashlib.sha256(run.record.journal.tobytes()).hexdigest(),
        basis=basis,
        warnings=run.warnings,
    )


def _engine(run: LanguageRun, index: int, span_ns: int) -> LanguageEngineFigures:
    counts, busy = run.state.engines[index], run.record.busy[index]
    steps = int(counts[c.N_STEPS])
    return LanguageEngineFigures(
        utilisation=min(1.0, float(busy[layout.B_BUSY_NS]) / span_ns),
        steps=steps,
        prompt_tokens=int(counts[c.N_PREFILL_TOKENS]),
        decoded_tokens=int(counts[c.N_DECODE_TOKENS]),
        rows_per_step=float(busy[layout.B_ROWS]) / steps if steps else None,
        preemptions=int(counts[c.N_PREEMPTIONS]),
    )


def tail_of(values_ms: NDArray[np.float64]) -> Tail:
    """Percentiles of times."""
    if len(values_ms) == 0:
        return Tail(p50=None, p95=None, p99=None, mean=None)
    p50, p95, p99 = np.percentile(values_ms, [50, 95, 99])
    return Tail(p50=float(p50), p95=float(p95), p99=float(p99), mean=float(values_ms.mean()))


def gap_tail(counts: NDArray[np.int64]) -> Tail:
    """Percentiles of times between tokens, from how many fell into each bin of `language_layout.gap_bin`."""
    total = int(counts.sum())
    if total == 0:
        return Tail(p50=None, p95=None, p99=None, mean=None)
    middles_ms = np.exp((np.arange(len(counts)) + 0.5) / layout.GAP_BINS_PER_E) / 1000
    cumulated = np.cumsum(counts)
    # As `np.percentile` has them, between two values: of a few dozen the nearest would be the largest.
    places = (total - 1) * np.array([0.5, 0.95, 0.99])
    below, above = (middles_ms[np.searchsorted(cumulated, side(places) + 1)] for side in (np.floor, np.ceil))
    p50, p95, p99 = (below + (places - np.floor(places)) * (above - below)).tolist()
    return Tail(p50=p50, p95=p95, p99=p99, mean=float((middles_ms * counts).sum() / total))
