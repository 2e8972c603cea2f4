"""Reading an inference request of the Open Inference Protocol v2: JSON, and the binary tensor extension.

Everything here treats its input as hostile: sizes are compared in Python integers before anything is allocated, JSON
data is bounded before it is decoded, and whatever is wrong is a `RefusalError` of status 400 that names the place.
Binary tensors are views of the body, never copies (unless they stand unaligned).

References:
    https://github.com/kserve/open-inference-protocol; Triton Inference Server, "Binary Tensor Data Extension".
"""

import math
import re
import struct
import types
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np

from loadslice.serve import json_numbers
from loadslice.serve.datatypes import BYTES, NUMPY
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.serve.turns import Work, at_once
from loadslice.spec import validation
from loadslice.spec.work import Tensor


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Document(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[_Output] | None = None


ELEMENTS_MAX = 1 << 40
"""No tensor in any body has more."""

STRINGS_PER_TURN = 1 << 11
"""Elements of a BYTES tensor taken in one turn of the loop, which takes 0.6 ms."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which outputs a client wants, and in which form."""

    names: dict[str, bool] | None = None
    """Name -> whether as binary; ``None``: all of them."""
    binary: bool = False
    """Form of outputs that are not named."""

    def is_binary(self, name: str) -> bool:
        """Whether an output goes out as binary."""
        return self.binary if self.names is None else self.names[name]


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One decoded request."""

    id: str | None
    tensors: dict[str, Tensor]
    wanted: Wanted
    content_types: dict[str, str] = field(default_factory=dict)
    """Input name -> what its BYTES are, where the client said so (parameter ``content_type``)."""
    is_binary: bool = False
    """Whether every tensor came behind the JSON part."""


_document = msgspec.json.Decoder(_Document)
_NESTED = re.compile(rb"\s*\[\s*\[")
_ELEMENT: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": float, "O": str}


def decode(body: bytes | memoryview, header_length: str | None, limits: Limits) -> InferRequest:
    """Decode one request body in one go; see `decoding`."""
    return at_once(decoding(body, header_length, limits))


def decoding(body: bytes | memoryview, header_length: str | None, limits: Limits) -> Work[InferRequest]:
    """Decode one request body; one of ordinary size before anybody else has a turn.

    Args:
        body: As received.
        header_length: ``Inference-Header-Content-Length``, if sent: how much of the body is JSON.
        limits: Bounds on JSON elements, rank and inputs.

    Raises:
        RefusalError: Status 400.
    """
    json_bytes = len(body) if header_length is None else _header_length(header_length, len(body))
    if json_bytes > json_numbers.PIECE_BYTES:
        yield
    document = _decode_document(memoryview(body)[:json_bytes])
    if not 1 <= len(document.inputs) <= limits.inputs_max:
        raise RefusalError(400, f"inputs: {len(document.inputs)} tensors, it must be 1 to {limits.inputs_max}")
    tensors: dict[str, Tensor] = {}
    offset = json_bytes
    is_binary = True
    for index, tensor in enumerate(document.inputs):
        place = f"inputs[{index}] '{tensor.name[:64]}'"
        if len(tensor.name) > limits.text_max:
            raise RefusalError(400, f"{place}: the name is longer than {limits.text_max} characters")
        if tensor.name in tensors:
            raise RefusalError(400, f"{place}: the name is given twice")
        count = _element_count(tensor, place, limits)
        size = _binary_size(tensor, place)
        if size is None:
            is_binary = False
            tensors[tensor.name] = yield from _from_json(tensor, count, place, limits)
        else:
            if size > len(body) - offset:
                raise RefusalError(
                    400, f"{place}: binary_data_size {size} is more than the {len(body) - offset} bytes left"
                )
            if tensor.datatype == BYTES:
                texts = yield from strings(count, memoryview(body)[offset : offset + size], place)
                tensors[tensor.name] = texts.reshape(tensor.shape)
            else:
                tensors[tensor.name] = _from_binary(tensor, count, body, offset, size, place)
            offset += size
    if offset != len(body):
        raise RefusalError(400, f"{len(body) - offset} bytes follow the last binary tensor")
    content_types = {
        tensor.name: value
        for tensor in document.inputs
        if isinstance(value := tensor.parameters.get("content_type"), str)
    }
    return InferRequest(document.id, tensors, _wanted(document), content_types, is_binary)


def _header_length(text: str, body_bytes: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RefusalError(400, "Inference-Header-Content-Length must be a whole number")
    if int(text) > body_bytes:
        raise RefusalError(
            400, f"Inference-Header-Content-Length {int(text)} is more than the body's {body_bytes} bytes"
        )
    return int(text)


def _decode_document(raw: memoryview) -> _Document:
    try:
        return _document.decode(raw)
    except msgspec.ValidationError as error:
        raise RefusalError(400, validation.told(str(error), None, _Document)) from error
    except msgspec.DecodeError as error:
        raise RefusalError(400, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RefusalError(400, "the body is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise RefusalError(400, "the body is not UTF-8") from error


def _element_count(tensor: _Input, place: str, limits: Limits) -> int:
    if tensor.datatype not in NUMPY:
        raise RefusalError(400, f"{place}: datatype '{tensor.datatype[:32]}' is not one of {', '.join(NUMPY)}")
    if not 1 <= len(tensor.shape) <= limits.rank_max:
        raise RefusalError(
            400, f"{place}: the shape has {len(tensor.shape)} dimensions, it must be 1 to {limits.rank_max}"
        )
    if min(tensor.shape) < 0:
        raise RefusalError(400, f"{place}: the shape has a negative dimension")
    # A dimension of 0 would hide an absurd one beside it.
    if math.prod(side or 1 for side in tensor.shape) > ELEMENTS_MAX:
        raise RefusalError(400, f"{place}: the shape is larger than any body")
    count = math.prod(tensor.shape)
    if tensor.datatype == BYTES and count > limits.text_elements_max:
        raise RefusalError(400, f"{place}: more than {limits.text_elements_max} BYTES elements")
    return count


def _binary_size(tensor: _Input, place: str) -> int | None:
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise RefusalError(400, f"{place}: binary_data_size must be a whole number")
    if tensor.data is not msgspec.UNSET:
        raise RefusalError(400, f"{place}: give data or binary_data_size, not both")
    return size


def _from_json(tensor: _Input, count: int, place: str, limits: Limits) -> Work[Tensor]:
    if tensor.data is msgspec.UNSET:
        raise RefusalError(400, f"{place}: data is missing")
    if count > limits.json_elements_max:
        raise RefusalError(400, f"{place}: more than {limits.json_elements_max} elements as JSON; use binary tensors")
    raw = memoryview(tensor.data)
    # "[]" holds none; every further element costs at least two characters.
    if count > len(raw):
        raise RefusalError(400, f"{place}: the shape asks for {count} elements, the data holds fewer")
    dtype = NUMPY[tensor.datatype]
    depth = len(tensor.shape) if _NESTED.match(raw) else 1
    try:
        if len(raw) <= json_numbers.PIECE_BYTES or dtype.kind == "O":
            array = _from_short_json(raw, depth, dtype, count)
        else:
            shape = tensor.shape if depth > 1 else [count]
            array = (yield from json_numbers.read(raw, shape, dtype)).reshape(shape)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        wrong_kind = isinstance(error, msgspec.ValidationError)
        message = validation.told(str(error), None, list[Any]) if wrong_kind else "not valid JSON"
        raise RefusalError(400, f"{place}: data: {message}") from error
    except (OverflowError, FloatingPointError) as error:
        raise RefusalError(400, f"{place}: a value does not fit {tensor.datatype}") from error
    except ValueError as error:
        raise RefusalError(400, f"{place}: rows of the data differ in length") from error
    except RefusalError as refusal:
        raise RefusalError(refusal.status, f"{place}: {refusal.text}") from refusal
    if array.size != count or (depth > 1 and list(array.shape) != tensor.shape):
        raise RefusalError(400, f"{place}: the shape asks for {count} elements, the data has {array.size}")
    return array.reshape(tensor.shape)


def _from_short_json(raw: memoryview, depth: int, dtype: np.dtype[Any], count: int) -> Tensor:
    """In one go: numbers, where they are few, and text."""
    if dtype.kind == "O":
        # Each text has two quotation marks, and those inside of it have a backslash before them.
        text = bytes(raw)
        if text.count(b'"') - text.count(b'\\"') > 2 * count:
            raise RefusalError(400, f"the shape asks for {count} elements, the data has more")
    values = _element_decoder(dtype.kind, depth).decode(raw)
    if depth == 1 and len(values) != count:
        raise RefusalError(400, f"the shape asks for {count} elements, the data has {len(values)}")
    with np.errstate(over="raise"):
        return np.array(values, dtype)


@cache
def _element_decoder(kind: str, depth: int) -> msgspec.json.Decoder[Any]:
    """Decoder of lists nested ``depth`` deep; ``depth`` is bounded by the rank limit, so the cache is too."""
    nested: Any = _ELEMENT[kind]
    for _ in range(depth):
        nested = types.GenericAlias(list, (nested,))
    return msgspec.json.Decoder(nested)


def _from_binary(tensor: _Input, count: int, body: bytes | memoryview, offset: int, size: int, place: str) -> Tensor:
    dtype = NUMPY[tensor.datatype]
    if count * dtype.itemsize != size:
        raise RefusalError(
            400, f"{place}: the shape asks for {count * dtype.itemsize} bytes, binary_data_size is {size}"
        )
    if dtype.kind == "b":
        flags = np.frombuffer(body, np.uint8, count, offset)
        if count and int(flags.max()) > 1:
            raise RefusalError(400, f"{place}: a BOOL must be 0 or 1")
    array = np.frombuffer(body, dtype, count, offset).reshape(tensor.shape)
    # A JSON part of odd length leaves what follows unaligned, which runtimes may not read in place.
    return array if array.flags.aligned else array.copy()


def strings(count: int, raw: bytes | memoryview, place: str) -> Work[Tensor]:
    """Elements of a BYTES tensor, flat: each a length of 4 bytes, little-endian, and that many bytes.

    Raises:
        RefusalError: 400, there are fewer or more.
    """
    if count * 4 > len(raw):
        raise RefusalError(400, f"{place}: the shape asks for {count} elements, {len(raw)} bytes hold fewer")
    elements = np.empty(count, np.object_)
    offset = 0
    for index in range(count):
        if index % STRINGS_PER_TURN == STRINGS_PER_TURN - 1:
            yield
        if len(raw) - offset < 4:
            raise RefusalError(400, f"{place}: element {index} is cut off")
        (length,) = struct.unpack_from("<I", raw, offset)
        offset += 4
        if length > len(raw) - offset:
            raise RefusalError(400, f"{place}: element {index} says {length} bytes, {len(raw) - offset} are left")
        elements[index] = bytes(raw[offset : offset + length])
        offset += length
    if offset != len(raw):
        raise RefusalError(400, f"{place}: {len(raw) - offset} bytes follow the last element")
    return elements


def _wanted(document: _Document) -> Wanted:
    binary = document.parameters.get("binary_data_output") is True
    if not document.outputs:
        return Wanted(binary=binary)
    names: dict[str, bool] = {}
    for index, output in enumerate(document.outputs):
        if output.name in names:
            raise RefusalError(400, f"outputs[{index}] '{output.name[:64]}': the name is given twice")
        names[output.name] = bool(output.parameters.get("binary_data", binary))
    return Wanted(names, binary)
