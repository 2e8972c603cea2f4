"""What each emulated device knows of each model it is to run: a sheet per model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import onnx

from loadslice.app import twin_times
from loadslice.app.twin_times import QUANTISE, Batch, Emulated
from loadslice.graph import devices as catalogue
from loadslice.graph import ops, roofline
from loadslice.graph.coverage import by_table
from loadslice.graph.coverage_stage import stage as staged
from loadslice.graph.inputs import declared_shape
from loadslice.graph.inspect import inspect
from loadslice.graph.load import load
from loadslice.graph.shapes import infer, model_inputs
from loadslice.spec import latency
from loadslice.spec.coverage import Coverage
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.inspection import Inspection, Unsupported
from loadslice.spec.pipeline import Engine, Pipeline, Precision, SplitEngine, Stage
from loadslice.spec.twin import TWIN, TwinEngine, TwinSheet

COMPILE_MS_PER_NODE = 2.2
"""Measured by us on two cores of an AMD EPYC: onnxruntime-qnn 2.7.0 took 1.4 s for 624 nodes and 2.6 s for 1,206,
ethos-u-vela 5.2.0 0.5 s for 250 layers. Other compilers need up to twenty times as long."""

OPTIONS = {
    "times": "a latency table",
    "operators": "an operator table",
    "assume_supported": "true or false",
    "compile_s": "seconds, from 0 to 3600",
}
"""What ``engines.NAME.options`` of a twin may say."""

COMPILE_S_MAX = 3600

ROWS_MAX = 4096

_FLOAT_BITS = {"double": 64, "float": 32, "float16": 16, "bfloat16": 16}


def emulated(name: str, pipeline: Pipeline, folder: Path, dilate: float, keeps_time: bool) -> TwinEngine:
    """One emulated engine with a sheet for each model that it is to run; see `loadslice.app.twins.resolved`.

    Raises:
        InputError: As there.
    """
    engine = pipeline.engines[name]
    one = _opened(name, engine, folder)
    sheets: dict[str, TwinSheet] = {}
    for stage in pipeline.stages:
        if name not in stage.engine_names:
            continue
        sources = {stage.variant_id: stage.model}
        if stage.canary is not None:
            sources[stage.canary_id] = stage.canary.model
        for variant, model in sources.items():
            if model is not None:
                path = resolve_model(model, folder)
                made = _sheet(one, stage, variant, path)
                before = sheets.get(str(path))
                sheets[str(path)] = made if before is None else _both(before, made)
    _check_memory(one, sheets)
    fields = {field: getattr(engine, field) for field in Engine.__struct_fields__}
    return TwinEngine(**(fields | {"device": one.device.name}), sheets=sheets, dilate=dilate, keeps_time=keeps_time)


def both_emulated(
    name: str, engine: SplitEngine, pipeline: Pipeline, folder: Path, dilate: float, keeps_time: bool
) -> SplitEngine:
    """Two engines that share their work, with the sheets of what each of them computes."""
    parts = dict(engine.parts)
    for half, part in enumerate(engine.parts):
        if parts[part].backend == TWIN:
            stages = [_for_half(stage, name, engine, part, half, folder) for stage in pipeline.stages]
            alone = msgspec.structs.replace(pipeline, engines=pipeline.engines | engine.parts, stages=stages)
            parts[part] = emulated(part, alone, folder, dilate, keeps_time)
    return msgspec.structs.replace(engine, parts=parts)


def _for_half(stage: Stage, name: str, engine: SplitEngine, part: str, half: int, folder: Path) -> Stage:
    """A stage as one of two engines meets it: half of the rows, or its half of the model."""
    if name not in stage.engine_names:
        return stage
    batch, accept, model = stage.batch.get(name), stage.accept.get(name), stage.model
    if engine.by == "channel":
        assert model is not None
        model = engine.halves[str(resolve_model(model, folder))][:2][half]
    elif batch is not None:
        pads = sorted({-(-rows // 2) for rows in batch.pad_to})
        batch = msgspec.structs.replace(batch, size=-(-batch.size // 2), pad_to=pads)
    return msgspec.structs.replace(
        stage,
        model=model,
        engine=None,
        engines=[part],
        batch={part: batch} if batch is not None else {},
        accept={part: accept} if accept is not None else {},
    )


def _opened(name: str, engine: Engine, folder: Path) -> Emulated:
    place = f"engines.{name}"
    if engine.device is None:
        raise InputError(f"{place}.device: a twin stands for a device; `loadslice devices` lists those that are known.")
    _check_options(engine, place)
    is_file = engine.device.endswith((".yaml", ".yml"))
    device = catalogue.find(str(folder / engine.device) if is_file else engine.device)
    given = engine.options.get("operators")
    table = ops.read(folder / str(given)) if given is not None else ops.of_device(device.name)
    times = engine.options.get("times")
    return Emulated(
        name, engine, device, table, None if times is None else latency.load(folder / str(times)), str(times)
    )


def _check_options(engine: Engine, place: str) -> None:
    for key, value in engine.options.items():
        if key not in OPTIONS:
            raise InputError(f"{place}.options.{key}: not known to a twin; there are {', '.join(OPTIONS)}.")
        if key == "assume_supported":
            fits = isinstance(value, bool)
        elif key == "compile_s":
            fits = isinstance(value, int | float) and 0 <= value <= COMPILE_S_MAX
        else:
            fits = isinstance(value, str)
        if not fits:
            raise InputError(f"{place}.options.{key}: {value!r} is not {OPTIONS[key]}.")


def _sheet(one: Emulated, stage: Stage, variant: str, path: Path) -> TwinSheet:
    accept = stage.accept.get(one.name)
    precision = (accept.precision if accept is not None else None) or one.engine.precision
    model = load(path, weights=True)
    batches = _batches(one, stage, model, path)
    fits = {batch: inspect(path, _shapes(model, batch), []) for batch in batches}
    largest = max(fits.values(), key=lambda found: found.peak_activation_bytes or 0)
    unsupported, operators = _operators(one, model, _shapes(model, batches[-1]), path)
    compile_s = one.engine.options.get("compile_s")
    static = one.static_shapes or _is_fixed(model)
    times, basis, source = twin_times.known(one, variant, precision, fits)
    return TwinSheet(
        device=one.device.name,
        precision=precision,
        static_shapes=static,
        unsupported=unsupported,
        operators=operators,
        needs_bytes=_needs_bytes(largest, precision),
        memory_bytes=None if one.device.memory_bytes is None else int(one.device.memory_bytes.value),
        compile_ms=1000 * float(compile_s) if compile_s is not None else COMPILE_MS_PER_NODE * largest.nodes,
        times=times,
        times_basis=basis,
        times_source=source,
    )


def _batches(one: Emulated, stage: Stage, model: onnx.ModelProto, path: Path) -> list[Batch]:
    """Every batch the device is to be built for, largest last.

    Raises:
        InputError: The model has no input, or leaves a side open, and so does the pipeline.
    """
    if not model_inputs(model.graph):
        raise InputError(f"{path}: has no input, so a batch of it has no rows, and no request could ask for any.")
    accept, batch = stage.accept.get(one.name), stage.batch.get(one.name)
    own = declared_shape(model_inputs(model.graph)[0]) or []
    own_rows = own[0] if own and isinstance(own[0], int) else None
    static = accept.shape if accept is not None else None
    size = batch.size if batch is not None else 1
    if batch is not None and batch.pad_to:
        rows = batch.pad_to
    elif static is not None:
        rows = [static[0]]
    elif own_rows is not None:
        rows = [own_rows]
    else:
        rows = sorted({*(2**power for power in range(min(size, ROWS_MAX).bit_length())), size})
    row_shapes: Sequence[Sequence[int | str | None]]
    row_shapes = [static[1:]] if static is not None else stage.buckets or [own[1:]]
    for row in row_shapes:
        if not all(isinstance(side, int) for side in row):
            raise InputError(
                f"{path}: input '{model_inputs(model.graph)[0].name}' leaves sides open "
                f"({'x'.join(str(side or '?') for side in own)}), and the time and "
                f"memory of '{one.device.name}' depend on them. Give stage '{stage.name}' `buckets: [[...]]`."
            )
    return [(count, tuple(side for side in row if isinstance(side, int))) for row in row_shapes for count in rows]


def _shapes(model: onnx.ModelProto, batch: Batch) -> dict[str, list[int]]:
    """Shapes of a model's open inputs in a batch: the first as the batch has it, rows of the others as many."""
    rows, row = batch
    shapes = {}
    for number, info in enumerate(model_inputs(model.graph)):
        own = declared_shape(info)
        if own is None or not own or all(isinstance(side, int) for side in own):
            continue
        if number == 0 or len(own) == len(row) + 1:
            shapes[info.name] = [rows, *row]
        else:
            shapes[info.name] = [side if isinstance(side, int) else rows for side in own]
    return shapes


