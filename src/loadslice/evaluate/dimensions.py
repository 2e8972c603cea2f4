"""The seven dimensions: a score from 0 to 1 for each, with the evidence, weighted by scenario.

Against the reference, a ratio of 1 scores 0.5 and twice as good scores 1, so that a score above 0.5 is a gain. What
nothing was measured for has no score, and takes no part in the mean.
"""

from collections.abc import Callable

from loadslice.evaluate.layers import observability
from loadslice.evaluate.seen import Seen
from loadslice.spec.evaluation import DIMENSIONS, Evaluation
from loadslice.spec.evaluation_report import Dimension

WEIGHTS = {
    "interactive": (3.0, 2.0, 1.0, 2.0, 1.0, 1.0, 1.0),
    "offline": (3.0, 2.0, 1.5, 1.0, 0.5, 1.0, 2.0),
    "multi-user": (3.0, 1.5, 2.0, 2.5, 1.5, 1.0, 1.0),
    "edge": (3.0, 1.0, 1.5, 2.0, 0.5, 1.5, 2.0),
}
"""Scenario -> weights in order of `DIMENSIONS`."""

Scored = tuple[float | None, str]
"""A score and its evidence."""


def score(found: list[Seen], wanted: Evaluation) -> list[Dimension]:
    """All dimensions; a dimension's own score is the lowest of the placements beside the reference."""
    reference = next(seen for seen in found if seen.reference)
    weights = dict(zip(DIMENSIONS, WEIGHTS[wanted.scenario], strict=True)) | wanted.weights
    made = []
    for name in DIMENSIONS:
        scored = {seen.name: _SCORES[name](seen, reference, wanted) for seen in found if seen.state != "not_run"}
        judged = [value for place, (value, _) in scored.items() if place != reference.name and value is not None]
        alone = scored.get(reference.name, (None, ""))[0] if len(found) == 1 else None
        made.append(
            Dimension(
                name=name,
                score=min(judged) if judged else alone,
                weight=weights[name],
                evidence=[f"{place}: {evidence}" for place, (_, evidence) in scored.items()],
                by_placement={place: value for place, (value, _) in scored.items()},
            )
        )
    return made


def overall(name: str, dimensions: list[Dimension]) -> float | None:
    """Weighted mean of a placement's scores."""
    known = [(one.by_placement[name], one.weight) for one in dimensions if one.by_placement.get(name) is not None]
    total = sum(weight for _, weight in known)
    return sum((value or 0.0) * weight for value, weight in known) / total if total else None


def _correctness(seen: Seen, _: Seen, __: Evaluation) -> Scored:
    found = seen.correctness
    if found is None:
        return None, "not measured"
    alike = {"identical": 1.0, "slightly": 0.9, "clearly": 0.0, None: 1.0 if seen.reference else 0.0}[found.alike]
    spoilt = len(set(found.unanswered)) + found.unreadable + (found.not_finite > 0) * found.inputs
    value = alike * max(0.0, 1 - spoilt / max(1, found.inputs))
    if seen.loaded is not None and seen.loaded["differing"]:
        value = 0.0
    metric = "no labels" if found.metric is None else f"task metric {found.metric:.4f}"
    said = "the reference" if seen.reference else f"outputs {found.alike or 'not comparable'}"
    return value, f"{said}, {metric}"


def _performance(seen: Seen, reference: Seen, wanted: Evaluation) -> Scored:
    rate, latency = _gain(seen.most_per_s, reference.most_per_s), _gain(reference.median_ms, seen.median_ms)
    shares = {"interactive": 0.7, "offline": 0.1, "multi-user": 0.4, "edge": 0.5}
    known = [(latency, shares[wanted.scenario]), (rate, 1 - shares[wanted.scenario])]
    total = sum(share for value, share in known if value is not None)
    value = sum(value * share for value, share in known if value is not None) / total if total else None
    mark = ", emulated" if seen.emulated else ""
    return value, f"{_number(seen.median_ms)} ms alone, {_number(seen.most_per_s)}/s at most{mark}"


