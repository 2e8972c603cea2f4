"""Writing an inference reply of the Open Inference Protocol v2, as JSON or with binary tensors behind it."""

import struct
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadslice.serve import json_numbers
from loadslice.serve.datatypes import BYTES, NUMPY, little_endian, name_of
from loadslice.serve.oip import Wanted
from loadslice.serve.refusals import RefusalError
from loadslice.serve.turns import Work
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

SMALL_BYTES = 1 << 14
"""A tensor up to this size is copied into its reply; a larger one is sent from where it is."""

JSON_ELEMENTS_MAX = 4_000_000
"""As of inputs (`Limits.json_elements_max`): a third of a second of the loop's time, if piece by piece."""

Written = Mapping[str, list[bytes]]
"""Pieces of JSON by name of the output."""
_LATER = msgspec.Raw(b"?")
_DATA, _DATA_LATER = b'"data":', b'"data":?'
"""Inside of a string the quotation marks of these would have backslashes before them."""
NOTHING: Written = MappingProxyType({})

TEMPLATES_MAX = 512
"""JSON parts remembered; when there are more, all are forgotten."""


class Outputs:
    """Writes outputs of one pipeline.

    The JSON part before binary tensors says names, types and shapes only. It is kept by those.

    Args:
        model: Name of the pipeline.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._templates: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}

    def encode(
        self,
        request_id: str | None,
        tensors: Mapping[str, Tensor],
        wanted: Wanted,
        written: Written = NOTHING,
    ) -> tuple[bytes, list[bytes | memoryview], int]:
        """Encode the outputs of one request.

        Args:
            request_id: As the client gave it.
            tensors: Outputs of the last stage.
            wanted: Which of them, and in which form.
            written: Those whose JSON is there already, which is left out; see `with_pieces`.

        Returns:
            The JSON part; binary tensors behind it, large ones as views; their bytes together.

        Raises:
            RefusalError: 400 for an output that does not exist, 500 for one that has no form on the wire.
        """
        if wanted.names is not None or not wanted.binary:
            return self._encode(request_id, tensors, wanted, written)
        key: tuple[Any, ...] = tuple([(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()])
        template = self._templates.get(key)
        if template is None:
            head, parts, size = self._encode(None, tensors, wanted)
            if all(tensor.dtype.kind in "biuf" and tensor.dtype.isnative for tensor in tensors.values()):
                if len(self._templates) >= TEMPLATES_MAX:
                    self._templates.clear()
                start, mark, rest = head.partition(b',"outputs":')
                self._templates[key] = start, mark + rest
            if request_id is None:
                return head, parts, size
            return self._encode(request_id, tensors, wanted)
        parts = []
        size = 0
        for tensor in tensors.values():
            size += tensor.nbytes
            if tensor.nbytes <= SMALL_BYTES:
                parts.append(tensor.tobytes())
            else:
                parts.append(little_endian(tensor).reshape(-1).view(np.uint8).data)
        start, rest = template
        if request_id is None:
            return start + rest, parts, size
        return b'%b,"id":%b%b' % (start, _encoder.encode(request_id), rest), parts, size

    def _encode(
        self,
        request_id: str | None,
        tensors: Mapping[str, Tensor],
        wanted: Wanted,
        written: Written = NOTHING,
    ) -> tuple[bytes, list[bytes | memoryview], int]:
        names = list(tensors) if wanted.names is None else list(wanted.names)
        outputs: list[dict[str, Any]] = []
        parts: list[bytes | memoryview] = []
        for name in names:
            if name not in tensors:
                known = ", ".join(tensors)
                raise RefusalError(400, f"outputs: '{name[:64]}' is not an output of '{self._model}' ({known})")
            tensor = tensors[name]
            datatype = name_of(tensor.dtype)
            if datatype is None:
                raise RefusalError(500, f"output '{name}' is of a type that the protocol does not have")
            output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": tensor.shape}
            if wanted.is_binary(name):
                part = (
                    _packed_strings(tensor)
                    if datatype == BYTES
                    else little_endian(tensor).reshape(-1).view(np.uint8).data
                )
                output["parameters"] = {"binary_data_size": len(part)}
                parts.append(part)
            else:
                output["data"] = _LATER if name in written else _json_data(name, tensor)
            outputs.append(output)
        document: dict[str, Any] = {"model_name": self._model, "model_version": VERSION}
        if request_id is not None:
            document["id"] = request_id
        document["outputs"] = outputs
        return _encoder.encode(document), parts, sum(len(part) for part in parts)


def is_long(tensors: Mapping[str, Tensor], wanted: Wanted) -> bool:
    """Whether outputs are wanted as JSON that takes so long to write that others should have their turns meanwhile."""
    if wanted.binary and wanted.names is None:
        return False
    return bool(_long(tensors, wanted))


def _long(tensors: Mapping[str, Tensor], wanted: Wanted) -> list[str]:
    """Names of outputs that are wanted as JSON and are long, in their order; not those that are too long."""
    return [
        name
        for name in (tensors if wanted.names is None else wanted.names)
        if (tensor := tensors.get(name)) is not None
        and json_numbers.PIECE_ELEMENTS < tensor.size <= JSON_ELEMENTS_MAX
        and name_of(tensor.dtype) is not None
        and not wanted.is_binary(name)
    ]


def long_json(tensors: Mapping[str, Tensor], wanted: Wanted) -> Work[Written]:
    """Write those outputs by which a reply `is_long`."""
    written = {}
    for name in _long(tensors, wanted):
        written[name] = yield from json_numbers.write(tensors[name], partial(_json_values, name))
    return written


def with_pieces(head: bytes, written: Written) -> list[bytes]:
    """The JSON part of a reply as pieces, with the data that was left out of it."""
    before, *rest = head.split(_DATA_LATER)
    parts = [before]
    for pieces, after in zip(written.values(), rest, strict=True):
        parts += [_DATA, *pieces, after]
    return parts


def encode(model: str, request_id: str | None, tensors: Mapping[str, Tensor], wanted: Wanted) -> Reply:
    """Encode the outputs of one request as one body; see `Outputs.encode`."""
    head, parts, _ = Outputs(model).encode(request_id, tensors, wanted)
    return Reply(b"".join((head, *parts)), len(head)) if parts else Reply(head, None)


_NUMBERS = frozenset(dtype for dtype in NUMPY.values() if dtype.kind != "O")
"""Types that go out as they are."""


def check_outputs(tensors: Mapping[str, Tensor]) -> None:
    """Refuse outputs that have no form on the wire, while the request can still be said to have failed.

    Raises:
        StageError: A type the protocol does not have, or text that no encoding takes; names the output.
    """
    for name, tensor in tensors.items():
        if tensor.dtype in _NUMBERS:
            continue
        datatype = name_of(tensor.dtype)
        if datatype is None:
            raise StageError(f"output '{name}' is of type {tensor.dtype}, which the protocol does not have.")
        if datatype == BYTES:
            try:
                _packed_strings(tensor)
            except UnicodeEncodeError as error:
                raise StageError(f"output '{name}' is text that UTF-8 does not hold.") from error


def _json_data(name: str, tensor: Tensor) -> list[Any]:
    """Flat values. NaN and infinity have no JSON form and become null."""
    if tensor.size > JSON_ELEMENTS_MAX:
        raise RefusalError(
            400,
            f"output '{name}' has {tensor.size} elements, {JSON_ELEMENTS_MAX} is the most given as JSON; ask for it "
            "with binary_data",
        )
    return _json_values(name, tensor.ravel())


def _json_values(name: str, flat: Tensor) -> list[Any]:
    values: list[Any] = flat.tolist()
    if flat.dtype in _NUMBERS:
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
