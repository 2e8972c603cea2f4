"""Turns what a study found into its report."""

import re
from datetime import UTC, datetime

import msgspec

from loadslice.app.study_findings import Findings
from loadslice.app.study_observed import side_by_side
from loadslice.app.study_plan import Studied
from loadslice.evaluate import assemble, compare
from loadslice.evaluate.verdict import judge, verdict
from loadslice.spec.budget import Slo
from loadslice.spec.files import stamp
from loadslice.spec.latency import Entry
from loadslice.spec.pipeline import Engine
from loadslice.spec.report import SCHEMA, PlanReport, Provenance, Report
from loadslice.spec.twin import TwinEngine, twins

TOOLS = ("onnxruntime", "openvino", "numpy", "numba", "polars", "aiohttp", "opencv-python-headless")
ONE_RUN = "Another day or a busier machine gives other numbers; the intervals show only the noise inside a run."
LIMITS = (
    "The load generator ran on the same processors as the server and took its share of them, equally for every plan.",
    (
        "The simulator knows service times as they were profiled and, some seconds before each replay, rehearsed. It "
        "cannot know how fast the machine is in the seconds that it predicts: its interval is as wide as the "
        "rehearsals found speed to wander, and wider by as much as they missed their own prediction."
    ),
    "Requests went over loopback: no network, no TLS, no client far away.",
    (
        "Energy is not measured here, and two runtimes on one processor are not two devices: a hybrid can win only "
        "what their different speeds per stage give."
    ),
)


def report_of(found: Findings) -> Report:
    """The whole report."""
    plans = plan_reports(found)
    files = {studied.plan.path.name: studied.plan.path for studied in found.studied}
    files |= {found.folder.trace.name: found.folder.trace, found.folder.budget_path.name: found.folder.budget_path}
    if found.inputs.source is not None:
        files[found.inputs.source.name] = found.inputs.source
    made = stamp(SCHEMA, inputs=files, seed=found.options.seed, tools=TOOLS)
    main = next((studied.table for studied in found.studied if studied.table is not None), None)
    entries = _all_entries(found.studied)
    texts = {s.plan.title: assemble.texts_by_input(s.rows) for s in found.studied if s.rows is not None}
    judged = verdict(plans, found.folder.budget.slo)
    return Report(
        stamp=made,
        created_utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        pipeline=found.folder.plans[0].pipeline.pipeline,
        budget=found.folder.budget,
        verdict=judged,
        portrait=found.portrait,
        rate_curve=assemble.rate_curve(found.frame, found.window),
        sizes=assemble.histograms(found.frame, main),
        machine=found.machine,
        models=found.models.reports if found.models else [],
        latency_table=entries,
        latency_basis=_basis(entries),
        plans=plans,
        agreements=assemble.agreements(texts, found.inputs.score),
        provenance=_provenance(found, made.tools | {"loadslice": made.loadslice}, made.inputs),
        limits=_limits(found, plans),
        planned=found.planned,
        side_by_side=side_by_side(plans, judged.recommended, found.planned, found.folder.budget.slo),
    )


def plan_reports(found: Findings) -> list[PlanReport]:
    """What is known of each plan so far."""
    return [_plan(studied, found) for studied in found.studied]


def _plan(studied: Studied, found: Findings) -> PlanReport:
    plan, prediction = studied.plan, studied.prediction
    submitted = prediction.simulation.requests if prediction is not None else 0
    report = PlanReport(
        name=plan.name,
        title=plan.title,
        file=plan.path.name,
        engines={name: _how(engine) for name, engine in plan.pipeline.engines.items()},
        precisions=_precisions(studied),
        hybrid=plan.hybrid,
        simulated=prediction.simulation if prediction else None,
        simulated_whole=studied.whole,
        simulated_recorded=studied.recorded,
        measured=studied.replay,
        predicted_quantiles_ms=compare.quantiles_ms(prediction.latencies_ms) if prediction else None,
        stages=assemble.stages(
            [stage.name for stage in plan.pipeline.stages], prediction, studied.journal, studied.rows
        )
        if prediction is not None or studied.journal is not None
        else [],
        cpu=studied.cpu,
        accounts=assemble.accounts(
            studied.replay.requests if studied.replay else submitted, prediction, studied.replay, studied.journal
        ),
        failed=studied.failed,
    )
    if studied.replay is None or studied.rows is None:
        return report
    report = msgspec.structs.replace(
        report,
        compared=assemble.compared(prediction, studied.replay, studied.rows, found.options.seed),
        measured_quantiles_ms=compare.quantiles_ms(assemble.latencies_ms(studied.rows)),
    )
    return _judged(report, found.folder.budget.slo)


