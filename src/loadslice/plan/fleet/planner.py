"""From a setting to fleets: reference plans searched, alternatives swept, policy numbers tuned, rivals compared.

Everything here is simulation and search; money over the years, the decision and its confidence are put to the result
by `loadslice.plan.advice`.
"""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from loadslice.plan.fleet import rivals
from loadslice.plan.fleet.around import Tools, around, now_and_then
from loadslice.plan.fleet.beside import PRESENT, REQUESTS_MAX, Beside, beside
from loadslice.plan.fleet.front import apart, mark
from loadslice.plan.fleet.grow import carries, grow
from loadslice.plan.fleet.intervals import intervals
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.load import load_of
from loadslice.plan.fleet.lower import Lowered, for_energy
from loadslice.plan.fleet.planned import impossible, lacking, planned
from loadslice.plan.fleet.problem import Int64s, Problem
from loadslice.plan.fleet.proof import proof
from loadslice.plan.fleet.reference import NAMES, Reference, references, search
from loadslice.plan.fleet.search import Fleet, Search, Seeker
from loadslice.plan.fleet.setting import POLICIES, Setting
from loadslice.plan.fleet.tune import is_better, score, tune
from loadslice.plan.sweep import Swept, sweep
from loadslice.spec.budget import Budget
from loadslice.spec.plan import Compared, Load, Objective, PlannedFleet, Proof

ALTERNATIVES_MAX = 400
SHOWN_MAX = 12
"""Fleets in the table: the reference plans and the front."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fleet with where its stages may run."""

    name: str
    fleet: Fleet
    judge: Judge


@dataclass(slots=True)
class Planned:
    """What the search ends with."""

    fleets: list[PlannedFleet]
    candidates: dict[str, Candidate]
    """Those of ``fleets`` that were simulated."""
    recommended: str | None
    proof: Proof
    compared: list[Compared]
    load: Load
    carries: dict[str, float] = field(default_factory=dict)
    """Fleet -> traffic, as a multiple of the recorded, under which it keeps the promise."""


def make(setting: Setting, budget: Budget, objective: Objective, tools: Tools) -> Planned:
    """Search everything.

    Args:
        setting: Traffic, offers and times.
        budget: Promise and limits.
        objective: What is least, or most, for the recommended fleet.
        tools: Clock, simulations, words.
    """
    began = tools.clock()
    problem = setting.lowered.problem
    found = _searched(references(problem, setting.design, setting.demand.kinds), setting, budget, objective, tools)
    candidates = _held(found, problem)
    if objective in ("latency", "throughput"):
        candidates = {
            name: replace(one, fleet=grow(one.fleet, one.judge, objective, tools.tell))
            for name, one in candidates.items()
        }
    full = Judge(problem, setting.design, setting.traffic, budget.slo, POLICIES, tools.seed)
    seeker = Seeker(problem, tools.ledger("any").judging(full), tools.clock)
    swept = _alternatives(problem, candidates, seeker, full, tools)
    compared, better = _compared(problem, seeker, candidates)
    candidates = _with(candidates, better, full, objective)
    candidates = _with(candidates, _cheaper(swept[0], swept[1], seeker, candidates), full, objective)
    extra = beside(setting, budget, full, tools) if objective == "cost" else []
    candidates |= _new(extra, full, candidates)
    if setting.lowered.priced:
        candidates |= _front(swept, seeker, full, candidates, setting, budget)
    candidates = _tuned(candidates, objective, tools, setting.lowered)
    fleets = _fleets(found, candidates, setting, budget, tools)
    fleets += _lacking(extra, full, setting, budget, tools)
    held = _carried(candidates, setting, tools)
    chosen = _best(candidates, objective, held, setting.lowered)
    return Planned(
        fleets=mark(fleets),
        candidates=candidates,
        recommended=chosen,
        proof=proof(
            [result for _, result, _ in found.values() if result is not None],
            [one.found for one in extra],
            swept[0],
            None if chosen is None else candidates[chosen].fleet,
            sought=setting.lowered.priced and objective == "cost",
            priced=setting.lowered.priced,
            seconds=tools.clock() - began,
        ),
        compared=_saved(compared, chosen, candidates, full),
        load=load_of(setting.traffic, setting.demand),
        carries=held,
    )


