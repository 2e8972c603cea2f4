"""Example tensors as a request of the Open Inference Protocol, values in the binary extension."""

from collections.abc import Mapping

import msgspec
import numpy as np

from loadslice.spec.errors import InputError
from loadslice.spec.work import Tensor

DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
"""NumPy's names and the protocol's."""


def encode(name: str, tensors: Mapping[str, Tensor], *, binary_outputs: bool = False) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of one infer request.

    Args:
        name: The sample's name, for errors.
        tensors: By input name.
        binary_outputs: Ask for all outputs in binary too.

    Raises:
        InputError: A tensor of a type the protocol cannot carry in binary.
    """
    inputs, parts = [], []
    for key, tensor in tensors.items():
        datatype = DATATYPES.get(tensor.dtype.name)
        if datatype is None:
            raise InputError(f"input '{name}': tensor '{key}' is {tensor.dtype}; send one of {', '.join(DATATYPES)}.")
        raw = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
        parameters = {"binary_data_size": len(raw)}
        inputs.append({"name": key, "shape": list(tensor.shape), "datatype": datatype, "parameters": parameters})
        parts.append(raw)
    wanted = {"parameters": {"binary_data_output": True}} if binary_outputs else {}
    head = msgspec.json.encode({"inputs": inputs, **wanted})
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return head + b"".join(parts), headers
