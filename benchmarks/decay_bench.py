"""Does a soak blame a server for its machine, and does it find one that really decays?

The soak layer alone on both placements of `examples/evaluation`, unchanged; in every second run a program beside it
takes ever more of a processor while it lasts. A regression said of either is a false one. Then the CPU's placement with
a leak in its first stage: each request makes the next ones take 20 us longer. That must be found, with and without the
program beside it.

One run is a piece of less than five minutes. With `--out` each piece adds its soaks to a file there, and what is
printed is the sum over all pieces so far.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks import Figures, load_average_1m
from loadslice.app import evaluate_run
from loadslice.app.output import emit, json_option, out_option
from loadslice.spec import evaluation as evaluations
from loadslice.spec.evaluation import Evaluation, Placement, Soak
from loadslice.spec.evaluation_report import EvaluationReport

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EVALUATION = EXAMPLES / "evaluation/evaluation.yaml"
RUNS, LEAKING = 2, 1
"""Of one piece."""
SOAK_S = 20.0
KEPT = "soaks.jsonl"

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


class Soaked(msgspec.Struct, frozen=True, kw_only=True):
    """What one evaluation said."""

    leaks: bool
    """Its placement does; else nothing was changed."""
    noisy: bool
    """A program beside it took ever more."""
    verdict: str
    codes: list[str]
    """Of the rules that fired."""
    soaks: list[dict[str, Any]]
    """One for each placement."""


def run(runs: int = RUNS, leaking: int = LEAKING) -> Figures:
    """One piece alone."""
    return summed(piece(runs, leaking, []))


def piece(runs: int, leaking: int, before: Sequence[Soaked]) -> list[Soaked]:
    """Unchanged placements, then one that leaks; every second of either beside the program, over all pieces.

    Args:
        runs: Evaluations of the unchanged placements.
        leaking: Of the leaking one.
        before: What earlier pieces found.
    """
    wanted = msgspec.structs.replace(evaluations.load(EVALUATION), layers=["soak"], soak=Soak(for_s=SOAK_S))
    found: list[Soaked] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        leak, path = _with_leak(folder, wanted)
        for leaks, count in ((False, runs), (True, leaking)):
            for _ in range(count):
                noisy = sum(one.leaks == leaks for one in (*before, *found)) % 2 == 1
                place, which = (path, leak) if leaks else (EVALUATION, wanted)
                report = _soaked(place, which, folder, noisy=noisy)
                codes = sorted(one.code for one in report.rules_fired)
                soaks = _soaks(report)
                found.append(Soaked(leaks=leaks, noisy=noisy, verdict=report.verdict, codes=codes, soaks=soaks))
    return found


def summed(found: Sequence[Soaked]) -> Figures:
    """What all pieces say together."""
    equal, leaking = [one for one in found if not one.leaks], [one for one in found if one.leaks]
    soaks = [soak for one in equal for soak in one.soaks]
    leaks = [soak for one in leaking for soak in one.soaks]
    return {
        "unchanged_soaks": len(soaks),
        "unchanged_latency_rose": sum(one["rises"] is True for one in soaks),
        "unchanged_over_fresh": _said(soaks),
        "false_regressions": sum(one.verdict == "regression" for one in equal),
        "leaking_soaks": len(leaks),
        "leaks_found": sum("decay" in one.codes for one in leaking),
        "leaking_over_fresh": _said(leaks),
        "others_share_most": max((one["others_share"] or 0.0 for one in soaks + leaks), default=0.0),
        "load_average_1m": load_average_1m(),
    }


def _with_leak(folder: Path, wanted: Evaluation) -> tuple[Evaluation, Path]:
    """The CPU's placement with a stage that leaks, in a folder of its own."""
    copy = folder / "leaking"
    shutil.copytree(EXAMPLES / "inspection", copy)
    (copy / "leaking.py").write_text(LEAK, encoding="utf-8")
    path = copy / "pipeline.cpu.yaml"
    plain = path.read_text(encoding="utf-8")
    path.write_text(plain.replace("inspection_stages:prepare", "leaking:prepare"), encoding="utf-8")
    leaking = Placement(name="leaking", pipeline="pipeline.cpu.yaml")
    wanted = msgspec.structs.replace(wanted, placements=[leaking], reference=None)
    (copy / "evaluation.yaml").write_bytes(msgspec.yaml.encode(wanted))
    return wanted, copy / "evaluation.yaml"


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


def _said(soaks: list[dict[str, Any]]) -> str:
    """Medians of the rounds against a fresh server, where one was asked."""
    asked = [sorted(one["latency_over_fresh"]) for one in soaks if one["latency_over_fresh"]]
    return ", ".join(f"x{ratios[len(ratios) // 2]:.2f}" for ratios in asked) or "not asked"


def _kept(path: Path) -> list[Soaked]:
    """What earlier pieces found; nothing where there was none."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Soaked) for line in lines if line]


@click.command(epilog="Example: python -m benchmarks.decay_bench --out out/decay, five times or more")
@click.option("--runs", type=click.IntRange(0, 100), default=RUNS, show_default=True, help="Unchanged evaluations.")
@click.option("--leaking", type=click.IntRange(0, 100), default=LEAKING, show_default=True, help="Leaking ones.")
@json_option
@out_option
def command(runs: int, leaking: int, as_json: bool, out: Path | None) -> None:
    """Run one piece (with 0 and 0 none) and print the sum over all that were kept."""
    kept = _kept(out / KEPT) if out is not None else []
    found = piece(runs, leaking, kept)
    if out is not None and found:
        out.mkdir(parents=True, exist_ok=True)
        with (out / KEPT).open("ab") as lines:
            lines.writelines(msgspec.json.encode(one) + b"\n" for one in found)
    figures = summed([*kept, *found])
    emit(figures, as_json=as_json, text=lambda: _lines(figures))


def _lines(figures: Figures) -> Iterable[str]:
    return (f"{key:<24} {value:,.4g}" if isinstance(value, float) else f"{key:<24} {value}"
            for key, value in figures.items())  # fmt: skip


if __name__ == "__main__":
    sys.exit(command())
