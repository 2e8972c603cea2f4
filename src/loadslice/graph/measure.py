"""Shapes as ONNX Runtime produces them: an independent check of the static inference.

Optional: needs onnxruntime, and runs the model once with every intermediate tensor as an output.
"""

from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from loadslice.graph.load import load
from loadslice.graph.shapes import infer, model_inputs
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.inspection import ShapeCheck


def observe(path: Path, shapes: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Run a model once, unoptimised, on zeros, and report the shape of every top-level tensor.

    Args:
        path: An `.onnx` file.
        shapes: Shape of every input that is not fixed.

    Returns:
        Tensor name to shape; tensors of subgraphs and sequences are not seen.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: An input has no shape, or the runtime refuses the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "Observing shapes") from error
    model = load(path, weights=True)
    feeds = {info.name: _zeros(path, info, shapes) for info in model_inputs(model.graph)}
    present = {info.name for info in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in present:
                model.graph.output.append(onnx.ValueInfoProto(name=name))
                present.add(name)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [info.name for info in session.get_outputs()]
        values = session.run(names, feeds)
    except Exception as error:  # onnxruntime's own exceptions have no common base
        raise InputError(f"{path}: ONNX Runtime cannot run it: {str(error).splitlines()[0]}") from error
    found = {name: value.shape for name, value in zip(names, values, strict=True) if isinstance(value, np.ndarray)}
    return found | {name: value.shape for name, value in feeds.items()}


def outputs(model: onnx.ModelProto, feeds: dict[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
    """What a model answers, unoptimised: the reference a rewrite is held to.

    Args:
        model: With its weights in it.
        feeds: Every input.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: The runtime refuses the model or the input.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "Proving a rewrite") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [info.name for info in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))
    except Exception as error:  # onnxruntime's own exceptions have no common base
        raise InputError(f"ONNX Runtime cannot run it: {str(error).splitlines()[0]}") from error


def check(path: Path, shapes: dict[str, list[int]]) -> ShapeCheck:
    """Compare every inferred shape with an observed one; see `observe` for arguments and errors."""
    observed = observe(path, shapes)
    env = infer(load(path), shapes).env
    disagree = [name for name, shape in observed.items() if env[name].shape != shape]
    return ShapeCheck(
        runtime=f"onnxruntime {metadata.version('onnxruntime')}", tensors=len(observed), disagree=disagree
    )


def _zeros(path: Path, info: onnx.ValueInfoProto, shapes: dict[str, list[int]]) -> npt.NDArray[np.generic]:
    dims = shapes.get(info.name) or [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    if any(dim <= 0 for dim in dims):
        raise InputError(f"{path}: input '{info.name}' has no fixed shape. Give one with --shape {info.name}=...")
    return np.zeros(dims, helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
