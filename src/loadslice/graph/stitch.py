"""Proof that slices one after another answer what the whole model answers."""

from collections.abc import Mapping, Sequence
from importlib import metadata

import numpy as np
import numpy.typing as npt
import onnx

from loadslice.graph.inputs import fed_shape, numpy_type
from loadslice.graph.measure import outputs
from loadslice.graph.shapes import model_inputs
from loadslice.graph.steps import Body
from loadslice.spec.slices import StitchCheck

Arrays = dict[str, npt.NDArray[np.generic]]


def draw_inputs(model: onnx.ModelProto, body: Body, seed: int) -> Arrays:
    """Inputs at the shapes of a walked model: normal floats, integers and booleans of 0 and 1.

    Ids, masks and positions are integers, and 0 and 1 are valid in all of them.

    Raises:
        InputError: An input that is no tensor, or whose shape is open.
    """
    rng = np.random.default_rng(seed)
    drawn: Arrays = {}
    for info in model_inputs(model.graph):
        shape = body.env[info.name].shape
        closed = [dim for dim in shape or () if dim is not None]
        known = shape is not None and len(closed) == len(shape)
        sizes, dtype = fed_shape(info, {info.name: closed} if known else {}), numpy_type(info)
        floating = np.issubdtype(dtype, np.floating)
        drawn[info.name] = (rng.standard_normal(sizes) if floating else rng.integers(0, 2, sizes)).astype(dtype)
    return drawn


def run_slices(slices: Sequence[onnx.ModelProto], feeds: Mapping[str, npt.NDArray[np.generic]]) -> Arrays:
    """Run slices in order, each on what the feeds and the slices before it give.

    Returns:
        Every tensor that was fed or handed on, by name.
    """
    there: Arrays = dict(feeds)
    for part in slices:
        there.update(outputs(part, {info.name: there[info.name] for info in model_inputs(part.graph)}))
    return there


def check_stitched(
    model: onnx.ModelProto, body: Body, slices: Sequence[onnx.ModelProto], *, runs: int = 3, seed: int = 0
) -> StitchCheck:
    """Compare the slices with the whole on drawn inputs, every kernel as the file has it.

    A runtime that optimises the parts may fuse other operators than in the whole, and then differ in the last bits;
    this check takes fusion out, so that what is left is the cutting.

    Args:
        model: The whole, with its weights.
        body: Walked at the shapes to check at.
        slices: In order.
        runs: Different inputs.
        seed: Of the first draw.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: The runtime refuses the whole or a slice.
    """
    bit_equal, worst, largest = True, 0.0, 0.0
    for number in range(runs):
        feeds = draw_inputs(model, body, seed + number)
        whole, stitched = outputs(model, feeds), run_slices(slices, feeds)
        pairs = [pair for name in whole for pair in _parts(whole[name], stitched[name])]
        for expected, got in pairs:
            if got.shape == expected.shape and np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f"):
                continue
            bit_equal = False
            worst = max(worst, _difference(expected, got))
            largest = max(largest, float(np.abs(expected).max(initial=0)) if expected.dtype.kind in "fiub" else 0.0)
    finite = np.isfinite(worst)
    return StitchCheck(
        runtime=f"onnxruntime {metadata.version('onnxruntime')}, unoptimised",
        runs=runs,
        bit_equal=bit_equal,
        max_abs_diff=worst if finite else None,
        max_rel_diff=(worst / largest if largest else 0.0) if finite else None,
        seed=seed,
    )


def _parts(expected: object, got: object) -> list[tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]]:
    """The arrays of an output side by side; of a sequence each, unless the sequences differ in length."""
    if not isinstance(expected, list):
        return [(np.asarray(expected), np.asarray(got))]
    if not isinstance(got, list) or len(got) != len(expected):
        return [(np.empty(0), np.empty(1))]
    return [(np.asarray(one), np.asarray(two)) for one, two in zip(expected, got, strict=True)]


def _difference(expected: npt.NDArray[np.generic], got: npt.NDArray[np.generic]) -> float:
    """Largest absolute difference; infinite where there is none to take."""
    if got.shape != expected.shape or expected.dtype.kind not in "fiub":
        return float("inf")
    worst = float(np.abs(expected.astype(np.float64) - got.astype(np.float64)).max(initial=0.0))
    return worst if np.isfinite(worst) else float("inf")
