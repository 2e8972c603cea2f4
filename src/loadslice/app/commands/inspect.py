"""`loadslice inspect`: what a model asks of hardware."""

from pathlib import Path

import click

from loadslice.app.output import emit, json_option, keep, out_option, say
from loadslice.backends import probe
from loadslice.graph import devices as catalogue
from loadslice.graph.inputs import parse_shapes
from loadslice.graph.inspect import inspect
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
@json_option
@out_option
def command(model: str, shapes: tuple[str, ...], names: tuple[str, ...], as_json: bool, out: Path | None) -> None:
    """What does my model ask of hardware?

    MODEL is an .onnx file, or package:NAME/PATH for one inside an installed package. FLOPs are twice the
    multiply-accumulates plus one per other scalar operation; bytes are unfused reads and writes, weights included.
    Without a shape for every dynamic input they are unknown, not guessed.

    Example: loadslice inspect det.onnx --shape x=1x3x640x640 --device local --device nvidia-l4
    """
    given = parse_shapes(shapes)
    path = resolve_model(model, Path.cwd())
    result = inspect(path, given, [_device(name) for name in names])
    keep(result, out, "inspection.json")
    emit(result, as_json=as_json, text=lambda: describe_inspection(result))


def _device(name: str) -> Device:
    if name != "local":
        return catalogue.find(name)
    say("measuring this machine's peak and bandwidth (under 2 s)")
    return probe.local().device
