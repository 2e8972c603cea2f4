"""Recorded live runs predicted again, each from one of its own stretches: what a rehearsal would have known of them.

    python -m benchmarks.fidelity_bench --out out/fidelity
    python -m benchmarks.fidelity_again out/fidelity

Every stretch of every recorded run stands once for the rehearsal (`loadslice.evaluate.rehearsed`); the run's other
stretches are predicted from it, and beside that from the profile alone. Nothing runs live, so that the machine may be
busy. Runs beside which other programs took more than `OTHERS_MAX` of the processor are left out.
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
from benchmarks.fidelity_subjects import EXAMPLE, TRACE
from loadslice.app import study_folder
from loadslice.app.output import emit, guests, json_option
from loadslice.app.study_folder import Plan
from loadslice.app.study_rehearsal import slow_periods
from loadslice.evaluate import assemble, fidelity, payloads
from loadslice.evaluate.rehearsed import as_rehearsed, drift
from loadslice.profiles.sessions import pool
from loadslice.spec import journal as journals
from loadslice.spec import latency
from loadslice.spec.errors import InputError
from loadslice.spec.fidelity import FigureFidelity
from loadslice.spec.latency import LatencyTable
from loadslice.workload import importing

OTHERS_MAX = 0.05
LATENCIES = ("p50", "p95", "p99")


class Held(NamedTuple):
    """One figure of one stretch that was held out."""

    plan: str
    way: str
    """What it was predicted from."""
    figure: str
    error_pct: float
    covered: bool


class _Run(NamedTuple):
    """A recorded run of a plan."""

    folder: Path
    plan: Plan
    speed: float
    stretch_s: float


def held_out(folder: Path) -> Iterator[Held]:
    """Predict every held-out stretch of every recorded run.

    Args:
        folder: As `fidelity_bench` leaves it.

    Raises:
        InputError: It holds no such run.
    """
    trace = importing.load(TRACE)
    for run in _runs(folder):
        inputs = payloads.from_function(run.plan.pipeline.inputs or "", run.plan.path.parent)
        frame = payloads.name_inputs(trace.frame, inputs, str(TRACE))
        played = fidelity.session(frame, stretch_s=run.stretch_s, speed=run.speed, count=STRETCHES)
        yield from _of_run(run, played)


def _of_run(run: _Run, played: fidelity.Session) -> Iterator[Held]:
    pipeline = run.plan.pipeline
    journal, rows = journals.load(run.folder / "journal"), pl.read_parquet(run.folder / "replay.parquet")
    seen = fidelity.of_live(rows, journal, pipeline)
    tagged = journal.stages.join(assemble.with_rows(journal.requests).select("tag", "row"), on="tag")
    profiled = _profiled(run.folder)
    alone = fidelity.predict(played, pipeline, profiled, seed=0)
    stretches = [played.frame.filter(pl.col("stretch") == number)["row"] for number in range(STRETCHES)]
    for number, rehearsed in enumerate(stretches):
        own = tagged.filter(pl.col("row").is_in(rehearsed.implode()))
        found = as_rehearsed(profiled, pipeline, [own], len(rehearsed) / run.stretch_s)
        table = msgspec.structs.replace(found.table, drift=drift([found], slow_periods(found)))
        known = fidelity.predict(played, pipeline, table, seed=0)
        for other, held in enumerate(stretches):
            if other == number:
                continue
            for way, prediction in (("profile alone", alone), ("rehearsed", known)):
                figures = fidelity.stretch("held", held, 0.0, [prediction], [seen]).figures
                yield from (_held(run.plan.name, way, one) for one in figures if one.figure in LATENCIES)


def _held(plan: str, way: str, figure: FigureFidelity) -> Held:
    assert figure.error is not None
    return Held(plan, way, figure.figure, figure.error, figure.covered > 0)


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


def _runs(folder: Path) -> Iterator[_Run]:
    try:
        document = msgspec.json.decode((folder / "fidelity.json").read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{folder}: has no fidelity.json. Run `python -m benchmarks.fidelity_bench --out {folder}` first."
        ) from error
    plans = {plan.name: plan for plan in study_folder.read(EXAMPLE).plans}
    for one in document["plans"]:
        quiet = [noise["others_utilisation"] <= OTHERS_MAX for noise in one["noise"]]
        for number, is_quiet in enumerate(quiet):
            run = folder / one["name"] / f"live-{number + 1}"
            if is_quiet and one["name"] in plans and run.is_dir():
                yield _Run(run, plans[one["name"]], one["speed"], document["stretch_s"])


def figures(found: list[Held]) -> dict[str, Any]:
    """Mean and mean size of the errors, in percent, and the share inside the predicted interval."""
    said: dict[str, Any] = {}
    for plan, way, figure in dict.fromkeys((one.plan, one.way, one.figure) for one in found):
        own = [one for one in found if (one.plan, one.way, one.figure) == (plan, way, figure)]
        errors = np.array([one.error_pct for one in own])
        said[f"{plan}, {figure}, {way}"] = {
            "error_pct_mean": round(float(errors.mean()), 1),
            "error_pct_mean_absolute": round(float(np.abs(errors).mean()), 1),
            "covered_share": round(float(np.mean([one.covered for one in own])), 2),
            "stretches": len(own),
        }
    return said


@click.command(epilog="Example: python -m benchmarks.fidelity_again out/fidelity")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Predict what `fidelity_bench` recorded in FOLDER from the profile alone, and as rehearsed."""
    with guests():
        said = figures(list(held_out(folder)))
    emit(said, as_json=as_json, text=lambda: [f"{name:<40} {values}" for name, values in said.items()])


if __name__ == "__main__":
    try:
        command.main(prog_name="python -m benchmarks.fidelity_again", standalone_mode=False)
    except (InputError, click.ClickException) as error:
        click.echo(f"fidelity_again: {error}", err=True)
        sys.exit(2)