def _resources(seen: Seen, _: Seen, __: Evaluation) -> Scored:
    found = seen.attribution
    compute = found.parts_ms["compute"] if found is not None else None
    share = compute / found.latency_ms if found is not None and compute is not None and found.latency_ms else None
    known = [value for value in (share, seen.device_use) if value is not None]
    said = f"{_percent(share)} of a lone request computes, busiest engine {_percent(seen.device_use)} at the plateau"
    return (min(1.0, sum(known) / len(known)) if known else None), said


def _stability(seen: Seen, _: Seen, __: Evaluation) -> Scored:
    checks: dict[str, bool | None] = {"ran to the end": seen.state == "run"}
    if seen.soak is not None:
        checks["no drift"] = None if seen.soak.decays is None else not seen.soak.decays
        checks["no growth"] = None if seen.soak.grows is None else not seen.soak.grows
        checks["nobody starved"] = not seen.soak.starved
        checks["nothing left inside"] = None if seen.soak.left_inside is None else seen.soak.left_inside == 0
    if seen.abnormal is not None:
        checks["no hang on bad input"] = not any(one.fate == "hung" for one in seen.abnormal.tried)
        checks["recovered each time"] = all(one.recovered for one in seen.abnormal.tried)
        checks["bad input refused"] = not any(one.fate == "failed" for one in seen.abnormal.tried)
    known = [value for value in checks.values() if value is not None]
    failed = [name for name, value in checks.items() if value is False]
    if len(known) < 2:
        return None, "not measured"
    return sum(known) / len(known), f"all of {len(known)} checks" if not failed else f"not: {', '.join(failed)}"


def _observability(seen: Seen, _: Seen, __: Evaluation) -> Scored:
    if seen.observed is None:
        return None, "not measured"
    missing = [observability.SEEN[name] for name, there in seen.observed.items() if not there]
    value = sum(seen.observed.values()) / len(seen.observed)
    return value, f"missing: {'; '.join(missing)}" if missing else "queues, busy time, outcomes and timing are told"


def _compatibility(seen: Seen, _: Seen, __: Evaluation) -> Scored:
    ease = seen.ease
    parts: list[tuple[float, str]] = []
    if ease.code_changes is not None:
        parts.append((1 / (1 + ease.code_changes / 50), f"{ease.code_changes} lines of code changed"))
    if ease.recompiles is not None:
        said = "a change of mode compiles anew" if ease.recompiles else "no recompilation"
        parts.append((0.0 if ease.recompiles else 1.0, said))
    if ease.dynamic_batching is not None:
        said = "dynamic batching" if ease.dynamic_batching else "fixed batches only"
        parts.append((1.0 if ease.dynamic_batching else 0.0, said))
    if ease.clarity is not None:
        lines = "" if ease.config_lines is None else f" ({ease.config_lines} lines of configuration of its own)"
        parts.append((ease.clarity, f"clarity {ease.clarity:.2f}{lines}"))
    if not parts:
        return None, "not known of a server that is not ours"
    return sum(value for value, _ in parts) / len(parts), ", ".join(said for _, said in parts)


def _cost(seen: Seen, reference: Seen, _: Evaluation) -> Scored:
    for unit, of in (("money", _per_money), ("energy", _per_joule), ("processor time", _per_cpu)):
        mine, its = of(seen), of(reference)
        if mine is not None and its is not None:
            return _gain(mine, its), f"{mine:.4g} answers per unit of {unit}, the reference {its:.4g}"
    return None, "neither cost nor power is known"


def _per_money(seen: Seen) -> float | None:
    return 3600 * seen.most_per_s / seen.cost_per_hour if seen.most_per_s and seen.cost_per_hour else None


def _per_joule(seen: Seen) -> float | None:
    return seen.most_per_s / seen.power_w if seen.most_per_s and seen.power_w else None


def _per_cpu(seen: Seen) -> float | None:
    """Answers per second of processor time; of an emulated device this processor's time says nothing."""
    used = seen.ramp.cpu_ms_per_answer if seen.ramp is not None and not seen.emulated else None
    return 1000 / used if used else None


_SCORES: dict[str, Callable[[Seen, Seen, Evaluation], Scored]] = {
    "correctness": _correctness,
    "performance": _performance,
    "resources": _resources,
    "stability": _stability,
    "observability": _observability,
    "compatibility": _compatibility,
    "cost": _cost,
}


def _gain(better: float | None, than: float | None) -> float | None:
    return min(1.0, 0.5 * better / than) if better is not None and than else None


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"