Found = dict[str, tuple[Reference, Search | None, Judge | None]]


def _searched(refs: list[Reference], setting: Setting, budget: Budget, objective: Objective, tools: Tools) -> Found:
    """Each reference plan's search; several at a time."""

    def one(reference: Reference) -> tuple[Reference, Search | None, Judge | None]:
        if reference.lacks is not None:
            return reference, None, None
        judge = Judge(reference.problem, reference.design, setting.traffic, budget.slo, POLICIES, tools.seed)
        judging = tools.ledger(reference.name).judging(judge)
        seeker = Seeker(reference.problem, judging, tools.clock)
        priced = for_energy(reference.problem) if objective == "energy" else None
        least = "of least energy" if priced is not None else "cheapest" if setting.lowered.priced else "smallest"
        result = search(reference, seeker, tools.tell, priced, least)
        if result.best is None and result.nearest is None:
            judge = _beyond_limits(reference, judge, result, tools)
        return reference, result, judge

    with ThreadPoolExecutor(max(1, tools.jobs)) as pool:
        return {result[0].name: result for result in pool.map(one, refs)}


def _held(found: Found, problem: Problem) -> dict[str, Candidate]:
    """The best of each reference plan, and of pairs of kinds that none is named after."""
    searched = [
        (name, result, judge)
        for name, (_, result, judge) in found.items()
        if result is not None and judge is not None and result.best is not None
    ]
    candidates = {name: Candidate(name, result.best, judge) for name, result, judge in searched if result.best}
    for _, result, judge in searched:
        for fleet in result.others:
            label = label_of(problem, fleet.mix.counts)
            candidates.setdefault(label, Candidate(label, fleet, judge))
    return candidates


def _beyond_limits(reference: Reference, judge: Judge, result: Search, tools: Tools) -> Judge:
    """What no money, box or rack allows is searched without those limits: the nearest says how much is lacking."""
    free = replace(reference.problem, purchase_max=math.inf, per_box_w=math.inf, per_rack_w=math.inf)
    without = Judge(free, judge.design, judge.traffic, judge.slo, judge.policies, judge.seed)
    judging = tools.ledger(f"{reference.name} without limits").judging(without)
    found = search(replace(reference, problem=free), Seeker(free, judging, tools.clock), lambda _: None)
    result.nearest = found.best or found.nearest
    result.simulated += found.simulated
    result.requests += found.requests
    return without


def _alternatives(
    problem: Problem, candidates: dict[str, Candidate], seeker: Seeker, judge: Judge, tools: Tools
) -> tuple[Swept, list[Int64s]]:
    """Fleets around those that hold: one engine more, fewer or other of any type."""
    wanted: dict[tuple[int, ...], Int64s] = {}
    neighbours = [list(around(one.fleet.mix.counts, problem)) for one in candidates.values()]
    # In turn, so that none of them takes all the room.
    for counts in itertools.chain.from_iterable(itertools.zip_longest(*neighbours)):
        if counts is not None:
            wanted.setdefault(tuple(int(count) for count in counts), counts)
    fleets = list(wanted.values())[:ALTERNATIVES_MAX]
    if not fleets:
        return Swept(np.zeros(0)), []
    run = tools.runner(judge, tools.ledger("any"))
    part = judge.sample()
    sample = None if part is None else tools.runner(part, tools.ledger("sample"))
    swept = sweep(problem, fleets, run, sample=sample, tell=now_and_then(tools))
    for number, verdict in swept.verdicts.items():
        seeker.remember(fleets[number], verdict)
    tools.tell(
        f"alternatives: {len(fleets)} around them, {len(swept.verdicts)} simulated, {swept.bounded} settled by a "
        f"bound, {swept.smaller + swept.dearer} by others, {swept.estimated} by a sample"
    )
    return swept, fleets


def _cheaper(swept: Swept, fleets: list[Int64s], seeker: Seeker, candidates: dict[str, Candidate]) -> Fleet | None:
    """A swept fleet that holds and costs less than every candidate; the search's presumption failed there."""
    number = swept.cheapest
    if number is None:
        return None
    fleet = seeker.priced(fleets[number], swept.verdicts[number])
    least = min((one.fleet.mix.cost_per_hour for one in candidates.values()), default=math.inf)
    return fleet if fleet is not None and fleet.mix.cost_per_hour < least * (1 - 1e-6) else None


