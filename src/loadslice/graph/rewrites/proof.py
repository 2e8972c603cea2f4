"""Numerical proof of a rewrite: both models on the same random inputs in ONNX Runtime, unoptimised."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx

from loadslice.graph.inputs import fed_shape, numpy_type
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
            gap, size = _gap(name, value, new[name])
            difference, largest = max(difference, gap), max(largest, size)
    relative = difference / largest if largest else None
    return Proof(
        max_abs_diff=difference,
        max_abs_output=largest,
        relative=math.inf if difference and not largest else relative,
        runs=runs,
        seed=seed,
        runtime="onnxruntime, optimisations off",
    )


def _gap(name: str, value: object, other: object) -> tuple[float, float]:
    """Largest difference of one output, and its largest size.

    What is no number (texts, optionals) is equal or infinitely far; so are a NaN or an infinity on one side alone.
    """
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        gaps = [_gap(name, one, two) for one, two in zip(value, other, strict=True)]
        return max((gap for gap, _ in gaps), default=0.0), max((size for _, size in gaps), default=0.0)
    left, right = np.asarray(value), np.asarray(other)
    if left.shape != right.shape:
        raise InputError(f"output '{name}' has shape {left.shape} before and {right.shape} after the rewrite.")
    if left.dtype.kind not in "fiub":
        return (0.0 if np.array_equal(left, right) else math.inf), 0.0
    wide, narrow = left.astype(np.float64), right.astype(np.float64)
    same = (wide == narrow) | (np.isnan(wide) & np.isnan(narrow))
    gap = np.nan_to_num(np.abs(wide[~same] - narrow[~same]), nan=math.inf, posinf=math.inf)
    return float(gap.max(initial=0.0)), float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))


def random_feeds(
    model: onnx.ModelProto, shapes: Mapping[str, list[int]], generator: np.random.Generator
) -> dict[str, npt.NDArray[np.generic]]:
    """Random tensors for a model's inputs."""
    feeds: dict[str, npt.NDArray[np.generic]] = {}
    for info in model_inputs(model.graph):
        dims, dtype = fed_shape(info, shapes), numpy_type(info)
        drawn = generator.standard_normal(dims) * 0.5 if dtype.kind == "f" else generator.integers(0, INTEGER_MAX, dims)
        feeds[info.name] = np.asarray(drawn).astype(dtype)
    return feeds