def _is_fixed(model: onnx.ModelProto) -> bool:
    return not _shapes(model, (1, ()))


def _operators(
    one: Emulated, model: onnx.ModelProto, shapes: dict[str, list[int]], path: Path
) -> tuple[list[Unsupported], str]:
    """Nodes the device does not run, and who says so.

    Raises:
        InputError: Nobody says anything about this device's operators.
    """
    if one.engine.options.get("assume_supported") is True:
        return [], "not checked: options.assume_supported"
    if one.table is None:
        if one.device.kind != "npu":
            return [], f"not checked: a {one.device.kind.upper()} runs what its runtime runs"
        raise InputError(
            f"{one.place}.device: no operator table is known for '{one.device.name}', so nobody says whether it runs "
            f"{path.name}. Give options: {{operators: FILE.yaml}}, or {{assume_supported: true}} to do without."
        )
    fixed, _ = staged(model, shapes)
    coverage = by_table(infer(fixed, shapes), one.table)
    return _refused(coverage), coverage.source


def _refused(coverage: Coverage) -> list[Unsupported]:
    """What a table puts on the host or says nothing about; quantising the model's own inputs and outputs is not it."""
    return [
        Unsupported(node=node.node, op=node.op, reason=node.reason or "", source=node.source or coverage.source)
        for node in coverage.nodes
        if node.on in ("host", "unknown") and node.op not in QUANTISE
    ]


