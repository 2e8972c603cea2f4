"""Between the messages of the gRPC form of the protocol and tensors; the HTTP form's limits and words apply."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadslice.serve import oip
from loadslice.serve.datatypes import BYTES, NUMPY, little_endian, name_of
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.serve.turns import Work, at_once
from loadslice.spec.work import Tensor

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", BYTES: "bytes_contents",
}  # fmt: skip
"""Datatype -> field of its values; FP16 has none and travels raw."""


ELEMENTS_PER_TURN = 1 << 14
"""Values of typed contents taken in one turn of the loop, which takes half a millisecond to one."""


def decode(message: Any, limits: Limits) -> oip.InferRequest:
    """Tensors and wishes of one message in one go; see `decoding`."""
    return at_once(decoding(message, limits))


def decoding(message: Any, limits: Limits) -> Work[oip.InferRequest]:
    """Tensors and wishes of one `ModelInferRequest`; of one of ordinary size before anybody else has a turn.

    Raises:
        RefusalError: 400, naming the place.
    """
    inputs = message.inputs
    raw = message.raw_input_contents
    if not 1 <= len(inputs) <= limits.inputs_max:
        raise RefusalError(400, f"inputs: {len(inputs)} tensors, it must be 1 to {limits.inputs_max}")
    if raw and len(raw) != len(inputs):
        raise RefusalError(400, f"raw_input_contents: {len(raw)} for {len(inputs)} inputs; give one for each or none")
    tensors: dict[str, Tensor] = {}
    content_types: dict[str, str] = {}
    for index, given in enumerate(inputs):
        name = given.name
        place = f"inputs[{index}] '{name[:64]}'"
        if len(name) > limits.text_max:
            raise RefusalError(400, f"{place}: the name is longer than {limits.text_max} characters")
        if name in tensors:
            raise RefusalError(400, f"{place}: the name is given twice")
        shape = list(given.shape)
        count = _element_count(given.datatype, shape, place, limits)
        if raw:
            if given.HasField("contents"):
                raise RefusalError(400, f"{place}: give contents or raw_input_contents, not both")
            if given.datatype == BYTES:
                values = yield from oip.strings(count, raw[index], place)
            else:
                values = _from_raw(given.datatype, count, raw[index], place)
        else:
            values = yield from _from_contents(given.datatype, count, given.contents, place, limits)
        tensors[name] = values.reshape(shape)
        if given.parameters and given.parameters["content_type"].string_param:
            content_types[name] = given.parameters["content_type"].string_param
    return oip.InferRequest(message.id or None, tensors, _wanted(message, limits), content_types)


def _element_count(datatype: str, shape: list[int], place: str, limits: Limits) -> int:
    if datatype not in NUMPY:
        raise RefusalError(400, f"{place}: datatype '{datatype[:32]}' is not one of {', '.join(NUMPY)}")
    if not 1 <= len(shape) <= limits.rank_max:
        raise RefusalError(400, f"{place}: the shape has {len(shape)} dimensions, it must be 1 to {limits.rank_max}")
    if min(shape) < 0:
        raise RefusalError(400, f"{place}: the shape has a negative dimension")
    if math.prod(side or 1 for side in shape) > oip.ELEMENTS_MAX:
        raise RefusalError(400, f"{place}: the shape is larger than any message")
    count = math.prod(shape)
    if datatype == BYTES and count > limits.text_elements_max:
        raise RefusalError(400, f"{place}: more than {limits.text_elements_max} BYTES elements")
    return count


def _from_raw(datatype: str, count: int, raw: bytes, place: str) -> Tensor:
    dtype = NUMPY[datatype]
    if count * dtype.itemsize != len(raw):
        raise RefusalError(400, f"{place}: the shape asks for {count * dtype.itemsize} bytes, {len(raw)} are given")
    if dtype.kind == "b" and count and max(raw) > 1:
        raise RefusalError(400, f"{place}: a BOOL must be 0 or 1")
    array = np.frombuffer(raw, dtype, count)
    return array if array.flags.aligned else array.copy()


def _from_contents(datatype: str, count: int, contents: Any, place: str, limits: Limits) -> Work[Tensor]:
    if datatype not in _CONTENTS:
        raise RefusalError(400, f"{place}: {datatype} has no typed contents; use raw_input_contents")
    field = _CONTENTS[datatype]
    given = getattr(contents, field)
    if len(given) != count:
        raise RefusalError(400, f"{place}: the shape asks for {count} elements, {field} has {len(given)}")
    if count > limits.json_elements_max:
        raise RefusalError(400, f"{place}: more than {limits.json_elements_max} elements; use raw_input_contents")
    dtype = NUMPY[datatype]
    values = np.empty(count, dtype)
    for at in range(0, count, ELEMENTS_PER_TURN):
        if at:
            yield
        part = given[at : at + ELEMENTS_PER_TURN]
        if (
            dtype.kind in "iu"
            and dtype.itemsize < 4
            and (min(part) < np.iinfo(dtype).min or max(part) > np.iinfo(dtype).max)
        ):
            raise RefusalError(400, f"{place}: a value does not fit {datatype}")
        values[at : at + ELEMENTS_PER_TURN] = part
    return values


def _wanted(message: Any, limits: Limits) -> oip.Wanted:
    if not message.outputs:
        return oip.Wanted(binary=True)
    if len(message.outputs) > limits.inputs_max:
        raise RefusalError(400, f"outputs: {len(message.outputs)} are more than {limits.inputs_max}")
    names: dict[str, bool] = {}
    for index, output in enumerate(message.outputs):
        if output.name in names:
            raise RefusalError(400, f"outputs[{index}] '{output.name[:64]}': the name is given twice")
        names[output.name] = True
    return oip.Wanted(names, binary=True)


def fill(response: Any, tensors: Mapping[str, Tensor], wanted: oip.Wanted) -> None:
    """Put outputs into a `ModelInferResponse`, values raw.

    Raises:
        RefusalError: 400 for an output that does not exist, 500 for one that has no form on the wire.
    """
    for name in tensors if wanted.names is None else wanted.names:
        tensor = tensors.get(name)
        if tensor is None:
            raise RefusalError(400, f"outputs: '{name[:64]}' is not an output here ({', '.join(tensors)})")
        datatype = name_of(tensor.dtype)
        if datatype is None:
            raise RefusalError(500, f"output '{name}' is of a type that the protocol does not have")
        response.outputs.add(name=name, datatype=datatype, shape=tensor.shape)
        response.raw_output_contents.append(_packed(tensor) if datatype == BYTES else little_endian(tensor).tobytes())


def _packed(tensor: Tensor) -> bytes:
    packed = bytearray()
    for value in np.asarray(tensor).ravel().tolist():
        raw = value if isinstance(value, bytes) else str(value).encode()
        packed += len(raw).to_bytes(4, "little") + raw
    return bytes(packed)
