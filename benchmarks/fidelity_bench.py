"""How faithful predictions are: held-out traffic simulated, then served live several times by the very same plans.

    python -m benchmarks.fidelity_bench --out out/fidelity            # about 17 minutes
    python -m benchmarks.fidelity_bench --out out/fidelity --quick    # about 4

Every plan of `examples/ocr` and the `twins` (stages that only wait, so that little but the simulator's own error is
left) is profiled in several sessions. Then the rounds begin: in each one every plan is rehearsed on the trace's first
half, predicted, and served in a process of its own, where it gets the same stretches of the trace's second half as
in every other round. Nothing that is predicted is measured before. The machine wants to be quiet; what else it did
stands in the result.
"""

import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import polars as pl

from benchmarks import load_average_1m
from benchmarks.fidelity_subjects import TRACE, Lengths, Subject, profile, subjects
from loadslice.app import study_plan, study_rehearsal
from loadslice.app.output import emit, guests, json_option, keep, out_option, say, seed_option
from loadslice.app.study_plan import Studied
from loadslice.app.study_server import ServerError
from loadslice.backends.probe import usable_cores
from loadslice.evaluate import fidelity, pace
from loadslice.profiles.sessions import pool
from loadslice.sim import simulate
from loadslice.spec import fidelity as spec
from loadslice.spec.errors import InputError, OutputError
from loadslice.spec.fidelity import Fidelity, FigureFidelity, Noise, PlanFidelity, StretchFidelity
from loadslice.spec.files import stamp

TOOLS = ("onnxruntime", "openvino", "numpy", "numba", "polars", "aiohttp", "opencv-python-headless")

TWINS_SPEED = 3.0
"""14 requests a second, which keeps the twins' engines as busy as a service may be that has promises to keep."""
STRETCHES = 3
SEED = 0


FULL, QUICK = Lengths(6.0, 3, 9.0, 3), Lengths(4.0, 2, 5.0, 2)
QUICK_PLANS = ("hybrid", "twins")
"""Starting a server takes as long as a short stretch; the hybrid runs on both engines."""


