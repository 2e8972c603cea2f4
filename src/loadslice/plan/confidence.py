"""How sure a recommendation is, which assumption turns it over, and what it would cost to find out.

It survives a world in which prices, power, traffic, hours and modelled times turned out otherwise when it keeps the
promise there and nothing else that does costs less by more than `SAME_COST_SHARE`.

A world is one draw of everything that is assumed (`shocks`). In it a fleet costs what `money.years.over` says: more
traffic or slower engines than its headroom bears means more units. It keeps the promise while its simulated latency,
times the factor on its slowest engine's times and that on simulated latencies, stays within the limit. Queues are not
simulated again in each world: near the limit a fleet's true latency rises faster than that, so `headroom` should come
from a simulation.

Knowing some assumptions (an experiment) is worth the difference between choosing before and after: for each drawn
result, the fleet of least expected cost over what stays unknown (expected value of partial perfect information,
Raiffa and Schlaifer, Applied Statistical Decision Theory, 1961). A fleet that fails in a world is charged for the
cheapest that does not, on top of its own cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadslice.plan.decision.settle import SAME_COST_SHARE
from loadslice.plan.experiments import Trial, trials
from loadslice.plan.money.bill import Bill, bill
from loadslice.plan.money.tco import carried
from loadslice.plan.money.years import Array, over
from loadslice.plan.shocks import SIMULATED, Assumption, assumptions, shocks_of, time_of
from loadslice.spec.budget import Budget
from loadslice.spec.plan import PlannedFleet
from loadslice.spec.plan_confidence import GAIN, Confidence, Experiment, Swing
from loadslice.spec.prices import Prices

DRAWS = 4000
OUTER, INNER = 60, 200
"""Results of an experiment, and worlds for each."""
SURE = 0.95
"""A recommendation that survives so often is settled."""
COMPARED_MAX = 12
"""Fleets that are compared: the recommended one and the next cheapest."""
TURN_MAX = 10.0
TURN_POINTS = 120


Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fleet as the worlds see it."""

    name: str
    bill: Bill
    carries: float
    """Traffic, as a multiple of the recorded, that it keeps the promise under."""
    slack: float
    """Factor on its times up to which its simulated latency stays within the limit; below 1: it fails as assumed."""


@dataclass(frozen=True, slots=True)
class Table:
    """What every candidate costs in every world, and whether it keeps the promise there."""

    cost: Array
    """[F, K]"""
    holds: NDArray[np.bool_]
    """[F, K]"""

    def best(self, own: int | Indices) -> Indices:
        """Index of the cheapest that holds in each world, [K]; -1: none does.

        Args:
            own: Index of the fleet, or of one for each world, that stays the best while nothing is clearly cheaper.
        """
        open_cost = np.where(self.holds, self.cost, np.inf)
        least = open_cost.min(axis=0)
        worlds = np.arange(self.cost.shape[1])
        stays = open_cost[own, worlds] * (1 - SAME_COST_SHARE) <= least
        best = np.where(stays, own, open_cost.argmin(axis=0))
        return np.where(np.isfinite(least), best, -1)

    @property
    def paid(self) -> Array:
        """[F, K] what choosing it costs in the end."""
        rescue = np.where(self.holds, self.cost, np.inf).min(axis=0)
        rescue = np.where(np.isfinite(rescue), rescue, self.cost.max(axis=0))
        return np.where(self.holds, self.cost, self.cost + rescue)


