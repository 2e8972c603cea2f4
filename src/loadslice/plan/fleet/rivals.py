"""Two other ways to plan, on the same case and judged by the same simulation.

- fluid: the cheapest mix whose time just suffices, without queues (utilisation up to 1), as planners by throughput
  tables do.
- greedy: one engine after the other, always of the type that does the most of the work still open for its money.

Where the simulation finds that their answer does not keep the promise, an engine of the type they use most is added
until it does, which is what their user would do.
"""

import math
from dataclasses import dataclass

import numpy as np

from loadslice.plan.fleet import mix as mixes
from loadslice.plan.fleet.problem import Float64s, Int64s, Problem, allowed
from loadslice.plan.fleet.search import Fleet, Seeker

ADDED_MAX = 12
"""Engines added before giving up."""


@dataclass(frozen=True, slots=True)
class Rival:
    """What a rival planner ends with."""

    planner: str
    first: Fleet | None
    """Its own answer; ``None``: it found none."""
    final: Fleet | None
    """After engines were added until the promise held; ``None``: it never did."""
    added: int


def fluid(problem: Problem, seeker: Seeker) -> Rival:
    """The mix of a planner that knows no queues."""
    answer = mixes.solve(problem)
    return Rival("fluid", None, None, 0) if answer is None else _until_it_holds("fluid", answer.mix.counts, seeker)


def greedy(problem: Problem, seeker: Seeker) -> Rival:
    """The mix of a planner that buys the best bargain again and again."""
    counts = greedy_counts(problem)
    return Rival("greedy", None, None, 0) if counts is None else _until_it_holds("greedy", counts, seeker)


def greedy_counts(problem: Problem) -> Int64s | None:
    """Engines by the best bargain, until the busiest bucket's work fits; ``None``: some work fits nowhere."""
    busiest = int(
        np.argmax(np.nanmin(np.where(np.isfinite(problem.work_s), problem.work_s, np.nan), axis=2).sum(axis=1))
    )
    work = problem.work_s[busiest]
    if not np.isfinite(work).any(axis=1).all():
        return None
    counts = np.zeros(len(problem.engines), np.int64)
    open_share = np.ones(len(work))
    price = np.maximum(_price(problem), 1e-9)
    while open_share.max() > 1e-9:
        done = np.array([_served(work[:, k], open_share, _room(problem, busiest, k)) for k in range(len(price))])
        value = (open_share[None, :] - done).sum(axis=1) / price
        value[counts >= problem.count_max] = -np.inf
        best = int(np.argmax(value))
        if not value[best] > 0:
            return None
        counts[best] += 1
        open_share = done[best]
    return counts


def _price(problem: Problem) -> Float64s:
    """An engine with its part of a machine."""
    share: Float64s = (problem.takes / np.maximum(problem.room[problem.box_of], 1)).max(axis=1)
    return problem.per_hour + share * problem.box_per_hour[problem.box_of]


def _room(problem: Problem, bucket: int, k: int) -> float:
    return float(problem.slots[k] * problem.seconds[bucket])


def _served(work: Float64s, open_share: Float64s, room_s: float) -> Float64s:
    """What stays open after one more engine has worked through the classes it is quickest at."""
    left = open_share.copy()
    for j in np.argsort(np.where(np.isfinite(work), work, np.inf)):
        if not math.isfinite(work[j]) or left[j] <= 0:
            continue
        part = min(left[j], room_s / work[j]) if work[j] > 0 else left[j]
        left[j] -= part
        room_s -= part * work[j]
        if room_s <= 1e-12:
            break
    return left


def _until_it_holds(planner: str, counts: Int64s, seeker: Seeker) -> Rival:
    first: Fleet | None = None
    for added in range(ADDED_MAX + 1):
        verdict, boxes = (None, None) if allowed(seeker.problem, counts) is None else seeker.verdict(counts)
        if boxes is None:
            break
        fleet = seeker.priced(counts, verdict)
        first = first if first is not None else fleet
        if fleet is not None and fleet.holds:
            return Rival(planner, first, fleet, added)
        counts = counts.copy()
        counts[int(np.argmax(np.where(counts < seeker.problem.count_max, counts, -1)))] += 1
    return Rival(planner, first, None, ADDED_MAX)
