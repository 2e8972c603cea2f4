"""Data types of the Open Inference Protocol and their NumPy twins."""

from typing import Any

import numpy as np

from loadslice.spec.work import Tensor

BYTES = "BYTES"

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    BYTES: np.dtype(np.object_),
}
"""Little-endian, as the binary extension says. BF16 is not among them: NumPy has no such type."""

_NAMES = {dtype: name for name, dtype in NUMPY.items()}


def name_of(dtype: np.dtype[Any]) -> str | None:
    """The protocol's name of a NumPy type; ``None``: it has none. Strings of any kind are BYTES."""
    if dtype.kind in "US":
        return BYTES
    return _NAMES.get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)


def little_endian(tensor: Tensor) -> Tensor:
    """The tensor in wire order, contiguous; itself where it is so already."""
    dtype = tensor.dtype.newbyteorder("<") if tensor.dtype.byteorder == ">" else tensor.dtype
    return np.ascontiguousarray(tensor, dtype)
