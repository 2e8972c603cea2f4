"""What counts in a scenario: weights on simulated figures, and what vetoes a fleet whatever its score.

A figure is scored as the best fleet's over this one's (or the reverse where more is better): 1 for the best, 0.5 for
twice as bad. Unknown figures are left out and named; the weights of the others are raised to add up to 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadslice.spec.budget import Scenario
from loadslice.spec.device import Kind
from loadslice.spec.plan import PlannedFleet

FIRST_RESULT_TOLERANCE = 0.05
"""Two replays of one plan differ by about that much (see `evaluate.verdict`)."""

WEIGHTS: dict[Scenario, dict[str, float]] = {
    "interactive": {"first_result": 0.5, "tail": 0.3, "errors": 0.2},
    "offline": {"throughput_per_watt": 0.6, "soak": 0.4},
    "multi-user": {"tail": 0.4, "fairness": 0.4, "errors": 0.2},
    "edge": {"energy": 0.7, "tail": 0.3},
}
"""Shares of the score. The order inside a scenario is the method's; the sizes are a choice, shown with every score."""


@dataclass(frozen=True, slots=True)
class Score:
    """One fleet in one scenario."""

    fleet: str
    score: float | None
    """0 to 1; ``None``: no figure is known."""
    parts: dict[str, float]
    unknown: tuple[str, ...]
    veto: str | None
    """Why it is out, whatever its score."""


def kinds(fleet: PlannedFleet) -> frozenset[Kind]:
    """Kinds of engines that run models; a processor that only runs Python stages beside a card makes no second one."""
    return frozenset(engine.kind for engine in fleet.engines.values() if engine.count and engine.models)


def is_hybrid(fleet: PlannedFleet) -> bool:
    """Engines of more than one kind serve."""
    return len(kinds(fleet)) > 1


def scores(fleets: Sequence[PlannedFleet], scenario: Scenario, span_s: float) -> list[Score]:
    """Score the fleets of one table against each other.

    Args:
        fleets: Simulated on the same traffic.
        scenario: Decides what counts.
        span_s: Length of the traffic.
    """
    figures = {name: [_FIGURES[name](fleet, span_s) for fleet in fleets] for name in WEIGHTS[scenario]}
    found = []
    for index, fleet in enumerate(fleets):
        parts, unknown = {}, []
        for name, values in figures.items():
            own, known = values[index], [value for value in values if value is not None]
            if own is None:
                unknown.append(name)
                continue
            # Figures are costs, the least is best; a best of 0 leaves 0 to whatever is not 0.
            parts[name] = 1.0 if own <= min(known) else min(known) / own
        weights = {name: WEIGHTS[scenario][name] for name in parts}
        total = sum(weights.values())
        score = sum(weights[name] * part for name, part in parts.items()) / total if total else None
        found.append(Score(fleet.name, score, parts, tuple(unknown), veto(fleet, fleets, scenario)))
    return found


def veto(fleet: PlannedFleet, fleets: Sequence[PlannedFleet], scenario: Scenario) -> str | None:
    """Why a fleet is out in a scenario; ``None``: it is not.

    Interactive: a hybrid whose first results come later than from each of its kinds alone. Its throughput may be
    higher; what the user feels is the scheduling.
    """
    own_ms = fleet.latency_ms.p50
    if scenario != "interactive" or not is_hybrid(fleet) or own_ms is None:
        return None
    alone = {
        other.name: other.latency_ms.p50
        for other in fleets
        if not is_hybrid(other)
        and kinds(other) <= kinds(fleet)
        and other.latency_ms.p50 is not None
        and other.meets_slo
    }
    if not alone:
        return None
    slowest = max(alone, key=lambda name: alone[name] or 0.0)
    limit_ms = alone[slowest] or 0.0
    if own_ms <= limit_ms * (1 + FIRST_RESULT_TOLERANCE):
        return None
    return f"P50 {own_ms:.3g} ms, later than {slowest} alone ({limit_ms:.3g} ms): scheduling costs more than it brings"


def _tail(fleet: PlannedFleet, _: float) -> float | None:
    return fleet.latency_ms.p99


def _fairness(fleet: PlannedFleet, _: float) -> float | None:
    """How many times longer than the middle the unluckiest hundredth waits."""
    p50, p99 = fleet.latency_ms.p50, fleet.latency_ms.p99
    return None if not p50 or p99 is None else p99 / p50


def _watts_per_throughput(fleet: PlannedFleet, span_s: float) -> float | None:
    if fleet.energy_j is None or not fleet.throughput_per_s or span_s <= 0:
        return None
    return fleet.energy_j / span_s / fleet.throughput_per_s


def _soak(fleet: PlannedFleet, _: float) -> float | None:
    """How near its busiest engine runs to its end, hour after hour."""
    peaks = [engine.utilisation_peak_hour or engine.utilisation for engine in fleet.engines.values() if engine.count]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _energy(fleet: PlannedFleet, _: float) -> float | None:
    """Boxes and idle time included: what scheduling costs is in it."""
    return fleet.energy_j


_FIGURES: dict[str, Callable[[PlannedFleet, float], float | None]] = {
    "first_result": lambda fleet, _: fleet.latency_ms.p50,
    "tail": _tail,
    "errors": lambda fleet, _: fleet.error_rate,
    "fairness": _fairness,
    "throughput_per_watt": _watts_per_throughput,
    "soak": _soak,
    "energy": _energy,
}
