"""`inspect`: open a model, walk it, add it up."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnx

from loadslice.graph import census, inputs, roofline
from loadslice.graph.kv_cache import kv_cache
from loadslice.graph.load import graphs, load
from loadslice.graph.memory import plan
from loadslice.graph.shapes import infer, model_inputs
from loadslice.graph.steps import Body
from loadslice.spec.coverage import Coverage, Disagreement, Remedy
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file
from loadslice.spec.inspection import DeviceFit, Inspection, TableFigures, Unsupported

COUNT_MAX = 2**63 - 1


def inspect(
    path: Path,
    shapes: dict[str, list[int]] | None,
    devices: Sequence[Device],
    contents: Mapping[str, npt.NDArray[np.generic]] | None = None,
) -> Inspection:
    """What a model asks of hardware.

    Args:
        path: An `.onnx` file.
        shapes: Input name to shape; an input left out keeps the shape the file gives it.
        devices: For each, a roofline and whether the model fits.
        contents: Of inputs that decide a branch, a sampling rate for instance.

    Raises:
        InputError: The model cannot be opened, or the shapes are not for it.
    """
    given = shapes or {}
    model = load(path)
    inputs.check_shapes(path, model, given)
    try:
        body = infer(model, given, contents)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    parameters, weight_dtypes = census.weights(model)
    dynamic = inputs.dynamic_inputs(model, given)
    notes: list[str] = []
    nodes = census.node_costs(body, notes)
    # With open inputs most shapes are open too; a sum over the few nodes that are not would look like an answer.
    open_inputs = any(entry.given is None for entry in dynamic) and any(node.reason is not None for node in nodes)
    known = not open_inputs
    flops = sum(node.flops or 0 for node in nodes) if known else None
    moved = sum(node.bytes or 0 for node in nodes) if known else None
    memory = plan(body, [info.name for info in model_inputs(model.graph)])
    peak = memory.peak_bytes if memory is not None else None
    _check_size(path, [flops, moved, peak, *(n.flops for n in nodes), *(n.bytes for n in nodes)])
    result = Inspection(
        model=str(path),
        sha256=sha256_file(path),
        opset=next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), None),
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        nodes=sum(len(graph.node) for graph, _ in graphs(model.graph)),
        parameters=parameters,
        weight_bytes=sum(weight_dtypes.values()),
        weight_dtypes=weight_dtypes,
        precision=census.precision(body),
        shapes=_input_shapes(model, given),
        macs=sum(node.macs or 0 for node in nodes) if known else None,
        flops=flops,
        bytes_moved=moved,
        compulsory_bytes=_compulsory_bytes(model, body, sum(weight_dtypes.values())),
        intensity_flop_per_byte=flops / moved if flops is not None and moved else None,
        peak_activation_bytes=peak,
        memory=memory,
        kv_cache=kv_cache(model, body),
        complete=all(node.reason is None for node in nodes),
        dynamic_inputs=dynamic,
        ops=census.op_counts(model, nodes),
        unknown_ops=census.unknown_ops(nodes),
        notes=notes,
        nodes_cost=nodes,
    )
    return with_devices(result, devices)


def _check_size(path: Path, numbers: Sequence[int | None]) -> None:
    """Refuse figures that no 64-bit reader of the document could hold."""
    largest = max((number for number in numbers if number is not None), default=0)
    if largest > COUNT_MAX:
        raise InputError(
            f"{path}: {largest:.1e} operations or bytes a run are beyond any machine. "
            "Check the given shapes and the model's trip counts."
        )


def with_coverage(
    result: Inspection,
    name: str,
    coverage: Coverage | None,
    *,
    table: Coverage | None = None,
    disagreements: Sequence[Disagreement] = (),
    remedies: Sequence[Remedy] = (),
    notes: Sequence[str] = (),
) -> Inspection:
    """The same inspection with operator support beside one of its devices.

    Args:
        result: An inspection.
        name: Of the device; one that is only a compiler's target has no figures of its own.
        coverage: What counts; ``None``: nobody could be asked, and ``notes`` say why.
        table: What a table says where a compiler was asked.
        disagreements: Between the two.
        remedies: Rewrites that bring fallbacks onto the device.
        notes: For the reader.
    """
    fit = result.devices.get(name) or DeviceFit(bound=None, fits=None, precision=None)
    if coverage is not None:
        fit = msgspec.structs.replace(
            fit,
            supported_nodes_share=coverage.supported_nodes_share,
            supported_flops_share=coverage.supported_flops_share,
            unsupported=[
                Unsupported(node=node.node, op=node.op, reason=node.reason or "", source=node.source or coverage.source)
                for node in coverage.nodes
                if node.on == "host"
            ],
            segments=coverage.segments,
            cuts=coverage.cuts,
            transfer_bytes=coverage.transfer_bytes,
            source=coverage.source,
            basis=coverage.basis,
            unknown_nodes=coverage.unknown_nodes,
            transfers=coverage.transfers,
            placement=coverage.nodes,
        )
    if table is not None:
        figures = TableFigures(
            supported_nodes_share=table.supported_nodes_share,
            supported_flops_share=table.supported_flops_share,
            unknown_nodes=table.unknown_nodes,
            source=table.source,
        )
        fit = msgspec.structs.replace(fit, by_table=figures, disagreements=list(disagreements))
    said = [*(coverage.notes if coverage is not None else []), *notes]
    fit = msgspec.structs.replace(fit, remedies=list(remedies), coverage_notes=said)
    return msgspec.structs.replace(result, devices=result.devices | {name: fit})


def with_devices(result: Inspection, devices: Sequence[Device]) -> Inspection:
    """The same inspection with other devices beside it."""
    fits = {
        device.name: roofline.fit(
            device,
            precision=result.precision,
            flops=result.flops,
            bytes_moved=result.bytes_moved,
            compulsory_bytes=result.compulsory_bytes,
            weight_bytes=result.weight_dtypes,
            peak_activation_bytes=result.peak_activation_bytes,
            nodes=result.nodes_cost,
            kv_bytes_per_token=result.kv_cache.bytes_per_token if result.kv_cache is not None else None,
        )
        for device in devices
    }
    return msgspec.structs.replace(result, devices=fits)


def _compulsory_bytes(model: onnx.ModelProto, body: Body, weight_bytes: int) -> int | None:
    names = {info.name for info in [*model_inputs(model.graph), *model.graph.output]}
    edges = census.total(body.env[name].nbytes if name in body.env else None for name in names)
    return edges + weight_bytes - _idle_weight_bytes(body) if edges is not None else None


def _idle_weight_bytes(body: Body) -> int:
    """Weights of branches that these inputs do not take."""
    idle = 0
    for step in body.steps:
        for inner in step.bodies:
            if inner.times == 0:
                branch = onnx.ModelProto(graph=inner.graph)
                idle += sum(census.weights(branch)[1].values())
            else:
                idle += _idle_weight_bytes(inner)
    return idle


def _input_shapes(model: onnx.ModelProto, given: dict[str, list[int]]) -> dict[str, list[int]]:
    shapes = {}
    for info in model_inputs(model.graph):
        declared = inputs.declared_shape(info)
        if info.name in given:
            shapes[info.name] = given[info.name]
        elif declared is not None and all(isinstance(dim, int) for dim in declared):
            shapes[info.name] = [dim for dim in declared if isinstance(dim, int)]
    return shapes
