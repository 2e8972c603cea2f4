"""`loadslice toolchain`: vendors' compilers, each in an environment of its own."""

from collections.abc import Iterator
from pathlib import Path

import click

from loadslice.app.coverage import compile_onnx
from loadslice.app.output import Finite, check_folder, emit, json_option, keep, out_option, say
from loadslice.app.toolchain_time import HostTime, host_time
from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.compile import compile_model
from loadslice.graph.inputs import parse_shapes
from loadslice.graph.numbers import number, scaled
from loadslice.spec.files import resolve_model
from loadslice.spec.toolchain import CompilerReport, Installed, ToolchainState

SHOWN = 10


@click.group("toolchain")
def command() -> None:
    """Vendors' compilers: list them, install one, compile a model with it.

    Each is installed into an environment of its own under the user's data folder, and only by `install`; it runs in a
    process of its own with a deadline and a memory bound.

    Example: loadslice toolchain install qnn
    """


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Which compilers are known, which are installed, and what they compile for.

    Example: loadslice toolchain list --json
    """
    states = environment.states()
    emit(states, as_json=as_json, text=lambda: _state_lines(states))


def _state_lines(states: list[ToolchainState]) -> Iterator[str]:
    for state in states:
        where = "not installed"
        if state.installed is not None:
            where = ", ".join(f"{name} {version}" for name, version in state.installed.versions.items())
        yield f"{state.name:<8}{state.title}"
        yield f"        {state.reason or where}"
        yield f"        compiles .{state.input} for {', '.join(state.targets) or 'compilers that read .tflite'}"
        yield f"        licence: {state.licence}"


@command.command("install")
@click.argument("name")
@click.option(
    "--python",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Interpreter to make the environment with; for rknn, the one that has it.",
)
@json_option
def install(name: str, python: Path | None, as_json: bool) -> None:
    """Install the compiler NAME, at pinned versions, from the index your pip is configured for.

    Its licence is printed first: installing it is accepting it. Nothing is installed at any other time.

    Example: loadslice toolchain install vela
    """
    toolchain = registry.find(name)
    say(f"{toolchain.title}\nlicence: {toolchain.licence}")
    found = environment.install(toolchain, python, say)
    emit(found, as_json=as_json, text=lambda: _installed_lines(found))


def _installed_lines(found: Installed) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    yield f"{found.name} is ready: {versions}"
    yield f"  {found.python}"


@command.command("compile")
@click.argument("model")
@click.option("--for", "target", required=True, metavar="TARGET", help="For instance qnn-htp:soc_model=60.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="Shape of an open input; repeats.")
@click.option("--numerics", is_flag=True, help="Also run the vendor's simulator against ONNX Runtime's CPU.")
@click.option(
    "--inputs", type=click.Path(path_type=Path, dir_okay=False, exists=True), default=None, help=".npz for --numerics."
)
@click.option(
    "--host-ops-per-s",
    type=Finite(1e3, 1e15),
    default=None,
    help="Scalar operations a second of the CPU that runs what falls back; without it that time is unknown.",
)
@click.option("--timeout", type=Finite(1, 86_400), default=300.0, show_default=True, help="Seconds it may take.")
@click.option("--memory-gib", type=Finite(1, 4096), default=None, help="Bound on its memory.")
@json_option
@out_option
def compile_(
    model: str,
    target: str,
    shapes: tuple[str, ...],
    numerics: bool,
    inputs: Path | None,
    host_ops_per_s: float | None,
    timeout: float,
    memory_gib: float | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Compile MODEL with the vendor's compiler and show what it says.

    What the compiler writes is kept in --out, with compile.json. Figures are the compiler's own; time for layers left
    to the CPU is not among them and is added beside, where --host-ops-per-s gives the CPU's rate.

    Example: loadslice toolchain compile det.onnx --shape x=1x3x320x320 --for qnn-htp:soc_model=60 --numerics
    """
    check_folder(out)
    path = resolve_model(model, Path.cwd())
    memory_bytes = int(memory_gib * 2**30) if memory_gib is not None else None
    registry.target(target)  # refused before the model is opened
    if path.suffix == ".onnx":
        report = compile_onnx(
            path,
            parse_shapes(shapes),
            target,
            numerics=numerics,
            inputs=inputs,
            out=out,
            deadline_s=timeout,
            memory_bytes=memory_bytes,
        )
    else:
        report = compile_model(path, target, numerics=numerics, out=out, deadline_s=timeout, memory_bytes=memory_bytes)
    report = host_time(report, HostTime(operations_per_s=host_ops_per_s))
    keep(report, out, "compile.json")
    emit(report, as_json=as_json, text=lambda: _report_lines(report, out))


def _report_lines(report: CompilerReport, out: Path | None) -> Iterator[str]:
    yield f"{report.target} by {report.source}, compiled in {report.seconds:.1f} s here"
    for key, value in report.figures.items():
        yield f"  {key:<36}{number(value)}"
    if report.figures_basis is not None:
        yield f"  {report.figures_basis}"
    hosted = [(node.name, node.reason) for node in report.nodes if node.on == "host"]
    hosted += [(layer.name, layer.reason) for layer in report.layers if layer.on == "host" and not report.nodes]
    for name, reason in hosted[:SHOWN]:
        yield f"  on the CPU: {name[:60]}: {reason or 'no reason given'}"
    if len(hosted) > SHOWN:
        yield f"  and {len(hosted) - SHOWN} more on the CPU (--json has all)"
    for one in report.numerics:
        yield (
            f"  {one.output}: cosine {number(one.cosine)}, largest difference {number(one.max_abs_diff)} "
            f"of a range from {number(one.reference_min)} to {number(one.reference_max)}"
        )
    if report.numerics_basis is not None:
        yield f"  {report.numerics_basis}"
    for artefact in report.artefacts:
        where = f" in {out}" if out is not None else ""
        yield f"  wrote {artefact.name}, {scaled(artefact.bytes, 'B')}{where}"
    yield from (f"  note: {note}" for note in report.notes)
