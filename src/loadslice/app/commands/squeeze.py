"""`loadslice squeeze`: how far the hardware that is here goes."""

from pathlib import Path
from typing import Any

import click

from loadslice.app import squeeze_chart, squeeze_data, squeeze_service, squeeze_text
from loadslice.app.ending import NEGATIVE
from loadslice.app.output import Finite, check_folder, emit, json_option, say, seed_option
from loadslice.backends.base import open_backend
from loadslice.graph.load import load as load_model
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.files import resolve_model, resolved, write_bytes
from loadslice.spec.functions import load_function
from loadslice.spec.pipeline import Engine
from loadslice.spec.variant import TARGETS, Target


@click.command(
    "squeeze", epilog="Example: loadslice squeeze model.onnx --data recorded/ --target cpu-int8 --floor 'cosine>=0.99'"
)
@click.argument("model")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Recorded inputs: a folder of .npz files (an array per model input), a pipeline file, or a trace. Of a whole "
    "service: a trace that weighs its examples, or nothing.",
)
@click.option(
    "--inputs", type=click.Path(path_type=Path), help="With a trace: the folder or pipeline its inputs are in."
)
@click.option(
    "--target", "targets", multiple=True, type=click.Choice([*TARGETS, "all"]), default=("all",), show_default=True,
    help="What to build for; repeats.",
)  # fmt: skip
@click.option(
    "--floor", metavar="METRIC>=X", help="The least a variant must reach: cosine, top1, sqnr_db or --metric's."
)
@click.option(
    "--metric",
    metavar="FILE.py:FUNCTION",
    help="A function (outputs, labels) -> number, higher is better; without labels.json it gets the source's outputs.",
)
@click.option("--seconds", type=Finite(1, 86_400), default=30.0, show_default=True, help="Time for timing, in all.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder to keep variants in; default: out/squeeze/ and the model's name.",
)
@json_option
@seed_option
def command(
    model: str,
    data: Path | None,
    inputs: Path | None,
    targets: tuple[str, ...],
    floor: str | None,
    metric: str | None,
    seconds: float,
    out: Path | None,
    as_json: bool,
    seed: int,
) -> int:
    """How far does the hardware I own go?

    From one MODEL (an .onnx file, or package:NAME/PATH) a variant per target, proved on inputs that it was not
    calibrated on, timed against ONNX Runtime as it comes. Nothing is shipped that misses the floor or is not faster
    than the model as it is; when nothing is shipped, the last line says why, and the exit code is 3.

    MODEL may be a pipeline file: then every stage's model is squeezed, combinations are judged by the service's final
    answers, and the fastest that holds is written as squeezed.yaml beside the file.
    """
    if model.endswith((".yaml", ".yml")):
        return _service(Path(model), data, seconds, out, as_json, seed)
    if data is None:
        raise click.UsageError("Missing option '--data': recorded inputs of the model.")
    path = resolve_model(model, Path.cwd())
    squeeze = _room()
    load_model(path)  # before any runtime, whose words for what is wrong are its own
    session = open_backend("onnxruntime").load(path, Engine(backend="onnxruntime"))
    infos = session.inputs
    session.close()
    score = None if metric is None else _score(metric)
    found = squeeze_data.read(data, inputs, path, infos)
    folder = out or Path("out") / "squeeze" / path.stem
    check_folder(folder)
    wanted: list[Target] = [target for target in TARGETS if target in targets or "all" in targets]
    order = squeeze.Order(
        source=path, recorded=found, targets=wanted, out=folder, floor=floor, score=score, seconds=seconds, seed=seed
    )
    result = squeeze.squeeze(order, say)
    if any(variant.speedup_vs_untuned is not None for variant in result.variants):
        write_bytes(folder / "squeeze.svg", squeeze_chart.draw(result).encode())
    if result.calibration is not None and any(trial.sqnr_db is not None for trial in result.calibration.trials):
        write_bytes(folder / "calibration.svg", squeeze_chart.draw_calibration(result.calibration).encode())
    emit(result, as_json=as_json, text=lambda: squeeze_text.lines(result))
    say(f"kept in {folder}")
    return 0 if any(variant.shipped for variant in result.variants) else NEGATIVE


def _service(path: Path, trace: Path | None, seconds: float, out: Path | None, as_json: bool, seed: int) -> int:
    _room()
    folder = out or Path("out") / "squeeze" / resolved(path).parent.name
    check_folder(folder)
    record = squeeze_service.run(path, trace, seconds, folder, seed)
    emit(record, as_json=as_json, text=lambda: squeeze_service.lines(record))
    say(f"kept in {folder}")
    return 0 if squeeze_service.proven(record) else NEGATIVE


def _room() -> Any:
    """The room with its tools, which are an extra."""
    try:
        from loadslice.variants import squeeze
    except ModuleNotFoundError as error:
        raise MissingExtraError("squeeze", f"loadslice squeeze ({error.name})") from error
    return squeeze


def _score(reference: str) -> tuple[str, Any]:
    file, colon, name = reference.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py":
        raise InputError(f"--metric '{reference[:80]}' is not like 'metrics.py:accuracy'.")
    return name, load_function(f"{path.stem}:{name}", resolved(path).parent)
