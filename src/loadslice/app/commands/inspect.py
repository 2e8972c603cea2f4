"""`loadslice inspect`: what a model asks of hardware."""

from pathlib import Path

import click
import msgspec

from loadslice.app.coverage import Asking, Subject, subject, with_subjects
from loadslice.app.ending import NEGATIVE
from loadslice.app.estimated import with_estimates
from loadslice.app.inspect_measure import How, check_sample, read_sample, with_measurement
from loadslice.app.inspect_text import describe_extras
from loadslice.app.inspect_traffic import parse_dims, traffic_sizes
from loadslice.app.output import (
    Finite,
    check_folder,
    compilers_option,
    emit,
    json_option,
    keep,
    out_option,
    say,
    seed_option,
    tables_option,
)
from loadslice.backends import probe
from loadslice.graph import ops
from loadslice.graph.buckets import Wanted
from loadslice.graph.inputs import parse_shapes
from loadslice.graph.inspect import inspect
from loadslice.graph.measure import Optimise, check
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
@tables_option
@compilers_option
@click.option(
    "--timeout", type=Finite(1, 86_400), default=300.0, show_default=True, help="Seconds a compiler may take each time."
)
@click.option("--memory-gib", type=Finite(1, 4096), default=None, help="Bound on a compiler's memory.")
@click.option("--check", "checked", is_flag=True, help="Run the model once and compare every inferred shape with it.")
@click.option("--measure", "measuring", is_flag=True, help="Time every node here, through ONNX Runtime's profiler.")
@click.option(
    "--optimise",
    type=click.Choice(["all", "none"]),
    default="all",
    show_default=True,
    help="none: the runtime's kernels are the file's nodes.",
)
@click.option("--runs", type=click.IntRange(4, 10_000), default=20, show_default=True, help="Timed, after warm-up.")
@click.option("--threads", type=click.IntRange(1, 1024), default=None, help="For one kernel; default: all cores.")
@click.option(
    "--sample", type=click.Path(path_type=Path, dir_okay=False), help="An .npz with a real input: shapes and contents."
)
@click.option("--traffic", type=click.Path(path_type=Path), help="A trace, a .jsonl of shapes or a folder of .npz.")
@click.option("--dim", "dims", multiple=True, metavar="SYMBOL=COLUMN", help="What a trace's column counts; repeats.")
@click.option("--buckets", type=click.IntRange(1, 64), default=8, show_default=True, help="Most sizes of a dimension.")
@click.option(
    "--cover", type=Finite(0.5, 1), default=0.99, show_default=True, help="Share of requests that buckets must hold."
)
@click.option(
    "--padding", type=Finite(0, 10), default=0.1, show_default=True, help="Padding that needs no more buckets, a share."
)
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
    measuring: bool,
    optimise: Optimise,
    runs: int,
    threads: int | None,
    sample: Path | None,
    traffic: Path | None,
    dims: tuple[str, ...],
    buckets: int,
    cover: float,
    padding: float,
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

    --measure puts each kernel's time on this machine beside the roofline, names the nodes that a fused kernel covers,
    and keeps op-times.json in --out, which `loadslice slice --times` takes (as cpu0). --traffic finds the few static
    sizes that recorded requests justify and the share that would fall outside.

    Example: loadslice inspect det.onnx --shape x=1x3x640x640 --device local --device qnn-htp:soc_model=60
    """
    check_folder(out)
    given = parse_shapes(shapes)
    path = resolve_model(model, Path.cwd())
    columns = parse_dims(dims)
    fed = check_sample(sample, path, read_sample(sample)) if sample is not None else None
    if fed is not None:
        given = {name: list(array.shape) for name, array in fed.items()} | given
    own = [ops.read(table) for table in tables]
    subjects = [subject(name, own, _local) for name in names]
    asked = {one.table.target for one in subjects if one.table is not None}
    subjects += [Subject(table.target, table=table) for table in own if table.target not in asked]
    here = _local() if measuring else None
    known = [one.device for one in subjects if one.device is not None]
    result = inspect(path, given, known if here is None else [*known, here], fed)
    memory_bytes = int(memory_gib * 2**30) if memory_gib is not None else None
    asking = Asking(compilers=compilers, deadline_s=timeout, memory_bytes=memory_bytes, tell=say, seed=seed)
    result = with_subjects(with_estimates(result, known), path, given, subjects, asking)
    if checked:
        result = msgspec.structs.replace(result, shape_check=check(path, given))
    if traffic is not None:
        wanted = Wanted(count_max=buckets, cover=cover, padding_max=padding)
        found = traffic_sizes(traffic, columns, result.dynamic_inputs, wanted)
        result = msgspec.structs.replace(result, traffic=found)
    if here is not None:
        say(f"timing every node, {runs} runs")
        how = How(optimise, threads, runs, seed)
        result, times = with_measurement(result, path, given, fed, here, how)
        keep(times, out, "op-times.json")
    keep(result, out, "inspection.json")
    emit(result, as_json=as_json, text=lambda: [*describe_inspection(result), *describe_extras(result)])
    return NEGATIVE if result.shape_check is not None and result.shape_check.disagree else 0


def _local() -> Device:
    say("measuring this machine's peak and bandwidth (under 2 s)")
    return probe.local().device
