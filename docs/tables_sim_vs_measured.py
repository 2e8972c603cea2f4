"""Turns a study's ``report.json`` into ``docs/sim-vs-measured-table.md``.

    python docs/tables_sim_vs_measured.py out/study/report.json

The page says when, on what machine and beside what other load the figures were measured; nothing is rounded away that
the interval would need.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from loadslice.spec import report as reports
from loadslice.spec.report import Compared, PlanReport, Report

TARGET = Path(__file__).parent / "sim-vs-measured-table.md"


def table(report: Report) -> str:
    """The page's text for one study."""
    return "\n".join([*_where(report), "", *_figures(report), "", *_stages(report)]) + "\n"


def _where(report: Report) -> Iterator[str]:
    machine, how = report.stamp.machine, report.provenance
    system = ", ".join(str(machine[key]) for key in ("cpu", "system") if key in machine)
    yield f"Measured {report.created_utc} on {system or 'an unnamed machine'}, {machine.get('cpus', '?')} usable cores,"
    yield f"with `{how.command}` (loadslice {report.stamp.loadslice}); pace {how.speed:g}, replay {how.replay_s:g} s"
    loads = ", ".join(f"{step} {_number(value)}" for step, value in how.load_before_1m.items())
    yield f"a plan, seed {how.seed}. Load average (1 min) before each step that measures: {loads or 'unknown'}."


def _figures(report: Report) -> Iterator[str]:
    yield "| plan | figure | unit | predicted | measured | measured, 95 % | error | inside |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for plan in report.plans:
        if plan.failed is not None:
            yield f"| {plan.title} | not measured: {plan.failed} |  |  |  |  |  |  |"
        for row in plan.compared:
            yield f"| {plan.title} | {row.figure} | {row.unit} | {_compared(row)} |"


def _compared(row: Compared) -> str:
    interval = row.measured_95
    between = "unknown" if interval is None else f"{_number(interval.low)} to {_number(interval.high)}"
    error = "" if row.error_pct is None else f"{row.error_pct:+.1f} %"
    inside = "" if row.inside is None else "yes" if row.inside else "no"
    return f"{_number(row.predicted)} | {_number(row.measured)} | {between} | {error} | {inside}"


def _stages(report: Report) -> Iterator[str]:
    """Means per stage, so that a wrong prediction can be placed."""
    yield "| plan | stage (means, ms) | queue, predicted | measured | service, predicted | measured | error |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for plan in report.plans:
        yield from _plan_stages(plan)


def _plan_stages(plan: PlanReport) -> Iterator[str]:
    for stage in plan.stages:
        left, right = stage.predicted, stage.measured
        cells = [
            _number(left.queue_ms_mean if left else None),
            _number(right.queue_ms_mean if right else None),
            _number(left.service_ms_mean if left else None),
            _number(right.service_ms_mean if right else None),
            "" if stage.service_error_pct is None else f"{stage.service_error_pct:+.1f} %",
        ]
        yield f"| {plan.title} | {stage.stage} | {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    """Three significant digits; unknown is said, never 0."""
    return "unknown" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


if __name__ == "__main__":
    TARGET.write_text(table(reports.load(Path(sys.argv[1]))), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
