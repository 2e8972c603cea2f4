"""`loadslice drill`: break a pipeline on purpose and see whether it keeps its promises."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec

from loadslice.app.ending import NEGATIVE
from loadslice.app.output import (
    SEED_MAX,
    check_folder,
    dilate_option,
    emit,
    guests,
    inputs_option,
    json_option,
    keep,
    out_option,
)
from loadslice.spec.drill import DRILLS, SCHEMA, DrillReport
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp

SAID = {True: "held", False: "BROKEN", None: "–"}


@click.command(
    "drill", epilog="Example: loadslice drill avalanche overflow --pipeline examples/inspection/pipeline.yaml"
)
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option(
    "--pipeline",
    "pipelines",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Pipeline file to drill; several: one after the other, and one table at the end.",
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    default=None,
    help="Latency table of a single pipeline; else it is measured.",
)
@inputs_option
@click.option("--list", "listed", is_flag=True, help="Say which drills there are, and stop.")
@dilate_option
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=1, show_default=True, help="Start of every draw.")
@json_option
@out_option
def command(
    names: tuple[str, ...],
    pipelines: tuple[Path, ...],
    profile: Path | None,
    inputs: Path | None,
    listed: bool,
    dilate: float,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> int:
    """Hold drills against a pipeline: all eighteen, or those named (by name or number).

    Drills of the policy run in virtual time on the pipeline's own decisions and times, and say so (simulated); drills
    of the server run on a server of their own on loopback. One that this pipeline has nothing for says what is missing
    and counts as neither. Exit code 3 when a promise was not kept, or when not one drill could be held.
    """
    if listed:
        emit(
            DRILLS, as_json=as_json, text=lambda: (f"{d.number:>2} {d.name:<16}{d.how:<11}{d.promise}" for d in DRILLS)
        )
        return 0
    if not pipelines:
        raise InputError("which pipeline? Give --pipeline P.yaml, or --list to see the drills.")
    if profile is not None and len(pipelines) > 1:
        raise InputError("--profile: whose table is it? Give one --pipeline with it; several are measured.")
    from loadslice.app import drill_run

    drills = drill_run.chosen(names)
    check_folder(out)
    fields = [drill_run.open_field(path, profile, seed, dilate, inputs) for path in pipelines]
    _require_names(pipelines, [field.name for field in fields])
    with guests():
        report = drill_run.hold(fields, drills)
    files = {f"pipeline {field.name}": field.path for field in fields} | {"profile": profile}
    made = stamp(SCHEMA, inputs=files, seed=seed, tools=("numba", "numpy"))
    report = msgspec.structs.replace(report, stamp=made)
    keep(report, out, "drills.json")
    emit(report, as_json=as_json, text=lambda: _lines(report))
    return NEGATIVE if report.broken or not report.held else 0


def _require_names(paths: Sequence[Path], names: Sequence[str]) -> None:
    """Refuse pipelines that a table could not tell apart.

    Raises:
        InputError: Two have one name.
    """
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(
                f"{paths[number]}: another pipeline is called '{name}' too. Drill it by itself, or rename it."
            )


def _lines(report: DrillReport) -> Iterable[str]:
    """Each drill in words, then all in one table."""
    for one in report.drills:
        where = f" on {one.pipeline}" if len(report.pipelines) > 1 else ""
        yield f"{SAID[one.held]:<7}{one.name}{where} ({one.basis}, {one.wall_s or 0:.0f} s): {one.promise}"
        yield f"       {one.figure}"
        if one.look is not None:
            yield f"       look at: {one.look}"
    yield ""
    yield from _table(report)
    yield (
        f"{report.held} held, {report.broken} broken, {report.not_applicable} not applicable; "
        f"{len(report.drills)} drills in {report.wall_s:.0f} s"
    )


def _table(report: DrillReport) -> Iterable[str]:
    """A row for each drill, a column for each pipeline."""
    width = max(8, *(len(name) + 2 for name in report.pipelines))
    found = {(one.name, one.pipeline): one for one in report.drills}
    yield " " * 19 + "".join(f"{name:>{width}}{'s':>6}" for name in report.pipelines)
    for drill in (one for one in DRILLS if any(name == one.name for name, _ in found)):
        cells = (found[drill.name, name] for name in report.pipelines)
        yield f"{drill.number:>2} {drill.name:<16}" + "".join(
            f"{SAID[one.held]:>{width}}{one.wall_s or 0:>6.0f}" for one in cells
        )
