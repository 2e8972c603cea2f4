"""Wiring of operator coverage: which table and which compiler stand for a device, and whose word counts."""

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import psutil

from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.compile import compile_model, is_installed
from loadslice.graph import devices as catalogue
from loadslice.graph import ops
from loadslice.graph.coverage import by_compiler, by_table
from loadslice.graph.coverage_compare import disagreements, remedies
from loadslice.graph.coverage_stage import stage, write
from loadslice.graph.inputs import check_shapes
from loadslice.graph.inspect import with_coverage
from loadslice.graph.load import load
from loadslice.graph.rewrites.shapes import FoldConstants, StaticShapes
from loadslice.graph.shapes import infer
from loadslice.spec.coverage import Coverage, OperatorTable
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.inspection import Inspection
from loadslice.spec.toolchain import CompilerReport

COPIES = 4
"""Of the weights that are in memory while a model is compiled here."""


@dataclass(slots=True)
class Subject:
    """A device as it was asked for, with what is known of it."""

    name: str
    device: Device | None = None
    table: OperatorTable | None = None
    target: str | None = None
    """For the compiler, options included."""


@dataclass(slots=True)
class Asking:
    """How to ask compilers."""

    compilers: bool
    deadline_s: float
    memory_bytes: int | None
    tell: Callable[[str], None]
    seed: int = 0


def subject(name: str, own: Sequence[OperatorTable], local: Callable[[], Device]) -> Subject:
    """What `--device` names: this machine, a device, a device file, or a compiler's target with its options.

    Args:
        name: As given.
        own: The user's tables; one for this target or device replaces ours.
        local: Measures this machine.

    Raises:
        InputError: Neither a device nor a target.
    """
    if name == "local":
        return Subject(name, device=local())
    plain, options = registry.split_target(name)
    table = next((table for table in own if plain == table.target or plain in table.devices), None) or ops.of_device(
        plain
    )
    known = {target for toolchain in registry.KNOWN.values() for target in toolchain.targets}
    if plain in known:
        registry.target(name)  # refuses options it does not have
        return Subject(name, table=table, target=name)
    if options:
        raise InputError(
            f"--device {name}: only a compiler's target takes options; those are {', '.join(sorted(known))}."
        )
    device = None if table is not None and table.target == plain else catalogue.find(name)
    target = table.devices.get(plain, table.target) if table is not None else None
    return Subject(name, device=device, table=table, target=target if target in known else None)


def with_subjects(
    result: Inspection, path: Path, shapes: dict[str, list[int]], subjects: Sequence[Subject], asking: Asking
) -> Inspection:
    """The inspection with operator support beside every subject that has a source for it."""
    asked = [one for one in subjects if one.table is not None or one.target is not None]
    if not asked:
        return result
    needed, free = COPIES * result.weight_bytes, psutil.virtual_memory().available
    small = needed <= free
    model = load(path, weights=small)
    for one in asked:
        notes = [] if small else [f"only the table was asked: compiling needs about {needed} bytes, {free} are free"]
        result = _with_subject(result, model, shapes, one, asking if small else replace(asking, compilers=False), notes)
    return result


def _with_subject(
    result: Inspection,
    model: onnx.ModelProto,
    shapes: dict[str, list[int]],
    one: Subject,
    asking: Asking,
    notes: list[str],
) -> Inspection:
    table, compiled, judges = placed(model, shapes, one, asking, notes)
    coverage = compiled or table
    found = remedies(model, coverage, shapes, _patient(judges[-1]), seed=asking.seed) if coverage is not None else []
    both = compiled is not None and table is not None
    return with_coverage(
        result,
        one.name,
        coverage,
        table=table if both else None,
        disagreements=disagreements(table, compiled) if table is not None and compiled is not None else (),
        remedies=found,
        notes=notes,
    )


