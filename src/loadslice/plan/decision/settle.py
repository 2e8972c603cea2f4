"""The method's advice against the simulated fleets: which evidence wins, and what is said to the user.

The simulation wins on latency, errors, power and money: it ran this traffic. The method wins on what no simulation
sees: answers at a precision the work does not bear, operators an NPU lacks, how many people there are. Where they
differ, the plan says so; it never keeps the quieter of the two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadslice.plan.decision.facts import Facts
from loadslice.plan.decision.scenario import is_hybrid, kinds, veto
from loadslice.plan.decision.tree import SMALL_RATE_PER_S, SMALL_TEAM, Decision
from loadslice.spec.plan import PathStep, PlannedFleet

SAME_COST_SHARE = 0.05
"""Totals this near are one: prices are quoted, hours estimated. Then the simpler fleet goes first."""

REFERENCES = ("cpu-only", "gpu-only", "npu-only", "hybrid")

Winner = Literal["agree", "simulation", "method", "neither"]

Cost = Callable[[PlannedFleet], float | None]


@dataclass(frozen=True, slots=True)
class Settled:
    """The recommendation."""

    recommended: str | None
    """Name of a fleet; ``None``: none keeps the promise within the limits."""
    sentence: str
    """What to do, for a manager."""
    winner: Winner
    steps: tuple[PathStep, ...]
    """To be printed after the tree's own path."""
    codes: tuple[str, ...]
    passed_over: dict[str, str]
    """Cheaper fleets that keep the promise and why they are not recommended."""
    ruled_out: dict[str, str] = field(default_factory=dict)
    """Every fleet that keeps the promise and is out all the same."""


def total_cost(years: int) -> Cost:
    """Total over so many years; ``None``: unknown."""

    def cost(fleet: PlannedFleet) -> float | None:
        return next((one.total for one in fleet.tco or [] if one.years == years), None)

    return cost


def keeps(fleet: PlannedFleet) -> bool:
    """It keeps the promise and no limit of the budget is known to be broken."""
    return fleet.meets_slo is True and all(limit.met is not False for limit in fleet.limits)


def settle(
    decision: Decision,
    facts: Facts,
    fleets: Sequence[PlannedFleet],
    cost: Cost | None = None,
    *,
    best_is: str = "the cheapest",
) -> Settled:
    """Choose among the simulated fleets and say how that fits the method.

    Args:
        decision: Where the questions led.
        facts: What they were answered from.
        fleets: Simulated and priced.
        cost: What is least for the best; default the total over the budget's horizon. What is said of money is of
            that total whatever is least.
        best_is: What being the best makes a fleet, in words.
    """
    money = total_cost(facts.budget.money.horizon_years)
    cost = cost or money
    kept = sorted((fleet for fleet in fleets if keeps(fleet)), key=lambda fleet: _order(fleet, cost))
    passed_over: dict[str, str] = {}
    eligible = []
    for fleet in kept:
        why = _ruled_out(fleet, kept, decision, facts)
        if why is None:
            eligible.append(fleet)
        else:
            passed_over[fleet.name] = why
    if not eligible:
        return _nothing(decision, kept, passed_over)
    best = _simplest_of_cheapest(eligible, cost)
    dearer = {name: why for name, why in passed_over.items() if _cheaper(name, best, kept, cost)}
    winner, step = _compare(best, decision, dearer, money, kept, best_is, facts.budget.money.currency)
    sentence, codes = _sentence(best, decision, facts, eligible, money)
    return Settled(best.name, sentence, winner, (step,), codes, dearer, passed_over)


def _order(fleet: PlannedFleet, cost: Cost) -> tuple[float, int, bool, int, str]:
    """The cheapest first; then by kinds, reference plans before others, and by machines."""
    value = cost(fleet)
    machines = sum(box.count for box in fleet.boxes.values())
    other = fleet.name not in REFERENCES
    return (float("inf") if value is None else value, len(kinds(fleet)), other, machines, fleet.name)


def _ruled_out(fleet: PlannedFleet, kept: Sequence[PlannedFleet], decision: Decision, facts: Facts) -> str | None:
    """What no simulation sees; ``None``: nothing speaks against it."""
    npu = decision.excluded.get("npu")
    if npu is not None and "npu" in kinds(fleet):
        return npu
    vetoed = veto(fleet, kept, facts.budget.scenario)
    if vetoed is not None:
        return vetoed
    count = facts.budget.people.count
    small = count is not None and 0 < count <= SMALL_TEAM
    single = any(not is_hybrid(other) for other in kept if "npu" not in kinds(other) or npu is None)
    if small and is_hybrid(fleet) and single:
        return f"{count} people run one kind of engine well, not two"
    return None


def _simplest_of_cheapest(eligible: Sequence[PlannedFleet], cost: Cost) -> PlannedFleet:
    """The cheapest; among those that cost the same within the error of prices, the simplest.

    Of equally simple ones a reference plan goes first: its policy numbers were searched, those of its neighbours in the
    table were not.
    """
    cheapest = cost(eligible[0])
    if cheapest is None:
        return eligible[0]
    near = [fleet for fleet in eligible if (cost(fleet) or float("inf")) <= cheapest * (1 + SAME_COST_SHARE)]
    return min(
        near or eligible[:1],
        key=lambda fleet: (len(kinds(fleet)), fleet.name not in REFERENCES, *_order(fleet, cost)),
    )