def _compared(
    problem: Problem, seeker: Seeker, candidates: dict[str, Candidate]
) -> tuple[list[rivals.Rival], Fleet | None]:
    made = [rivals.fluid(problem, seeker), rivals.greedy(problem, seeker)]
    least = min((one.fleet.mix.cost_per_hour for one in candidates.values()), default=math.inf)
    better = [one.final for one in made if one.final is not None and one.final.mix.cost_per_hour < least * (1 - 1e-6)]
    return made, min(better, key=lambda fleet: fleet.mix.cost_per_hour, default=None)


def _with(
    candidates: dict[str, Candidate], fleet: Fleet | None, judge: Judge, objective: Objective
) -> dict[str, Candidate]:
    """Candidates with one more, found elsewhere, where cost is what counts."""
    if fleet is None or objective != "cost":
        return candidates
    label = label_of(judge.problem, fleet.mix.counts)
    return candidates | {label: Candidate(label, fleet, judge)}


def _new(extra: list[Beside], full: Judge, candidates: dict[str, Candidate]) -> dict[str, Candidate]:
    """What was searched beside the reference plans and holds, where it is none of the candidates."""
    known = {label_of(full.problem, one.fleet.mix.counts) for one in candidates.values()}
    found = {}
    for one in extra:
        if one.fleet is None or not one.fleet.holds:
            continue
        label = label_of(full.problem, one.fleet.mix.counts)
        if label not in known:
            found[one.name] = Candidate(one.name, one.fleet, full)
        known.add(label)
    return found


def _lacking(extra: list[Beside], full: Judge, setting: Setting, budget: Budget, tools: Tools) -> list[PlannedFleet]:
    """What is there already, where it does not keep the promise."""
    return [
        impossible(one.name, "what is there already does not carry the load")
        if one.fleet is None
        else _shown(Candidate(one.name, one.fleet, full), setting, budget, tools)
        for one in extra
        if one.name == PRESENT and (one.fleet is None or not one.fleet.holds)
    ]


def _tuned(
    candidates: dict[str, Candidate], objective: Objective, tools: Tools, lowered: Lowered
) -> dict[str, Candidate]:
    """Policy numbers searched around the best candidate, and tried on every other: none has an advantage there."""
    first = _best(candidates, objective, {}, lowered)
    if first is None:
        return candidates
    start = candidates[first].fleet.verdict
    assert start is not None
    kinds = int(np.count_nonzero(candidates[first].fleet.mix.counts))
    found = tune(candidates[first].judge, start, objective, kinds=kinds, jobs=tools.jobs)

    def one(candidate: Candidate) -> Candidate:
        verdict = candidate.fleet.verdict
        assert verdict is not None
        again = found if candidate.name == first else candidate.judge.under(verdict.counts, verdict.boxes, found.policy)
        if again is None or not is_better(again, verdict, objective):
            return candidate
        return replace(candidate, fleet=replace(candidate.fleet, verdict=again))

    with ThreadPoolExecutor(tools.jobs) as pool:
        return {candidate.name: candidate for candidate in pool.map(one, candidates.values())}


def _front(
    swept: tuple[Swept, list[Int64s]],
    seeker: Seeker,
    full: Judge,
    candidates: dict[str, Candidate],
    setting: Setting,
    budget: Budget,
) -> dict[str, Candidate]:
    """Swept fleets that nobody beats in cost, P99 and energy at once."""
    labels = {label_of(full.problem, one.fleet.mix.counts) for one in candidates.values()}
    own = [planned(one.name, "", one.fleet, setting, one.judge, budget) for one in candidates.values()]
    others: dict[str, Fleet] = {}
    for number, verdict in swept[0].verdicts.items():
        label = label_of(full.problem, swept[1][number])
        fleet = seeker.priced(swept[1][number], verdict) if verdict.holds and label not in labels else None
        if fleet is not None:
            others[label] = fleet
    marked = mark(own + [planned(label, label, fleet, setting, full, budget) for label, fleet in others.items()])
    left = sorted(
        (fleet for fleet in marked[len(own) :] if fleet.dominated_by is None),
        key=lambda fleet: others[fleet.name].mix.cost_per_hour,
    )
    shown = [fleet.name for fleet in apart(own, left)][: max(0, SHOWN_MAX - max(len(NAMES), len(candidates)))]
    return {label: Candidate(label, others[label], full) for label in shown}