def confidence(
    fleets: Sequence[PlannedFleet],
    recommended: str,
    budget: Budget,
    prices: Prices | None = None,
    *,
    times: Mapping[str, Assumption] | None = None,
    simulated: Assumption | None = None,
    carries: Mapping[str, float] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Confidence:
    """How sure a recommendation is.

    Args:
        fleets: Simulated and priced; those whose total is unknown, or that broke another limit than latency, are left
            out and named.
        recommended: Name of one of them.
        budget: Promise, tariff, horizon, growth.
        prices: What the offers do not state.
        times: Engine type -> error of its times (`shocks.time_error`); an absent one counts as measured.
        simulated: What simulated latencies may be off by (`shocks.tail_error`); ``None``: nobody measured.
        carries: Fleet -> traffic, as a multiple of the recorded, under which a simulation showed it to hold.
        seed: Start of every draw.
        draws: Worlds.
    """
    candidates, left_out = _candidates(fleets, recommended, budget, prices, carries or {})
    names = [one.name for one in candidates]
    if recommended not in names:
        return Confidence(
            survives=None,
            draws=0,
            rivals={},
            varied={},
            experiment=None,
            left_out=left_out,
        )
    assumed = assumptions([one.bill for one in candidates], times)
    assumed += [simulated] if simulated is not None and simulated.sd > 0 else []
    months = 12 * budget.money.horizon_years
    rng = np.random.default_rng(seed)
    table = _table(candidates, budget, months, {one.name: one.draw(rng, draws) for one in assumed}, draws)
    own = names.index(recommended)
    best = table.best(own)
    kinds = {name: engine.kind for fleet in fleets for name, engine in fleet.engines.items()}
    found = _experiments(
        candidates,
        budget,
        months,
        assumed,
        trials(
            [one.bill for one in candidates],
            kinds,
            assumed,
            rents=_rents(fleets),
            elsewhere={
                name
                for fleet in fleets
                for name, engine in fleet.engines.items()
                if engine.times_taken_from is not None
            },
        ),
        rng,
    )
    survives = float(np.mean(best == own))
    settling = next((one for one in found if one.survives_after >= SURE and one.gain >= GAIN), None)
    settling = settling if survives < SURE else None
    safer, safer_survives = _safer(table, own, survives, names)
    return Confidence(
        survives=survives,
        draws=draws,
        rivals=_rivals(names, own, best),
        varied={one.name: one.why for one in assumed},
        experiment=None if settling is None else settling.name,
        experiment_cost=None if settling is None else settling.cost,
        tornado=_tornado(candidates, own, budget, months, assumed),
        experiments=found,
        expected_loss=float(np.mean(table.paid[own] - table.paid.min(axis=0))),
        left_out=left_out,
        safer=safer,
        safer_survives=safer_survives,
    )


def _rents(fleets: Sequence[PlannedFleet]) -> dict[str, float]:
    """Engine type -> rent of one with its machine, where it is offered for rent."""
    return {
        name: (engine.price_per_hour or 0.0) + (fleet.boxes[engine.box].price_per_hour or 0.0)
        for fleet in fleets
        for name, engine in fleet.engines.items()
        if engine.price_per_hour or fleet.boxes[engine.box].price_per_hour
    }


def _safer(table: Table, own: int, survives: float, names: list[str]) -> tuple[str | None, float | None]:
    """The fleet of least expected cost, what failing costs included, where it is right more often; else nothing."""
    least = int(table.paid.mean(axis=1).argmin())
    share = float(np.mean(table.best(least) == least))
    return (names[least], share) if least != own and share >= survives + GAIN else (None, None)


def _candidates(
    fleets: Sequence[PlannedFleet],
    recommended: str,
    budget: Budget,
    prices: Prices | None,
    carries: Mapping[str, float],
) -> tuple[list[Candidate], dict[str, str]]:
    """Fleets that can be compared, the recommended one first and then the cheapest."""
    found, left_out = [], {}
    for fleet in fleets:
        if not any(engine.count for engine in fleet.engines.values()):
            left_out[fleet.name] = "it could not be built"
            continue
        lowered = bill(fleet, budget, prices)
        slack = _slack(fleet, budget)
        broken = [limit.name for limit in fleet.limits if limit.met is False and limit.name not in _LATENCY]
        if lowered.missing:
            left_out[fleet.name] = f"unknown: {', '.join(lowered.missing)}"
        elif broken:
            left_out[fleet.name] = f"it breaks {', '.join(broken)}"
        elif slack is None:
            left_out[fleet.name] = "it was not simulated, or loses too many requests"
        else:
            limit = carried(fleet, budget, prices, carries.get(fleet.name))
            found.append(Candidate(fleet.name, lowered, limit, slack))
    months = 12 * budget.money.horizon_years
    order = {one.name: float(over(one.bill, budget, months, one.carries).total[0]) for one in found}
    found.sort(key=lambda one: (one.name != recommended, order[one.name], one.name))
    for one in found[COMPARED_MAX:]:
        left_out[one.name] = f"beyond the {COMPARED_MAX} cheapest"
    return found[:COMPARED_MAX], left_out


_LATENCY = ("p95_ms", "p99_ms")


def _slack(fleet: PlannedFleet, budget: Budget) -> float | None:
    """Factor on its times up to which the simulated latency stays within every limit; ``None``: it cannot be judged."""
    factors = []
    for name, limit_ms in budget.slo.latency_limits_ms.items():
        value_ms = getattr(fleet.latency_ms, name)
        if value_ms is None:
            return None
        factors.append(limit_ms / value_ms if value_ms > 0 else math.inf)
    if fleet.error_rate is None or fleet.error_rate > budget.slo.error_rate:
        return None
    return min(factors)


def _table(
    candidates: Sequence[Candidate], budget: Budget, months: int, factors: Mapping[str, Array], worlds: int
) -> Table:
    cost, holds = [], []
    for one in candidates:
        shocks = shocks_of(factors, one.bill, worlds)
        total = over(one.bill, budget, months, one.carries, shocks).total
        # More must be bought there of a part that is owned, at a price nobody states: it is not counted as held.
        unknown = np.isnan(total)
        as_it_stands = over(one.bill, budget, months, math.inf, shocks).total if unknown.any() else total
        cost.append(np.where(unknown, as_it_stands, total))
        times = [factors[time_of(line.name)] for line in one.bill.lines if time_of(line.name) in factors]
        slowest = np.max(times, axis=0) if times else np.ones(worlds)
        holds.append((slowest * factors.get(SIMULATED, 1.0) <= one.slack) & ~unknown)
    return Table(np.array(cost), np.array(holds))


def _rivals(names: list[str], own: int, best: Indices) -> dict[str, float]:
    """Probability of every other fleet, and of none, the likeliest first."""
    shares = {name: float(np.mean(best == index)) for index, name in enumerate(names) if index != own}
    shares["none"] = float(np.mean(best == -1))
    return {name: share for name, share in sorted(shares.items(), key=lambda one: -one[1]) if share > 0}


def _tornado(
    candidates: Sequence[Candidate], own: int, budget: Budget, months: int, assumed: Sequence[Assumption]
) -> list[Swing]:
    """Each assumption alone: the margin at its bounds, and where the recommendation turns over."""
    grid = np.exp(np.linspace(-math.log(TURN_MAX), math.log(TURN_MAX), TURN_POINTS + 1))
    found = []
    for one in assumed:
        low, high = one.bounds_95
        ends = _table(candidates, budget, months, {one.name: np.array([low, high])}, 2)
        margins = _margins(ends, own)
        turns_at, to = _turn(candidates, own, budget, months, one.name, grid)
        found.append(
            Swing(
                assumption=one.name,
                low=low,
                high=high,
                margin_low=margins[0],
                margin_high=margins[1],
                turns_at=turns_at,
                turns_to=to,
            )
        )
    return sorted(found, key=_nearness)


def _nearness(swing: Swing) -> tuple[float, str]:
    """How far its own uncertainty is from turning the recommendation: 1 at the bound of what is likely."""
    if swing.turns_at is None:
        return math.inf, swing.assumption
    bound = swing.high if swing.turns_at > 1 else swing.low
    return abs(math.log(swing.turns_at)) / max(abs(math.log(bound)), 1e-9), swing.assumption


def _margins(table: Table, own: int) -> list[float | None]:
    """By how much the recommended fleet is ahead of the best other in each world; ``None``: one of the two fails."""
    others = np.where(table.holds, table.cost, np.inf)
    mine = others[own]
    others = np.delete(others, own, axis=0)
    best = others.min(axis=0) if len(others) else np.full(mine.shape, np.inf)
    ahead = np.where(np.isfinite(best) & np.isfinite(mine), best - np.where(np.isfinite(mine), mine, 0.0), np.nan)
    return [None if math.isnan(value) else float(value) for value in ahead]


def _turn(
    candidates: Sequence[Candidate], own: int, budget: Budget, months: int, name: str, grid: Array
) -> tuple[float | None, str | None]:
    """The factor nearest to 1 at which the recommended fleet is no longer the best, to a thousandth."""
    wrong = _table(candidates, budget, months, {name: grid}, len(grid)).best(own) != own
    if not wrong.any():
        return None, None
    distance = np.where(wrong, np.abs(np.log(grid)), np.inf)
    at = int(distance.argmin())
    middle = len(grid) // 2
    if at == middle:
        return 1.0, _winner(candidates, own, budget, months, name, 1.0)
    good, bad = float(grid[at + (1 if at < middle else -1)]), float(grid[at])
    while abs(bad / good - 1.0) > 1e-4:
        half = math.sqrt(good * bad)
        lost = int(_table(candidates, budget, months, {name: np.array([half])}, 1).best(own)[0]) != own
        good, bad = (good, half) if lost else (half, bad)
    return bad, _winner(candidates, own, budget, months, name, bad)


def _winner(
    candidates: Sequence[Candidate], own: int, budget: Budget, months: int, name: str, factor: float
) -> str | None:
    best = int(_table(candidates, budget, months, {name: np.array([factor])}, 1).best(own)[0])
    return None if best < 0 else candidates[best].name


def _experiments(
    candidates: Sequence[Candidate],
    budget: Budget,
    months: int,
    assumed: Sequence[Assumption],
    possible: Sequence[Trial],
    rng: np.random.Generator,
) -> list[Experiment]:
    """What each experiment would settle and be worth, the cheapest first; those of unknown cost last, by hours."""
    found = []
    for trial in possible:
        factors = {
            one.name: np.repeat(one.draw(rng, OUTER), INNER)
            if one.name in trial.settles
            else one.draw(rng, OUTER * INNER)
            for one in assumed
        }
        table = _table(candidates, budget, months, factors, OUTER * INNER)
        draws = table.paid.reshape(len(candidates), OUTER, INNER)
        # Chosen on one half of the draws and priced on the other: the least of noisy means flatters itself.
        guess, paid = draws[:, :, ::2].mean(axis=2), draws[:, :, 1::2].mean(axis=2)
        # After a result one takes the fleet of least expected cost; it is right as often as it is then the best.
        chosen = guess.argmin(axis=0)
        followed = np.repeat(chosen, INNER)
        right = table.best(followed) == followed
        # Taken without a result: what an experiment does not change it does not settle.
        unasked = int(guess.mean(axis=1).argmin())
        gain = float(right.mean() - np.mean(table.best(unasked) == unasked))
        found.append(
            Experiment(
                name=trial.name,
                settles=list(trial.settles),
                hours=trial.hours,
                cost=trial.cost(budget.money.hour_cost),
                survives_after=float(right.mean()),
                gain=gain,
                worth=max(0.0, float(np.mean(paid[unasked] - paid[chosen, np.arange(OUTER)]))),
            )
        )
    return sorted(found, key=lambda one: (one.cost is None, one.cost or one.hours, one.name))
