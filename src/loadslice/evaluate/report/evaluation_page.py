"""Renders an `EvaluationReport` as one HTML file that needs nothing else."""

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from loadslice.evaluate.report import charts, words
from loadslice.evaluate.report.template import environment
from loadslice.spec.evaluation_report import EvaluationReport, Layer


def render(report: EvaluationReport) -> str:
    """The whole page."""
    pages = environment()
    pages.filters.update(two=_two)
    pages.globals.update(rows=_rows)
    return pages.get_template("evaluation.html.j2").render(r=report, charts=_charts(report))


def _two(value: float | None) -> str:
    return words.UNKNOWN if value is None else f"{value:.2f}"


def _rows(layer: Layer) -> Iterator[tuple[str, list[str]]]:
    """One row per figure; lists and tables of their own are shown by their length, all of it is in the JSON."""
    names = dict.fromkeys(key for figures in layer.figures.values() for key in figures)
    for name in names:
        values = [figures.get(name) for figures in layer.figures.values()]
        yield name.replace("_", " "), [_cell(value) for value in values]


def _cell(value: Any) -> str:
    if value is None:
        return words.UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float | int):
        return words.rate(float(value)) if abs(value) < 1e12 else f"{value:.3g}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} rows, in the JSON"
    if isinstance(value, list):
        return " to ".join(_cell(one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_cell(one)}" for key, one in list(value.items())[:8]) or words.UNKNOWN
    return str(value)


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
                curves.append(charts.Line(label=name, points=points, series=number, dashed=dashed))
                how = "predicted, dashed" if dashed else "measured"
                said.append(f"{name} ({how}) reaches {max(y for _, y in points):.1f}/s")
    if not curves:
        return None
    return charts.lines(
        "ramp", "Throughput by open requests", f"{'; '.join(said)}.", curves,
        x_label="clients, each with one request open", y_label="answers/s",
    )  # fmt: skip
