"""The cheapest mix of engines whose time suffices in every bucket: a mixed-integer program, solved to optimality.

Whole numbers n (engines by type) and m (machines), shares y of each class of work in each bucket over the types:

    min   sum_k per_hour[k] n[k] + sum_b box_per_hour[b] m[b] + (1 / hours) sum_tjk per_busy[k] work[t,j,k] y[t,j,k]
    s.t.  sum_k y[t,j,k] = 1                                    every class is served
          sum_j work[t,j,k] y[t,j,k] <= rho slots[k] seconds[t] n[k]        no type has more work than time
          cores, cards and watts of the engines fit into the machines, taken together
          money paid at once <= purchase_max, watts of everything <= racks x per_rack_w

What is there already costs no purchase: as many as are there, and no more than are used, are taken off again.

A fleet that the simulation finds too small is cut off with everything smaller: some type must have more of it
(``n[k] >= counts[k] + 1`` for one k at least). That presumes that an engine more never breaks a promise.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadslice.plan.fleet.problem import Float64s, Int64s, Mix, Problem, fixed_per_hour
from loadslice.spec.errors import MissingExtraError

SECONDS_MAX = 15.0
"""For one program; 10 types and 24 buckets take a fraction of one, many cuts make it slow."""
_TIME_LIMIT = 1
"""SciPy's status."""


class OutOfTimeError(Exception):
    """The solver has neither an answer nor a proof that there is none."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What is asked of a mix beside carrying the load."""

    rho: float = 1.0
    """Largest busy share of any type in any bucket."""
    too_small: tuple[Int64s, ...] = ()
    """Fleets that failed: neither they nor smaller ones are wanted."""
    count_max: Int64s | None = None
    """[K] instead of the problem's"""
    one_of: tuple[tuple[int, ...], ...] = ()
    """Of each of these groups of types at least one engine."""
    below: float = math.inf
    """Money per hour that must be undercut."""
    packings: tuple["Packing", ...] = ()


@dataclass(frozen=True, slots=True)
class Packing:
    """Engines that cannot be divided need more machines than their sums say."""

    box: int | None
    """``None``: of all types, which do not fit into the racks"""
    counts: Int64s
    """[K] these, or more of each, stand in"""
    machines: int | None
    """so many; ``None``: in none at all"""


@dataclass(frozen=True, slots=True)
class Solution:
    """An answer of the solver."""

    mix: Mix
    bound_per_hour: float
    """No mix is cheaper than this."""


def solve(problem: Problem, demands: Demands | None = None, *, seconds: float = SECONDS_MAX) -> Solution | None:
    """The cheapest mix; ``None``: there is none.

    Args:
        problem: What there is and what is asked.
        demands: What else is asked.
        seconds: Time for the solver.

    Raises:
        MissingExtraError: SciPy is not installed.
        OutOfTimeError: The solver needs longer.
    """
    try:
        from scipy import optimize, sparse  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("plan", "fleet search") from error
    demands = demands or Demands()
    program = _Program(problem, demands)
    if program.impossible:
        return None
    rows = sparse.coo_array(
        (program.value, (program.row, program.column)), shape=(len(program.low), len(program.cost))
    ).tocsc()
    found = optimize.milp(
        program.cost,
        constraints=optimize.LinearConstraint(rows, program.low, program.high),
        integrality=program.whole,
        bounds=optimize.Bounds(np.zeros(len(program.cost)), program.most),
        options={"mip_rel_gap": 0.0, "time_limit": seconds},
    )
    if found.x is None:
        if found.status == _TIME_LIMIT:
            raise OutOfTimeError
        return None
    return Solution(
        program.mix(found.x), float(found.mip_dual_bound if found.mip_dual_bound is not None else found.fun)
    )