def choose_pace(found: list[Subject]) -> None:
    """A pace for each plan that keeps it busy, chosen on the first half of the trace."""
    for subject in found:
        table = subject.profiled = pool(subject.sessions)
        half = subject.frame.head(subject.frame.height // 2)
        given = TWINS_SPEED if subject.kind == "twins" else None
        plans = {subject.plan.title: (subject.plan.pipeline, table)}
        subject.chosen = pace.choose_pace(half, plans, cores=usable_cores(), seed=SEED, given=given)


def play(found: list[Subject], lengths: Lengths, seed: int) -> None:
    """Round by round, plan by plan: rehearse, say what the live run will show, and serve."""
    for number in range(lengths.repeats):
        for subject in found:
            rehearse(subject, number)
            predict(subject, found, lengths, seed)
            serve(subject, number)


def rehearse(subject: Subject, number: int) -> None:
    """Learn what requests cost in the server, with a stretch of the trace's first half."""
    assert subject.chosen is not None
    studied = Studied(subject.plan, subject.folder / f"rehearsal-{number + 1}", table=subject.profiled)
    keep(subject.profiled, studied.folder, "latency.json")
    traffic = study_rehearsal.at_pace(subject.frame, subject.chosen.speed)
    subject.rehearsal, said = study_rehearsal.rehearse(studied, subject.inputs, traffic)
    say(f"rehearsal {number + 1} {subject.plan.name}: {said}")


def predict(subject: Subject, found: list[Subject], lengths: Lengths, seed: int) -> None:
    """Say what the next live run will show, by the rehearsal just before it and what earlier ones say of drift."""
    assert subject.profiled is not None
    assert subject.chosen is not None
    assert subject.rehearsal is not None
    pipeline = subject.plan.pipeline
    # Stages that wait are not as restless as those that compute: neither tells of the other.
    earlier = [one for other in found if other.kind == subject.kind for one in other.learnt]
    learnt = study_rehearsal.learn(subject.profiled, pipeline, [subject.rehearsal], earlier)
    subject.learnt.append(learnt)
    subject.table = learnt.table
    if subject.played is None:
        subject.played = fidelity.session(
            subject.frame, stretch_s=lengths.stretch_s, speed=subject.chosen.speed, count=STRETCHES
        )
    subject.predictions.append(fidelity.predict(subject.played, pipeline, subject.table, seed=seed))
    whole = _whole(subject, subject.predictions[-1:], [])
    said = ", ".join(f"{one.figure} {one.predicted[0]:.4g}" for one in whole.figures if one.predicted[0] is not None)
    how = study_rehearsal.said(learnt, pipeline)
    say(f"predict {subject.plan.name} at {subject.chosen.speed:g}: {said} ({how})")


def serve(subject: Subject, number: int) -> None:
    """Serve a plan once."""
    assert subject.played is not None
    assert subject.chosen is not None
    folder = subject.folder / f"live-{number + 1}"
    studied = Studied(subject.plan, folder, table=subject.table)
    keep(subject.table, folder, "latency.json")
    replay, said = study_plan.run_live(
        studied, subject.played.frame, subject.inputs, TRACE, subject.chosen.speed, subject.played.from_s[0]
    )
    assert studied.rows is not None
    assert studied.journal is not None
    assert studied.cpu is not None
    subject.live.append(fidelity.of_live(studied.rows, studied.journal, subject.plan.pipeline))
    subject.journals.append(studied.journal)
    subject.noise.append(
        Noise(
            load_before_1m=studied.cpu.load_before_1m,
            others_utilisation=round(studied.cpu.others_utilisation, 4),
            send_lag_ms_p99=replay.send_lag_ms.p99,
        )
    )
    say(f"live {number + 1} {subject.plan.name}: {said}")


def _whole(
    subject: Subject, predictions: Sequence[fidelity.Prediction], live: Sequence[fidelity.Seen]
) -> StretchFidelity:
    assert subject.played is not None
    frame = subject.played.frame
    return fidelity.stretch("all", frame["row"], subject.played.from_s[0], predictions, live)


def report(subject: Subject, lengths: Lengths) -> PlanFidelity:
    """Predicted against measured."""
    assert subject.played is not None
    assert subject.chosen is not None
    assert subject.table is not None
    frame, predictions = subject.played.frame, subject.predictions
    stretches = [
        fidelity.stretch(
            str(number + 1), frame.filter(pl.col("stretch") == number)["row"], begin_s, predictions, subject.live
        )
        for number, begin_s in enumerate(subject.played.from_s)
    ]
    agreed = [
        fidelity.agreement(prediction.typical[0], seen)
        for prediction, seen in zip(predictions, subject.live, strict=True)
    ]
    return PlanFidelity(
        name=subject.plan.name,
        title=subject.plan.title,
        kind=subject.kind,
        speed=subject.chosen.speed,
        busy=predictions[0].busy,
        repeats=lengths.repeats,
        profile_sessions=lengths.sessions,
        drift=subject.table.drift,
        stretches=stretches,
        whole=_whole(subject, predictions, subject.live),
        stages=fidelity.stages(subject.plan.pipeline, predictions, subject.journals),
        agreement=float(np.mean(agreed)),
        agreement_live=fidelity.agreement_live(subject.live),
        coverage=fidelity.coverage(stretches),
        noise=subject.noise,
    )


def measure(out: Path, lengths: Lengths, *, only: tuple[str, ...] = (), seed: int, given: str) -> Fidelity:
    """The whole benchmark.

    Args:
        out: Gets a folder per plan, with profiles, journals and replays.
        lengths: How long.
        only: Names of plans; none: all.
        seed: Start of every draw.
        given: The command, for the record.

    Raises:
        InputError: A name that no plan has, or an extra that the example needs is not installed.
        ServerError: A plan could not be served.
    """
    began_s = time.monotonic()
    found = subjects(out, only)
    simulate.warm()
    profile(found, lengths)
    choose_pace(found)
    play(found, lengths, seed)
    sources = {"trace": TRACE} | {subject.plan.name: subject.plan.path for subject in found}
    return Fidelity(
        stamp=stamp(spec.SCHEMA, inputs=sources, seed=seed, tools=TOOLS),
        created_utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=given,
        trace=TRACE.name,
        took_s=time.monotonic() - began_s,
        stretch_s=lengths.stretch_s,
        replicas=fidelity.REPLICAS,
        plans=[report(subject, lengths) for subject in found],
    )


def lines(document: Fidelity) -> list[str]:
    """For a person."""
    heads = " ".join(f"{head:>9}" for head in ("predicted", "measured", "error", "size", "noise", "goal"))
    said = [f"{'plan':<20} {'figure':<11} {heads}"]
    for plan in document.plans:
        said += [_line(plan, figure) for figure in plan.whole.figures]
        live = "unknown" if plan.agreement_live is None else f"{plan.agreement_live:.1%}"
        covered = "unknown how many" if plan.coverage is None else f"{plan.coverage:.0%}"
        said.append(
            f"{plan.title:<20} decisions as predicted {plan.agreement:.1%}, live among themselves {live}; "
            f"{covered} of figures in the predicted interval"
        )
    return said


def _line(plan: PlanFidelity, figure: FigureFidelity) -> str:
    sizes = ("unknown" if one is None else f"{one:+.2f}" for one in (figure.error, figure.error_size, figure.noise))
    cells = (_mean(figure.predicted), _mean(figure.measured), *sizes, f"{spec.GOALS[figure.figure]:g}")
    return f"{plan.title:<20} {figure.figure:<11} {' '.join(f'{cell:>9}' for cell in cells)}"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.4g}" if known else "unknown"


