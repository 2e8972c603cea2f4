"""`loadslice inspect`: what a model asks of hardware."""

from pathlib import Path

import click
import msgspec

from loadslice.app.output import emit, json_option, keep, out_option, say
from loadslice.backends import probe
from loadslice.graph import devices as catalogue
from loadslice.graph.inputs import parse_shapes
from loadslice.graph.inspect import inspect
from loadslice.graph.measure import check
from loadslice.graph.text import describe_inspection
from loadslice.spec.device import Device
from loadslice.spec.files import resolve_model


@click.command("inspect")
@click.argument("model")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="Shape of an input; repeats.")
@click.option(
    "--device",
    "names",
    multiple=True,
    metavar="D",
    help="`local` (measured now), a device of `loadslice devices`, or a .yaml file; repeats.",
)
@click.option("--check", "checked", is_flag=True, help="Run the model once and compare every inferred shape with it.")
@json_option
@out_option
def command(
    model: str, shapes: tuple[str, ...], names: tuple[str, ...], checked: bool, as_json: bool, out: Path | None
) -> int:
    """What does my model ask of hardware?

    MODEL is an .onnx file, or package:NAME/PATH for one inside an installed package. FLOPs are twice the
    multiply-accumulates plus one per other scalar operation; bytes are unfused reads and writes, weights included.
    Without a shape for every dynamic input they are unknown, not guessed. With --check, a disagreement is exit code 3.

    Example: loadslice inspect det.onnx --shape x=1x3x640x640 --device local --device nvidia-l4
    """
    given = parse_shapes(shapes)
    path = resolve_model(model, Path.cwd())
    result = inspect(path, given, [_device(name) for name in names])
    if checked:
        result = msgspec.structs.replace(result, shape_check=check(path, given))
    keep(result, out, "inspection.json")
    emit(result, as_json=as_json, text=lambda: describe_inspection(result))
    return 3 if result.shape_check is not None and result.shape_check.disagree else 0


def _device(name: str) -> Device:
    if name != "local":
        return catalogue.find(name)
    say("measuring this machine's peak and bandwidth (under 2 s)")
    return probe.local().device
