"""`loadslice profile --model-for`: times on devices that are not here, for a model file or a pipeline's stages."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loadslice.app.output import say
from loadslice.graph import devices as catalogue
from loadslice.graph.inputs import declared_shape
from loadslice.graph.load import load as load_model
from loadslice.graph.shapes import model_inputs
from loadslice.profiles import calibration, modelled, product_peak
from loadslice.spec import latency
from loadslice.spec.device import Device, PeakPrecision, part_of
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, resolved, stamp
from loadslice.spec.latency import Entry, LatencyTable
from loadslice.spec.pipeline import Stage
from loadslice.spec.pipeline import load as load_pipeline

BATCHES = (1, 2, 4, 8, 16)
"""Row counts that are modelled where none are asked for; a simulator joins them by straight lines."""


def table(
    target: str,
    wanted: Sequence[str],
    *,
    shapes: dict[str, list[int]],
    batches: Sequence[int],
    own: Path | None,
    measured: Path | None,
    threads: int | None = None,
    to: PeakPrecision | None = None,
) -> LatencyTable:
    """Modelled entries, and measured ones where a table of them is given.

    Args:
        target: An `.onnx` file (or `package:NAME/PATH`), or a pipeline file.
        wanted: ``DEVICE`` or ``ENGINE=DEVICE``; for a pipeline the engine must be one of its own.
        shapes: By input name, rows first.
        batches: Row counts; empty: `BATCHES`, or what the file fixes.
        own: Folder of the user's devices beside the catalogue.
        measured: A latency table whose measured entries win.
        threads: Of a CPU's engine; ``None``: those of the pipeline's engine, or all cores.
        to: Precision that models would be converted to; ``None``: as in `loadslice.profiles.modelled.entries`.

    Raises:
        InputError: What cannot be modelled, and which figure or shape is missing.
    """
    before = latency.load(measured) if measured is not None else None
    known = calibration.shipped()
    pairs = [_pair(each, own) for each in wanted]
    ask = _Ask(known, shapes, batches, threads, to)
    if target.endswith((".yaml", ".yml")):
        found = list(_of_pipeline(Path(target), pairs, ask))
    else:
        path = resolve_model(target, Path.cwd())
        found = [
            entry
            for engine, device in pairs
            for entry in _of_model(path, _part(device, threads), path.stem, engine or device.name, ask)
        ]
    merged = modelled.with_modelled(before, found)
    inputs = {"model": resolve_model(target, Path.cwd()), "profile": measured}
    stamped = before.stamp if before is not None and before.stamp is not None else stamp("latency/1", inputs=inputs)
    return LatencyTable(
        entries=merged.entries,
        inputs=merged.inputs,
        overhead_ms=merged.overhead_ms,
        handover_ms=merged.handover_ms,
        overhead_cpu_ms=merged.overhead_cpu_ms,
        drift=merged.drift,
        pipeline=merged.pipeline,
        stamp=stamped,
    )


class _Ask(NamedTuple):
    """What is asked of every model."""

    known: calibration.Calibration
    shapes: dict[str, list[int]]
    batches: Sequence[int]
    threads: int | None
    to: PeakPrecision | None


def _part(device: Device, threads: int | None) -> Device:
    """A CPU as an engine of so many threads has it; other devices, and all of a CPU, as they are."""
    return part_of(device, threads) if threads is not None and device.kind == "cpu" else device


def _pair(text: str, own: Path | None) -> tuple[str | None, Device]:
    """``DEVICE`` or ``ENGINE=DEVICE``."""
    engine, equals, name = text.rpartition("=")
    if equals and not engine:
        raise InputError(f"--model-for '{text}': no engine before '='. Give DEVICE or ENGINE=DEVICE.")
    if name == "local":
        say("measuring this machine's peak and bandwidth (a few seconds)")
        return engine or None, product_peak.local_device()
    return engine or None, catalogue.find(name, own)


def _of_pipeline(
    path: Path,
    pairs: Sequence[tuple[str | None, Device]],
    ask: _Ask,
) -> Iterator[Entry]:
    pipeline = load_pipeline(path)
    for engine, device in pairs:
        if engine is None or engine not in pipeline.engines:
            raise InputError(
                f"--model-for '{device.name if engine is None else engine}': name an engine of {path}, for instance "
                f"{next(iter(pipeline.engines))}={device.name} (it has {', '.join(pipeline.engines)})."
            )
        stages = [stage for stage in pipeline.stages if engine in stage.engine_names and stage.model is not None]
        if not stages:
            raise InputError(f"{path}: no stage with a model runs on engine '{engine}'; nothing can be modelled.")
        for stage in stages:
            part = _part(device, ask.threads or pipeline.engines[engine].threads)
            yield from _of_stage(path, stage, engine, part, ask)


def _of_stage(
    path: Path,
    stage: Stage,
    engine: str,
    device: Device,
    ask: _Ask,
) -> Iterator[Entry]:
    """A stage on one engine: each bucket it is asked for, up to the batch its file asks for."""
    assert stage.model is not None
    model = resolve_model(stage.model, resolved(path).parent)
    accept = stage.accept.get(engine)
    largest = stage.batch[engine].size if engine in stage.batch else 1
    rows = list(ask.batches) or [count for count in BATCHES if count < largest] + [largest]
    buckets: list[list[int] | None] = [list(bucket) for bucket in stage.buckets] or [None]
    for bucket in buckets:
        sides = accept.shape[1:] if accept is not None and accept.shape is not None else bucket
        given = dict(ask.shapes)
        if sides is not None:
            first = model_inputs(load_model(model).graph)[0].name
            given[first] = [1, *sides]
        asked = ask._replace(shapes=given, batches=rows)
        yield from _of_model(model, device, stage.variant_id, engine, asked, bucket)


def _of_model(
    path: Path, device: Device, variant: str, engine: str, ask: _Ask, bucket: list[int] | None = None
) -> Iterator[Entry]:
    fixed = _fixed_rows(path)
    if fixed is not None and any(batch != fixed for batch in ask.batches):
        raise InputError(
            f"{path}: the file fixes {fixed} rows; a batch of {max(ask.batches)} is not in it. Export it open."
        )
    rows = list(ask.batches) or ([fixed] if fixed is not None else list(BATCHES))
    say(f"modelling {variant} on {device.name}, {', '.join(map(str, rows))} rows")
    yield from modelled.entries(
        path,
        device,
        ask.known,
        variant=variant,
        engine=engine,
        shapes=_all_shapes(path, ask.shapes),
        batches=rows,
        shape=bucket,
        to=ask.to,
    )


def _all_shapes(path: Path, given: dict[str, list[int]]) -> dict[str, list[int]]:
    """Given shapes, and for other inputs those whose only open side is the rows."""
    shapes = dict(given)
    for info in model_inputs(load_model(path).graph):
        declared = declared_shape(info)
        if info.name in shapes or not declared:
            continue
        rest = [side for side in declared[1:] if isinstance(side, int)]
        if len(rest) == len(declared) - 1:
            shapes[info.name] = [1, *rest]
    return shapes


def _fixed_rows(path: Path) -> int | None:
    """Rows that the file fixes for its first input; ``None``: open."""
    declared = declared_shape(model_inputs(load_model(path).graph)[0])
    return declared[0] if declared and isinstance(declared[0], int) else None
