"""The whole journey on one folder: what the load looks like, what was predicted, what was measured, what to do."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl

from loadslice.app import study_offers, study_plan, study_rehearsal
from loadslice.app.output import keep, say
from loadslice.app.study_findings import Findings, Options
from loadslice.app.study_folder import Folder
from loadslice.app.study_journey import Journey
from loadslice.app.study_models import Models, inspect_models
from loadslice.app.study_plan import Studied
from loadslice.app.study_report import report_of
from loadslice.backends import probe
from loadslice.evaluate import pace, payloads
from loadslice.evaluate.replay import write_rows
from loadslice.evaluate.report.page import render
from loadslice.sim import simulate
from loadslice.spec.files import stamp, write_bytes
from loadslice.spec.latency import LatencyTable
from loadslice.spec.machine import LocalMachine
from loadslice.spec.portrait import Portrait
from loadslice.spec.report import Report
from loadslice.spec.twin import twins
from loadslice.workload import importing
from loadslice.workload import portrait as portraits

REPORTS = ("report.html", "report.json")

DILATED_REPLAYS = 4
"""How many times as long as any other a dilated plan may be replayed; its stretch of the trace is shorter instead."""


def study(folder: Folder, out: Path, options: Options) -> Report:
    """Run every step, and write what each of them found.

    Args:
        folder: What to study.
        out: Gets ``report.html``, ``report.json`` and every intermediate file.
        options: How.

    Returns:
        The report; steps that failed are in its provenance.

    Raises:
        InputError: The trace or the inputs cannot be used at all, or ``out`` cannot be written.
        KeyboardInterrupt: Interrupted; servers are stopped, what was measured is kept.
    """
    write_bytes(out / "command.txt", f"{options.command}\n".encode())  # shows at once whether out can be written
    for name in REPORTS:
        (out / name).unlink(missing_ok=True)  # of an earlier run; it would stand beside files it does not tell of
    trace = importing.load(folder.trace)
    main = folder.plans[0]
    assert main.pipeline.inputs is not None
    inputs = payloads.from_function(main.pipeline.inputs, main.path.parent)
    frame = payloads.name_inputs(trace.frame, inputs, str(folder.trace))
    found = Findings(
        folder,
        options,
        Journey(),
        trace,
        frame,
        inputs,
        [
            Studied(plan, out / "plans" / plan.name, dilate=options.dilate if twins(plan.pipeline) else 1.0)
            for plan in folder.plans
        ],
    )
    _look(found, out)
    _measure_engines(found)
    _name_inputs(found)
    _inspect(found, out)
    _choose(found, out)
    _play(found)
    if found.folder.offers is not None:
        study_offers.plan(found, out)
    report = report_of(found)
    keep(report, out, "report.json")
    write_bytes(out / "report.html", render(report).encode())
    return report


def _look(found: Findings, out: Path) -> None:
    def portray() -> tuple[Portrait, str]:
        portrait = _portrait(found, None)
        rate = portrait.rate_per_s.mean
        detail = f"{portrait.requests} requests over {portrait.span_s:.0f} s"
        return portrait, f"{detail}, {rate:.2f}/s, {portrait.arrival.class_}" if rate is not None else detail

    def look_at_machine() -> tuple[LocalMachine, str]:
        machine = probe.local()
        return machine, f"{machine.cpu}, {machine.cores_usable} processors"

    found.portrait = found.journey.attempt("portrait", portray)
    found.machine = found.journey.attempt("machine", look_at_machine)
    keep(found.machine, out if found.machine else None, "machine.json")


def _portrait(found: Findings, models: Models | None) -> Portrait:
    made = stamp(
        portraits.SCHEMA,
        inputs={"trace": found.folder.trace, "budget": found.folder.budget_path},
        tools=("polars", "numpy"),
    )
    context = portraits.Context(budget=found.folder.budget, model=models.dimension if models else None)
    return portraits.portray(found.trace, found.folder.trace.name, made, context)


def _measure_engines(found: Findings) -> None:
    """Profile each plan as it will run, for what is busy beside a stage differs between plans."""
    engines = sum(len(studied.plan.pipeline.engines) for studied in found.studied)
    for studied in found.studied:
        seconds = found.options.profile_s * len(studied.plan.pipeline.engines) / engines
        name = f"profile {studied.plan.name}"
        if found.journey.attempt(name, partial(study_plan.profile, studied, found.inputs, seconds)) is None:
            studied.failed = found.journey.steps[-1].detail


def _name_inputs(found: Findings) -> None:
    """Where the trace names no inputs: anew, now that it is known how large each is."""
    if payloads.are_drawn(found.trace.frame, found.inputs):
        table = next((studied.table for studied in found.studied if studied.table is not None), None)
        found.frame = payloads.name_inputs(found.trace.frame, found.inputs, str(found.folder.trace), table)
        say(payloads.how_drawn(found.trace.frame, found.inputs, table))


def _inspect(found: Findings, out: Path) -> None:
    profiled = next((studied for studied in found.studied if studied.table is not None), None)
    if profiled is None or profiled.table is None:
        return
    # The simulator's kernels are loaded beside a step that measures nothing.
    warming = threading.Thread(target=simulate.warm, name="warm", daemon=True)
    warming.start()
    plan, table = profiled.plan, profiled.table

    def look_at_models() -> tuple[Models, str]:
        device = found.machine.device if found.machine else None
        models = inspect_models(
            plan.pipeline, plan.path.parent, found.inputs.samples, found.frame["input"], table, device
        )
        flops = models.dimension.flop_per_item if models.dimension else None
        work = f", {flops / 1e9:.2f} GFLOP per request" if flops is not None else ""
        return models, f"{len(models.reports)} models{work}"

    found.models = found.journey.attempt("models", look_at_models)
    if found.models is not None and found.portrait is not None:
        # Now that the work of a request is known, the waterline can be said in FLOP/s.
        found.portrait = _portrait(found, found.models)
        keep([report.inspection for report in found.models.reports], out, "inspections.json")
    keep(found.portrait, out if found.portrait else None, "portrait.json")
    warming.join()


def _choose(found: Findings, out: Path) -> None:
    """A pace for all plans and the stretch to predict, from what was profiled."""
    ready = [studied for studied in found.studied if studied.table is not None]
    if not ready:
        return
    options = found.options

    def choose() -> tuple[pace.Pace, str]:
        plans = {
            studied.plan.title: (studied.plan.pipeline, studied.table) for studied in ready if studied.table is not None
        }
        chosen = pace.choose_pace(
            found.frame, plans, cores=probe.usable_cores(), seed=options.seed, given=options.speed
        )
        slowest = max(studied.dilate for studied in ready)
        replay_s = options.replay_s * min(1.0, DILATED_REPLAYS / slowest)
        found.window = pace.choose_window(found.frame, real_s=replay_s, speed=chosen.speed)
        return chosen, f"speed {chosen.speed:.3g}, {found.window.requests} requests"

    found.chosen = found.journey.attempt("pace", choose)
    if found.chosen is not None and found.window is not None:
        write_rows(_stretch(found).drop("row"), out / "stretch.parquet")


def _play(found: Findings) -> None:
    """Plan by plan: rehearse, predict, and at once serve what was predicted, for the machine's speed wanders."""
    if found.chosen is None or found.window is None:
        return
    stretch = _stretch(found)
    for studied in found.studied:
        if studied.table is None:
            continue
        name, seed = studied.plan.name, found.options.seed
        if found.journey.attempt(f"rehearse {name}", partial(_rehearse, found, studied)) is None:
            studied.failed = found.journey.steps[-1].detail
            continue
        found.journey.attempt(
            f"simulate {name}",
            partial(study_plan.forecast, studied, stretch.drop("row"), found.frame, found.chosen.speed, seed),
        )
        live: Callable[[], tuple[object, str]] = partial(
            study_plan.run_live,
            studied,
            stretch,
            found.inputs,
            found.folder.trace,
            found.chosen.speed,
            found.window.from_s,
        )
        if found.journey.attempt(f"replay {name}", live) is None:
            studied.failed = found.journey.steps[-1].detail


