"""`loadslice profile`: how long each stage takes on each engine."""

from collections.abc import Iterator
from pathlib import Path

import click

from loadslice.app import example_inputs, modelled, modelled_text, twins
from loadslice.app.output import (
    Finite,
    check_folder,
    emit,
    guests,
    inputs_option,
    json_option,
    keep,
    out_option,
    refuse_given,
    say,
    seed_option,
)
from loadslice.graph.inputs import parse_shapes
from loadslice.profiles import samples
from loadslice.profiles.measure import measure
from loadslice.profiles.overdue import STEP_S
from loadslice.profiles.sessions import pool
from loadslice.spec.device import PeakPrecision
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolved
from loadslice.spec.language import is_language_file
from loadslice.spec.latency import P99_RUNS_MIN, Drift, Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import load


@click.command(
    "profile",
    epilog="Example: loadslice profile examples/ocr/pipeline.yaml --out out/profile",
)
@click.argument("target", metavar="PIPELINE")
@click.option("--on", multiple=True, metavar="ENGINE", help="Measure this engine only; may be repeated.")
@click.option("--repeats", type=click.IntRange(1, 100_000), default=None, help="Rounds at most, before time is up.")
@click.option(
    "--seconds",
    type=Finite(0, 86_400),
    default=20.0,
    show_default=True,
    help="Time to measure for, besides loading and warming up. Every kind of work is run at least once.",
)
@click.option(
    "--sessions",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Load and measure this often anew, to learn how far runs differ; the time is shared among them.",
)
@click.option(
    "--step-timeout",
    "step_s",
    type=Finite(0.1, 86_400),
    default=STEP_S,
    show_default=True,
    metavar="SECONDS",
    help="Longest time that loading a model, or one run of it, may take; what takes longer hangs, and ends this.",
)
@inputs_option
@click.option(
    "--model-for",
    "wanted",
    multiple=True,
    metavar="[ENGINE=]DEVICE",
    help="Measure nothing: model the times on a device that is not here; repeats. PIPELINE may be an .onnx file.",
)
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="With --model-for; repeats.")
@click.option("--batch", "batches", multiple=True, type=click.IntRange(1, 4096), help="With --model-for; repeats.")
@click.option(
    "--threads",
    type=click.IntRange(1, 4096),
    default=None,
    help="With --model-for a CPU: cores that the engine has; default: the pipeline's, or all.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4"]),
    default=None,
    help="With --model-for: as if the model were converted to it; default: its own where the device has it.",
)
@click.option(
    "--devices",
    "own",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="With --model-for: a folder of device files that join the catalogue and win over it.",
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="With --model-for: a latency table to add to; what was measured in it wins.",
)
@click.option(
    "--served-seconds",
    type=Finite(0, 86_400),
    default=30.0,
    show_default=True,
    help="For a language file: serve a load for so long too, for single steps as a server sees them; 0: do not.",
)
@click.option(
    "--kernels",
    multiple=True,
    metavar="ENGINE=DEVICE:LAYERS:FILE",
    help="For a language file: measure nothing, model an engine on a GPU from a table of measured kernels; repeats.",
)
@seed_option
@json_option
@out_option
def command(
    target: str,
    on: tuple[str, ...],
    repeats: int | None,
    seconds: float,
    sessions: int,
    step_s: float,
    inputs: Path | None,
    wanted: tuple[str, ...],
    shapes: tuple[str, ...],
    batches: tuple[int, ...],
    threads: int | None,
    precision: PeakPrecision | None,
    own: Path | None,
    measured: Path | None,
    served_seconds: float,
    kernels: tuple[str, ...],
    seed: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """Run example inputs through every stage of PIPELINE on every engine, and time them.

    Each kind of work (stage, engine, rows, shape) is timed alone, and with all engine slots of this machine busy.
    Writes latency.json to --out.

    A language file (one that names a `language`) is measured by kinds of steps instead: prompts, sequences that decode,
    both at once, hand-overs, and two engines at once; it becomes language-profile.json.

    With --model-for nothing runs: times and energy on a device of `loadslice devices` come from its roofline and what
    other devices were measured to make of theirs, each with the error to expect.
    """
    modelling: dict[str, object] = {"--shape": shapes, "--batch": batches, "--threads": threads}
    modelling |= {"--precision": precision, "--devices": own, "--measured": measured}
    if is_language_file(Path(target)):
        others = {"--on": on, "--repeats": repeats, "--inputs": inputs, "--model-for": wanted} | modelling
        refuse_given(others, f"goes with a pipeline; {target} is a language file.")
        from loadslice.app.language_profile import model_language, profile_language

        if kernels:
            model_language(Path(target), kernels, as_json=as_json, out=out)
            return
        profile_language(
            Path(target), seconds=seconds, served_seconds=served_seconds, seed=seed, as_json=as_json, out=out
        )
        return
    if kernels:
        raise InputError(f"--kernels goes with a language file; {target} is none.")
    if wanted:
        check_folder(out)
        found = modelled.table(
            target,
            wanted,
            shapes=parse_shapes(shapes),
            batches=sorted(set(batches)),
            own=own,
            measured=measured,
            threads=threads,
            to=precision,
        )
        kept = keep(found, out, "latency.json")
        emit(found, as_json=as_json, text=lambda: modelled_text.lines(found, kept))
        return
    refuse_given(modelling, "goes with --model-for DEVICE; what is measured here has the pipeline's shapes.")
    pipeline = Path(target)
    folder = resolved(pipeline).parent
    loaded = twins.resolved(load(pipeline), folder, keeps_time=False)
    with guests():
        if inputs is None:
            examples = samples.of_pipeline(loaded, folder)
        else:
            examples = list(example_inputs.given(inputs).samples.values())
        check_folder(out)
        table = pool(
            [
                measure(
                    loaded,
                    folder,
                    examples,
                    seconds=seconds / sessions,
                    on=list(on) or None,
                    repeats=repeats,
                    source=pipeline,
                    tell=say,
                    step_s=step_s,
                )
                for _ in range(sessions)
            ]
        )
    kept = keep(table, out, "latency.json")
    emit(table, as_json=as_json, text=lambda: _lines(table, kept))


def _lines(table: LatencyTable, kept: Path | None) -> Iterator[str]:
    width = max(len(entry.variant) for entry in table.entries)
    engine_width = max(len("engine"), *(len(entry.engine) for entry in table.entries))
    yield (
        f"{'stage':{width}}  {'engine':{engine_width}}  {'shape':>12}  rows  "
        f"{'p50':>8} {'p90':>8} {'p99':>8}  {'contended':>9}  {'n':>4}  basis     (ms)"
    )
    for entry in table.entries:
        yield _line(entry, width, engine_width)
    sources = sorted({f"{entry.engine}: {entry.source}" for entry in table.entries})
    yield ""
    yield from sources
    yield "contended: median while every engine slot that runs models was busy."
    if any(entry.p99_is is not None for entry in table.entries):
        yield f"p99: of fewer than {P99_RUNS_MIN} runs (n) it is hardly more than the longest of them."
    if table.drift is not None:
        yield _drifting(table.drift)
    if kept is not None:
        yield f"kept in {kept}"


def _drifting(drift: Drift) -> str:
    apart = "" if drift.between_runs is None else f"; {drift.runs} sessions differ by {drift.between_runs:.1%}"
    return (
        f"drift: {drift.likeness:.0%} of how times vary is the machine's own pace, slower or faster for some "
        f"{drift.period_ms:.0f} ms for all stages alike; simulations draw it so{apart}."
    )


def _line(entry: Entry, width: int, engine_width: int) -> str:
    shape = "any" if entry.shape is None else "x".join(map(str, entry.shape))
    what = f"{entry.variant:{width}}  {entry.engine:{engine_width}}  {shape:>12}  {entry.batch:4}"
    times = f"{_ms(entry.latency_ms.p50)} {_ms(entry.latency_ms.p90)} {_ms(entry.latency_ms.p99)}"
    return f"{what}  {times}  {_median(entry.contended_ms):>9}  {_count(entry.n):>4}  {entry.basis}"


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _ms(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.2f'):>8}"


def _median(times: Milliseconds | None) -> str:
    return "-" if times is None or times.p50 is None else format(times.p50, ".2f")
