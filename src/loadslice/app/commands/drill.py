"""`loadslice drill`: break a pipeline on purpose and see whether it keeps its promises."""

from collections.abc import Iterable
from pathlib import Path

import click

from loadslice.app.output import SEED_MAX, Finite, check_folder, emit, guests, json_option, keep, out_option
from loadslice.spec.drill import DRILLS, SCHEMA, DrillReport
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp

NEGATIVE = 3


@click.command(
    "drill", epilog="Example: loadslice drill avalanche overflow --pipeline examples/inspection/pipeline.yaml"
)
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option("--pipeline", type=click.Path(path_type=Path), default=None, help="Pipeline file to drill.")
@click.option(
    "--profile", type=click.Path(path_type=Path), default=None, help="Its latency table; else it is measured."
)
@click.option("--list", "listed", is_flag=True, help="Say which drills there are, and stop.")
@click.option("--dilate", type=Finite(1, 1000), default=1.0, help="Seconds here for one on emulated devices.")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=1, show_default=True, help="Start of every draw.")
@json_option
@out_option
def command(
    names: tuple[str, ...],
    pipeline: Path | None,
    profile: Path | None,
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
    if pipeline is None:
        raise InputError("which pipeline? Give --pipeline P.yaml, or --list to see the drills.")
    from loadslice.app import drill_run

    drills = drill_run.chosen(names)
    check_folder(out)
    field = drill_run.open_field(pipeline, profile, seed, dilate)
    with guests():
        report = drill_run.hold(field, drills)
    files = {"pipeline": pipeline} | ({"profile": profile} if profile is not None else {})
    made = stamp(SCHEMA, inputs=files, seed=seed, tools=("numba", "numpy"))
    report = DrillReport(**{name: getattr(report, name) for name in report.__struct_fields__} | {"stamp": made})
    keep(report, out, "drills.json")
    emit(report, as_json=as_json, text=lambda: _lines(report))
    return NEGATIVE if report.broken or not report.held else 0


def _lines(report: DrillReport) -> Iterable[str]:
    for one in report.drills:
        said = {True: "held", False: "BROKEN", None: "–"}[one.held]
        yield f"{said:<7}{one.name} ({one.basis}, {one.wall_s or 0:.0f} s): {one.promise}"
        yield f"       {one.figure}"
        if one.look is not None:
            yield f"       look at: {one.look}"
    took_s = sum(one.wall_s or 0.0 for one in report.drills)
    yield f"{report.held} held, {report.broken} broken, {report.not_applicable} not applicable, in {took_s:.0f} s"