def _rehearse(found: Findings, studied: Studied) -> tuple[LatencyTable, str]:
    """Serve a plan for some seconds at the pace, and bring its profile to what was seen."""
    assert found.chosen is not None
    assert studied.table is not None
    pipeline = studied.plan.pipeline
    mild = studied.dilate != 1
    traffic = study_rehearsal.mild(found.frame) if mild else study_rehearsal.at_pace(found.frame, found.chosen.speed)
    rehearsal, detail = study_rehearsal.rehearse(studied, found.inputs, traffic, found.front_cpu_ms)
    if not twins(pipeline):
        # Emulated devices work on this processor and are waited for: what is left of it is not the front's.
        found.front_cpu_ms = rehearsal.cpu_ms
    learnt = study_rehearsal.learn(studied.table, pipeline, [rehearsal], found.rehearsed)
    found.rehearsed.append(learnt)
    studied.table = study_rehearsal.dilated(learnt.table, studied.dilate)
    keep(studied.table, studied.folder, "latency.json")
    return studied.table, f"{detail}; {study_rehearsal.said(learnt, pipeline)}"


def _stretch(found: Findings) -> pl.DataFrame:
    assert found.chosen is not None
    assert found.window is not None
    return payloads.cut(
        found.frame, from_s=found.window.from_s, for_s=found.window.for_s, speed=found.chosen.speed, limit=None
    )
