"""Nodes timed on this machine: what `inspect --measure` adds, and the times file that `slice` takes."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadslice.backends import probe
from loadslice.graph import inputs
from loadslice.graph.load import load
from loadslice.graph.measure import Optimise
from loadslice.graph.shapes import infer, model_inputs
from loadslice.graph.stitch import draw_inputs
from loadslice.graph.timing import measure_nodes
from loadslice.spec.arrays import read_npz
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.inspection import Inspection
from loadslice.spec.slices import TIMES_SCHEMA, OpTimes

Arrays = dict[str, npt.NDArray[np.generic]]

ENGINE = "cpu0"
"""This machine's name in the times file; `slice --devices cpu0,...` asks for it."""


@dataclass(frozen=True, slots=True)
class How:
    """The ways to measure."""

    optimise: Optimise
    threads: int | None
    runs: int
    seed: int


def read_sample(path: Path) -> Arrays:
    """One recorded input: an array for each input of the model.

    Raises:
        InputError: Not an .npz file of arrays.
    """
    try:
        return read_npz(path)
    except (OSError, ValueError) as error:
        raise InputError(f"--sample {path}: not a readable .npz file of arrays.") from error


def with_measurement(
    result: Inspection, path: Path, given: dict[str, list[int]], sample: Arrays | None, device: Device, how: How
) -> tuple[Inspection, OpTimes]:
    """Time a model's nodes through ONNX Runtime.

    Args:
        result: An inspection of the same model at the same shapes.
        path: The model.
        given: Input name to shape.
        sample: What to feed; ``None``: numbers are drawn.
        device: This machine.
        how: To measure.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: An input has no shape, or the runtime refuses the model or the input.
    """
    model = load(path, weights=True)
    missing = [entry.name for entry in inputs.dynamic_inputs(model, given) if entry.given is None]
    if missing:
        raise InputError(f"{path}: --measure runs the model. Give a shape for {', '.join(missing)} with --shape.")
    body = infer(model, given, sample)
    feeds = sample or draw_inputs(model, body, how.seed)
    source = "a recorded input" if sample else f"drawn numbers (seed {how.seed})"
    measured, times = measure_nodes(
        path,
        model,
        body,
        {info.name: feeds[info.name] for info in model_inputs(model.graph)},
        device,
        optimise=how.optimise,
        threads=how.threads or probe.usable_cores(),
        runs=how.runs,
        inputs=source,
    )
    file = OpTimes(
        model_sha256=result.sha256,
        shapes={info.name: list(feeds[info.name].shape) for info in model_inputs(model.graph)},
        devices={ENGINE: times},
        stamp=stamp(TIMES_SCHEMA, inputs={"model": path}, seed=how.seed, tools=("onnxruntime", "onnx")),
    )
    return msgspec.structs.replace(result, measured=measured), file


def check_sample(path: Path, model_path: Path, sample: Arrays) -> Arrays:
    """The sample's arrays that are inputs of the model.

    Raises:
        InputError: One is missing or of another type.
    """
    model = load(model_path)
    found: Arrays = {}
    for info in model_inputs(model.graph):
        if info.name not in sample:
            raise InputError(f"--sample {path}: has no array '{info.name}'; it has {', '.join(sample) or 'none'}.")
        wanted = inputs.numpy_type(info)
        if sample[info.name].dtype != wanted:
            raise InputError(f"--sample {path}: '{info.name}' is {sample[info.name].dtype}, the model wants {wanted}.")
        found[info.name] = sample[info.name]
    return found
