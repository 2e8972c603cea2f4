"""Several routers on one trace, each run several times: figures with the interval in which one more run would lie."""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.sim import language_layout as layout
from loadslice.sim.draws import t_95
from loadslice.sim.language import LanguageRun, run_language, summarise, tail_of
from loadslice.sim.language_world import Surroundings
from loadslice.spec.language import RouterPolicy
from loadslice.spec.language_report import ClassFigures, RouterResult
from loadslice.spec.language_simulation import LanguageSimulation
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import CLASSES

_NS_PER_MS = 1_000_000


def run_router(
    trace: pl.DataFrame,
    around: Surroundings,
    policy: RouterPolicy,
    *,
    seed: int,
    speed: float = 1.0,
    prefix_tokens: Mapping[str, int] | None = None,
    faults: NDArray[np.int64] | None = None,
    learned: NDArray[np.int64] | None = None,
) -> LanguageRun:
    """One run of one router policy; the language file's own is not asked. Arguments as of `run_language`."""
    router = msgspec.structs.replace(around.language.router, policy=policy)
    return run_language(
        trace,
        msgspec.structs.replace(around.language, router=router),
        around.costs,
        told=around.told,
        seed=seed,
        speed=speed,
        prefix_tokens=prefix_tokens,
        beside=around.beside,
        told_beside=around.told_beside,
        shape=around.shape,
        noise=around.noise,
        faults=faults,
        handover_noise=around.handover_noise,
        cold=around.cold,
        reshape=around.reshape,
        learned=learned,
    )


def compare(
    trace: pl.DataFrame,
    around: Surroundings,
    policies: Sequence[RouterPolicy],
    *,
    seed: int,
    replicas: int,
    speed: float = 1.0,
    prefix_tokens: Mapping[str, int] | None = None,
    faults: NDArray[np.int64] | None = None,
) -> list[RouterResult]:
    """Run every policy on the same trace with the same seeds.

    Args:
        trace: With tokens.
        around: From `language_world.surroundings`.
        policies: In the order they are told.
        seed: Of the first run; the others have the next ones.
        replicas: Runs of each.
        speed: Pace of the trace.
        prefix_tokens: By engine.
        faults: Rows of `language_layout`.
    """
    results = []
    for policy in policies:
        runs = []
        first: LanguageRun | None = None
        for number in range(seed, seed + replicas):
            run = run_router(
                trace, around, policy, seed=number, speed=speed, prefix_tokens=prefix_tokens, faults=faults
            )
            first = first or run
            runs.append(dict(figures(summarise(run, around.basis, way_ms=around.way_ms))))
        assert first is not None
        results.append(
            RouterResult(
                policy=policy,
                simulation=summarise(first, around.basis, way_ms=around.way_ms),
                classes=by_class(first, around.way_ms),
                interval_95=intervals(runs) if replicas > 1 else None,
            )
        )
    return results


def figures(said: LanguageSimulation) -> Iterator[tuple[str, float]]:
    """Numbers of a run by name; those that are not known are left out."""
    for name in ("first_token_ms", "between_tokens_ms", "whole_ms"):
        tail = getattr(said, name)
        for key in ("p50", "p95", "p99", "mean"):
            if getattr(tail, key) is not None:
                yield f"{name}.{key}", getattr(tail, key)
    yield "tokens_per_s", said.tokens_per_s
    yield "handovers", float(said.handovers)
    for name, engine in said.engines.items():
        yield f"engines.{name}.utilisation", engine.utilisation


def intervals(runs: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """For each figure: mean +- t * s * sqrt(1 + 1/n), which holds one more run 19 times of 20."""
    count = len(runs)
    found = {}
    for name in runs[0]:
        values = [run[name] for run in runs if name in run]
        if len(values) == count:
            mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
            half = t_95(count - 1) * spread * math.sqrt(1 + 1 / count)
            found[name] = (max(0.0, mean - half), mean + half)
    return found


def by_class(run: LanguageRun, way_ms: float) -> dict[str, ClassFigures]:
    """Figures of each class that the trace has."""
    answers, arrival_ns = run.record.answers, run.prompts.arrival_ns
    completed = answers[:, layout.A_OUTCOME] == Outcome.COMPLETED
    found: dict[str, ClassFigures] = {}
    for index, name in enumerate(CLASSES):
        mine = run.prompts.priority == index
        if not mine.any():
            continue
        done = mine & completed
        first_ms = (answers[done, layout.A_FIRST_NS] - arrival_ns[done]) / _NS_PER_MS + way_ms
        whole_ms = (answers[done, layout.A_END_NS] - arrival_ns[done]) / _NS_PER_MS + way_ms
        found[name] = ClassFigures(
            requests=int(mine.sum()),
            completed=int(done.sum()),
            first_token_ms=tail_of(first_ms),
            whole_ms=tail_of(whole_ms),
        )
    return found
