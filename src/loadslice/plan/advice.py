"""A searched plan completed: money, decision, confidence, valleys and checklist put to the fleets that were simulated.

The search hands in a plan with fleets, load and proof; `complete` gives it back with everything a manager asks for.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadslice.plan.checklist import checklist
from loadslice.plan.confidence import confidence
from loadslice.plan.decision.facts import Facts, gather
from loadslice.plan.decision.scenario import WEIGHTS, kinds, scores
from loadslice.plan.decision.settle import SAME_COST_SHARE, Cost, Settled, keeps, settle, total_cost
from loadslice.plan.decision.tree import decide
from loadslice.plan.fleet.front import nearest
from loadslice.plan.money import wall
from loadslice.plan.money.bill import bill
from loadslice.plan.money.payback import break_even, growth, outgrown
from loadslice.plan.money.tco import costs_by_year, horizons, per_1000, with_interval
from loadslice.plan.sentence import doubted, lacking, safer
from loadslice.plan.separate import fill
from loadslice.plan.shocks import Assumption, assumptions, drift_of, shocks_of, tail_error, time_error
from loadslice.plan.valleys import over_time, valleys
from loadslice.spec.budget import Budget
from loadslice.spec.device import Kind
from loadslice.spec.inspection import Inspection
from loadslice.spec.latency import LatencyTable
from loadslice.spec.plan import Objective, PathStep, Plan, PlannedFleet
from loadslice.spec.plan_confidence import Confidence
from loadslice.spec.portrait import Portrait
from loadslice.spec.prices import Prices
from loadslice.spec.variant import Squeeze

INTERVAL_DRAWS = 1000
BEST_IS: dict[Objective, str] = {
    "cost": "the cheapest",
    "latency": "the fastest",
    "energy": "the most frugal",
    "throughput": "the largest",
}
"""What an objective makes of the best fleet, in words."""
SCORES_MAX = 4
"""Told beside that of the recommended fleet, the best first."""


def complete(
    plan: Plan,
    budget: Budget,
    *,
    prices: Prices | None = None,
    portrait: Portrait | None = None,
    inspections: Sequence[Inspection] = (),
    npus: Sequence[str] = (),
    latency: LatencyTable | None = None,
    squeezes: Sequence[Squeeze] = (),
    times: Mapping[str, Assumption] | None = None,
    carries: Mapping[str, float] | None = None,
    runs_by: Mapping[str, str] | None = None,
    rows_p99: float | None = None,
    utilisation: float | None = None,
) -> Plan:
    """Money, decision, confidence, valleys and checklist.

    Args:
        plan: Fleets as they were simulated; what stood in the parts that are filled in here is replaced.
        budget: What the plan was searched under.
        prices: What the offers do not state.
        portrait: Of the trace.
        inspections: One for each model.
        npus: Names of the NPUs they were inspected for.
        latency: What the fleets were simulated on.
        squeezes: What was tried on each model.
        times: Engine type -> error of its times; an absent one is found in ``latency`` (`shocks.time_error`).
        carries: Fleet -> traffic, as a multiple of the recorded, under which a simulation showed it to hold.
        runs_by: Engine type -> engine of the latency table, where the names differ.
        rows_p99: Rows of a request, 99th percentile, where there is no portrait.
        utilisation: Of what serves today in its busiest hour, 0 to 1.
    """
    held = carries or {}
    times = _errors(plan, latency, runs_by or {}) | dict(times or {})
    simulated = tail_error(plan.observed)
    fleets = [over_time(fleet, plan.load) for fleet in plan.fleets]
    fleets = [_priced(fleet, budget, prices, held.get(fleet.name), times, plan.seed) for fleet in fleets]
    watts = _smallest_box_w(fleets, budget, prices)
    facts = gather(
        budget,
        portrait=portrait,
        inspections=inspections,
        npus=npus,
        rate_per_s=plan.load.peak_rate_per_s,
        rows=rows_p99,
        utilisation=utilisation,
        box_w=watts,
    )
    fleets = [_with_unchecked(fleet, facts) for fleet in fleets]
    plan = msgspec.structs.replace(plan, fleets=fleets)
    decision = decide(facts)
    cost, note = _by_objective(plan, fleets, budget, held)
    settled = settle(decision, facts, fleets, cost, best_is=BEST_IS[plan.objective])
    path = [*decision.path, *settled.steps, _scenario_step(fleets, budget, plan.load.span_s, settled)]
    recommended = next((fleet for fleet in fleets if fleet.name == settled.recommended), None)
    near = None if settled.recommended else nearest(fleets)
    sure = (
        _confidence(fleets, settled, budget, prices, times, simulated, held, plan.seed)
        if plan.objective == "cost"
        else None
    )
    return msgspec.structs.replace(
        plan,
        decision=settled.sentence
        + doubted(plan, recommended, latency)
        + lacking(fleets, near)
        + safer(fleets, settled.recommended, sure, total_cost(budget.money.horizon_years), budget.money.currency),
        decision_path=path,
        fleets=fleets,
        recommended=settled.recommended,
        nearest=near,
        saves_vs_gpu_only_pct=_saves_pct(fleets, settled, total_cost(budget.money.horizon_years)),
        confidence=sure,
        valleys=[] if recommended is None else valleys(recommended, plan.load),
        valley_fill=None
        if recommended is None
        else fill(recommended, fleets, plan.load, budget, prices, total_cost(budget.money.horizon_years)),
        break_even=[] if recommended is None else break_even(recommended, fleets, budget, prices, held),
        growth=None if recommended is None else growth(recommended, fleets, budget, prices, held),
        checklist=checklist(
            fleets, facts, latency=latency, squeezes=squeezes, prices=prices, box_w=watts, runs_by=runs_by
        ),
        warnings=list(
            dict.fromkeys(
                [
                    *plan.warnings,
                    *([note] if note else []),
                    *([] if plan.objective == "cost" or recommended is None else [UNSURE]),
                    *(_cheaper(fleets, settled, facts) if plan.objective == "cost" else []),
                    *_warnings(fleets, facts),
                ]
            )
        ),
    )


UNSURE = "how sure the recommendation is, and what would settle it, is worked out where cost is the objective only."
UNCHECKED_NPU = (
    "only if its NPU runs the operators, which is not known: loadslice inspect MODEL --device NPU, then plan with "
    "--inspection"
)


def _with_unchecked(fleet: PlannedFleet, facts: Facts) -> PlannedFleet:
    """A fleet whose NPU nobody asked about the model says so beside its promise."""
    if "npu" not in kinds(fleet) or facts.npu is not None or not fleet.meets_slo:
        return fleet
    return msgspec.structs.replace(fleet, unchecked=UNCHECKED_NPU)


def _errors(plan: Plan, latency: LatencyTable | None, runs_by: Mapping[str, str]) -> dict[str, Assumption]:
    """How far the times of each engine type may be off, by the latency table."""
    names = sorted({name for fleet in plan.fleets for name in fleet.engines})
    entries = [] if latency is None else latency.entries
    own = {name: [entry for entry in entries if entry.engine == runs_by.get(name, name)] for name in names}
    seen = {} if plan.observed is None else plan.observed.times_seen
    factors = {name: seen.get(runs_by.get(name, name), ()) for name in names}
    return {
        name: time_error(name, found, factors[name], drift_of(latency))
        for name, found in own.items()
        if found or factors[name]
    }


def _priced(
    fleet: PlannedFleet,
    budget: Budget,
    prices: Prices | None,
    carries: float | None,
    times: Mapping[str, Assumption] | None,
    seed: int,
) -> PlannedFleet:
    """A fleet with its money and its power wall; one that could not be built has neither."""
    if not any(engine.count for engine in fleet.engines.values()):
        return fleet
    years = horizons(budget)
    found = costs_by_year(fleet, budget, prices, years=years, carries=carries)
    lowered = bill(fleet, budget, prices)
    rng = np.random.default_rng(seed)
    draws = {one.name: one.draw(rng, INTERVAL_DRAWS) for one in assumptions([lowered], times)}
    shocks = shocks_of(draws, lowered, INTERVAL_DRAWS)
    costs = [
        msgspec.structs.replace(
            cost, interval_95=with_interval(fleet, budget, prices, shocks, years=cost.years, carries=carries)
        )
        for cost in found
    ]
    own = next(cost for cost in costs if cost.years == budget.money.horizon_years)
    known = {limit.name for limit in fleet.limits}
    load = wall.full_load(fleet, budget, prices)
    return msgspec.structs.replace(
        fleet,
        tco=costs,
        cost_per_1000=per_1000(own.total, own.years, fleet.throughput_per_s, budget),
        limits=[
            *fleet.limits,
            *(limit for limit in wall.limits(fleet, budget, prices) if limit.name not in known),
            *outgrown(fleet, budget, prices, carries, 12 * budget.money.horizon_years),
        ],
        power_w=load.fleet_w if fleet.power_w is None else fleet.power_w,
        power_per_box_w=load.box_w if fleet.power_per_box_w is None else fleet.power_per_box_w,
        missing_prices=list(dict.fromkeys([*fleet.missing_prices, *own.missing])),
    )


def _smallest_box_w(fleets: Sequence[PlannedFleet], budget: Budget, prices: Prices | None) -> dict[Kind, float]:
    """Kind -> watts at full load of the smallest box among fleets of that kind alone."""
    found: dict[Kind, float] = {}
    for fleet in fleets:
        own = kinds(fleet)
        load = wall.full_load(fleet, budget, prices)
        if len(own) != 1 or not load.boxes_w:
            continue
        kind = next(iter(own))
        found[kind] = min(*load.boxes_w, found.get(kind, math.inf))
    return found


def _by_objective(
    plan: Plan, fleets: Sequence[PlannedFleet], budget: Budget, carries: Mapping[str, float]
) -> tuple[Cost, str | None]:
    """What is least for the best fleet, and what has to be said about it."""
    if plan.objective == "latency":
        return (lambda fleet: fleet.latency_ms.p99), None
    if plan.objective == "energy":
        return (lambda fleet: fleet.energy_j), None
    if plan.objective == "throughput":
        if carries:
            return (lambda fleet: 1.0 / carries[fleet.name] if fleet.name in carries else None), None
        return (lambda fleet: 1.0 / fleet.goodput_per_s if fleet.goodput_per_s else None), None
    total = total_cost(budget.money.horizon_years)
    kept = [fleet for fleet in fleets if keeps(fleet)]
    if not kept or any(total(fleet) is not None for fleet in kept):
        return total, None
    if any(fleet.cost_per_hour is not None for fleet in kept):
        # What is unknown is then hours, space or changes, never the price of a part.
        return (
            (lambda fleet: _known(fleet, budget.money.horizon_years) if fleet.cost_per_hour is not None else None),
            "no fleet's total is known; they were compared by the parts of it that are.",
        )
    return (
        (lambda fleet: float(sum(part.count for part in (*fleet.boxes.values(), *fleet.engines.values())))),
        "no price is known; the fleet of the fewest machines and engines was taken for the cheapest.",
    )


def _known(fleet: PlannedFleet, years: int) -> float | None:
    """Of the total over so many years, what is known."""
    return next((one.at_least for one in fleet.tco or [] if one.years == years), None)


def _scenario_step(fleets: Sequence[PlannedFleet], budget: Budget, span_s: float, settled: Settled) -> PathStep:
    """What counts in the budget's scenario, and how the fleets stand in it."""
    kept = [fleet for fleet in fleets if fleet.meets_slo]
    made = [score for score in scores(kept, budget.scenario, span_s) if score.score is not None]
    question = f"Which fleet is best in the scenario '{budget.scenario}'?"
    if not made:
        return PathStep(
            question=question, answer="not known", evidence="no fleet keeps the promise, or no figure is known"
        )
    made.sort(key=lambda score: -(score.score or 0.0))
    best = max(made, key=lambda score: (score.veto is None, score.score or 0.0))
    shown = [score for place, score in enumerate(made) if place < SCORES_MAX or score.fleet == settled.recommended]
    told = "; ".join(
        f"{score.fleet} {score.score:.2f}"
        + (f" (vetoed: {score.veto})" if score.veto else "")
        + (f" (without {', '.join(score.unknown)})" if score.unknown else "")
        for score in shown
    )
    same = best.fleet == settled.recommended
    answer = best.fleet if same or settled.recommended is None else f"{best.fleet}; {_instead(best.fleet, settled)}"
    weights = ", ".join(f"{name} {weight:g}" for name, weight in WEIGHTS[budget.scenario].items())
    return PathStep(question=question, answer=answer, evidence=f"{told}; weights {weights}")