def placed(
    model: onnx.ModelProto, shapes: dict[str, list[int]], one: Subject, asking: Asking, notes: list[str]
) -> tuple[Coverage | None, Coverage | None, list[Callable[[onnx.ModelProto], Coverage]]]:
    """Where a device runs a model's nodes: by a table, and by its compiler, which wins.

    Args:
        model: With its weights where a compiler is asked.
        shapes: Of open inputs.
        one: The device.
        asking: How to ask compilers.
        notes: Gains what holds only under conditions, and why a source gave no answer.

    Returns:
        The table's word, the compiler's, ``None`` where there is none; and who can judge other models, best last.
    """
    if StaticShapes(shapes).requires(model) is None:
        notes.append(
            "the file leaves shapes open; this holds once they are fixed: "
            "`loadslice rewrite --pass static-shapes+fold-constants` with these shapes"
        )
    judges = [_table_judge(one.table, shapes)] if one.table is not None else []
    table = judges[0](model) if judges else None
    compiled = None
    if one.target is not None:
        compile_judge = partial(_compile, one.target, shapes, asking)
        compiled = _asked(compile_judge, model, one.target, asking, notes)
        if compiled is not None:
            judges.append(compile_judge)
    return table, compiled, judges


def _table_judge(table: OperatorTable, shapes: dict[str, list[int]]) -> Callable[[onnx.ModelProto], Coverage]:
    def judge(model: onnx.ModelProto) -> Coverage:
        staged, _ = stage(model, shapes)
        return by_table(infer(staged, shapes), table)

    return judge


def _patient(judge: Callable[[onnx.ModelProto], Coverage]) -> Callable[[onnx.ModelProto], Coverage | None]:
    """A judge for rewritten models: one that a compiler refuses buys nothing, and is no trouble of the user's."""

    def patient(model: onnx.ModelProto) -> Coverage | None:
        with contextlib.suppress(InputError):
            return judge(model)
        return None

    return patient


def _asked(
    judge: Callable[[onnx.ModelProto], Coverage], model: onnx.ModelProto, target: str, asking: Asking, notes: list[str]
) -> Coverage | None:
    """The compiler's word; ``None`` and a note where it has none."""
    toolchain, plain, _ = registry.target(target)
    if not asking.compilers:
        return None
    if toolchain.input != "onnx" and not environment.present(registry.TFLITE):
        notes.append(
            f"{toolchain.provides} compiles int8 TFLite: convert the model, then `loadslice toolchain compile "
            f"MODEL.tflite --for {plain}`"
        )
        return None
    if not is_installed(target):
        notes.append(f"the vendor's compiler would know better: `loadslice toolchain install {toolchain.name}`")
        return None
    asking.tell(f"asking {toolchain.provides} about {target}")
    try:
        return judge(model)
    except InputError as error:
        asking.tell(f"loadslice: {error}")
        notes.append(f"the compiler gave no answer: {error}")
        return None


def _compile(target: str, shapes: dict[str, list[int]], asking: Asking, model: onnx.ModelProto) -> Coverage:
    staged, names = stage(model, shapes)
    body = infer(staged, {})
    report = _compile_staged(staged, names, target, deadline_s=asking.deadline_s, memory_bytes=asking.memory_bytes)
    return by_compiler(body, report, names)


def _compile_staged(model: onnx.ModelProto, names: list[str], target: str, **how: Any) -> CompilerReport:
    with tempfile.TemporaryDirectory(prefix="loadslice-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        fold = FoldConstants()
        converts = registry.target(target)[0].input == "tflite" and fold.requires(model) is None
        write(fold.call(model).model if converts else model, path)  # the converter needs its shapes computed
        return compile_model(path, target, names=names, **how)


def compile_onnx(path: Path, shapes: dict[str, list[int]], target: str, **how: Any) -> CompilerReport:
    """Compile an ONNX model at the given shapes; ``how`` is `compile_model`'s.

    Raises:
        InputError: The model cannot be opened, the shapes are not for it, or the compiler gave no answer.
    """
    model = load(path, weights=True)
    check_shapes(path, model, shapes)
    staged, names = stage(model, shapes)
    return _compile_staged(staged, names, target, **how)
