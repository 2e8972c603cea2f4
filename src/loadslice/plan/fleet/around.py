"""What a planner needs of the world outside, and the fleets around one that holds."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.problem import Int64s, Problem, allowed
from loadslice.plan.sweep import Ledger, Runner

MESSAGES_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Tools:
    """What a planner needs of the world outside."""

    clock: Callable[[], float]
    runner: Callable[[Judge, Ledger], Runner]
    ledger: Callable[[str], Ledger]
    tell: Callable[[str], None]
    jobs: int
    seed: int


def now_and_then(tools: Tools) -> Callable[[int, int, int], None]:
    """Says how far a sweep is, not more often than a person reads."""
    last = tools.clock()

    def tell(settled: int, total: int, simulated: int) -> None:
        nonlocal last
        if tools.clock() - last >= MESSAGES_EVERY_S:
            last = tools.clock()
            tools.tell(f"alternatives: {settled} of {total} settled, {simulated} simulated")

    return tell


def around(counts: Int64s, problem: Problem) -> Iterator[Int64s]:
    """Fleets that differ in one type of engine, then in two."""
    steps = [(k, step) for k, count in enumerate(counts) for step in ((-1, 1, 2) if count else (1,))]
    for changes in itertools.chain(
        ((one,) for one in steps), (pair for pair in itertools.combinations(steps, 2) if pair[0][0] != pair[1][0])
    ):
        other = counts.copy()
        for k, step in changes:
            other[k] += step
        meant = other.min() >= 0 and other.sum() > 0 and (other <= problem.count_max).all()
        if meant and allowed(problem, other) is not None:
            yield other
