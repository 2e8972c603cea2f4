"""Runs a plan: reads, searches, advises, writes."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

import loadslice
from loadslice.app import plan_evidence
from loadslice.app.output import keep, native, say
from loadslice.app.plan_files import PIPELINE, not_served, write, write_each
from loadslice.app.plan_inputs import Given, Read, read
from loadslice.app.plan_model import models_of
from loadslice.backends.probe import usable_cores
from loadslice.evaluate.report.plan_page import render_plan
from loadslice.graph.inputs import parse_shapes
from loadslice.plan.advice import complete
from loadslice.plan.fleet import planner
from loadslice.plan.fleet.around import Tools
from loadslice.plan.fleet.candidate import entries_of, times_name
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.planner import Planned
from loadslice.plan.fleet.setting import Setting, set_up
from loadslice.plan.money.stated import stated
from loadslice.plan.shocks import drift_of, time_error
from loadslice.plan.sweep import Ledger, Runner, local
from loadslice.plan.sweep_ray import cluster, connect
from loadslice.sim import simulate
from loadslice.spec import pipeline as pipeline_file
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json, sha256_file, stamp, write_bytes
from loadslice.spec.observed import Observed
from loadslice.spec.plan import Objective, Plan

SERVERS = (
    "each model has a pipeline of its own, with all engines of the fleet; two servers do not know each other's queues, "
    "and the figures are of one scheduler over all of them."
)
LEDGER, PAGE = "simulated.jsonl", "plan.html"


class Asked(NamedTuple):
    """The command line."""

    trace: Path
    models: Sequence[Path]
    pipeline: Path | None
    budget: Path
    objective: Objective
    profile: Path | None
    offers: Path | None
    prices: Path | None
    devices: Sequence[str]
    address: str | None
    jobs: int | None
    seed: int
    out: Path | None
    portrait: Path | None = None
    inspections: Sequence[Path] = ()
    squeezes: Sequence[Path] = ()
    shapes: Sequence[str] = ()
    observed: Observed | None = None
    """What the study that asks was wrong by."""


def run(asked: Asked) -> Plan:
    """Make a plan and keep its files.

    Raises:
        InputError: Bad input.
    """
    if (asked.pipeline is None) == (not asked.models):
        raise InputError("give --pipeline FILE, or --model FILE (once or several times).")
    if asked.address is not None:
        connect(asked.address, asked.jobs or usable_cores())
    models = models_of(asked.models)
    given = Given(
        trace=asked.trace,
        pipeline=asked.pipeline,
        models=models,
        budget=asked.budget,
        profile=asked.profile,
        offers=asked.offers,
        prices=asked.prices,
        devices=asked.devices,
        shapes=parse_shapes(tuple(asked.shapes)),
    )
    # Before anything that takes long: what is wrong with a file is said at once.
    evidence = plan_evidence.read(asked.portrait, asked.inspections, asked.squeezes)
    found = read(given)
    setting = set_up(
        found.frame, found.pipeline, found.latency, found.offers, found.budget, prices=found.prices, seed=asked.seed
    )
    say(
        f"{setting.demand.requests.sum():,} requests, {len(setting.demand.seconds)} buckets, "
        f"{len(setting.design.offers)} engine types"
    )
    simulate.warm()
    tools = _tools(asked, found)
    with native():  # HiGHS says some things on stdout, whatever it is asked
        planned = planner.make(setting, found.budget, asked.objective, tools)
    plan = _advised(planned, setting, found, asked, given, evidence)
    chosen = planned.candidates.get(plan.recommended or "")
    if asked.out is not None and chosen is not None and models.together:
        warnings = [*plan.warnings, SERVERS]
        plan = msgspec.structs.replace(plan, pipelines=write_each(chosen, models, asked.out), warnings=warnings)
    elif asked.out is not None and chosen is not None:
        plan = msgspec.structs.replace(plan, pipelines=write(chosen, found.folder, asked.out))
        lacks = not_served(pipeline_file.load(asked.out / PIPELINE))
        if lacks:
            note = f"{PIPELINE} is for `simulate`; before `serve`: {'; '.join(lacks)}."
            plan = msgspec.structs.replace(plan, warnings=[*plan.warnings, note])
    keep(plan, asked.out, "plan.json")
    if asked.out is not None:
        write_bytes(asked.out / PAGE, render_plan(plan).encode())
    return plan


def _tools(asked: Asked, found: Read) -> Tools:
    jobs = asked.jobs or usable_cores()
    key = _key(asked, found)

    def runner(judge: Judge, ledger: Ledger) -> Runner:
        if asked.address is None:
            return local(ledger.judging(judge), jobs)
        return cluster(judge, asked.address, ledger, jobs)

    path = None if asked.out is None else asked.out / LEDGER

    def ledger(name: str) -> Ledger:
        return Ledger(path, f"{key}:{name}")

    return Tools(clock=time.perf_counter, runner=runner, ledger=ledger, tell=say, jobs=jobs, seed=asked.seed)


def _key(asked: Asked, found: Read) -> str:
    """Everything a verdict depends on beside the fleet: times as they were read, for a profile taken now is another."""
    digest = hashlib.sha256(f"{loadslice.__version__} {sha256_file(asked.trace)} {asked.seed}".encode())
    times = msgspec.structs.replace(found.latency, stamp=None)
    machine = {} if found.latency.stamp is None else found.latency.stamp.machine
    for part in (times, machine, found.pipeline, found.offers, found.budget.slo):
        digest.update(encode_json(part))
    return digest.hexdigest()[:16]


def _advised(
    planned: Planned,
    setting: Setting,
    found: Read,
    asked: Asked,
    given: Given,
    evidence: plan_evidence.Evidence,
) -> Plan:
    """Money, decision and confidence put to the fleets."""
    files = {"trace": given.trace, "pipeline": given.pipeline, "budget": given.budget, "profile": given.profile}
    files |= {"offers": given.offers, "prices": given.prices, "portrait": asked.portrait}
    files |= {f"inspection.{number}": path for number, path in enumerate(asked.inspections)}
    files |= {f"squeezed.{number}": path for number, path in enumerate(asked.squeezes)}
    made = stamp(
        "plan/1",
        inputs={name: path for name, path in files.items() if path is not None and path.is_file()},
        seed=asked.seed,
        tools=("numba", "numpy", "scipy"),
    )
    plan = Plan(
        decision=None,
        decision_path=[],
        fleets=planned.fleets,
        recommended=planned.recommended,
        nearest=None,
        saves_vs_gpu_only_pct=None,
        objective=asked.objective,
        currency=found.budget.money.currency,
        horizon_years=found.budget.money.horizon_years,
        load=planned.load,
        proof=planned.proof,
        compared_with=planned.compared,
        confidence=None,
        valleys=[],
        checklist=[],
        warnings=[*found.warnings, *setting.warnings],
        prices=stated(found.offers, found.prices),
        seed=asked.seed,
        observed=asked.observed,
        stamp=made,
    )
    design = setting.design
    entries = {
        name: [entry for stage in design.pipeline.stages for entry in entries_of(design, stage, name)]
        for name in design.offers
    }
    runs_by = {name: times_name(name, offer) for name, offer in design.offers.items()}
    seen = {} if asked.observed is None else asked.observed.times_seen
    return complete(
        plan,
        found.budget,
        prices=found.prices,
        latency=found.latency,
        portrait=evidence.portrait,
        inspections=evidence.inspections or plan_evidence.of_models(found.pipeline, found.folder),
        npus=evidence.npus,
        squeezes=evidence.squeezes,
        rows_p99=plan_evidence.rows_p99(found.frame),
        times={
            name: time_error(name, own, seen.get(runs_by[name], ()), drift_of(found.latency))
            for name, own in entries.items()
        },
        carries=planned.carries,
        runs_by=runs_by,
    )