class _Program:
    """Rows, columns and bounds. Columns: K counts, B boxes, the shares that are possible, a choice per cut and type."""

    def __init__(self, problem: Problem, demands: Demands) -> None:
        self._problem = problem
        self._demands = demands
        types, boxes = len(problem.engines), len(problem.boxes)
        self.most_of = (
            problem.count_max if demands.count_max is None else np.minimum(demands.count_max, problem.count_max)
        )
        possible = np.isfinite(problem.work_s) & (self.most_of > 0)
        needed = np.any(problem.work_s > 0, axis=2)
        self.impossible = bool((needed & ~possible.any(axis=2)).any())
        self.t, self.j, self.k = np.nonzero(np.logical_and(needed[:, :, None], possible))
        shares = len(self.t)
        self._first_share = types + boxes
        choices = (len(demands.too_small) + len(demands.packings)) * types + len(demands.packings)
        self._first_there = types + boxes + shares + choices
        there = 0 if problem.owned is None else types + boxes
        columns = self._first_there + there
        self.cost = np.zeros(columns)
        self.cost[:types], self.cost[types : types + boxes] = problem.per_hour, problem.box_per_hour
        work = problem.work_s[self.t, self.j, self.k]
        self.cost[self._first_share : self._first_share + shares] = problem.per_busy_s[self.k] * work / problem.hours
        self.most = np.ones(columns)
        self.most[:types], self.most[types : types + boxes] = self.most_of, problem.box_max
        self.whole = np.zeros(columns)
        self.whole[: types + boxes] = 1
        self.whole[self._first_share + shares : self._first_there] = 1
        if problem.owned is not None and problem.spared_per_hour is not None:
            self.most[self._first_there :] = problem.owned
            self.cost[self._first_there :] = -problem.spared_per_hour
        self._rows: list[Any] = []
        self._columns: list[Any] = []
        self._values: list[Any] = []
        self._low: list[Float64s] = []
        self._high: list[Float64s] = []
        self._height = 0
        self._serve(shares)
        self._time(work, shares)
        self._machines()
        self._limits()
        self._cut(shares)
        self._pack(shares)
        self.row = np.concatenate(self._rows)
        self.column = np.concatenate(self._columns)
        self.value = np.concatenate(self._values).astype(np.float64)
        self.low, self.high = np.concatenate(self._low), np.concatenate(self._high)

    def _add(self, row: Any, column: Any, value: Any, low: Float64s, high: Float64s) -> None:
        self._rows.append(np.asarray(row) + self._height)
        self._columns.append(np.asarray(column))
        self._values.append(np.asarray(value, np.float64))
        self._low.append(low)
        self._high.append(high)
        self._height += len(low)

    def _serve(self, shares: int) -> None:
        pair = self.t * self._problem.work_s.shape[1] + self.j
        _, row = np.unique(pair, return_inverse=True)
        count = int(row.max()) + 1 if shares else 0
        self._add(row, self._first_share + np.arange(shares), np.ones(shares), np.ones(count), np.ones(count))

    def _time(self, work: Float64s, shares: int) -> None:
        types, buckets = len(self._problem.engines), len(self._problem.seconds)
        # Divided by the bucket's length, so that rows of short and long buckets are of one size.
        row = self.t * types + self.k
        bucket, kind = np.divmod(np.arange(buckets * types), types)
        room = -self._demands.rho * self._problem.slots[kind]
        self._add(
            np.concatenate([row, np.arange(buckets * types)]),
            np.concatenate([self._first_share + np.arange(shares), kind]),
            np.concatenate([work / self._problem.seconds[self.t], room]),
            np.full(buckets * types, -np.inf),
            np.zeros(buckets * types),
        )
        assert len(bucket) == buckets * types

    def _machines(self) -> None:
        problem, types = self._problem, len(self._problem.engines)
        for b in range(len(problem.boxes)):
            inside = np.flatnonzero(problem.box_of == b)
            for resource in range(2):
                value = np.concatenate([problem.takes[inside, resource], [-problem.room[b, resource]]])
                self._bound(np.concatenate([inside, [types + b]]), value, 0.0)
            if math.isfinite(problem.box_w_max):
                value = np.concatenate([problem.watts[inside, 1], [problem.box_watts[b] - problem.box_w_max]])
                self._bound(np.concatenate([inside, [types + b]]), value, 0.0)

    def _bound(self, columns: Any, values: Any, most: float) -> None:
        self._add(np.zeros(len(columns), np.int64), columns, values, np.array([-np.inf]), np.array([most]))

    def _limits(self) -> None:
        problem = self._problem
        both = np.arange(len(problem.engines) + len(problem.boxes))
        money = np.concatenate([problem.purchase, problem.box_purchase])
        there = self._first_there + both if problem.owned is not None else both[:0]
        for part, column in zip(both, there, strict=False):
            self._bound(np.array([column, part]), np.array([1.0, -1.0]), 0.0)
        if math.isfinite(problem.purchase_max):
            self._bound(np.append(both, there), np.append(money, -money[: len(there)]), problem.purchase_max)
        if math.isfinite(problem.per_rack_w):
            # As a share of it; what whole machines waste of a rack is cut off when it is met (`Packing`).
            most_w = problem.per_rack_w * problem.racks_max
            self._bound(both, np.concatenate([problem.watts[:, 1], problem.box_watts]) / most_w, 1.0)
        for group in self._demands.one_of:
            self._bound(np.array(group), -np.ones(len(group)), -1.0)
        if math.isfinite(self._demands.below):
            used = np.flatnonzero(self.cost)
            if len(used):
                # As a share of it, for the solver's tolerance is absolute.
                self._bound(used, self.cost[used] / self._demands.below, 1.0)

    def _cut(self, shares: int) -> None:
        types = len(self._problem.engines)
        for number, counts in enumerate(self._demands.too_small):
            chosen = self._first_share + shares + number * types + np.arange(types)
            usable = np.flatnonzero(counts + 1 <= self.most_of)
            unusable = np.setdiff1d(np.arange(types), usable)
            self.most[chosen[unusable]] = 0.0
            for k in usable:
                self._bound(np.array([k, chosen[k]]), np.array([-1.0, counts[k] + 1.0]), 0.0)
            self._bound(chosen, -np.ones(types), -1.0)

    def _pack(self, shares: int) -> None:
        """Either some type has fewer than ``counts``, or there are so many machines."""
        types = len(self._problem.engines)
        first = self._first_share + shares + len(self._demands.too_small) * types
        for number, packing in enumerate(self._demands.packings):
            fewer = first + number * (types + 1) + np.arange(types)
            more = first + number * (types + 1) + types
            there = packing.counts > 0
            inside = np.flatnonzero(there if packing.box is None else there & (self._problem.box_of == packing.box))
            self.most[np.setdiff1d(fewer, fewer[inside])] = 0.0
            for k in inside:
                spare = max(0.0, float(self.most_of[k] - packing.counts[k] + 1))
                self._bound(np.array([k, fewer[k]]), np.array([1.0, spare]), packing.counts[k] - 1 + spare)
            if packing.machines is None or packing.box is None:
                self.most[more] = 0.0
            else:
                self._bound(np.array([types + packing.box, more]), np.array([-1.0, packing.machines]), 0.0)
            self._bound(np.append(fewer, more), -np.ones(types + 1), -1.0)

    def mix(self, values: Float64s) -> Mix:
        """The solver's numbers as a mix."""
        problem, types = self._problem, len(self._problem.engines)
        counts = np.round(values[:types]).astype(np.int64)
        boxes = np.round(values[types : self._first_share]).astype(np.int64)
        share = np.zeros(problem.work_s.shape)
        share[self.t, self.j, self.k] = np.clip(values[self._first_share : self._first_share + len(self.t)], 0.0, 1.0)
        work = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0)
        asked = np.einsum("tjk,tjk->tk", share, work)
        room = problem.seconds[:, None] * np.maximum(1, counts * problem.slots)[None, :]
        cost = fixed_per_hour(problem, counts, boxes) + float(problem.per_busy_s @ asked.sum(axis=0)) / problem.hours
        return Mix(counts, boxes, cost, asked / room, share)


def flow(problem: Problem, counts: Int64s, *, rho: float = 1.0) -> Mix | None:
    """The cheapest flow through a given fleet, its cost that of being busy; ``None``: it cannot carry the load."""
    fixed = Demands(rho=rho, count_max=counts)
    # What is there is paid whether it is used or not: only the flow is left to choose.
    found = solve(_without_price(problem), fixed)
    if found is None:
        return None
    boxes = found.mix.boxes
    busy = found.mix.busy * np.maximum(1, found.mix.counts * problem.slots) / np.maximum(1, counts * problem.slots)
    return Mix(counts, boxes, found.mix.cost_per_hour, busy, found.mix.share)


def _without_price(problem: Problem) -> Problem:
    return replace(
        problem,
        per_hour=np.zeros(len(problem.engines)),
        box_per_hour=np.zeros(len(problem.boxes)),
        takes=np.zeros_like(problem.takes),
        watts=np.zeros_like(problem.watts),
        purchase_max=math.inf,
        per_box_w=math.inf,
        per_rack_w=math.inf,
        owned=None,
        spared_per_hour=None,
    )
