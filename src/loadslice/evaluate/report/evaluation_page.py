"""Renders an `EvaluationReport` as one HTML file that needs nothing else."""

import json
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from loadslice.evaluate.report import charts, evaluation_rows, words
from loadslice.evaluate.report.template import environment
from loadslice.spec.evaluation_report import EvaluationReport, Layer, Rule

EFFECTS = {"regression": "makes it a regression", "warning": "look at it", "note": "explains"}
FATES = {"dropped": "connection closed", "hung": "no answer in time"}


def render(report: EvaluationReport) -> str:
    """The whole page."""
    pages = environment()
    pages.filters.update(two=_two, number=evaluation_rows.number, seconds=words.seconds)
    pages.globals.update(
        about=evaluation_rows.LAYERS, rows=evaluation_rows.table, steps=_steps, cases=_cases, stages=_stages,
        fixed=_fixed, effects=EFFECTS,
    )  # fmt: skip
    return pages.get_template("evaluation.html.j2").render(r=report, rules=_ordered(report), charts=_charts(report))


def _two(value: float | None) -> str:
    return words.UNKNOWN if value is None else f"{value:.2f}"


def _ordered(report: EvaluationReport) -> list[Rule]:
    """What makes the verdict first."""
    return sorted(report.rules_fired, key=lambda rule: list(EFFECTS).index(rule.effect))


def _steps(layer: Layer) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Steps of the ramp: placement, clients, figures."""
    for name, figures in layer.figures.items():
        for step in figures.get("steps") or []:
            yield name, step["clients"], step


def _cases(layer: Layer) -> Iterator[tuple[str, list[str]]]:
    """Abnormal inputs: name, and what became of it at each placement."""
    names = dict.fromkeys(one["name"] for figures in layer.figures.values() for one in figures["tried"])
    for name in names:
        cells = []
        for figures in layer.figures.values():
            found = next((one for one in figures["tried"] if one["name"] == name), None)
            cells.append(words.UNKNOWN if found is None else _fate(found))
        yield name, cells


def _fate(one: dict[str, Any]) -> str:
    said = FATES.get(one["fate"], one["fate"]) + (f", {one['status']}" if one["status"] else "")
    return said if one["recovered"] else f"{said}; the next good request suffered"


def _stages(layer: Layer) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Placement, stage, mean times."""
    for name, figures in layer.figures.items():
        for stage, times in (figures.get("stages") or {}).items():
            yield name, stage, times


def _fixed(report: EvaluationReport) -> list[tuple[str, list[str]]]:
    """What was held the same: variable and its value at each placement; one value where all agree."""
    ran = [placed for placed in report.placements if placed.fixed]
    found = []
    for name in dict.fromkeys(name for placed in ran for name in placed.fixed):
        values = [_variable(placed.fixed.get(name)) for placed in ran]
        found.append((name.replace("_", " "), values[:1] if len(set(values)) == 1 else values))
    return found


def _variable(value: str | None) -> str:
    """Versions as a list, hashes by their beginning."""
    if value is None:
        return "not known"
    if value.startswith("{"):
        return ", ".join(f"{name} {version}" for name, version in json.loads(value).items())
    return f"SHA-256 {value[:12]}…" if len(value) == 64 and " " not in value else value


def _charts(report: EvaluationReport) -> dict[str, Markup]:
    made = {}
    for layer in report.layers:
        if layer.name == "ramp" and (chart := _ramp(layer)) is not None:
            made["ramp"] = chart
    return made


def _ramp(layer: Layer) -> Markup | None:
    curves, said = [], []
    for number, (name, figures) in enumerate(layer.figures.items()):
        for key, dashed in (("throughput_per_s", False), ("throughput_per_s_predicted", True)):
            points = [(float(step["clients"]), float(step[key])) for step in figures["steps"] if step[key] is not None]
            if len(points) > 1:
                curves.append(charts.Line(label=name, points=points, series=number % 3, dashed=dashed))
                how = "predicted" if dashed else "measured"
                said.append(f"{name} {how} up to {words.rate(max(y for _, y in points))}/s")
    if not curves:
        return None
    return charts.lines(
        "ramp-curves", "Answers a second by clients", f"{'; '.join(said)}.", curves,
        x_label="clients, each with one request open", y_label="answers/s",
    )  # fmt: skip
