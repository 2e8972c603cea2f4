"""Inference requests whose JSON part has been seen before: what it said is known, only the tensors are new.

The JSON before binary tensors says names, types, shapes and which outputs are wanted, and a client that sends the same
kind of request again sends the same bytes. What decoding and admission made of them is kept by those bytes. Kept are
only parts without an id, with numbers alone: everything else is decoded each time.
"""

from typing import NamedTuple

import numpy as np

from loadslice.serve.datatypes import NUMPY
from loadslice.serve.oip import InferRequest, Wanted
from loadslice.spec.work import Tensor

PLANS_MAX = 512
"""JSON parts remembered; when there are more, all are forgotten."""

JSON_BYTES_MAX = 2048
"""A longer one is decoded each time."""

_KEPT = {name: dtype for name, dtype in NUMPY.items() if dtype.kind in "fiu"}
"""Types whose every bit pattern is a value, so that there is nothing to check."""


class Plan(NamedTuple):
    """What one JSON part means."""

    wanted: Wanted
    bucket: int
    items: int
    tensors: list[tuple[str, np.dtype[np.generic], tuple[int, ...], int]]
    """Name as the first stage has it, type, shape, place behind the JSON part."""
    binary_bytes: int


class Plans:
    """Plans of one pipeline."""

    def __init__(self) -> None:
        self._known: dict[bytes, Plan] = {}

    def find(self, json_part: bytes) -> Plan | None:
        """The plan for a JSON part, if it has been seen."""
        return self._known.get(json_part)

    def keep(self, json_part: bytes, decoded: InferRequest, admitted: dict[str, Tensor], bucket: int) -> None:
        """Keep what was found out about a request, where the next one of the same words means the same.

        Args:
            json_part: What stood before its binary tensors.
            decoded: All its tensors are binary.
            admitted: The same tensors, in the same order, as the first stage names them.
            bucket: Shape bucket at the first stage.
        """
        if decoded.id is not None or len(json_part) > JSON_BYTES_MAX or len(admitted) != len(decoded.tensors):
            return
        tensors = []
        offset = 0
        for name, tensor in admitted.items():
            dtype = tensor.dtype
            if dtype not in _KEPT.values():
                return
            tensors.append((name, dtype, tensor.shape, offset))
            offset += tensor.nbytes
        if len(self._known) >= PLANS_MAX:
            self._known.clear()
        items = next(iter(admitted.values())).shape[0]
        self._known[json_part] = Plan(decoded.wanted, bucket, items, tensors, offset)


def tensors_of(plan: Plan, body: bytes | memoryview, json_bytes: int) -> dict[str, Tensor]:
    """The tensors of a request that a plan is known for; views of the body wherever they stand aligned."""
    found: dict[str, Tensor] = {}
    for name, dtype, shape, offset in plan.tensors:
        tensor = np.ndarray(shape, dtype, body, json_bytes + offset)
        # A JSON part of odd length leaves what follows unaligned, which runtimes may not read in place.
        found[name] = tensor if tensor.flags.aligned else tensor.copy()
    return found
