"""The shapes a user gives for a model's inputs, checked against what the file says about them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from loadslice.graph.shapes import model_inputs
from loadslice.graph.values import dtype_name
from loadslice.spec.errors import InputError
from loadslice.spec.inspection import DynamicInput

DIM_MAX = 2**31 - 1
ELEMENTS_MAX = 2**32
"""16 GiB of fp32 in one input: beyond any request, and safely inside 64-bit shape arithmetic."""


def parse_shape(text: str) -> tuple[str, list[int]]:
    """Read `name=1x3x640x640`; a name may contain '=' and ':'; nothing after the last '=' is a scalar.

    Raises:
        InputError: Not of that form.
    """
    name, equals, sizes = text.rpartition("=")
    parts = sizes.lower().split("x") if sizes else []
    if not equals or not name or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise InputError(f"--shape '{text[:80]}' is not of the form name=1x3x640x640 with whole numbers from 1.")
    return name, [int(part) for part in parts]


def parse_shapes(texts: tuple[str, ...]) -> dict[str, list[int]]:
    """Read several `--shape`; one input may be given once."""
    shapes: dict[str, list[int]] = {}
    for text in texts:
        name, shape = parse_shape(text)
        if name in shapes:
            raise InputError(f"--shape gives input '{name}' twice.")
        shapes[name] = shape
    return shapes


def check_shapes(path: Path, model: onnx.ModelProto, shapes: dict[str, list[int]]) -> None:
    """Refuse shapes that the model's inputs cannot have.

    Raises:
        InputError: Unknown input, wrong rank, a size out of range, or one that contradicts a fixed dimension.
    """
    inputs = {info.name: info for info in model_inputs(model.graph)}
    for name, shape in shapes.items():
        place = f"{path}: --shape {name}={'x'.join(map(str, shape))}"
        if name not in inputs:
            raise InputError(f"{place}: no such input; the model has {', '.join(inputs) or 'none'}.")
        if not inputs[name].type.HasField("tensor_type"):
            raise InputError(f"{place}: this input is not a tensor.")
        declared = declared_shape(inputs[name])
        for size in shape:
            if not 1 <= size <= DIM_MAX:
                raise InputError(f"{place}: {size} is not a dimension; sizes go from 1 to {DIM_MAX}.")
        if math.prod(shape) > ELEMENTS_MAX:
            raise InputError(f"{place}: {math.prod(shape)} elements are more than the {ELEMENTS_MAX} allowed.")
        if declared is None:
            continue
        if len(shape) != len(declared):
            raise InputError(f"{place}: rank {len(shape)}, the model wants {len(declared)}: {shape_text(declared)}.")
        for index, (given, fixed) in enumerate(zip(shape, declared, strict=True)):
            if isinstance(fixed, int) and given != fixed:
                raise InputError(f"{place}: dimension {index} is fixed at {fixed}: {shape_text(declared)}.")


def declared_shape(info: onnx.ValueInfoProto) -> list[int | str | None] | None:
    """An input's shape as the file has it; ``None`` when even the rank is open."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or None
        for dim in info.type.tensor_type.shape.dim
    ]


def numpy_type(info: onnx.ValueInfoProto) -> np.dtype[Any]:
    """What an input is fed as."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))


def fed_shape(info: onnx.ValueInfoProto, shapes: Mapping[str, Sequence[int]]) -> list[int]:
    """The shape an input is fed at.

    Args:
        info: The input.
        shapes: By name, of open inputs.

    Raises:
        InputError: It is no tensor, or it is open and has no shape.
    """
    if not info.type.HasField("tensor_type"):
        raise InputError(
            f"input '{info.name}' is no tensor (a sequence, an optional); such a model cannot be run here."
        )
    given = shapes.get(info.name, declared_shape(info))
    sizes = [size for size in given or [] if isinstance(size, int)]
    if given is None or len(sizes) != len(given):
        raise InputError(f"input '{info.name}' has no fixed shape. Give one with --shape {info.name}=...")
    return sizes


def fix_inputs(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write shapes into a model's inputs: a runtime then knows every shape before it runs, and plans memory by it."""
    for info in model_inputs(model.graph):
        if info.name in shapes:
            declared = info.type.tensor_type.shape
            del declared.dim[:]
            declared.SetInParent()
            for size in shapes[info.name]:
                declared.dim.add().dim_value = size


def shape_text(shape: list[int | str | None] | None) -> str:
    """A shape for people: open dimensions by their symbol or '?'."""
    return "any rank" if shape is None else "x".join(str(dim) if dim is not None else "?" for dim in shape) or "scalar"


def dynamic_inputs(model: onnx.ModelProto, shapes: dict[str, list[int]]) -> list[DynamicInput]:
    """Inputs whose shape the file leaves open, with the shape given for each."""
    found = []
    for info in model_inputs(model.graph):
        shape = declared_shape(info)
        if info.type.HasField("tensor_type") and (shape is None or not all(isinstance(dim, int) for dim in shape)):
            dtype = dtype_name(info.type.tensor_type.elem_type)
            found.append(DynamicInput(name=info.name, dtype=dtype, shape=shape, given=shapes.get(info.name)))
    return found
