"""`loadslice slice`: where a model is best cut, and what the cuts cost."""

from pathlib import Path

import click
import msgspec

from loadslice.app.coverage import Asking
from loadslice.app.ending import NEGATIVE
from loadslice.app.estimated import calibrated
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
from loadslice.app.slice_coverage import fallbacks, supports
from loadslice.app.slice_files import write_slices
from loadslice.app.slice_measure import MEASURED, measured_splits
from loadslice.app.slice_pipeline import write_pipeline
from loadslice.app.slice_plan import make_plan
from loadslice.app.slice_problem import HOST_LINK, describe_machine, open_model, without
from loadslice.app.slice_share import near_enough, share_operators, shared_way, write_shared
from loadslice.app.slice_text import describe_plan
from loadslice.graph.inputs import parse_shapes
from loadslice.graph.split import By
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, stamp
from loadslice.spec.slices import SCHEMA, Link, Objective, check_link, load_op_times

DEVICES_MAX = 8

COMPILER_S = 300.0
"""A compiler that has not answered by then is left out; its table counts."""


@click.command("slice")
@click.argument("model")
@click.option(
    "--devices",
    "listed",
    required=True,
    metavar="NAME[=DEVICE],...",
    help="Engines, each with the device of `loadslice devices` (or `local`, or a .yaml file) that it is.",
)
@click.option("--times", type=click.Path(path_type=Path, dir_okay=False), help="Measured times of the model's nodes.")
@click.option("--objective", type=click.Choice(["latency", "throughput"]), default="latency", show_default=True)
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="Shape of an input; repeats.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="NAME=GB/S:US",
    help="Bandwidth and synchronisation between a device and the host, or NAME=host; repeats.",
)
@click.option(
    "--unsupported", multiple=True, metavar="NAME=OP,OP", help="Operator types that a device cannot run; repeats."
)
@tables_option
@compilers_option
@click.option("--seconds", type=Finite(0.1, 3600), default=10.0, show_default=True, help="For the throughput search.")
@click.option(
    "--gap",
    type=Finite(0, 100),
    default=0.5,
    show_default=True,
    help="Per cent above the proven bound at which the throughput search stops.",
)
@click.option("--share", type=click.Choice(["channel", "batch"]), help="Also look for operators two devices share.")
@click.option(
    "--measure",
    "measuring",
    is_flag=True,
    help="With --share: run the halves on this machine, alone and together; both devices are `local`.",
)
@click.option(
    "--operators", "most", type=click.IntRange(1, 1000), default=MEASURED, show_default=True,
    help="With --measure: how many, those that would gain the most.",
)  # fmt: skip
@click.option(
    "--tile", type=click.IntRange(1, 65536), default=16, show_default=True, help="Channels or rows that go together."
)
@seed_option
@json_option
@out_option
def command(
    model: str,
    listed: str,
    times: Path | None,
    objective: Objective,
    shapes: tuple[str, ...],
    links: tuple[str, ...],
    unsupported: tuple[str, ...],
    tables: tuple[Path, ...],
    compilers: bool,
    seconds: float,
    gap: float,
    share: By | None,
    measuring: bool,
    most: int,
    tile: int,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> int:
    """Where is a model best cut between devices, and what do the cuts cost?

    MODEL is an .onnx file, or package:NAME/PATH for one inside an installed package. Times come from --times where it
    has the device, otherwise from its roofline with launches, calibrated on measurements of such devices; they say
    which, how far off they may be, and whether that would change the choice. What an NPU runs comes from its vendor's
    compiler where `loadslice toolchain list` has it, else from an operator table; the rest falls back to other devices.
    Compared are each device alone, the rule the runtimes use, the fastest device per operator, and the optimum. --out
    keeps the slices as models, checked against the whole, slices.json, and pipeline.yaml, which `loadslice serve` runs;
    with --share also shared.onnx. A stitched output that differs is exit code 3.

    Example: loadslice slice det.onnx --devices cpu0=local,gpu0=nvidia-t4 --shape x=1x3x640x640 --out out/slices
    """
    check_folder(out)
    if measuring and share is None:
        raise click.UsageError("--measure is for shared operators: add --share channel or --share batch.")
    weights = out is not None or share is not None
    opened = open_model(resolve_model(model, Path.cwd()), parse_shapes(shapes), weights=weights)
    measured = None if times is None else load_op_times(times)
    notes: list[str] = []
    named = _devices(listed)
    machine = describe_machine(opened, named, measured, _links(links), _unsupported(unsupported), notes)
    asking = Asking(compilers=compilers, deadline_s=COMPILER_S, memory_bytes=None, tell=say, seed=seed)
    modelled = {name: named[name] for name, one in machine.times.items() if one.basis == "modelled"}
    support = supports(opened, modelled, tables, asking, notes)
    machine = calibrated(opened, without(opened, machine, {name: one.lacks for name, one in support.items()}))
    plan, parts = make_plan(
        opened, machine, objective, seconds=seconds, gap=gap / 100, notes=list(dict.fromkeys(notes))
    )
    plan = msgspec.structs.replace(plan, coverage=fallbacks(opened, machine.times, support))
    if share is not None:
        splits = share_operators(opened, machine, share, tile)
        if measuring:
            said: list[str] = []
            splits = measured_splits(opened, splits, named, most, seed, said)
            plan = msgspec.structs.replace(plan, notes=[*plan.notes, *said])
        rows = [*plan.assignments, shared_way(opened, machine, splits)] if splits else plan.assignments
        plan = msgspec.structs.replace(plan, splits=splits, assignments=rows)
    if out is not None:
        plan = write_slices(opened, plan, parts, out, seed)
        plan = write_pipeline(opened, machine, plan, named, out, seed)
    if out is not None and plan.splits:
        plan = write_shared(opened, plan, out, seed)
    files = {"model": opened.path, "times": times}
    plan = msgspec.structs.replace(
        plan, stamp=stamp(SCHEMA, inputs=files, seed=seed, tools=("scipy", "ortools", "onnx", "onnxruntime"))
    )
    keep(plan, out, "slices.json")
    emit(plan, as_json=as_json, text=lambda: describe_plan(plan))
    stitched = plan.stitched is None or plan.stitched.bit_equal
    return 0 if stitched and near_enough(plan.shared) else NEGATIVE


def _devices(listed: str) -> dict[str, str]:
    """Name to the device that stands for it, in the order given."""
    found: dict[str, str] = {}
    for entry in listed.split(","):
        name, _, reference = entry.strip().partition("=")
        if not name or ("=" in entry and not reference):
            raise InputError(f"--devices '{listed[:80]}': '{entry}' is not of the form NAME or NAME=DEVICE.")
        if name in found:
            raise InputError(f"--devices names '{name}' twice.")
        found[name] = reference or name
    if not 2 <= len(found) <= DEVICES_MAX:
        raise InputError(f"--devices names {len(found)} devices; slicing is between 2 to {DEVICES_MAX}.")
    return found


def _links(texts: tuple[str, ...]) -> dict[str, Link]:
    found: dict[str, Link] = {}
    for text in texts:
        name, _, figures = text.partition("=")
        rate, _, sync = figures.partition(":")
        if figures == "host":
            found[name] = HOST_LINK
            continue
        try:
            link = Link(bytes_per_s=float(rate) * 1e9, sync_us=float(sync), basis="stated", source="--link")
        except ValueError as error:
            raise InputError(f"--link '{text[:80]}' is not of the form NAME=GB/S:US, such as npu0=12.5:40.") from error
        check_link(link, f"--link {name}")
        found[name] = link
    return found


def _unsupported(texts: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, ops = text.partition("=")
        if not equals or not name or not all(op.strip() for op in ops.split(",")):
            raise InputError(f"--unsupported '{text[:80]}' is not of the form NAME=OP,OP, such as npu0=Softmax,Erf.")
        found.setdefault(name, []).extend(op.strip() for op in ops.split(","))
    return found