def _carried(candidates: dict[str, Candidate], setting: Setting, tools: Tools) -> dict[str, float]:
    """How much more traffic each fleet that holds carries; of all of them or, where that takes long, of none."""
    if len(setting.traffic.arrival_ns) > REQUESTS_MAX:
        return {}
    holding = [one for one in candidates.values() if one.fleet.holds]
    with ThreadPoolExecutor(max(1, tools.jobs)) as pool:
        found = pool.map(lambda one: carries(one.judge, one.fleet), holding)
        return dict(zip([one.name for one in holding], found, strict=True))


def _fleets(
    found: Found, candidates: dict[str, Candidate], setting: Setting, budget: Budget, tools: Tools
) -> list[PlannedFleet]:
    """The reference plans, whatever became of them, then what else is on the front."""
    table: list[PlannedFleet] = []
    for name, (reference, result, judge) in found.items():
        if reference.lacks is not None or result is None or judge is None:
            table.append(lacking(name, reference.lacks or "nothing was offered"))
        elif name in candidates:
            table.append(_shown(candidates[name], setting, budget, tools))
        elif result.nearest is not None:
            table.append(_shown(Candidate(name, result.nearest, judge), setting, budget, tools))
        else:
            table.append(impossible(name))
    table += [_shown(one, setting, budget, tools) for name, one in candidates.items() if name not in found]
    return table


def _shown(candidate: Candidate, setting: Setting, budget: Budget, tools: Tools) -> PlannedFleet:
    label = label_of(candidate.judge.problem, candidate.fleet.mix.counts)
    fleet = planned(candidate.name, label, candidate.fleet, setting, candidate.judge, budget)
    if candidate.fleet.verdict is None:
        return fleet
    return msgspec.structs.replace(fleet, interval_95=intervals(candidate.judge, candidate.fleet.verdict, tools.seed))


def label_of(problem: Problem, counts: Int64s) -> str:
    """A fleet in words."""
    return " + ".join(f"{n} x {name}" for name, n in zip(problem.engines, counts, strict=True) if n) or "nothing"


def _best(
    candidates: dict[str, Candidate], objective: Objective, held: dict[str, float], lowered: Lowered
) -> str | None:
    """The name of the candidate that serves the objective best; where cost counts, of those whose prices are known."""

    def worth(name: str) -> tuple[float, float]:
        fleet = candidates[name].fleet
        assert fleet.verdict is not None
        if objective == "cost":
            unknown = 1e12 if lowered.priced and _unpriced(fleet, lowered) else 0.0
            return unknown + fleet.mix.cost_per_hour, score(fleet.verdict, "energy")
        if objective == "throughput":
            return -held.get(name, 1.0), fleet.mix.cost_per_hour
        return score(fleet.verdict, objective), fleet.mix.cost_per_hour

    return min((name for name, one in candidates.items() if one.fleet.holds), key=worth, default=None)


def _unpriced(fleet: Fleet, lowered: Lowered) -> bool:
    """It has a part whose price nobody stated."""
    return bool(lowered.unpriced(fleet.mix.counts, fleet.mix.boxes))


def _saved(
    made: list[rivals.Rival], chosen: str | None, candidates: dict[str, Candidate], full: Judge
) -> list[Compared]:
    """Against the cheapest fleet found, whatever the objective."""
    costs = [one.fleet.mix.cost_per_hour for one in candidates.values() if one.fleet.holds]
    best = min(costs) if chosen is not None and costs else None
    compared = []
    for one in made:
        cost = None if one.final is None else one.final.mix.cost_per_hour
        compared.append(
            Compared(
                planner="fluid" if one.planner == "fluid" else "greedy",
                label=None if one.first is None else label_of(full.problem, one.first.mix.counts),
                meets_slo=None if one.first is None else one.first.holds,
                cost_per_hour=cost,
                saves_pct=None if best is None or not cost else 100 * (1 - best / cost),
                added=one.added,
            )
        )
    return compared
