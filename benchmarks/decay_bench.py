"""Does a soak blame a server for its machine, and does it find one that really decays?

The soak layer alone on both placements of `examples/evaluation`, unchanged; in every second run a program beside it
takes ever more of a processor while it lasts. A regression said of either is a false one. Then the CPU's placement with
a leak in its first stage: each request makes the next ones take 20 us longer. That must be found, with and without the
program beside it.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import Figures
from loadslice.app import evaluate_run
from loadslice.spec import evaluation as evaluations
from loadslice.spec.evaluation import Evaluation, Placement, Soak
from loadslice.spec.evaluation_report import EvaluationReport

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EVALUATION = EXAMPLES / "evaluation/evaluation.yaml"
RUNS, LEAKING = 10, 4
"""Half of each beside the program."""
SOAK_S = 20.0

NEIGHBOUR = """
import sys, time
began, for_s = time.monotonic(), float(sys.argv[1])
while (share := (time.monotonic() - began) / for_s) < 1:
    busy_until = time.monotonic() + 0.05 * share
    while time.monotonic() < busy_until: pass
    time.sleep(0.05 * (1 - share))
"""
"""Takes from nothing to all of one processor within the time it is given."""

LEAK = """
import time
import inspection_stages
kept = []
def prepare(work):
    kept.append(None)
    time.sleep(20e-6 * len(kept))
    return inspection_stages.prepare(work)
"""


def run(runs: int = RUNS, leaking: int = LEAKING) -> Figures:
    """Unchanged placements, then one that leaks."""
    wanted = msgspec.structs.replace(evaluations.load(EVALUATION), layers=["soak"], soak=Soak(for_s=SOAK_S))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        equal = [_soaked(EVALUATION, wanted, folder, noisy=number % 2 == 1) for number in range(runs)]
        leak, path = _with_leak(folder, wanted)
        found = [_soaked(path, leak, folder, noisy=number % 2 == 1) for number in range(leaking)]
    soaks = [one for report in equal for one in _soaks(report)]
    leaks = [one for report in found for one in _soaks(report)]
    return {
        "unchanged_soaks": len(soaks),
        "unchanged_latency_rose": sum(one["rises"] is True for one in soaks),
        "unchanged_over_fresh": _said(soaks),
        "false_regressions": sum(report.verdict == "regression" for report in equal),
        "leaking_soaks": len(leaks),
        "leaks_found": sum(_codes(report) >= {"decay"} for report in found),
        "leaking_over_fresh": _said(leaks),
        "others_share_most": max(one["others_share"] or 0.0 for one in soaks + leaks),
    }


def _with_leak(folder: Path, wanted: Evaluation) -> tuple[Evaluation, Path]:
    """The CPU's placement with a stage that leaks, in a folder of its own."""
    copy = folder / "leaking"
    shutil.copytree(EXAMPLES / "inspection", copy)
    (copy / "leaking.py").write_text(LEAK, encoding="utf-8")
    path = copy / "pipeline.cpu.yaml"
    plain = path.read_text(encoding="utf-8")
    path.write_text(plain.replace("inspection_stages:prepare", "leaking:prepare"), encoding="utf-8")
    placement = Placement(name="leaking", pipeline="pipeline.cpu.yaml")
    return msgspec.structs.replace(wanted, placements=[placement], reference=None), copy / "evaluation.yaml"


def _soaked(path: Path, wanted: Evaluation, folder: Path, *, noisy: bool) -> EvaluationReport:
    """One evaluation."""
    shutil.rmtree(out := folder / "out", ignore_errors=True)
    began_s = time.monotonic()
    with _neighbour(len(wanted.placements) * 1.5 * SOAK_S) if noisy else contextlib.nullcontext():
        bench = evaluate_run.open_all(path, wanted, out, None, allow_remote=False)
        report = evaluate_run.run(bench, out, None, profile_s=0.0)
    for one in _soaks(report):
        over = ", ".join(f"{ratio:.2f}" for ratio in one["latency_over_fresh"] or [])
        print(
            f"{time.monotonic() - began_s:5.0f} s, {'noisy' if noisy else 'as it is'}, {report.verdict}: "
            f"{one['latency_ms_p50']:.1f} ms, rises {one['rises']}, over a fresh one's [{over}], grows {one['grows']}",
            file=sys.stderr,
        )
    return report


@contextlib.contextmanager
def _neighbour(for_s: float) -> Iterator[None]:
    beside = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(for_s)])
    try:
        yield
    finally:
        beside.kill()
        beside.wait()


def _soaks(report: EvaluationReport) -> list[dict[str, Any]]:
    return [figures for layer in report.layers if layer.name == "soak" for figures in layer.figures.values()]


def _codes(report: EvaluationReport) -> set[str]:
    return {one.code for one in report.rules_fired}


def _said(soaks: list[dict[str, Any]]) -> str:
    """Medians of the rounds against a fresh server, where one was asked."""
    asked = [sorted(one["latency_over_fresh"]) for one in soaks if one["latency_over_fresh"]]
    return ", ".join(f"x{ratios[len(ratios) // 2]:.2f}" for ratios in asked) or "not asked"