def run() -> dict[str, Any]:
    """`python -m benchmarks fidelity`: the quick variant, its errors in one line per plan."""
    with TemporaryDirectory() as folder, guests():
        document = measure(Path(folder), QUICK, only=QUICK_PLANS, seed=SEED, given="python -m benchmarks fidelity")
    figures: dict[str, Any] = {}
    for plan in document.plans:
        for figure in plan.whole.figures:
            unit = "points" if figure.figure == "error rate" else "pct"
            name = f"{plan.name}_{figure.figure.replace(' ', '_')}"
            figures |= {f"{name}_error_{unit}": figure.error, f"{name}_noise_{unit}": figure.noise}
        figures |= {f"{plan.name}_agreement": plan.agreement, f"{plan.name}_coverage": plan.coverage}
    return figures


@click.command(epilog="Example: python -m benchmarks.fidelity_bench --out out/fidelity")
@click.option("--quick", is_flag=True, help="Three minutes: the hybrid and the twins, short stretches.")
@click.option("--only", multiple=True, metavar="PLAN", help="This plan only (twins, hybrid, ...); may be repeated.")
@seed_option
@json_option
@out_option
def command(quick: bool, only: tuple[str, ...], seed: int, as_json: bool, out: Path | None) -> None:
    """Predict held-out traffic, serve it, and say how far off the prediction was."""
    only = only or (QUICK_PLANS if quick else ())
    given = " ".join(["python -m benchmarks.fidelity_bench", *(["--quick"] if quick else [])])
    given += "".join(f" --only {name}" for name in only if not quick or only != QUICK_PLANS)
    say(f"load average before: {load_average_1m()}")
    with TemporaryDirectory() as folder, guests():
        document = measure(out or Path(folder), QUICK if quick else FULL, only=only, seed=seed, given=given)
    keep(document, out, "fidelity.json")
    emit(document, as_json=as_json, text=lambda: lines(document))


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the command; exit code 2 for bad input, 1 for a plan that could not be served, 130 when interrupted."""
    # However it is ended, its server must not outlive it.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        command.main(arguments, prog_name="python -m benchmarks.fidelity_bench", standalone_mode=False)
    except (InputError, OutputError, click.ClickException) as error:
        click.echo(f"fidelity: {error}", err=True)
        return 2
    except ServerError as error:
        click.echo(f"fidelity: {error}", err=True)
        return 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("fidelity: interrupted", err=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
