"""Reads a GGUF file: what it says about the model, and its tensors as groups of small integers with scales.

Only what decoders of this project need: types F32, F16, Q8_0, Q4_0 and Q4_1. Q4_1 keeps a minimum per group; it is
rounded to a whole number of its scale, which is what OpenVINO's converter makes of it, so that two runtimes compute
with the same weights. Source of the format: ggml's ``docs/gguf.md`` and ``ggml-common.h``.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.spec.errors import InputError

MAGIC = b"GGUF"
GROUP = 32
"""Values that share a scale."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_F32, _F16, _Q4_0, _Q4_1, _Q8_0 = 0, 1, 2, 3, 8
_GROUP_BYTES = {_Q4_0: 18, _Q4_1: 20, _Q8_0: 34}
_PLAIN: dict[int, np.dtype[Any]] = {_F32: np.dtype("<f4"), _F16: np.dtype("<f2")}
_ALIGNMENT = 32
_SIZES = {
    0: (1, 4),
    1: (1, 2),
    30: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}
"""Values and bytes of a group of each type that is common."""


class Grouped(NamedTuple):
    """A matrix of ``(whole - zero) * scale``, in groups along its rows."""

    bits: int
    """4 or 8."""
    whole: NDArray[np.uint8]
    """[rows, groups, GROUP]"""
    zero: NDArray[np.uint8]
    """[rows, groups]"""
    scale: NDArray[np.float32]
    """[rows, groups]"""

    def dense(self) -> NDArray[np.float32]:
        """The matrix itself, [rows, columns]."""
        steps = self.whole.astype(np.float32) - self.zero[..., None].astype(np.float32)
        dense: NDArray[np.float32] = (steps * self.scale[..., None]).reshape(self.whole.shape[0], -1)
        return dense

    def rows(self, order: NDArray[np.int64]) -> "Grouped":
        """The same with its rows in another order."""
        return Grouped(self.bits, self.whole[order], self.zero[order], self.scale[order])


class _Place(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    at: int


class GgufWeights:
    """One file, mapped.

    Args:
        path: Of the file.

    Raises:
        InputError: Not GGUF, truncated, or of a version that is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as a GGUF file, {str(error)[:80]}.") from error
        self._at = len(MAGIC)
        if self._bytes[: len(MAGIC)] != MAGIC:
            raise InputError(f"{path}: is not a GGUF file.")
        try:
            version, tensors, keys = self._numbers("IQQ")
            if version not in (2, 3):
                raise InputError(f"{path}: GGUF version {version} is not one of 2, 3.")
            self.says: dict[str, Any] = {}
            """What the file says about the model, by key; lists are left out."""
            for _ in range(keys):
                key = self._text()
                (kind,) = self._numbers("I")
                value = self._value(kind)
                if value is not None:
                    self.says[key] = value
            self._places = dict(self._place() for _ in range(tensors))
        except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
            raise InputError(f"{path}: its header is truncated or damaged.") from error
        aligned = int(self.says.get("general.alignment", _ALIGNMENT))
        self._data_at = -(-self._at // aligned) * aligned

    def check_whole(self) -> None:
        """Refuse a file that ends before its tensors do: converters read beyond it.

        Raises:
            InputError: It does.
        """
        for name, place in self._places.items():
            values, size = _SIZES.get(place.kind, (1, 0))
            self._raw(name, place, -(-math.prod(place.shape) // values) * size)

    @property
    def names(self) -> frozenset[str]:
        """Of all tensors."""
        return frozenset(self._places)

    def number(self, key: str) -> float:
        """A number that the file must say.

        Raises:
            InputError: It does not.
        """
        value = self.says.get(key)
        if not isinstance(value, int | float):
            raise InputError(f"{self.path}: does not say {key}.")
        return value

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor that is not in groups.

        Raises:
            InputError: There is none of that name, it is of another type, or the file ends before it does.
        """
        place = self._find(name)
        dtype = _PLAIN.get(place.kind)
        if dtype is None:
            raise InputError(f"{self.path}: tensor '{name}' is of type {place.kind}, not F32 or F16.")
        raw = self._raw(name, place, math.prod(place.shape) * dtype.itemsize)
        return raw.view(dtype).astype(np.float32).reshape(place.shape[::-1])

    def matrix(self, name: str) -> Grouped:
        """A tensor in groups.

        Raises:
            InputError: See `vector`; or its type is not one that is read here.
        """
        place = self._find(name)
        size = _GROUP_BYTES.get(place.kind)
        if size is None or len(place.shape) != 2 or place.shape[0] % GROUP:
            raise InputError(
                f"{self.path}: tensor '{name}' is of type {place.kind} and shape {place.shape}; Q4_0, Q4_1 and Q8_0 "
                f"matrices whose rows are whole groups of {GROUP} can be used."
            )
        rows, groups = place.shape[1], place.shape[0] // GROUP
        raw = self._raw(name, place, rows * groups * size).reshape(rows, groups, size)
        scale = raw[..., :2].copy().view("<f2")[..., 0].astype(np.float32)
        if place.kind == _Q8_0:
            whole = (raw[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
            return Grouped(8, whole, np.full((rows, groups), 128, np.uint8), scale)
        nibbles = raw[..., -GROUP // 2 :]
        whole = np.concatenate((nibbles & 15, nibbles >> 4), axis=-1)
        if place.kind == _Q4_0:
            return Grouped(4, whole, np.full((rows, groups), 8, np.uint8), scale)
        least = raw[..., 2:4].copy().view("<f2")[..., 0].astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where(scale != 0, np.floor(-least / scale + np.float32(0.5)), 0)
        return Grouped(4, whole, np.clip(zero, 0, 15).astype(np.uint8), scale)

    def _find(self, name: str) -> _Place:
        if name not in self._places:
            raise InputError(f"{self.path}: has no tensor '{name}'.")
        return self._places[name]

    def _raw(self, name: str, place: _Place, size: int) -> NDArray[np.uint8]:
        begin = self._data_at + place.at
        if size < 0 or begin + size > len(self._bytes):
            raise InputError(f"{self.path}: is truncated: it ends within tensor '{name}'.")
        return np.frombuffer(self._bytes, np.uint8, size, begin)

    def _numbers(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        found = struct.unpack_from(form, self._bytes, self._at)
        self._at += struct.calcsize(form)
        return found

    def _text(self) -> str:
        (length,) = self._numbers("Q")
        if self._at + length > len(self._bytes):
            raise struct.error("beyond the end")
        text = self._bytes[self._at : self._at + length].decode()
        self._at += length
        return text

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._numbers(_NUMBERS[kind])[0]
        of, count = self._numbers("IQ")
        if of == _TEXT:
            for _ in range(count):
                (length,) = self._numbers("Q")
                self._at += length
        elif of == _LIST:
            raise KeyError(of)
        else:
            self._at += count * struct.calcsize(_NUMBERS[of])
        return None

    def _place(self) -> tuple[str, _Place]:
        name = self._text()
        (sides,) = self._numbers("I")
        shape = self._numbers(f"{sides}Q")
        kind, at = self._numbers("IQ")
        return name, _Place(shape, kind, at)
