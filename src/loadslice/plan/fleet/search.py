"""The cheapest fleet that keeps the promise, and the proof that none is cheaper.

1. The mixed-integer program gives the cheapest mix whose time suffices. Solved with a lower cap on utilisation until
   the simulation holds, then engines are taken away while it still holds: an upper bound.
2. The program is asked for a mix below that cost. Its answer is filled up with engines as long as it stays below, and
   simulated: if it holds, the upper bound falls; if not, it and everything smaller are cut off. When the program has no
   answer left, the best fleet is the cheapest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from loadslice.plan.fleet import mix as mixes
from loadslice.plan.fleet.judge import Verdict
from loadslice.plan.fleet.mix import Demands, Packing
from loadslice.plan.fleet.problem import (
    Float64s,
    Int64s,
    Mix,
    Problem,
    allowed,
    fixed_per_hour,
    in_racks,
    packed,
    packed_in,
)

CAPS = (0.8, 0.65, 0.5, 0.35, 0.22, 0.12, 0.06)
"""Utilisation that is planned for while looking for a first fleet that holds."""
TIMES_FLUID = 8
"""Fleets of more than so many times the engines that the load alone needs are not looked at: what latency such a fleet
does not reach is in its service times, not in its queues."""
SPARE = 3
"""Engines of each type that may always be looked at."""
NEAR = 1.1
"""A fleet that misses the promise by this much more than one that is many times as large is the nearest."""
SIMULATIONS_MAX = 60
"""Of one search."""
NOTHING = 1e-9
"""Money per hour; so little costs what is there already and draws power that nobody prices."""
COST_STEP = 1e-5
"""Cheaper by less than this share is not cheaper."""

Judging = Callable[[Int64s, Int64s], Verdict | None]


@dataclass(frozen=True, slots=True)
class Fleet:
    """A mix that has been judged."""

    mix: Mix
    verdict: Verdict | None

    @property
    def holds(self) -> bool:
        """The simulation kept the promise."""
        return self.verdict is not None and self.verdict.holds


@dataclass(slots=True)
class Search:
    """What was found, and what it took."""

    best: Fleet | None = None
    nearest: Fleet | None = None
    """Of those that do not hold, the one that misses least."""
    proven: bool = False
    bound_per_hour: float = 0.0
    others: list[Fleet] = field(default_factory=list)
    """The best of other demands that were searched beside, such as other pairs of kinds."""
    judged: list[Fleet] = field(default_factory=list)
    solved: int = 0
    solve_s: float = 0.0
    simulated: int = 0
    requests: int = 0


class Seeker:
    """Searches one problem. Verdicts are kept: a fleet is simulated once, whoever asks.

    Args:
        problem: What there is.
        judge: Simulates.
        clock: Seconds; this room reads none itself.
        simulations_max: Fleets one search may simulate before it stops without a proof.
        tell: Progress in words.
    """

    def __init__(
        self,
        problem: Problem,
        judge: Judging,
        clock: Callable[[], float],
        *,
        simulations_max: int = SIMULATIONS_MAX,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start with nothing known."""
        self.problem = problem
        self._judge = judge
        self._clock = clock
        self._simulations_max = simulations_max
        self._tell = tell
        self._known: dict[tuple[int, ...], Verdict | None] = {}
        self._failed: list[Int64s] = []
        self._packings: list[Packing] = []

    def verdict(self, counts: Int64s, found: Search | None = None) -> tuple[Verdict | None, Int64s | None]:
        """What the simulation says of a fleet, and the machines it stands in; ``None``: they do not hold it."""
        standing = packed(self.problem, counts)
        if standing is None or (standing.machines > self.problem.box_max).any():
            return None, None
        key = tuple(int(count) for count in counts)
        if key not in self._known:
            self._known[key] = verdict = self._judge(counts, standing.machines)
            if found is not None:
                found.simulated += 1
                found.requests += verdict.requests if verdict is not None else 0
            if verdict is None or not verdict.holds:
                self._failed.append(counts.copy())
        return self._known[key], standing.machines

    def remember(self, counts: Int64s, verdict: Verdict | None) -> None:
        """A verdict that was found elsewhere."""
        self._known[tuple(int(count) for count in counts)] = verdict
        if verdict is None or not verdict.holds:
            self._failed.append(counts.copy())

    def cheapest(self, demands: Demands | None = None, problem: Problem | None = None) -> Search:
        """The cheapest fleet that holds.

        Args:
            demands: Types that may be used, groups of which one must be.
            problem: With other prices, to seek the least of something else.
        """
        demands, problem = demands or Demands(), problem or self.problem
        found = Search()
        try:
            relaxed = self._solve(problem, demands, found)
            if relaxed is None:
                found.proven, found.bound_per_hour = True, math.inf
                return found
            found.bound_per_hour = relaxed.bound_per_hour
            demands = replace(demands, count_max=self._most(problem, demands))
            if self._floor(problem, demands, relaxed.mix, found):
                self._first(problem, demands, found)
                if found.best is not None:
                    self._shrink(problem, demands, found)
                self._prove(problem, demands, found)
        except mixes.OutOfTimeError:
            self._tell("the solver ran out of time; the cheapest so far is not proven")
        if found.best is not None:
            found.best = self._settled(problem, found.best)
        return found

    def _most(self, problem: Problem, demands: Demands) -> Int64s:
        """Engines of each type that are worth a look: by what each would need to carry all it can run alone."""
        work = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0).sum(axis=1)
        alone = (work / (problem.slots * problem.seconds[:, None])).max(axis=0)
        most: Int64s = np.minimum(np.ceil(alone * TIMES_FLUID).astype(np.int64) + SPARE, problem.count_max)
        return most if demands.count_max is None else np.minimum(most, demands.count_max)

    def _floor(self, problem: Problem, demands: Demands, relaxed: Mix, found: Search) -> bool:
        """Whether the promise can be kept at all: by the largest fleet that there is money and room for."""
        assert demands.count_max is not None
        used = np.any(np.isfinite(problem.work_s), axis=(0, 1))
        largest = np.where(used, demands.count_max, 0)
        if allowed(problem, largest) is None:
            return True
        verdict, _ = self.verdict(largest, found)
        if verdict is not None and verdict.holds:
            return True
        found.proven, found.bound_per_hour = True, math.inf
        best = math.inf if verdict is None else verdict.misses
        for factor in (2, 3, 4, 6):
            near = np.minimum(relaxed.counts * factor, largest)
            self._take(problem, near, found)
            nearest = found.nearest
            if nearest is not None and nearest.verdict is not None and nearest.verdict.misses <= best * NEAR:
                break
        return False

    def _solve(self, problem: Problem, demands: Demands, found: Search) -> mixes.Solution | None:
        """The cheapest mix that stands in whole machines."""
        started = self._clock()
        while True:
            found.solved += 1
            answer = mixes.solve(problem, replace(demands, packings=tuple(self._packings)))
            more = [] if answer is None else _unpacked(problem, answer.mix)
            if not more:
                found.solve_s += self._clock() - started
                return answer
            self._packings += more

    def _first(self, problem: Problem, demands: Demands, found: Search) -> None:
        """Some fleet that holds."""
        for cap in CAPS:
            answer = self._solve(problem, replace(demands, rho=cap, too_small=self._cuts()), found)
            if answer is None:
                continue
            if self._take(problem, answer.mix.counts, found):
                return
        self._double(problem, demands, found)

    def _double(self, problem: Problem, demands: Demands, found: Search) -> None:
        """Caps are of no use where a short burst asks for more than any bucket's mean: more of everything does."""
        assert demands.count_max is not None
        relaxed = self._solve(problem, demands, found)
        for factor in (2, 4, TIMES_FLUID):
            if relaxed is None or found.simulated >= self._simulations_max:
                return
            if self._take(problem, np.minimum(relaxed.mix.counts * factor, demands.count_max), found):
                return

    def _cuts(self) -> tuple[Int64s, ...]:
        """Failed fleets, those that are inside a larger failed one left out."""
        kept: list[Int64s] = []
        for counts in self._failed:
            if any(bool(np.all(counts <= other)) for other in kept):
                continue
            kept = [other for other in kept if not np.all(other <= counts)] + [counts]
        return tuple(kept)

    def _take(self, problem: Problem, counts: Int64s, found: Search) -> bool:
        """Judge a fleet and keep it when it is the best so far, or the nearest."""
        if allowed(problem, counts) is None:
            return False
        verdict, boxes = self.verdict(counts, found)
        flow = mixes.flow(problem, counts)
        if boxes is None or flow is None:
            return False
        cost = flow.cost_per_hour + fixed_per_hour(problem, counts, boxes)
        fleet = Fleet(replace(flow, boxes=boxes, cost_per_hour=cost), verdict)
        found.judged.append(fleet)
        if not fleet.holds:
            if verdict is not None and (
                found.nearest is None or found.nearest.verdict is None or verdict.misses < found.nearest.verdict.misses
            ):
                found.nearest = fleet
            return False
        if found.best is None or cost < found.best.mix.cost_per_hour * (1 - COST_STEP):
            found.best = fleet
            self._tell(f"holds: {self.label(counts)}")
        return True

    def label(self, counts: Int64s) -> str:
        """A fleet in words."""
        there = [f"{count} x {name}" for name, count in zip(self.problem.engines, counts, strict=True) if count]
        return " + ".join(there) or "nothing"

    def _shrink(self, problem: Problem, demands: Demands, found: Search) -> None:
        """Take engines away, the dearest type first, halving the step, while the promise holds."""
        assert found.best is not None
        price = problem.per_hour + problem.box_per_hour[problem.box_of] * _box_share(problem)
        for k in np.argsort(-price):
            step = int(found.best.mix.counts[k])
            while step > 0 and found.simulated < self._simulations_max:
                counts = found.best.mix.counts.copy()
                counts[k] -= step
                if counts[k] >= 0 and self._worth_it(problem, demands, counts):
                    self._take(problem, counts, found)
                # A smaller fleet that holds may cost more: what is left of it is then busier, which takes power.
                if np.array_equal(found.best.mix.counts, counts):
                    step = min(step, int(counts[k]))
                else:
                    step //= 2

    def _worth_it(self, problem: Problem, demands: Demands, counts: Int64s) -> bool:
        """Not known to fail, and able to carry the load at all."""
        if any(bool(np.all(counts <= failed)) for failed in self._failed):
            return False
        if any(counts[list(group)].sum() == 0 for group in demands.one_of):
            return False
        return mixes.flow(problem, counts) is not None

    def _prove(self, problem: Problem, demands: Demands, found: Search) -> None:
        while found.simulated < self._simulations_max:
            below = math.inf if found.best is None else found.best.mix.cost_per_hour * (1 - COST_STEP)
            if below <= NOTHING:
                # Nothing is cheaper than what costs nothing.
                found.proven, found.bound_per_hour = True, 0.0
                return
            answer = self._solve(problem, replace(demands, below=below, too_small=self._cuts()), found)
            if answer is None:
                found.proven = True
                found.bound_per_hour = math.inf if found.best is None else found.best.mix.cost_per_hour
                return
            found.bound_per_hour = max(found.bound_per_hour, answer.bound_per_hour)
            counts = self._filled(problem, demands, answer.mix, below)
            if self._take(problem, counts, found):
                self._shrink(problem, demands, found)
            assert any(bool(np.all(counts <= failed)) for failed in self._failed) or (
                found.best is not None and found.best.mix.cost_per_hour < below
            ), "every round cuts something off or finds something cheaper"

    def _filled(self, problem: Problem, demands: Demands, answer: Mix, below: float) -> Int64s:
        """The largest fleet around an answer that still costs less: if that fails, more is cut off."""
        if not math.isfinite(below):
            return self._doubled(problem, demands, answer.counts)
        counts = answer.counts.copy()
        most = problem.count_max if demands.count_max is None else np.minimum(problem.count_max, demands.count_max)
        flow_cost = answer.cost_per_hour - fixed_per_hour(problem, answer.counts, answer.boxes)
        useful = np.any(np.isfinite(problem.work_s), axis=(0, 1))
        for k in np.argsort(problem.per_hour):
            if not useful[k]:
                continue
            low, high = int(counts[k]), int(min(most[k], counts[k] + 64))
            while low < high:
                middle = (low + high + 1) // 2
                trial = counts.copy()
                trial[k] = middle
                if self._costs(problem, trial) + flow_cost < below:
                    low = middle
                else:
                    high = middle - 1
            counts[k] = low
        return counts

    def _costs(self, problem: Problem, counts: Int64s) -> float:
        standing = allowed(problem, counts)
        return math.inf if standing is None else fixed_per_hour(problem, counts, standing.machines)

    def _doubled(self, problem: Problem, demands: Demands, counts: Int64s) -> Int64s:
        """Nothing holds yet: twice as many of what the program chose, as far as there is money and room."""
        most = problem.count_max if demands.count_max is None else np.minimum(problem.count_max, demands.count_max)
        larger = np.minimum(counts * 2, most)
        return counts if allowed(problem, larger) is None else larger

    def _settled(self, problem: Problem, fleet: Fleet) -> Fleet:
        return fleet if problem is self.problem else self.priced(fleet.mix.counts, fleet.verdict) or fleet

    def priced(self, counts: Int64s, verdict: Verdict | None) -> Fleet | None:
        """A fleet with its cost by this problem's prices; ``None``: it cannot carry the load, or nothing holds it."""
        standing, flow = packed(self.problem, counts), mixes.flow(self.problem, counts)
        if standing is None or flow is None:
            return None
        cost = flow.cost_per_hour + fixed_per_hour(self.problem, counts, standing.machines)
        return Fleet(replace(flow, boxes=standing.machines, cost_per_hour=cost), verdict)


def _box_share(problem: Problem) -> Float64s:
    """Part of its box that one engine of a type takes."""
    share: Float64s = (problem.takes / np.maximum(problem.room[problem.box_of], 1)).max(axis=1)
    return share


def _unpacked(problem: Problem, answer: Mix) -> list[Packing]:
    """Boxes and racks in which the program put more than fits when engines and machines are not divided."""
    found = []
    for b in range(len(problem.boxes)):
        boxes_w = packed_in(problem, answer.counts, b)
        if boxes_w is None or len(boxes_w) > answer.boxes[b]:
            inside = np.where(problem.box_of == b, answer.counts, 0)
            found.append(Packing(b, inside, None if boxes_w is None else len(boxes_w)))
    if found:
        return found
    standing = packed(problem, answer.counts)
    assert standing is not None, "each box's engines fit"
    return [] if in_racks(problem, standing) else [Packing(None, answer.counts, None)]
