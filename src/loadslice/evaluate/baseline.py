"""An evaluation beside an earlier one of the same machine: a release gate, or the proof of one change."""

from typing import Any

from loadslice.spec import environment as environments
from loadslice.spec.environment import Environment
from loadslice.spec.errors import InputError
from loadslice.spec.evaluation import Evaluation
from loadslice.spec.evaluation_report import EvaluationReport, Rule

SAME = ("model", "scheme", "inputs", "context_tokens", "generation_tokens", "sampling")


def require_comparable(
    before: EvaluationReport, now: Environment, fixed: dict[str, dict[str, str | None]], varied: str, place: str
) -> None:
    """Refuse a baseline of another machine, model, scheme or inputs, but for what is declared varied.

    Args:
        before: The baseline.
        now: This machine.
        fixed: Placement -> its fixed variables now.
        varied: What may differ.
        place: The baseline's file, for the error.

    Raises:
        InputError: Names every difference.
    """
    found = environments.compare(before.environment, now, varied=varied).differences
    said = [environments.words(one) for one in found]
    for placed in before.placements:
        for name in SAME:
            was, now_is = placed.fixed.get(name), fixed.get(placed.name, {}).get(name)
            if name != varied and was is not None and now_is is not None and was != now_is:
                said.append(f"{placed.name} {name}: was {was:.16}, is {now_is:.16}")
    if said:
        raise InputError(
            f"{place}: cannot be compared with: {'; '.join(said[:6])}. Make a baseline here, or say what is meant to "
            "differ with `varied:`."
        )


def compare(before: EvaluationReport, after: EvaluationReport, wanted: Evaluation) -> tuple[list[Rule], dict[str, Any]]:
    """Rules that fire against the baseline, and both figures side by side."""
    rules, told = [], {}
    for placed in after.placements:
        was, now = _figures(before, placed.name), _figures(after, placed.name)
        told[placed.name] = {"before": was, "now": now}
        rate, latency = _ratio(now, was, "throughput_per_s"), _ratio(now, was, "whole_ms_p50")
        if rate is not None and rate < wanted.floors.throughput_ratio:
            evidence = f"{now['throughput_per_s']:.2f}/s, was {was['throughput_per_s']:.2f}/s (x{rate:.2f})"
            rules.append(_rule("baseline-throughput-down", placed.name, "It serves less than the baseline.", evidence))
        if latency is not None and latency > wanted.floors.latency_ratio and not _overlap(now, was, wanted):
            evidence = f"{now['whole_ms_p50']:.2f} ms, was {was['whole_ms_p50']:.2f} ms (x{latency:.2f})"
            rules.append(_rule("baseline-latency-up", placed.name, "It takes longer than the baseline.", evidence))
    return rules, told


def _figures(report: EvaluationReport, name: str) -> dict[str, Any]:
    layers = {layer.name: layer.figures.get(name, {}) for layer in report.layers}
    knee = layers.get("ramp", {}).get("knee") or {}
    latency = layers.get("latency", {})
    return {
        "throughput_per_s": knee.get("throughput_per_s"),
        "whole_ms_p50": latency.get("whole_ms_p50"),
        "whole_ms_p50_95": latency.get("whole_ms_p50_95"),
    }


def _ratio(now: dict[str, Any], was: dict[str, Any], key: str) -> float | None:
    return float(now[key]) / float(was[key]) if now[key] is not None and was[key] else None


def _overlap(now: dict[str, Any], was: dict[str, Any], wanted: Evaluation) -> bool:
    """The intervals leave room for no difference beyond the floor."""
    mine, its = now["whole_ms_p50_95"], was["whole_ms_p50_95"]
    return bool(mine and its and mine[0] <= its[1] * wanted.floors.latency_ratio)


def _rule(code: str, placement: str, text: str, evidence: str) -> Rule:
    return Rule(code=code, placement=placement, text=text, evidence=evidence, effect="regression")
