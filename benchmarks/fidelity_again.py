"""Recorded live runs predicted again, each from one of its own stretches: what a rehearsal would have known of them.

    python -m benchmarks.fidelity_bench --out out/fidelity
    python -m benchmarks.fidelity_again out/fidelity

Every stretch of every recorded run stands once for the rehearsal (`loadslice.app.study_rehearsal`); the run's other
stretches are predicted from it, and beside that from the profile alone. Nothing runs live, so that the machine may be
busy. Runs beside which other programs took more than ``--others`` of the processor are left out.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import numpy as np
import polars as pl

from benchmarks.fidelity_bench import STRETCHES
from benchmarks.fidelity_subjects import TRACE, plans
from loadslice.app import study_rehearsal
from loadslice.app.output import emit, guests, json_option
from loadslice.app.study_folder import Plan
from loadslice.evaluate import assemble, fidelity, payloads
from loadslice.profiles.sessions import pool
from loadslice.spec import journal as journals
from loadslice.spec import latency
from loadslice.spec.errors import InputError
from loadslice.spec.fidelity import FigureFidelity
from loadslice.spec.latency import LatencyTable
from loadslice.workload import importing

OTHERS_MAX = 0.05


class Held(NamedTuple):
    """One figure of one stretch that was held out."""

    plan: str
    way: str
    """What it was predicted from."""
    figure: str
    error: float
    """Percent, of the error rate points."""
    covered: bool | None
    """``None``: it could not miss, for its interval is the one value that was measured."""
    width: float
    """Of its 95 % interval, in the unit of ``error``."""


class _Run(NamedTuple):
    """A recorded run of a plan."""

    folder: Path
    plan: Plan
    speed: float
    stretch_s: float


def held_out(folder: Path, others_max: float = OTHERS_MAX) -> Iterator[Held]:
    """Predict every held-out stretch of every recorded run.

    Args:
        folder: As `fidelity_bench` leaves it.
        others_max: Runs beside which other programs took more of the processor are left out.

    Raises:
        InputError: It holds no such run.
    """
    trace = importing.load(TRACE)
    for run in _runs(folder, others_max):
        inputs = payloads.from_function(run.plan.pipeline.inputs or "", run.plan.path.parent)
        frame = payloads.name_inputs(trace.frame, inputs, str(TRACE))
        played = fidelity.session(frame, stretch_s=run.stretch_s, speed=run.speed, count=STRETCHES)
        yield from _of_run(run, played)


def _of_run(run: _Run, played: fidelity.Session) -> Iterator[Held]:
    pipeline = run.plan.pipeline
    journal, rows = journals.load(run.folder / "journal"), pl.read_parquet(run.folder / "replay.parquet")
    seen = fidelity.of_live(rows, journal, pipeline)
    requests = assemble.with_rows(journal.requests)
    profiled = _profiled(run.folder)
    alone = fidelity.predict(played, pipeline, profiled, seed=0)
    stretches = [played.frame.filter(pl.col("stretch") == number) for number in range(STRETCHES)]
    for number, own in enumerate(stretches):
        sent = own.with_columns(pl.col("arrival_s") - own["arrival_s"][0])
        rehearsal = study_rehearsal.of_run(requests, journal.stages, rows, sent, profiled.overhead_cpu_ms or 0.0)
        table = study_rehearsal.learn(profiled, pipeline, [rehearsal]).table
        known = fidelity.predict(played, pipeline, table, seed=0)
        for other, held in enumerate(stretches):
            if other == number:
                continue
            for way, prediction in (("profile alone", alone), ("rehearsed", known)):
                figures = fidelity.stretch("held", held["row"], 0.0, [prediction], [seen]).figures
                yield from (_held(run.plan.name, way, one) for one in figures if one.error is not None)


def _held(plan: str, way: str, figure: FigureFidelity) -> Held:
    interval, measured, predicted = figure.predicted_95[0], figure.measured[0], figure.predicted[0]
    assert figure.error is not None
    assert interval is not None
    assert predicted is not None
    width = interval.high - interval.low
    covered = None if interval.low == measured == interval.high else figure.covered > 0
    percent = 100 * width if figure.figure == "error rate" else 100 * width / predicted
    return Held(plan, way, figure.figure, figure.error, covered, percent)


def _profiled(run: Path) -> LatencyTable:
    """The plan's profiles as one, with the time beside the engines that was rehearsed for this run."""
    table = pool([latency.load(path) for path in sorted(run.parent.glob("profile-*/latency.json"))])
    served = latency.load(run / "latency.json")
    return msgspec.structs.replace(
        table,
        overhead_ms=served.overhead_ms,
        handover_ms=served.handover_ms,
        overhead_cpu_ms=served.overhead_cpu_ms,
    )


def _runs(folder: Path, others_max: float) -> Iterator[_Run]:
    try:
        document = msgspec.json.decode((folder / "fidelity.json").read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{folder}: has no fidelity.json. Run `python -m benchmarks.fidelity_bench --out {folder}` first."
        ) from error
    known = {plan.name: plan for plan, _ in plans()}
    for one in document["plans"]:
        quiet = [noise["others_utilisation"] <= others_max for noise in one["noise"]]
        for number, is_quiet in enumerate(quiet):
            run = folder / one["name"] / f"live-{number + 1}"
            if is_quiet and one["name"] in known and run.is_dir():
                yield _Run(run, known[one["name"]], one["speed"], document["stretch_s"])


def figures(found: list[Held]) -> dict[str, Any]:
    """Mean and mean size of the errors, the share inside the predicted interval, and how wide that is."""
    said: dict[str, Any] = {}
    for plan, way, figure in dict.fromkeys((one.plan, one.way, one.figure) for one in found):
        own = [one for one in found if (one.plan, one.way, one.figure) == (plan, way, figure)]
        errors, unit = np.array([one.error for one in own]), "points" if figure == "error rate" else "pct"
        said[f"{plan}, {figure}, {way}"] = {
            f"error_{unit}_mean": round(float(errors.mean()), 2),
            f"error_{unit}_mean_absolute": round(float(np.abs(errors).mean()), 2),
            "covered_share": _share(own),
            f"width_{unit}_median": round(float(np.median([one.width for one in own])), 2),
            "stretches": len(own),
        }
    for plan, way in dict.fromkeys((one.plan, one.way) for one in found):
        all_ = [one for one in found if (one.plan, one.way) == (plan, way)]
        said[f"{plan}, all figures, {way}"] = {"covered_share": _share(all_), "figures": len(all_)}
    return said


def _share(found: list[Held]) -> float | None:
    could_miss = [one.covered for one in found if one.covered is not None]
    return round(float(np.mean(could_miss)), 2) if could_miss else None


@click.command(epilog="Example: python -m benchmarks.fidelity_again out/fidelity")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--others", default=OTHERS_MAX, show_default=True, help="Leave louder runs out: share of the processor.")
@json_option
def command(folder: Path, others: float, as_json: bool) -> None:
    """Predict what `fidelity_bench` recorded in FOLDER from the profile alone, and as rehearsed."""
    with guests():
        said = figures(list(held_out(folder, others)))
    emit(said, as_json=as_json, text=lambda: [f"{name:<40} {values}" for name, values in said.items()])


if __name__ == "__main__":
    try:
        command.main(prog_name="python -m benchmarks.fidelity_again", standalone_mode=False)
    except (InputError, click.ClickException) as error:
        click.echo(f"fidelity_again: {error}", err=True)
        sys.exit(2)
