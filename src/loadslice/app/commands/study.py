"""`loadslice study`: the whole journey on one folder, ending in a report."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadslice.app.ending import INCOMPLETE, NEGATIVE
from loadslice.app.output import Finite, emit, guests, json_option, say, seed_option

if TYPE_CHECKING:
    from loadslice.spec.report import Report, Step

FULL_S, QUICK_S = (13.0, 18.0), (9.0, 8.0)
"""Seconds of profiling for all plans together, and of replay for each."""


@click.command("study", epilog="Example: loadslice study examples/ocr --out out/study")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/study"),
    show_default=True,
    help="Folder for the report and every file behind it.",
)
@click.option("--quick", is_flag=True, help="A third of the time, wider intervals.")
@click.option("--speed", type=Finite(1e-3, 1e3), default=None, help="Pace of the replay; default: chosen.")
@click.option(
    "--dilate",
    type=Finite(1, 1000),
    default=20.0,
    show_default=True,
    help="Seconds of a replay for one on emulated devices; plans without any keep real time.",
)
@seed_option
@json_option
def command(folder: Path, out: Path, quick: bool, speed: float | None, dilate: float, seed: int, as_json: bool) -> int:
    """Portrait, profile, simulate, serve, replay and compare what is in DIR.

    DIR holds pipeline.yaml (and pipeline.NAME.yaml for plans to compare with), a trace (traffic.parquet) and
    budget.yaml. Writes report.html and report.json; the last line of the output is the report's path. Exit code 3: no
    plan keeps the promise, or none can be told to; 4: a step failed, and the verdict rests on what else was done.
    """
    from loadslice.app import study_folder
    from loadslice.app.study import study
    from loadslice.app.study_findings import Options

    found = study_folder.read(folder)
    profile_s, replay_s = QUICK_S if quick else FULL_S
    given = shlex.join(["loadslice", *sys.argv[1:]]) if sys.argv[1:2] == ["study"] else f"loadslice study {folder}"
    with guests():
        report = study(found, out, Options(profile_s, replay_s, speed, seed, given, dilate))
    page = out / "report.html"
    say(f"\n{report.verdict.headline}\n{report.verdict.action}")
    for step in _failed(report):
        say(f"failed: {step.name}: {step.detail}")
    emit(report, as_json=as_json, text=lambda: [str(page)])
    return exit_code(report)


def _failed(report: "Report") -> "list[Step]":
    return [step for step in report.provenance.steps if step.state == "failed"]


def exit_code(report: "Report") -> int:
    """What a study ends with: a step that failed is no verdict, whatever the others found."""
    if _failed(report):
        return INCOMPLETE
    return NEGATIVE if report.verdict.recommended is None else 0
