"""`loadslice inspect`: what a model asks of hardware."""

from pathlib import Path

import click
import msgspec

from loadslice.app.coverage import Asking, Subject, subject, with_subjects
from loadslice.app.output import Finite, emit, json_option, keep, out_option, say, seed_option
from loadslice.backends import probe
from loadslice.graph import ops
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
    help="`local` (measured now), a device of `loadslice devices`, a .yaml file, or a compiler's target such as "
    "qnn-htp:soc_model=60; repeats.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="An operator table of your own; repeats.",
)
@click.option("--compile/--no-compile", "compilers", default=True, help="Ask vendors' compilers that are installed.")
@click.option(
    "--timeout", type=Finite(1, 86_400), default=300.0, show_default=True, help="Seconds a compiler may take each time."
)
@click.option("--memory-gib", type=Finite(1, 4096), default=None, help="Bound on a compiler's memory.")
@click.option("--check", "checked", is_flag=True, help="Run the model once and compare every inferred shape with it.")
@seed_option
@json_option
@out_option
def command(
    model: str,
    shapes: tuple[str, ...],
    names: tuple[str, ...],
    tables: tuple[Path, ...],
    compilers: bool,
    timeout: float,
    memory_gib: float | None,
    checked: bool,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> int:
    """What does my model ask of hardware?

    MODEL is an .onnx file, or package:NAME/PATH for one inside an installed package. FLOPs are twice the
    multiply-accumulates plus one per other scalar operation; bytes are unfused reads and writes, weights included.
    Without a shape for every dynamic input they are unknown, not guessed. With --check, a disagreement is exit code 3.

    Which operators an NPU runs comes from its vendor's compiler where `loadslice toolchain list` has it, else from a
    cited operator table; --seed starts the random inputs that prove the rewrites proposed.

    Example: loadslice inspect det.onnx --shape x=1x3x640x640 --device local --device qnn-htp:soc_model=60
    """
    given = parse_shapes(shapes)
    path = resolve_model(model, Path.cwd())
    own = [ops.read(table) for table in tables]
    subjects = [subject(name, own, _local) for name in names]
    asked = {one.table.target for one in subjects if one.table is not None}
    subjects += [Subject(table.target, table=table) for table in own if table.target not in asked]
    result = inspect(path, given, [one.device for one in subjects if one.device is not None])
    memory_bytes = int(memory_gib * 2**30) if memory_gib is not None else None
    asking = Asking(compilers=compilers, deadline_s=timeout, memory_bytes=memory_bytes, tell=say, seed=seed)
    result = with_subjects(result, path, given, subjects, asking)
    if checked:
        result = msgspec.structs.replace(result, shape_check=check(path, given))
    keep(result, out, "inspection.json")
    emit(result, as_json=as_json, text=lambda: describe_inspection(result))
    return 3 if result.shape_check is not None and result.shape_check.disagree else 0


def _local() -> Device:
    say("measuring this machine's peak and bandwidth (under 2 s)")
    return probe.local().device