def _cheaper(name: str, best: PlannedFleet, kept: Sequence[PlannedFleet], cost: Cost) -> bool:
    own = next(cost(fleet) for fleet in kept if fleet.name == name)
    reference = cost(best)
    return own is not None and (reference is None or own < reference)


def _compare(
    best: PlannedFleet,
    decision: Decision,
    passed_over: dict[str, str],
    cost: Cost,
    kept: Sequence[PlannedFleet],
    best_is: str,
    currency: str,
) -> tuple[Winner, PathStep]:
    question = "Do the questions and the simulated fleets agree?"
    chosen = " and ".join(sorted(kinds(best))).upper()
    if passed_over:
        listed = "; ".join(f"{name}: {why}" for name, why in passed_over.items())
        price = _extra(best, passed_over, cost, kept, currency)
        return "method", PathStep(
            question=question,
            answer="no: the questions win",
            evidence=f"{listed}. The simulation sees time, power and money, not this{price}",
        )
    if decision.kind is None or decision.kind in kinds(best):
        alone = "" if decision.kind is None or not is_hybrid(best) else f", beside other engines ({best.label})"
        asked = (
            "no kind had to be chosen" if decision.kind is None else f"{decision.kind.upper()} was to be tried first"
        )
        return "agree", PathStep(
            question=question,
            answer="yes",
            evidence=f"{asked}; {best_is} fleet that keeps the promise has it{alone}",
        )
    return "simulation", PathStep(
        question=question,
        answer="no: the simulation wins",
        evidence=f"the questions say {decision.kind.upper()}, {best_is} fleet that keeps the promise is {chosen} "
        f"({best.label}); it was simulated on the recorded traffic ({best.basis} times), the questions are for what "
        f"was not. {_why_not(decision, kept, cost, best, currency)}",
    )


def _extra(
    best: PlannedFleet, passed_over: dict[str, str], cost: Cost, kept: Sequence[PlannedFleet], currency: str
) -> str:
    own = cost(best)
    others = [cost(fleet) for fleet in kept if fleet.name in passed_over]
    known = [value for value in others if value is not None]
    if own is None or not known:
        return ""
    return f"; heeding it costs {_more(own - min(known), currency)}"


def _why_not(decision: Decision, kept: Sequence[PlannedFleet], cost: Cost, best: PlannedFleet, currency: str) -> str:
    """What became of the kind that the questions named."""
    own = [fleet for fleet in kept if decision.kind in kinds(fleet)]
    if not own:
        return f"No fleet with a {str(decision.kind).upper()} keeps the promise."
    value, reference = cost(own[0]), cost(best)
    if value is None or reference is None:
        return f"{own[0].label} keeps the promise too; a price is missing."
    return f"{own[0].label} keeps the promise too and costs {_more(value - reference, currency)}."


def _more(money: float, currency: str) -> str:
    return f"{abs(money):,.0f} {currency} {'more' if money >= 0 else 'less'}"


def _sentence(
    best: PlannedFleet, decision: Decision, facts: Facts, eligible: Sequence[PlannedFleet], cost: Cost
) -> tuple[str, tuple[str, ...]]:
    """What to do, and the rules that say so."""
    codes: list[str] = []
    boxes = sum(box.count for box in best.boxes.values())
    text = f"Run {best.label}."
    if boxes == 1 and not is_hybrid(best):
        codes.append("stay_on_one_machine")
        text = f"Stay on one machine: {best.label} keeps the promise."
        rate = facts.rate_per_s
        if facts.models == 1 and (rate is None or rate.value <= SMALL_RATE_PER_S):
            codes.append("too_small_for_hybrid")
            text += " Your load is too small for a hybrid: one machine serves all of it."
    elif is_hybrid(best):
        codes.append("hybrid")
        singles = [fleet for fleet in eligible if not is_hybrid(fleet)]
        values = [cost(fleet) for fleet in singles]
        known = [value for value in values if value is not None]
        own = cost(best)
        if known and own is not None:
            less = 1 - own / min(known) if min(known) > 0 else 0.0
            word = "less" if less >= 0 else "more"
            text += f" It costs {abs(less):.0%} {word} than the cheapest fleet of one kind."
        elif not singles:
            text += " No fleet of one kind keeps the promise."
        if not facts.experienced:
            codes.append("observability_first")
            text += " Observability first: nobody here has debugged several kinds of engines in production."
    if "optimise_first" in decision.codes:
        text = f"Optimise first: what is there is less than 40 % used. Then: {text}"
    if "gpu_then_npu" in decision.codes:
        text += " An NPU may follow once the model is stable."
    return text, tuple(codes)


def _nothing(decision: Decision, kept: Sequence[PlannedFleet], passed_over: dict[str, str]) -> Settled:
    if not kept:
        evidence = "no simulated fleet keeps the promise within every limit"
    else:
        evidence = "; ".join(f"{name}: {why}" for name, why in passed_over.items())
    step = PathStep(question="Which fleet keeps the promise?", answer="none", evidence=evidence)
    return Settled(
        None,
        f"No fleet keeps the promise within the budget. By the questions: {decision.advice}",
        "neither",
        (step,),
        ("nothing_meets",),
        passed_over,
    )
