"""Turns the fidelity benchmark's ``fidelity.json`` into ``docs/sim-vs-measured-table.md``.

    python docs/tables_sim_vs_measured.py out/fidelity/fidelity.json

Several files are put together, for plans that were run one by one (``--only``).

The page says when, on what machine and beside what other load the figures were measured; nothing is rounded away that
the noise would need.
"""

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from loadslice.spec import fidelity as spec
from loadslice.spec.fidelity import AGREEMENT_GOAL, COVERAGE_GOAL, GOALS, Fidelity, FigureFidelity, PlanFidelity
from loadslice.spec.report import Interval

TARGET = Path(__file__).parent / "sim-vs-measured-table.md"


def together(found: Sequence[Fidelity]) -> Fidelity:
    """Runs of single plans as one, under the first one's stamp."""
    return msgspec.structs.replace(
        found[0],
        command="`, `".join(dict.fromkeys(one.command for one in found)),
        took_s=sum(one.took_s for one in found),
        plans=[plan for one in found for plan in one.plans],
    )


def table(found: Fidelity) -> str:
    """The page's text for one run of the benchmark."""
    parts = (_where(found), _whole(found), _decisions(found), _stretches(found), _stages(found), _noise(found))
    return "\n".join(line for part in parts for line in [*part, ""]).rstrip("\n") + "\n"


def _where(found: Fidelity) -> Iterator[str]:
    machine = found.stamp.machine
    system = ", ".join(str(machine[key]) for key in ("cpu", "system") if key in machine)
    yield f"Measured {found.created_utc} on {system or 'an unnamed machine'}, {machine.get('cpus', '?')} usable cores,"
    yield f"with `{found.command}` (loadslice {found.stamp.loadslice}) in {found.took_s / 60:.0f} minutes;"
    yield f"stretches of {found.stretch_s:g} s of `{found.trace}`, {found.replicas} replicas, seed {found.stamp.seed}."


def _whole(found: Fidelity) -> Iterator[str]:
    yield "All stretches of a plan together. Noise is the standard deviation of the live repeats among themselves."
    yield ""
    cells = "predicted, each repeat | predicted, 95 % | measured, each repeat | error, mean | noise | size and goal"
    yield f"| plan | figure | {cells} |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for plan in found.plans:
        for row in plan.whole.figures:
            yield f"| {plan.title} | {row.figure}, {row.unit} | {_figure(row)} |"


def _figure(row: FigureFidelity) -> str:
    unit = "points" if row.figure == "error rate" else "%"
    measured = ", ".join(_number(value) for value in row.measured) or "unknown"
    error, noise = (_signed(row.error, unit), "unknown" if row.noise is None else f"{row.noise:.2f} {unit}")
    goal = GOALS[row.figure]
    size, right = row.error_size, "unknown"
    if size is not None:
        right = f"{size:.1f} of {goal:g} {unit}, {_verdict(size, row.noise, goal)}"
    predicted = ", ".join(_number(value) for value in row.predicted) or "unknown"
    between = ", ".join(_between(interval) for interval in row.predicted_95) or "unknown"
    return f"{predicted} | {between} | {measured} | {error} | {noise} | {right}"


def _verdict(size: float, noise: float | None, goal: float) -> str:
    """What live repeats among themselves do not keep, no prediction of them can be held to."""
    if size <= goal:
        return "kept"
    return "missed" if noise is None or noise <= goal else "noise forbids"


def _decisions(found: Fidelity) -> Iterator[str]:
    yield "Decisions: share of requests whose outcome and engine at every stage were as predicted, and the same between"
    yield "live repeats. Coverage: share of the figures below (each stretch, each repeat) in their predicted interval;"
    yield "beside it how wide those intervals are, from end to end, the median in percent of what was predicted."
    yield ""
    goals = f"as predicted (goal {AGREEMENT_GOAL:.1%}) | live among themselves | coverage (goal {COVERAGE_GOAL:.0%})"
    yield f"| plan | requests | pace | busy | decisions {goals} | width of P50, P95, P99 |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for plan in found.plans:
        live = "unknown" if plan.agreement_live is None else f"{plan.agreement_live:.2%}"
        requests = f"{plan.whole.requests} x {plan.repeats}"
        yield (
            f"| {plan.title} | {requests} | {plan.speed:g} | {plan.busy:.0%} | {plan.agreement:.2%} | {live} | "
            f"{'unknown' if plan.coverage is None else format(plan.coverage, '.0%')} | {_widths(plan)} |"
        )


