"""Numerical proof of a rewrite: both models on the same random inputs in ONNX Runtime, unoptimised."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from loadslice.graph.measure import outputs
from loadslice.graph.shapes import model_inputs
from loadslice.spec.errors import InputError
from loadslice.spec.rewrite import Proof

INTEGER_MAX = 2
"""Random integers stay below: token ids, masks and lengths are valid in every model at 0 and 1."""


def prove(
    before: onnx.ModelProto, after: onnx.ModelProto, shapes: Mapping[str, list[int]], *, seed: int, runs: int = 2
) -> Proof:
    """Largest difference of any output.

    Args:
        before: The model as it came.
        after: The rewritten one, with the same inputs.
        shapes: Shapes of open inputs.
        seed: Of the random inputs: normal with deviation 0.5, integers of 0 and 1.
        runs: Different inputs.

    Raises:
        InputError: An input is open and has no shape, or ONNX Runtime refuses one of the models.
        MissingExtraError: onnxruntime is not installed.
    """
    generator = np.random.default_rng(seed)
    difference = largest = 0.0
    for _ in range(runs):
        feeds = random_feeds(before, shapes, generator)
        old, new = outputs(before, feeds), outputs(after, feeds)
        for name, value in old.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
                continue
            wide, other = value.astype(np.float64), np.asarray(new[name]).astype(np.float64)
            if wide.shape != other.shape:
                raise InputError(f"output '{name}' has shape {wide.shape} before and {other.shape} after the rewrite.")
            if wide.size:
                gap = np.abs(wide - other)
                # A NaN on both sides is no difference, one on one side is.
                gap[np.isnan(wide) & np.isnan(other)] = 0.0
                difference = max(difference, float(np.max(gap)))
                largest = max(largest, float(np.nanmax(np.abs(wide), initial=0.0)))
    return Proof(
        max_abs_diff=difference,
        max_abs_output=largest,
        relative=difference / largest if largest else None,
        runs=runs,
        seed=seed,
        runtime="onnxruntime, optimisations off",
    )


def random_feeds(
    model: onnx.ModelProto, shapes: Mapping[str, list[int]], generator: np.random.Generator
) -> dict[str, npt.NDArray[np.generic]]:
    """Random tensors for a model's inputs."""
    feeds: dict[str, npt.NDArray[np.generic]] = {}
    for info in model_inputs(model.graph):
        declared = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        dims = shapes.get(info.name, declared)
        if any(dim <= 0 for dim in dims):
            raise InputError(f"input '{info.name}' has no fixed shape. Give one with --shape {info.name}=...")
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        if dtype.kind == "f":
            feeds[info.name] = (generator.standard_normal(dims) * 0.5).astype(dtype)
        else:
            feeds[info.name] = generator.integers(0, INTEGER_MAX, dims).astype(dtype)
    return feeds