def _needs_bytes(found: Inspection, precision: Precision) -> int | None:
    """Weights as they are stored, narrowed where they are floats, and activations at the device's precision."""
    if found.peak_activation_bytes is None:
        return None
    width = roofline.WIDTH_BITS[precision]
    weights = sum(size * min(1.0, width / _FLOAT_BITS.get(kind, width)) for kind, size in found.weight_dtypes.items())
    return round(weights + found.peak_activation_bytes * width / roofline.WIDTH_BITS[twin_times.between_nodes(found)])


def _both(before: TwinSheet, after: TwinSheet) -> TwinSheet:
    """One model of two stages: built for the batches of both."""
    times = list({(known.rows, known.shape): known for known in (*before.times, *after.times)}.values())
    return replace(before, times=times)


def _check_memory(one: Emulated, sheets: dict[str, TwinSheet]) -> None:
    """All models of an engine are held at the same time; one that is too large alone is refused when it is loaded."""
    if one.device.memory_bytes is None or len(sheets) < 2:
        return
    needs = sum(sheet.needs_bytes or 0 for sheet in sheets.values())
    if needs > one.device.memory_bytes.value:
        raise InputError(
            f"{one.place}: its {len(sheets)} models need {needs / 1e6:.1f} MB together, device '{one.device.name}' has "
            f"{one.device.memory_bytes.value / 1e6:.1f} MB. Give the engine fewer stages."
        )
