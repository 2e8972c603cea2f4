"""A whole evaluation: open what the file names, run each placement, judge, keep."""

import time
from pathlib import Path

import msgspec

from loadslice.app import evaluate_files
from loadslice.app.evaluate_files import Bench
from loadslice.app.evaluate_placement import Run, evaluate
from loadslice.app.output import keep, say
from loadslice.backends.toolchains import environment as toolchains
from loadslice.evaluate import baseline as baselines
from loadslice.evaluate import environment as environments
from loadslice.evaluate.conclude import conclude
from loadslice.sim import simulate
from loadslice.spec import environment as environment_files
from loadslice.spec import evaluation_report as reports
from loadslice.spec.environment import Environment
from loadslice.spec.evaluation import Evaluation
from loadslice.spec.evaluation_report import EvaluationReport
from loadslice.spec.files import stamp

TOOLS = ("onnxruntime", "openvino", "numpy", "numba", "aiohttp")


def this_environment() -> Environment:
    """Of this machine, vendors' compilers included."""
    versions = {
        f"{state.name} {name}": version
        for state in toolchains.states()
        if state.installed is not None
        for name, version in state.installed.versions.items()
    }
    return environments.read(toolchains=versions)


def open_all(path: Path, wanted: Evaluation, out: Path, baseline: Path | None, *, allow_remote: bool) -> Bench:
    """Open the file's placements and refuse a baseline that cannot be compared with.

    Raises:
        InputError: Anything that is missing, wrong or not to be compared.
    """
    bench = evaluate_files.open_bench(path, wanted, out, this_environment(), allow_remote=allow_remote)
    if baseline is not None:
        before = reports.load(baseline)
        fixed = {one.placement.name: one.fixed for one in bench.placements}
        baselines.require_comparable(before, bench.environment, fixed, wanted.varied, str(baseline))
    return bench


def run(bench: Bench, out: Path, baseline: Path | None, *, profile_s: float) -> EvaluationReport:
    """Run every placement, the reference first, and write ``evaluation.json``."""
    began = time.monotonic()
    simulate.warm()
    course = Run(bench, out, profile_s)
    first = bench.wanted.reference_name
    found = {}
    for opened in sorted(bench.placements, key=lambda one: one.placement.name != first):
        say(f"placement {opened.placement.name}")
        seen = evaluate(course, opened)
        course.reference = course.reference or seen
        found[seen.name] = seen
        if seen.why is not None:
            say(f"  {seen.state.replace('_', ' ')}: {seen.why}")
    in_order = [found[opened.placement.name] for opened in bench.placements]
    limits, changed = _limits(bench)
    report = conclude(in_order, bench.wanted, bench.environment, limits=limits, changed=changed)
    if baseline is not None:
        before = reports.load(baseline)
        more, told = baselines.compare(before, report, bench.wanted)
        report = conclude(in_order, bench.wanted, bench.environment, limits=limits, more=more, changed=changed)
        report = msgspec.structs.replace(report, baseline=told)
    files = {"evaluation": bench.path} | {
        f"pipeline {opened.placement.name}": opened.path for opened in bench.placements if opened.path is not None
    }
    report = msgspec.structs.replace(
        report,
        wall_s=time.monotonic() - began,
        stamp=stamp(reports.SCHEMA, inputs=files, seed=bench.wanted.seed, tools=TOOLS),
    )
    keep(report, out, "evaluation.json")
    return report


def _limits(bench: Bench) -> tuple[list[str], bool]:
    """What cannot be read here, and what has changed meanwhile."""
    limits = []
    unknown = evaluate_files.unknown_variables(bench.placements)
    if unknown:
        limits.append(f"Not known, so nobody can say whether it was the same: {', '.join(unknown).replace('_', ' ')}.")
    check = environment_files.compare(bench.environment, this_environment(), varied=bench.wanted.varied)
    if not check.same:
        changes = "; ".join(environment_files.words(one) for one in check.differences)
        limits.append(f"The environment changed during the evaluation: {changes}.")
    return limits, not check.same