def _instead(name: str, settled: Settled) -> str:
    """Why the best of a scenario is not what is recommended."""
    why = settled.ruled_out.get(name)
    return "the objective decides, not the scenario" if why is None else f"it is ruled out, {why}"


def _saves_pct(fleets: Sequence[PlannedFleet], settled: Settled, cost: Cost) -> float | None:
    """How much less the recommended fleet costs than the GPU alone, over the horizon."""
    by_name = {fleet.name: fleet for fleet in fleets}
    gpu = by_name.get("gpu-only")
    if settled.recommended is None or gpu is None or not gpu.meets_slo:
        return None
    own, reference = cost(by_name[settled.recommended]), cost(gpu)
    return None if own is None or not reference else 100.0 * (1.0 - own / reference)


def _confidence(
    fleets: Sequence[PlannedFleet],
    settled: Settled,
    budget: Budget,
    prices: Prices | None,
    times: Mapping[str, Assumption] | None,
    simulated: Assumption | None,
    carries: Mapping[str, float],
    seed: int,
) -> Confidence | None:
    """Among the fleets that the questions leave; ``None``: none is recommended."""
    if settled.recommended is None:
        return None
    left = [fleet for fleet in fleets if fleet.name not in settled.ruled_out]
    found = confidence(
        left,
        settled.recommended,
        budget,
        prices,
        times=times,
        simulated=simulated,
        carries=carries,
        seed=seed,
    )
    return msgspec.structs.replace(found, left_out=found.left_out | settled.ruled_out)


