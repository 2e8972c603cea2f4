"""What the models of a pipeline ask of hardware, at the shapes the inputs really have."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from loadslice.graph.inspect import inspect
from loadslice.profiles import chain
from loadslice.spec.device import Device
from loadslice.spec.files import resolve_model
from loadslice.spec.inspection import Inspection
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.portrait import ModelDimension, PrecisionClass
from loadslice.spec.report import ModelReport
from loadslice.spec.work import Sample

Shape = tuple[int, ...]

PRECISIONS: dict[str, PrecisionClass] = {"fp32": "fp32", "bf16": "fp16", "fp16": "fp16", "int8": "int8", "int4": "int4"}
"""What models compute in -> precision classes of the waterline; bfloat16 has the width of fp16."""


@dataclass(frozen=True, slots=True)
class Models:
    """All models of a pipeline."""

    reports: list[ModelReport]
    dimension: ModelDimension | None
    """The pipeline as one model: FLOPs of a mean request; ``None`` when the work of a stage is unknown."""


def inspect_models(
    pipeline: Pipeline,
    folder: Path,
    samples: dict[str, Sample],
    named: pl.Series,
    table: LatencyTable,
    device: Device | None,
) -> Models:
    """Inspect every model stage at each shape the trace's inputs need, one row at a time.

    Args:
        pipeline: Its model stages are inspected.
        folder: Of the pipeline file.
        samples: By name.
        named: Input of every request of the trace.
        table: Its ``inputs`` say rows and shape of each input at each stage.
        device: Gives the roofline.

    Raises:
        InputError: A model that cannot be opened, or a shape that is not for it.
    """
    weights = Counter(named.to_list())
    typical = weights.most_common(1)[0][0]
    tensors = _walked_shapes(pipeline, folder, samples[typical])
    work = {entry.input: {stage.stage: stage for stage in entry.stages} for entry in table.inputs}
    reports, flops_total, known = [], 0.0, True
    for stage in pipeline.stages:
        if stage.model is None or stage.name not in tensors:
            continue
        seen: Counter[Shape | None] = Counter()
        rows: Counter[Shape | None] = Counter()
        for name, count in weights.items():
            asked = work.get(name, {}).get(stage.name)
            if asked is not None:
                shape = tuple(asked.shape) if asked.shape is not None else None
                seen[shape] += count
                rows[shape] += count * asked.items
        inspections = {
            shape: _inspect(stage, folder, tensors[stage.name], shape, device) for shape in (seen or Counter([None]))
        }
        common = seen.most_common(1)[0][0] if seen else None
        reports.append(_report(stage, inspections[common], seen))
        for shape, total in rows.items():
            flops = inspections[shape].flops
            known &= flops is not None
            flops_total += total * (flops or 0)
    dimension = _dimension(pipeline, reports, flops_total / max(weights.total(), 1) if known else None)
    return Models(reports, dimension)


def _walked_shapes(pipeline: Pipeline, folder: Path, sample: Sample) -> dict[str, dict[str, Shape]]:
    """Stage -> input tensor -> shape without rows, as one input meets them."""
    used = [stage.engine_names[0] for stage in pipeline.stages]
    steps = chain.open_steps(pipeline, folder, used)
    try:
        works = chain.walk(sample, steps)
    finally:
        chain.close(steps)
    return {
        step.stage.name: {name: tuple(tensor.shape[1:]) for name, tensor in found.tensors.items()}
        for step, found in zip(steps, works, strict=False)
    }


def _inspect(
    stage: Stage, folder: Path, tensors: dict[str, Shape], bucket: Shape | None, device: Device | None
) -> Inspection:
    assert stage.model is not None
    shapes = {
        name: [1, *(bucket if bucket is not None and len(bucket) == len(shape) else shape)]
        for name, shape in tensors.items()
    }
    found = inspect(resolve_model(stage.model, folder), shapes, [device] if device is not None else [])
    # Costs node by node are for `loadslice inspect`; a report that holds them all is too large to send.
    return msgspec.structs.replace(found, model=stage.model, nodes_cost=[])


def _report(stage: Stage, inspection: Inspection, seen: Counter[Shape | None]) -> ModelReport:
    note = "One row of the shape the inputs have."
    if len(seen) > 1:
        (shape, count), *_ = seen.most_common(1)
        assert shape is not None
        name = "×".join(map(str, shape))
        note = f"One row of {name}, the shape of {count / seen.total():.0%} of requests; {len(seen)} shapes occur."
    return ModelReport(stages=[stage.name], inspection=inspection, shape_note=note)


def _dimension(pipeline: Pipeline, reports: list[ModelReport], flops: float | None) -> ModelDimension | None:
    if not reports:
        return None
    found = [report.inspection for report in reports]
    moved = [inspection.bytes_moved for inspection in found]
    all_flops = sum(inspection.flops or 0 for inspection in found)
    bytes_moved = sum(part for part in moved if part is not None) if None not in moved else None
    heaviest = max(found, key=lambda inspection: inspection.flops or 0)
    return ModelDimension(
        model=f"{pipeline.pipeline} ({', '.join(', '.join(report.stages) for report in reports)})",
        parameters=sum(inspection.parameters for inspection in found),
        weight_bytes=sum(inspection.weight_bytes for inspection in found),
        flop_per_item=flops,
        intensity_flop_per_byte=all_flops / bytes_moved if bytes_moved else None,
        precision=PRECISIONS.get(heaviest.precision or ""),
    )
