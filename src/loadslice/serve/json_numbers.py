"""Large tensors as JSON numbers, read and written piece by piece (`turns`).

A tensor's brackets and commas are all determined by its shape. Where those of a text are the expected ones, brackets
can be blanked and the text be cut at any comma: each piece is a flat list of numbers, whatever the tensor's rank.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from loadslice.serve.refusals import RefusalError
from loadslice.serve.turns import Work
from loadslice.spec.work import Tensor

PIECE_BYTES = 1 << 16
"""Text read in one turn of the loop: some 6,000 numbers, which take 0.4 ms; of digits alone four times that."""

PIECE_ELEMENTS = 1 << 13
"""Numbers written in one turn of the loop, which takes 0.5 ms."""

_STRUCTURE = b"[],"
_IS_STRUCTURE = np.isin(np.arange(256), list(_STRUCTURE))
_BLANKED = bytes.maketrans(b"[]", b"  ")
_NOTHING = _STRUCTURE + b" \t\r\n"

_DECODERS: dict[str, msgspec.json.Decoder[list[Any]]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
    "f": msgspec.json.Decoder(list[float]),
}
_encoder = msgspec.json.Encoder()


def read(raw: memoryview, shape: Sequence[int], dtype: np.dtype[Any]) -> Work[Tensor]:
    """Read a tensor.

    Args:
        raw: A JSON array, known to be well-formed.
        shape: As the text is nested.
        dtype: Of numbers or booleans.

    Returns:
        The tensor, flat; at most as many elements as the text has bytes.

    Raises:
        RefusalError: 400, a text of another shape.
        msgspec.DecodeError: Not numbers.
        OverflowError: A value does not fit; also FloatingPointError.
    """
    yield  # finding out where its text begins and ends has taken as long as some pieces do, as do these
    expected = _structure(shape, len(raw))
    flat = np.empty(math.prod(shape) if expected else 0, dtype)
    decode = _DECODERS[dtype.kind].decode
    yield
    text = bytes(raw)
    at = filled = seen = 0
    while at < len(text):
        yield
        comma = text.find(b",", at + PIECE_BYTES)
        end = len(text) if comma < 0 else comma
        piece, at = text[at:end], end + 1
        characters = np.frombuffer(text, np.uint8, len(piece) + (comma >= 0), at - len(piece) - 1)
        found = characters[_IS_STRUCTURE[characters]].tobytes()
        if found != expected[seen : seen + len(found)]:
            raise _other_shape(shape)
        seen += len(found)
        if flat.size == 0:
            if piece.translate(None, _NOTHING):
                raise _other_shape(shape)
            continue
        values = decode(b"[%b]" % piece.translate(_BLANKED))
        with np.errstate(over="raise"):
            flat[filled : filled + len(values)] = np.array(values, dtype)
        filled += len(values)
    if seen != len(expected):
        raise _other_shape(shape)
    return flat


def write(tensor: Tensor, values: Callable[[Tensor], list[Any]] = np.ndarray.tolist) -> Work[list[bytes]]:
    """Write a tensor as one flat list; NaN and infinity, which have no JSON form, as null.

    Args:
        tensor: Of numbers or booleans.
        values: What a part of it has in JSON; of other tensors, a text for each element.

    Returns:
        Its text in pieces: joining 80 MB would take as long as writing them.
    """
    flat = tensor.ravel()
    pieces = []
    for at in range(0, flat.size, PIECE_ELEMENTS):
        text = _encoder.encode(values(flat[at : at + PIECE_ELEMENTS]))[1:-1]
        pieces.append(b"%b%b" % (b"," if at else b"[", text))
        yield
    pieces.append(b"]" if pieces else b"[]")
    return pieces


def _structure(shape: Sequence[int], bytes_max: int) -> bytes:
    """Brackets and commas of a nested list; empty: there are more than so many."""
    size, text = 0, b""
    for side in reversed(shape):
        size = 2 + side * (size + 1) - (side > 0)
    if size > bytes_max:
        return b""
    for side in reversed(shape):
        text = b"[%b]" % ((text + b",") * side)[:-1]
    return text


def _other_shape(shape: Sequence[int]) -> RefusalError:
    sides = ", ".join(str(side) for side in shape)
    return RefusalError(400, f"the shape asks for [{sides}], the data is of another")