def _cheaper(fleets: Sequence[PlannedFleet], settled: Settled, facts: Facts) -> list[str]:
    """A fleet in the table that costs less than the recommended one, which whoever reads the totals will ask about."""
    money = facts.budget.money
    cost = total_cost(money.horizon_years)
    own = next((cost(fleet) for fleet in fleets if fleet.name == settled.recommended), None)
    left = [fleet for fleet in fleets if keeps(fleet) and fleet.name not in settled.ruled_out]
    known = [(value, fleet) for fleet in left if (value := cost(fleet)) is not None]
    if own is None or not known:
        return []
    least, fleet = min(known, key=lambda one: one[0])
    if not own * (1 - SAME_COST_SHARE) <= least < own * (1 - 1e-3):
        return []
    told = (
        f"{fleet.label} costs {own - least:,.0f} {money.currency} less over {money.horizon_years} years, within the "
        f"{SAME_COST_SHARE:.0%} that prices err by: the simpler, or the one whose policy was searched, goes first."
    )
    return [told]


def _warnings(fleets: Sequence[PlannedFleet], facts: Facts) -> list[str]:
    money = facts.budget.money
    found = [
        f"{fleet.name}: its cost is unknown, at least {cost.at_least:,.0f} {money.currency} over {cost.years} years; "
        f"missing: {', '.join(cost.missing)}."
        for fleet in fleets
        for cost in fleet.tco or []
        if cost.years == money.horizon_years and cost.total is None
    ]
    return found + [
        f"{fleet.name}: {limit.name} cannot be checked, {limit.evidence}."
        for fleet in fleets
        for limit in fleet.limits
        if limit.name in ("per_box_w", "per_rack_w") and limit.met is None
    ]
