"""Compile one model for one target and read what the compiler says."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import psutil

from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.process import ToolchainError, ask
from loadslice.spec import validation
from loadslice.spec.errors import InputError, OutputError
from loadslice.spec.files import replacing
from loadslice.spec.toolchain import CompiledNode, CompilerReport

DEADLINE_S = 300.0
"""Fifty times what the slowest model tried here took."""

MEMORY_SHARE = 0.8
"""Of the memory that is free now, unless a bound is given."""


def is_installed(target: str) -> bool:
    """The toolchain of a target is there; a broken one counts, so that its trouble is told.

    Raises:
        InputError: No toolchain compiles for this target.
    """
    return environment.present(registry.target(target)[0])


def compile_model(
    model: Path,
    target: str,
    *,
    names: list[str] | None = None,
    numerics: bool = False,
    inputs: Path | None = None,
    out: Path | None = None,
    deadline_s: float = DEADLINE_S,
    memory_bytes: int | None = None,
) -> CompilerReport:
    """Ask the vendor's compiler.

    Args:
        model: What the toolchain reads: ONNX with fixed shapes and a name on every node, or int8 TFLite.
        target: `NAME:option=value,...`.
        names: Names of the model's nodes, for a compiler whose log abbreviates them.
        numerics: Also run the vendor's simulator, where there is one.
        inputs: `.npz` of named inputs for it; without, one random input.
        out: Folder to keep what the compiler wrote.
        deadline_s: For everything together.
        memory_bytes: Bound on its memory; default a share of what is free.

    Raises:
        ToolchainError: Not installed, or no answer.
        InputError: No such target or option.
    """
    toolchain, name, options = registry.target(target)
    found = environment.installed(toolchain)
    if found is None:
        raise ToolchainError(
            f"toolchain '{toolchain.name}' is not installed. Run `loadslice toolchain install {toolchain.name}`."
        )
    convert = toolchain.input == "tflite" and model.suffix == ".onnx"
    if model.suffix != f".{toolchain.input}" and not convert:
        raise InputError(f"{model}: '{name}' compiles .{toolchain.input} files.")
    if convert and not environment.present(registry.TFLITE):
        raise ToolchainError(
            f"{model}: '{name}' compiles int8 TFLite. Convert the model yourself, or name an interpreter that can: "
            "`loadslice toolchain install tflite --python PATH`."
        )
    if numerics and toolchain.name != "qnn":
        raise InputError(f"--numerics: toolchain '{toolchain.name}' has no simulator we can ask; leave it out.")
    bound = memory_bytes or int(psutil.virtual_memory().available * MEMORY_SHARE)
    request: dict[str, Any] = {
        "model": str(model.resolve()),
        "options": options,
        "target": name,
        "names": names or [],
        "numerics": numerics,
        "inputs": str(inputs.resolve()) if inputs is not None else None,
    }
    try:
        with tempfile.TemporaryDirectory(prefix="loadslice-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            converted: dict[str, Any] = {}
            if convert:
                converted = _converted(request, folder, deadline_s=deadline_s, memory_bytes=bound)
                request["model"] = str(folder / Path(converted["file"]).name)
            answer = ask(toolchain.name, found.python, request, folder, deadline_s=deadline_s, memory_bytes=bound)
            document = {"toolchain": toolchain.provides, "target": name, "options": options} | answer
            report = msgspec.convert(document, CompilerReport)
            if convert:
                report = _with_nodes(report, converted)
            if out is not None:
                _keep(report, folder, out)
    except msgspec.ValidationError as error:
        said = validation.told(str(error), None, CompilerReport)
        raise ToolchainError(f"toolchain '{toolchain.name}': its answer is not one: {said}.") from error
    except OutputError:
        raise
    except OSError as error:
        raise ToolchainError(f"toolchain '{toolchain.name}': its temporary folder: {error.strerror}.") from error
    return report


def _converted(request: dict[str, Any], folder: Path, *, deadline_s: float, memory_bytes: int) -> dict[str, Any]:
    """The model as int8 TFLite in the same folder, and where its tensors came from."""
    found = environment.installed(registry.TFLITE)
    assert found is not None, "asked for before"
    return ask(registry.TFLITE.name, found.python, request, folder, deadline_s=deadline_s, memory_bytes=memory_bytes)


def _with_nodes(report: CompilerReport, converted: dict[str, Any]) -> CompilerReport:
    """The report with the ONNX nodes that its layers came from; one layer on the CPU puts its node there."""
    sources: dict[str, list[str]] = {}
    for record in converted["tensors"]:
        sources.setdefault(record["tensor"], []).append(record["node"])
    nodes: dict[str, CompiledNode] = {}
    for layer in report.layers:
        for name in sources.get(layer.name, []):
            if name not in nodes or layer.on == "host":
                nodes[name] = CompiledNode(name=name, on=layer.on, reason=layer.reason, into=layer.op)
    notes = [
        *report.notes,
        f"converted to int8 TFLite by {converted['version']}, calibrated on random input: its answers mean nothing",
        "bytes across the border are at the types of the model given, not at int8",
    ]
    return msgspec.structs.replace(report, nodes=list(nodes.values()), notes=notes)


def _keep(report: CompilerReport, folder: Path, out: Path) -> None:
    for artefact in report.artefacts:
        # A vendor's script names the file; only a plain name of its own folder is followed.
        plain = Path(artefact.name).name
        with replacing(out / plain) as temporary:
            shutil.copyfile(folder / plain, temporary)