def _judged(report: PlanReport, slo: Slo) -> PlanReport:
    meets, too_close, misses = judge(report, slo)
    return msgspec.structs.replace(report, meets_slo=meets, too_close=too_close, misses=misses)


COMPUTED = re.compile(r" (\S+) threads=\d+$")
"""End of the source of a measured time, as `loadslice.profiles.jobs` writes it."""


def _precisions(studied: Studied) -> dict[str, str]:
    """Engine -> what it computed in; of twins, what their sheet is of."""
    said: dict[str, str] = {}
    for entry in studied.table.entries if studied.table is not None else []:
        found = COMPUTED.search(entry.source or "")
        if found is not None:
            said[entry.engine] = found[1]
    asked = {
        name: engine.precision for name, engine in studied.plan.pipeline.engines.items() if engine.backend != "python"
    }
    return asked | {name: precision for name, precision in said.items() if name in asked}


def _how(engine: Engine) -> str:
    """How an engine is run, in a few words."""
    if isinstance(engine, TwinEngine):
        return f"twin of {engine.device} at {engine.precision}, emulated, {engine.max_inflight} at a time"
    if engine.backend == "python":
        return f"Python, {engine.max_inflight} at a time"
    threads = f"{engine.threads} thread{'s' if engine.threads > 1 else ''}"
    return f"{engine.backend} {engine.precision}, {threads}, {engine.max_inflight} at a time"


def _all_entries(studied: list[Studied]) -> list[Entry]:
    """Times of the first plan, and of engines only later plans have."""
    found: list[Entry] = []
    for one in studied:
        known = {entry.engine for entry in found}
        found += [entry for entry in (one.table.entries if one.table else []) if entry.engine not in known]
    return found


POOLED = (
    "the means; percentiles and contended times of {pooled} of {all} are pooled: each kind of work was run a few "
    "times, its spread is its stage's and its contention its engine's, as the rehearsal found them"
)


def _basis(entries: list[Entry]) -> str:
    """How the times are known, all together."""
    bases = ", ".join(sorted({entry.basis for entry in entries}))
    pooled = sum(entry.pooled is not None for entry in entries)
    return f"{bases} {POOLED.format(pooled=pooled, all=len(entries))}" if pooled else bases


def _provenance(found: Findings, versions: dict[str, str], inputs: dict[str, str]) -> Provenance:
    return Provenance(
        command=found.options.command,
        steps=found.journey.steps,
        speed=found.chosen.speed if found.chosen else found.options.speed or 1.0,
        speed_why=found.chosen.why if found.chosen else "",
        stretch_why=found.window.why if found.window else "Nothing was replayed.",
        profile_s=found.options.profile_s,
        replay_s=found.options.replay_s,
        seed=found.options.seed,
        inputs_sha256=inputs,
        versions=versions,
        load_before_1m=found.journey.load_before_1m,
    )


def _emulated(studied: Studied) -> str:
    """What of a plan is not real."""
    names = twins(studied.plan.pipeline)
    devices = ", ".join(f"{name} ({studied.plan.pipeline.engines[name].device})" for name in names)
    real = ""
    if studied.dilate != 1:
        real = (
            f" Its replay ran {studied.dilate:g} times slower than it says, so that this processor could compute what "
            "the device would; times were divided back, and the server's own front with them."
        )
    return (
        f"{studied.plan.title}: emulated. {devices} is not here: its numbers are computed on this processor, its "
        f"times, memory and operators are a model's (`latency.json` says whose).{real}"
    )


def _limits(found: Findings, plans: list[PlanReport]) -> list[str]:
    """What a reader must not conclude."""
    limits = [f"Each plan was measured once, for about {found.options.replay_s:.0f} s. {ONE_RUN}", *LIMITS]
    if found.folder.budget.growth_per_year:
        limits.append(
            f"Growth of {found.folder.budget.growth_per_year:.0%} a year is in the budget and not in these runs; "
            "try it with `loadslice simulate --speed`."
        )
    if found.chosen is not None and found.chosen.speed != 1.0:
        limits.append(
            f"Traffic was played at {found.chosen.speed:.3g} times its recorded pace: its shape is real, not its rate."
        )
    limits += [_emulated(studied) for studied in found.studied if twins(studied.plan.pipeline)]
    limits += [f"{plan.title}: {warning}" for plan in plans if plan.measured for warning in plan.measured.warnings]
    if found.not_planned is not None:
        limits.append(f"No fleet to buy was sought, although there are offers: {found.not_planned}")
    notes = dict.fromkeys(warning for plan in plans if plan.simulated for warning in plan.simulated.warnings)
    return [*limits, *(f"Simulation: {note}" for note in notes)]
