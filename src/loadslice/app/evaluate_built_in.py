"""Placements made from a model alone: on one engine, cut in two stages, or on two engines that share the requests."""

from pathlib import Path

import onnx
import yaml

from loadslice.app.slice_problem import Opened, open_model
from loadslice.evaluate.payloads import Inputs
from loadslice.graph.inputs import declared_shape, numpy_type
from loadslice.graph.load import load
from loadslice.graph.shapes import model_inputs
from loadslice.graph.slicing import boundary, slice_model
from loadslice.graph.stitch import draw_inputs
from loadslice.spec.errors import InputError
from loadslice.spec.evaluation import Placement
from loadslice.spec.files import write_bytes
from loadslice.spec.work import Sample

DRAWN = 8
"""Inputs drawn for a model that comes without any."""
TEXT = "evaluated"


def build(placement: Placement, model: Path, folder: Path) -> Path:
    """Write the pipeline of a built-in placement, with the models it needs beside it.

    Returns:
        The pipeline file.

    Raises:
        InputError: The model cannot be cut, or not be read.
    """
    write_bytes(folder / "model.onnx", model.read_bytes())
    engine = {"backend": placement.backend, "threads": placement.threads, "max_inflight": 1, "queue": {"limit": 256}}
    engines, stages = {"one": engine}, [{"name": "model", "model": "model.onnx", "engine": "one"}]
    if placement.built_in == "dual-bank":
        engines = {"one.bank0": engine, "one.bank1": dict(engine)}
        stages = [{"name": "model", "model": "model.onnx", "engines": list(engines), "prefer": "fastest"}]  # type: ignore[dict-item]
    if placement.built_in == "sliced":
        first, second = halves(open_model(model, _shapes(model), weights=True))
        write_bytes(folder / "first.onnx", first.SerializeToString())
        write_bytes(folder / "second.onnx", second.SerializeToString())
        engines = {"first": engine, "second": dict(engine)}
        stages = [{"name": name, "model": f"{name}.onnx", "engine": name} for name in engines]
    document = {
        "version": 1, "pipeline": TEXT, "max_requests": 1024, "engines": engines, "stages": stages,
    }  # fmt: skip
    path = folder / "pipeline.yaml"
    write_bytes(path, yaml.safe_dump(document, sort_keys=False).encode())
    return path


def halves(opened: Opened) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The model in two, cut where one tensor crosses and the work on both sides is most alike.

    Raises:
        InputError: There is no such place.
    """
    count = len(opened.graph.ops)
    outputs = {info.name for info in opened.model.graph.output}
    best: tuple[int, int] | None = None
    for place in range(1, count):
        needs, _ = boundary(opened.graph, range(place, count))
        _, gives = boundary(opened.graph, range(place))
        # A stage hands on only what its model gives: nothing else may cross, and every answer comes from the second.
        if len(gives) == 1 and needs == gives and not outputs & set(gives):
            unlike = abs(2 * place - count)
            if best is None or unlike < best[0]:
                best = (unlike, place)
    if best is None:
        raise InputError(f"{opened.path}: cannot be cut in two stages, no single tensor divides its operators.")
    parts = (list(range(best[1])), list(range(best[1], count)))
    first, second = (
        slice_model(opened.model, opened.body, opened.as_filed, opened.graph, ops, f"part{number}")
        for number, ops in enumerate(parts)
    )
    return first, second


def _shapes(path: Path) -> dict[str, list[int]]:
    """Each input with its open dimensions at 1."""
    model = load(path)
    found = {}
    for info in model_inputs(model.graph):
        declared = declared_shape(info)
        if declared is None:
            raise InputError(f"{path}: input '{info.name}' has no rank. Use a pipeline file for this placement.")
        found[info.name] = [dim if isinstance(dim, int) else 1 for dim in declared]
    return found


def drawn_inputs(path: Path, seed: int) -> Inputs:
    """Inputs for a model that comes without: normal floats, integers of 0 and 1, open dimensions at 1.

    Raises:
        InputError: An input whose rank is open.
    """
    opened = open_model(path, _shapes(path))
    samples = {}
    for number in range(DRAWN):
        arrays = draw_inputs(opened.model, opened.body, seed + number)
        types = {info.name: numpy_type(info) for info in model_inputs(opened.model.graph)}
        tensors = {name: array.astype(types[name]) for name, array in arrays.items()}
        samples[f"drawn-{number}"] = Sample(f"drawn-{number}", "application/octet-stream", b"", tensors=tensors)
    return Inputs(samples)
