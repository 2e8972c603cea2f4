"""What an answer holds, and how far two answers to one input lie apart.

Numbers are compared by value: relative error (root mean square of the difference over that of the reference), the
slope of one against the other, which stays at 1 under rounding and moves under a wrong scale, the mean difference,
which a shift moves, and the share of outliers. Text is compared as it is.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from loadslice.evaluate.infer import DATATYPES
from loadslice.evaluate.wire import Heard, Letter
from loadslice.spec.evaluation_report import Alike
from loadslice.spec.files import NOT_JSON

Values = npt.NDArray[np.float64] | list[str]

ROUNDING = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 3e-2, "int8": 3e-2, "int4": 6e-2}
"""Relative error up to which two runs of one scheme may differ by the order of rounding alone. A sum of a thousand
products in fp32 differs by some 1e-6, in bf16 (8 bits) by some 1e-2; one quantum of int8 over a range is 4e-3."""
_NUMPY = {datatype: name for name, datatype in DATATYPES.items()}

SLOPE_MAX = 0.005
"""A wrong scale moves the slope; rounding leaves it at 1."""
OUTLIER_RATIO = 8.0
"""A difference this many times the typical one is an outlier."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One input's outputs, candidate against reference."""

    identical: bool
    same_shape: bool
    relative_error: float | None
    """Largest over the numeric outputs."""
    slope: float | None
    """Of the output with the largest error."""
    shift: float | None
    """Mean difference over the reference's root mean square, same output."""
    outlier_share: float | None
    not_finite: int
    """NaN and infinity in the candidate where the reference has numbers."""
    text_differs: bool


def outputs_of(heard: Heard) -> dict[str, Values] | None:
    """Outputs of what a server answered."""
    return outputs(heard.body, heard.head_bytes)


def outputs(body: bytes, head_bytes: int | None = None) -> dict[str, Values] | None:
    """Outputs of an answer by name: numbers as one flat array, text as a list; ``None``: it is no such answer.

    An Open Inference Protocol answer's null stands for NaN or infinity, which JSON does not have.

    Args:
        body: All of it.
        head_bytes: Of JSON before binary tensors; ``None``: all of it is JSON.
    """
    try:
        document: Any = msgspec.json.decode(body if head_bytes is None else body[:head_bytes])
    except NOT_JSON:
        return None
    if not isinstance(document, dict):
        return None
    if not isinstance(document.get("outputs"), list):
        return _plain(document)
    found: dict[str, Values] = {}
    place = head_bytes or 0
    for output in document["outputs"]:
        if not isinstance(output, dict):
            continue
        size = (output.get("parameters") or {}).get("binary_data_size")
        if isinstance(output.get("data"), list):
            found[str(output.get("name"))] = _values(output["data"])
        elif isinstance(size, int):
            found[str(output.get("name"))] = _binary(body[place : place + size], str(output.get("datatype")))
            place += size
    return found


def _binary(raw: bytes, datatype: str) -> Values:
    """A tensor of the binary extension; of a type that has no numbers, its bytes as text."""
    if datatype not in _NUMPY or len(raw) % np.dtype(_NUMPY[datatype]).itemsize:
        return [raw.hex()]
    return np.frombuffer(raw, _NUMPY[datatype]).astype(np.float64)


def _plain(document: dict[str, Any]) -> dict[str, Values]:
    """Any other JSON object: each of its lists and scalars is an output; ids and times of a chat answer are not."""
    passed = {"id", "created", "model", "object", "usage", "model_name", "model_version"}
    return {
        name: _values(value if isinstance(value, list) else [value])
        for name, value in document.items()
        if name not in passed and not isinstance(value, dict)
    }


def _values(data: list[Any]) -> Values:
    if any(isinstance(value, str | list | dict) for value in data):
        return [value if isinstance(value, str) else msgspec.json.encode(value).decode() for value in data]
    return np.array([np.nan if value is None else float(value) for value in data], np.float64)


def compare(reference: Mapping[str, Values], candidate: Mapping[str, Values]) -> Difference:
    """How far one answer lies from the reference's."""
    same_shape = reference.keys() == candidate.keys()
    identical, text_differs, not_finite = same_shape, False, 0
    worst: tuple[float, float | None, float, float] | None = None
    for name, right in reference.items():
        other = candidate.get(name)
        if isinstance(right, list) or isinstance(other, list) or other is None:
            differs = right is not other and (not isinstance(right, list) or right != other)
            text_differs, identical = text_differs or differs, identical and not differs
            continue
        if len(other) != len(right):
            same_shape = identical = False
            continue
        identical = identical and bool(np.array_equal(right, other, equal_nan=True))
        finite = np.isfinite(right)
        not_finite += int((finite & ~np.isfinite(other)).sum())
        measured = _measured(right[finite], other[finite])
        if measured is not None and (worst is None or measured[0] > worst[0]):
            worst = measured
    return Difference(
        identical=identical,
        same_shape=same_shape,
        relative_error=worst[0] if worst else None,
        slope=worst[1] if worst else None,
        shift=worst[2] if worst else None,
        outlier_share=worst[3] if worst else None,
        not_finite=not_finite,
        text_differs=text_differs,
    )


def _measured(
    right: npt.NDArray[np.float64], other: npt.NDArray[np.float64]
) -> tuple[float, float | None, float, float] | None:
    """Relative error, slope (needs eight values that differ), shift, share of outliers."""
    known = np.isfinite(other)
    right, other = right[known], other[known]
    if right.size == 0:
        return None
    size = float(np.sqrt((right**2).mean()))
    apart = other - right
    if size == 0:
        return (0.0 if not apart.any() else float("inf")), None, 0.0, 0.0
    error = float(np.sqrt((apart**2).mean())) / size
    centred = right - right.mean()
    power = float((centred**2).sum())
    slope = float((centred * (other - other.mean())).sum() / power) if right.size >= 8 and power > 0 else None
    typical = float(np.median(np.abs(apart)))
    outliers = float((np.abs(apart) > OUTLIER_RATIO * max(typical, 1e-3 * size)).mean())
    return error, slope, float(apart.mean()) / size, outliers


def alike(differences: Sequence[Difference], scheme: str | None) -> Alike:
    """Identical, slightly different (the order of rounding can explain it) or clearly different."""
    if all(one.identical for one in differences):
        return "identical"
    limit = ROUNDING.get(scheme or "fp32", ROUNDING["fp32"])
    slopes = [one.slope for one in differences if one.slope is not None]
    clearly = any(not one.same_shape or one.not_finite for one in differences)
    clearly |= any(one.relative_error is not None and one.relative_error > limit for one in differences)
    # Rounding of a coarse scheme moves single slopes by chance; a wrong scale moves all of them the same way.
    clearly |= bool(slopes) and abs(float(np.median(slopes)) - 1) > SLOPE_MAX
    clearly |= sum(one.text_differs for one in differences) > max(1, 0.01 * len(differences))
    return "clearly" if clearly else "slightly"


def letters_digest(letters: Sequence[Letter]) -> str:
    """SHA-256 over all inputs in order: the fixed variable ``inputs``."""
    digest = hashlib.sha256()
    for letter in letters:
        digest.update(letter.input.encode() + b"\0" + len(letter.body).to_bytes(8, "little") + letter.body)
    return digest.hexdigest()
