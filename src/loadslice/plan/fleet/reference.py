"""Reference plans: the processor alone, the graphics card alone, the NPU alone, and two kinds side by side.

"Alone" is said of models: Python stages run on processors whatever the models run on. A kind that cannot do it is in
the table all the same, with the limit that binds.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from loadslice.plan.fleet.candidate import Design
from loadslice.plan.fleet.demand import Kind
from loadslice.plan.fleet.lower import KINDS
from loadslice.plan.fleet.mix import Demands
from loadslice.plan.fleet.problem import Problem
from loadslice.plan.fleet.search import Search, Seeker

NAMES = ("cpu-only", "gpu-only", "npu-only", "hybrid")


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference plan's search."""

    name: str
    problem: Problem
    design: Design
    demands: tuple[Demands, ...]
    """The cheapest of several searches is taken."""
    lacks: str | None
    """Why there is nothing to search."""


def references(problem: Problem, design: Design, kinds: tuple[Kind, ...]) -> list[Reference]:
    """The four, each with what it may use."""
    model = tuple(s for s, stage in enumerate(design.pipeline.stages) if stage.python is None) or tuple(
        range(len(design.pipeline.stages))
    )
    found = []
    for hardware in KINDS:
        allowed = {name for name, offer in design.offers.items() if offer.kind == hardware}
        runs = tuple(
            tuple(name for name in names if s not in model or name in allowed) for s, names in enumerate(design.runs)
        )
        lacks = _lacks(hardware, allowed, design, runs, model)
        masked = _masked(problem, kinds, runs)
        found.append(Reference(f"{hardware}-only", masked, replace(design, runs=runs), (Demands(),), lacks))
    found.append(_hybrid(problem, design, model))
    return found


def _masked(problem: Problem, kinds: tuple[Kind, ...], runs: tuple[tuple[str, ...], ...]) -> Problem:
    """Work that may not run somewhere made impossible there, and types that run nothing not offered."""
    work = problem.work_s.copy()
    used = np.zeros(len(problem.engines), bool)
    for k, name in enumerate(problem.engines):
        for j, kind in enumerate(kinds):
            if name in runs[kind.stage]:
                used[k] = True
            else:
                work[:, j, k] = np.inf
    return replace(problem, work_s=work, count_max=np.where(used, problem.count_max, 0))


def _lacks(
    kind: str, allowed: set[str], design: Design, runs: tuple[tuple[str, ...], ...], model: tuple[int, ...]
) -> str | None:
    if not allowed:
        return f"no {kind} is offered; name one with --device or in an offers file"
    for s in model:
        if not runs[s]:
            return f"stage '{design.pipeline.stages[s].name}' has no time on any {kind}"
    for s, names in enumerate(runs):
        if not names:
            return f"stage '{design.pipeline.stages[s].name}' runs on none of the engines offered"
    return None


def _hybrid(problem: Problem, design: Design, model: tuple[int, ...]) -> Reference:
    of_kind: dict[str, tuple[int, ...]] = {}
    for kind in KINDS:
        of_kind[kind] = tuple(
            k
            for k, name in enumerate(problem.engines)
            if design.offers[name].kind == kind and any(name in design.runs[s] for s in model)
        )
    there = [kind for kind, types in of_kind.items() if types]
    demands = tuple(Demands(one_of=(of_kind[one], of_kind[other])) for one, other in itertools.combinations(there, 2))
    lacks = None if demands else f"models run on one kind only ({', '.join(there) or 'none'})"
    return Reference("hybrid", problem, design, demands, lacks)


def search(
    reference: Reference,
    seeker: Seeker,
    tell: Callable[[str], None],
    priced: Problem | None = None,
    least: str = "cheapest",
) -> Search:
    """The cheapest fleet of a reference plan; of several pairs of kinds, the cheapest, and the others beside it.

    Hours that a kind takes whatever its number are in no mix's cost, so that the pair which costs least over the years
    may be another than the one whose machines do.

    Args:
        reference: What may be used.
        seeker: Of its problem.
        tell: Progress in words.
        priced: The problem with other prices, to seek the least of something else.
        least: What that makes the fleet, in a word.
    """
    best: Search | None = None
    for demands in reference.demands:
        found = seeker.cheapest(demands, priced)
        best = found if best is None else _better(best, found)
    assert best is not None
    tell(f"{reference.name}: {_said(best, seeker, least)}")
    return best


def _better(one: Search, other: Search) -> Search:
    first, second = (
        (other, one)
        if other.best is not None and (one.best is None or other.best.mix.cost_per_hour < one.best.mix.cost_per_hour)
        else (one, other)
    )
    first.others += [*([] if second.best is None else [second.best]), *second.others]
    first.judged += second.judged
    first.proven = first.proven and second.proven
    first.bound_per_hour = min(first.bound_per_hour, second.bound_per_hour)
    first.solved += second.solved
    first.solve_s += second.solve_s
    first.simulated += second.simulated
    first.requests += second.requests
    if first.nearest is None:
        first.nearest = second.nearest
    return first


def _said(found: Search, seeker: Seeker, least: str) -> str:
    proven = "proven" if found.proven else "not proven"
    if found.best is None:
        return f"none holds ({found.simulated} simulated, {proven})"
    return f"{seeker.label(found.best.mix.counts)} ({found.simulated} simulated, {proven} the {least} of its kind)"
