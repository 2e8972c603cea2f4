"""Sizes that recorded traffic asks a model's open inputs for, from whatever records them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from loadslice.graph.buckets import Recorded, Sizes, Wanted, open_dimensions, traffic
from loadslice.graph.inputs import DIM_MAX
from loadslice.spec.arrays import read_npz
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON, read_bytes
from loadslice.spec.inspection import DynamicInput, TrafficSizes
from loadslice.workload import importing

COLUMNS = ("items", "tokens_in", "tokens_out")
"""Columns of a trace that count something a dimension can have."""

SHAPES_BYTES_MAX = 1 << 30
"""Twenty million requests; a larger file is a trace, or none."""

_AXIS = re.compile(r"(.+)\[(\d+)\]$")

Shapes = list[dict[str, list[int]]]


def parse_dims(texts: Sequence[str]) -> dict[str, str]:
    """Read several `--dim`: what stands before the last '=' is a symbol or `INPUT[AXIS]`, after it a column.

    Raises:
        InputError: Not of that form, or one dimension twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        dimension, equals, column = text.rpartition("=")
        if not equals or not dimension or column not in COLUMNS:
            raise InputError(
                f"--dim '{text[:80]}' is not of the form SYMBOL=COLUMN or INPUT[AXIS]=COLUMN with a column of "
                f"{', '.join(COLUMNS)}."
            )
        if dimension in found:
            raise InputError(f"--dim gives '{dimension}' twice.")
        found[dimension] = column
    return found


def traffic_sizes(path: Path, dims: Mapping[str, str], dynamic: Sequence[DynamicInput], wanted: Wanted) -> TrafficSizes:
    """Buckets for a model's open dimensions.

    Args:
        path: A folder of ``.npz`` files, a ``.jsonl`` list of shapes (a line per request: input name to shape), or a
            trace; of a trace, ``dims`` says which column a dimension has.
        dims: From `parse_dims`.
        dynamic: The model's open inputs.
        wanted: What the buckets are held to.

    Raises:
        InputError: The model has no open dimension, or the traffic says nothing of one, or what it says is no size.
    """
    named = open_dimensions(dynamic)
    if not named:
        raise InputError("--traffic: this model's inputs have no open dimension, so there is nothing to choose.")
    shapes = _shapes(path, dims)
    recorded = _of_shapes(path, shapes, named) if shapes is not None else _of_trace(path, dims, named)
    return traffic(str(path), recorded, dynamic, wanted)


def _shapes(path: Path, dims: Mapping[str, str]) -> Shapes | None:
    """Recorded shapes; ``None``: it is a trace."""
    if dims:
        return None
    if path.is_dir() and any(path.glob("*.npz")):
        return [_of_arrays(one) for one in sorted(path.glob("*.npz"))]
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    found: Shapes = []
    for number, line in enumerate(read_bytes(path, max_bytes=SHAPES_BYTES_MAX).splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=dict[str, list[int]]))
        except NOT_JSON as error:
            if number == 1 and b"arrival_s" in line:
                return None
            raise InputError(
                f'{path}: line {number}: {error}; each line gives the shapes of one request, such as {{"x": [1, 640]}}.'
            ) from error
    return found


def _of_arrays(path: Path) -> dict[str, list[int]]:
    try:
        return {name: list(array.shape) for name, array in read_npz(path).items()}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not an .npz file of arrays.") from error


def _of_shapes(path: Path, shapes: Shapes, named: Sequence[tuple[str, int, str | None]]) -> list[Recorded]:
    if not shapes:
        raise InputError(f"{path}: no requests in it.")
    found = []
    for name, axis, symbol in named:
        here = [index for index, request in enumerate(shapes) if len(request.get(name, ())) > axis]
        if not here:
            continue
        if len(here) < len(shapes):
            missing = next(index for index in range(len(shapes)) if index not in set(here))
            raise InputError(f"{path}: request {missing + 1} has no size for {name}[{axis}], others have one.")
        sizes = np.array([request[name][axis] for request in shapes])
        found.append(Recorded(name, axis, symbol, "recorded shapes", _checked(path, f"{name}[{axis}]", sizes)))
    if not found:
        wanted = ", ".join(f"{name}[{axis}]" for name, axis, _ in named)
        raise InputError(f"{path}: has no size for any open dimension of the model ({wanted}). Record its inputs.")
    return found


def _of_trace(path: Path, dims: Mapping[str, str], named: Sequence[tuple[str, int, str | None]]) -> list[Recorded]:
    if not dims:
        open_ones = list(dict.fromkeys(symbol or f"{name}[{axis}]" for name, axis, symbol in named))
        raise InputError(
            f"--traffic {path}: a trace does not say which column an open dimension has. Add --dim "
            f"{open_ones[0]}={COLUMNS[1]}, for instance; open are {', '.join(open_ones)}."
        )
    frame = importing.load(path).frame
    found = []
    for dimension, column in dims.items():
        match = _AXIS.match(dimension)
        asked = (match[1], int(match[2])) if match else None
        places = [place for place in named if place[2] == dimension or place[:2] == asked]
        if not places:
            known = ", ".join(dict.fromkeys(symbol or f"{name}[{axis}]" for name, axis, symbol in named))
            raise InputError(f"--dim {dimension}: no such open dimension; the model has {known}.")
        if column not in frame.columns or frame[column].null_count():
            raise InputError(f"{path}: has no `{column}` for {'every' if column in frame.columns else 'any'} request.")
        sizes = _checked(path, column, frame[column].to_numpy())
        found += [Recorded(name, axis, symbol, f"column {column}", sizes) for name, axis, symbol in places]
    return found


def _checked(path: Path, what: str, sizes: npt.NDArray[np.integer[Any]]) -> Sizes:
    wrong = (sizes < 1) | (sizes > DIM_MAX)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(f"{path}: request {first + 1}: {what} is {sizes[first]}; sizes go from 1 to {DIM_MAX}.")
    return sizes.astype(np.int64)
