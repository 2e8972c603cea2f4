"""Renders a `Plan` as one HTML file: an answer a manager can read, with what an engineer needs to check it below."""

import itertools
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from loadslice.evaluate.report import charts, template, words
from loadslice.spec.plan import Plan, PlannedFleet
from loadslice.spec.plan_money import YearCost

PARTS = {
    "compute": ("what was bought or rented", ("depreciation", "rent")),
    "copy": ("power and cooling", ("power", "cooling")),
    "queue": ("hours of engineers, spares", ("migration", "upkeep")),
    "service": ("space", ("space",)),
}
"""Class of the bar's part -> its words, and the parts of a cost that are in it."""


def render_plan(plan: Plan) -> str:
    """The whole page."""
    return _pages().get_template("plan.html.j2").render(_context(plan))


def render_section(plan: Plan) -> Markup:
    """The same without a page around it, for a report whose headings of the section's parts are of level 3."""
    made = _pages().from_string("{% from 'plan.html.j2' import section with context %}{{ section(p, 3) }}")
    return Markup(made.render(_context(plan)))  # noqa: S704 - rendered with autoescape


def _pages() -> Environment:
    pages = template.environment()
    pages.filters.update(signed_saving=_saving)
    return pages


def _context(plan: Plan) -> dict[str, Any]:
    costs = [cost for fleet in plan.fleets for cost in fleet.tco or []]
    swings = [] if plan.confidence is None else plan.confidence.tornado
    trials = [] if plan.confidence is None else plan.confidence.experiments
    return {
        "p": plan,
        "charts": plan_charts(plan),
        "horizons": sorted({cost.years for cost in costs}) or [plan.horizon_years],
        "bases": sorted({fleet.basis for fleet in plan.fleets if fleet.judged == "simulated"}) or ["unknown"],
        "missing": sorted({name for cost in costs for name in cost.missing}),
        "parts": [(kind, words_) for kind, (words_, _) in PARTS.items()],
        "cost_of": cost_of,
        "called": called,
        "turning": [swing for swing in swings if swing.turns_at is not None],
        "steady": [swing.assumption for swing in swings if swing.turns_at is None],
        "telling": [trial for trial in trials if trial.tells],
        "idle": [trial.name for trial in trials if not trial.tells],
    }


def cost_of(fleet: PlannedFleet, years: int) -> YearCost | None:
    """A fleet's cost over so many years."""
    return next((cost for cost in fleet.tco or [] if cost.years == years), None)


def called(fleet: PlannedFleet, plan: Plan) -> str:
    """A short name; one that is only what stands there is told by that column."""
    if fleet.name != fleet.label:
        return fleet.name
    return "recommended" if fleet.name == plan.recommended else "other"


def plan_charts(plan: Plan) -> dict[str, Markup]:
    """Chart name -> drawing, those for which there is something to draw."""
    drawn = {}
    years = plan.horizon_years
    bars = [
        charts.Bar(called(fleet, plan), [(kind, _sum(cost, parts)) for kind, (_, parts) in PARTS.items()])
        for fleet in plan.fleets
        if (cost := cost_of(fleet, years)) is not None and (fleet.name != fleet.label or fleet.name == plan.recommended)
    ]
    if bars:
        drawn["plan-cost"] = charts.stacked(
            "plan-cost",
            f"Cost of each fleet over {years} years",
            "; ".join(f"{bar.label} {words.count(sum(length for _, length in bar.parts))}" for bar in bars),
            bars,
            x_label=f"{plan.currency}, {years} years",
        )
    starts_h = itertools.accumulate((bucket.seconds / 3600 for bucket in plan.load.buckets), initial=0.0)
    hours = [
        (start, valley.utilisation)
        for start, valley in zip(starts_h, plan.valleys, strict=False)
        if valley.utilisation is not None
    ]
    if len(hours) > 1:
        last = hours[-1][0]
        curves = [charts.Line("used", hours, 0)]
        if plan.valley_fill is not None:
            cap = plan.valley_fill.fill_max
            curves.append(charts.Line("filled up to", [(hours[0][0], cap), (last, cap)], 1, dashed=True))
        drawn["plan-valleys"] = charts.lines(
            "plan-valleys",
            "Utilisation by hour",
            f"from {min(value for _, value in hours):.0%} to {max(value for _, value in hours):.0%}",
            curves,
            x_label="hours from the trace’s beginning",
            y_label="share of engine time",
            x_high=last,
        )
    return drawn


def _sum(cost: YearCost, parts: tuple[str, ...]) -> float:
    return sum(getattr(cost, part) or 0.0 for part in parts)


def _saving(percent: float) -> str:
    return f"{abs(percent):.0f}% {'less' if percent > 0 else 'more'}"
