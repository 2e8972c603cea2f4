"""Writing an inference reply of the Open Inference Protocol v2, as JSON or with binary tensors behind it."""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadslice.serve.datatypes import BYTES, little_endian, name_of
from loadslice.serve.oip import Wanted
from loadslice.serve.refusals import RefusalError
from loadslice.spec.work import StageError, Tensor

VERSION = "1"
"""Version every pipeline is served as until there are several."""


class Reply(NamedTuple):
    """A body and what must be said about it."""

    body: bytes
    header_length: int | None
    """Bytes of JSON before binary tensors; ``None``: all of it is JSON."""

    @property
    def content_type(self) -> str:
        """As the binary extension wants it."""
        return "application/json" if self.header_length is None else "application/octet-stream"


_encoder = msgspec.json.Encoder()


def encode(model: str, request_id: str | None, tensors: Mapping[str, Tensor], wanted: Wanted) -> Reply:
    """Encode the outputs of one request.

    Args:
        model: Name of the pipeline.
        request_id: As the client gave it.
        tensors: Outputs of the last stage.
        wanted: Which of them, and in which form.

    Raises:
        RefusalError: 400 for an output that does not exist, 500 for one that has no form on the wire.
    """
    names = list(tensors) if wanted.names is None else list(wanted.names)
    outputs: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name in names:
        if name not in tensors:
            raise RefusalError(400, f"outputs: '{name[:64]}' is not an output of '{model}' ({', '.join(tensors)})")
        tensor = tensors[name]
        datatype = name_of(tensor.dtype)
        if datatype is None:
            raise RefusalError(500, f"output '{name}' is of a type that the protocol does not have")
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": tensor.shape}
        if wanted.is_binary(name):
            part = (
                _packed_strings(tensor) if datatype == BYTES else little_endian(tensor).reshape(-1).view(np.uint8).data
            )
            output["parameters"] = {"binary_data_size": len(part)}
            parts.append(part)
        else:
            output["data"] = _json_data(name, tensor, datatype)
        outputs.append(output)
    document: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if request_id is not None:
        document["id"] = request_id
    document["outputs"] = outputs
    head = _encoder.encode(document)
    if not parts:
        return Reply(head, None)
    return Reply(b"".join((head, *parts)), len(head))


def check_outputs(tensors: Mapping[str, Tensor]) -> None:
    """Refuse outputs that have no form on the wire, while the request can still be said to have failed.

    Raises:
        StageError: A type the protocol does not have, or text that no encoding takes; names the output.
    """
    for name, tensor in tensors.items():
        datatype = name_of(tensor.dtype)
        if datatype is None:
            raise StageError(f"output '{name}' is of type {tensor.dtype}, which the protocol does not have.")
        if datatype == BYTES:
            try:
                _packed_strings(tensor)
            except UnicodeEncodeError as error:
                raise StageError(f"output '{name}' is text that UTF-8 does not hold.") from error


def _json_data(name: str, tensor: Tensor, datatype: str) -> list[Any]:
    """Flat values. NaN and infinity have no JSON form and become null."""
    values: list[Any] = tensor.ravel().tolist()
    if datatype != BYTES:
        return values
    try:
        return [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError as error:
        raise RefusalError(500, f"output '{name}' is not UTF-8; ask for it with binary_data") from error


def _packed_strings(tensor: Tensor) -> bytes:
    packed = bytearray()
    for value in np.asarray(tensor).ravel().tolist():
        raw = value if isinstance(value, bytes) else str(value).encode()
        packed += struct.pack("<I", len(raw)) + raw
    return bytes(packed)
