"""Renders a `Report` as one HTML file that needs nothing else: no script, no font, no picture, no address."""

from functools import partial

from loadslice.evaluate.predict import REPLICAS
from loadslice.evaluate.report import views, words
from loadslice.evaluate.report.plan_page import render_section
from loadslice.evaluate.report.template import environment
from loadslice.spec.inspection import OpCount
from loadslice.spec.report import OUTSIDE, Compared, PlanReport, Report


def render(report: Report) -> str:
    """The whole page."""
    pages = environment()
    pages.filters.update(
        signed_pct=words.signed_pct,
        seconds=words.seconds,
        flop=partial(words.si, unit="FLOP"),
        flop_per_s=partial(words.si, unit="FLOP/s"),
        bytes=partial(words.si, unit="B"),
        bytes_per_s=partial(words.si, unit="B/s"),
    )
    pages.globals.update(
        figure=_figure,
        percentiles=views.percentiles,
        by_work=_by_work,
        hour_of_week=words.hour_of_week,
        OUTSIDE=OUTSIDE,
        REPLICAS=REPLICAS,
    )
    planned = render_section(report.planned) if report.planned is not None else None
    return pages.get_template("report.html.j2").render(
        r=report, charts=views.all_charts(report), planned=planned, mixed=_mixed(report)
    )


def _mixed(report: Report) -> bool:
    """Plans differ in what they compute in, so that they are not runtimes alone that are compared."""
    return len({frozenset(plan.precisions.values()) for plan in report.plans}) > 1


def _figure(plan: PlanReport, name: str) -> Compared | None:
    return next((figure for figure in plan.compared if figure.figure == name), None)


def _by_work(ops: list[OpCount]) -> list[OpCount]:
    """Operators with the most work first; those of unknown work last."""
    return sorted(ops, key=lambda op: (op.flops is not None, op.flops or 0, op.bytes or 0), reverse=True)
