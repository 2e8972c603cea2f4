"""An evaluation in lines for a terminal."""

from collections.abc import Iterator
from typing import Any

from loadslice.spec.evaluation_report import EvaluationReport, Layer


def lines(report: EvaluationReport) -> Iterator[str]:
    """What a person wants to know first, first."""
    yield report.headline
    yield ""
    for placed in report.placements:
        mark = {"run": placed.basis or "", "not_run": "NOT RUN", "died": "ENDED EARLY"}[placed.state]
        score = "" if placed.overall is None else f"{placed.overall:.2f}"
        yield f"{placed.name:<16}{mark:<12}{score:<6}{placed.advice}"
    for layer in report.layers:
        yield ""
        passed = {True: "held", False: "NOT HELD", None: "not judged"}[layer.passed]
        yield f"{layer.name}: {passed}"
        for name, figures in layer.figures.items():
            yield f"  {name:<14}{_words(layer, figures)}"
    yield ""
    for dimension in report.dimensions:
        score = "   –" if dimension.score is None else f"{dimension.score:.2f}"
        yield f"{dimension.name:<16}{score}  (weight {dimension.weight:g})  {'; '.join(dimension.evidence)}"
    yield ""
    for rule in report.rules_fired:
        yield f"[{rule.effect}] {rule.placement}: {rule.text} ({rule.code}: {rule.evidence})"
    for limit in report.limits:
        yield f"limit: {limit}"


def _words(layer: Layer, figures: dict[str, Any]) -> str:
    get = figures.get
    if layer.name == "correctness":
        return (
            f"{get('alike') or 'reference'}, {get('inputs')} inputs, unanswered {get('unanswered')}, "
            f"relative error {_n(get('relative_error_max'))}, metric {_n(get('metric'))}"
        )
    if layer.name == "latency":
        return (
            f"first {_n(get('first_ms_p50'))} ms, whole {_n(get('whole_ms_p50'))} ms, p95 {_n(get('whole_ms_p95'))} ms"
        )
    if layer.name == "ramp":
        knee, guess = get("knee") or {}, get("knee_predicted") or {}
        return (
            f"knee at {_n(knee.get('clients'))} clients, {_n(knee.get('throughput_per_s'))}/s"
            f"{_between(knee.get('throughput_per_s_range'))}; predicted {_n(guess.get('clients'))} clients, "
            f"{_n(guess.get('throughput_per_s'))}/s ({_signed(get('knee_clients_error_pct'))}, "
            f"{_signed(get('knee_error_pct'))})"
        )
    if layer.name == "soak":
        return (
            f"{get('requests')} requests in {_n(get('for_s'))} s, drift {_n(get('latency_drift_ms_per_hour'))} ms/h, "
            f"starved {get('starved')}, left inside {_n(get('left_inside'))}"
        )
    if layer.name == "abnormal":
        return (
            f"{get('cases')} cases: {get('refused')} refused, {get('answered')} answered, {get('failed')} failed, "
            f"{get('dropped')} dropped, {get('hung')} hung; not recovered {get('not_recovered')}"
        )
    if layer.name == "attribution":
        parts = ("compute", "copy", "queueing", "scheduling", "front", "transport", "unexplained")
        return " + ".join(f"{name} {_n(get(f'{name}_ms'))}" for name in parts) + f" = {_n(get('latency_ms_mean'))} ms"
    return f"p50 {_n(get('latency_ms_p50'))} ms, p95 {_n(get('latency_ms_p95'))} ms, errors {_n(get('error_share'))}"


def _n(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _signed(pct: float | None) -> str:
    return "unknown" if pct is None else f"{pct:+.1f} %"


def _between(ends: list[float] | None) -> str:
    return "" if ends is None else f" (rounds {_n(ends[0])} to {_n(ends[1])})"