def _widths(plan: PlanFidelity) -> str:
    """Median width of the predicted intervals of each latency, over stretches and repeats."""
    said = []
    for name in ("p50", "p95", "p99"):
        rows = [row for stretch in plan.stretches for row in stretch.figures if row.figure == name]
        widths = [
            100 * (interval.high - interval.low) / predicted
            for row in rows
            for interval, predicted in zip(row.predicted_95, row.predicted, strict=True)
            if interval is not None and predicted
        ]
        said.append(f"{statistics.median(widths):.1f} %" if widths else "unknown")
    return ", ".join(said)


def _stretches(found: Fidelity) -> Iterator[str]:
    yield "Stretch by stretch, error with noise in brackets:"
    yield ""
    yield f"| plan | stretch | requests | {' | '.join(GOALS)} |"
    yield f"| --- | --- | --- |{' --- |' * len(GOALS)}"
    for plan in found.plans:
        for stretch in plan.stretches:
            cells = " | ".join(_brief(row) for row in stretch.figures)
            yield f"| {plan.title} | from second {stretch.from_s:.0f} | {stretch.requests} | {cells} |"


def _brief(row: FigureFidelity) -> str:
    unit = "points" if row.figure == "error rate" else "%"
    noise = "" if row.noise is None else f" ({row.noise:.1f})"
    return f"{_signed(row.error, unit)}{noise}"


def _stages(found: Fidelity) -> Iterator[str]:
    """Means per stage, so that a wrong prediction can be placed."""
    yield "Where the time goes, means in ms over all stretches and repeats:"
    yield ""
    yield "| plan | stage | queue, predicted | measured | service, predicted | measured |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for plan in found.plans:
        for stage in plan.stages:
            cells = (
                stage.queue_ms_predicted,
                stage.queue_ms_measured,
                stage.service_ms_predicted,
                stage.service_ms_measured,
            )
            yield f"| {plan.title} | {stage.stage} | {' | '.join(_number(value) for value in cells)} |"


def _noise(found: Fidelity) -> Iterator[str]:
    yield "What else the machine did, and how it drifted:"
    yield ""
    yield "| plan | load average before each repeat | other programs | generator late, p99 ms | drift |"
    yield "| --- | --- | --- | --- | --- |"
    for plan in found.plans:
        loads = ", ".join(_number(one.load_before_1m) for one in plan.noise)
        others = ", ".join(f"{one.others_utilisation:.0%}" for one in plan.noise)
        late = ", ".join(_number(one.send_lag_ms_p99) for one in plan.noise)
        yield f"| {plan.title} | {loads} | {others} | {late} | {_drift(plan)} |"


def _drift(plan: PlanFidelity) -> str:
    drift = plan.drift
    if drift is None:
        return "not found"
    periods = f"{drift.likeness:.0%} shared for {drift.period_ms:.0f} ms" if drift.likeness else "no slow periods"
    runs = "unknown" if drift.between_runs is None else f"{drift.between_runs:.1%}"
    return f"{periods}; runs differ by {runs}"


def _between(interval: Interval | None) -> str:
    return "unknown" if interval is None else f"{_number(interval.low)} to {_number(interval.high)}"


def _signed(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:+.2f} {unit}"


def _number(value: float | None) -> str:
    """Four significant digits; unknown is said, never 0."""
    return "unknown" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


if __name__ == "__main__":
    TARGET.write_text(table(together([spec.load(Path(path)) for path in sys.argv[1:]])), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
