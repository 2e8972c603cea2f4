"""What is the same from message to message, kept: requests of one shape, and all of a reply but its values.

A client that sends one raw tensor of one shape again and again sends the same bytes up to the values, which stand last.
Such a message is recognised by its length and by these bytes, which hold the length of the values too: what protobuf
would read from it is known. Everything else is decoded each time.
"""

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from loadslice.serve import grpc_tensors
from loadslice.serve.datatypes import NUMPY
from loadslice.serve.oip import InferRequest, Wanted
from loadslice.serve.service import Service
from loadslice.spec.work import Tensor, Work

PLANS_MAX = 256
"""Kept at once; when there are more, all are forgotten."""

PREFIX_BYTES_MAX = 1024

RAW_OUTPUT_TAG = b"\x32"
"""Field 6 of a `ModelInferResponse`, length-delimited."""
ID_TAG = b"\x1a"
"""Field 3."""

_KEPT = {dtype for dtype in NUMPY.values() if dtype.kind in "fiu"}
"""Types whose every bit pattern is a value, so that there is nothing to check."""


class Plan(NamedTuple):
    """What one kind of message means."""

    prefix: bytes
    name: str
    """As the first stage has it."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    bucket: int
    wanted: Wanted

    def tensor(self, message: bytes) -> Tensor:
        """The values of such a message; a view of it where they stand aligned."""
        values = np.frombuffer(message, self.dtype, -1, len(self.prefix)).reshape(self.shape)
        return values if values.flags.aligned else values.copy()


class Plans:
    """Plans of the service that answers now."""

    def __init__(self) -> None:
        self._service: weakref.ref[Service] | None = None
        """Weakly: with a service that was replaced would stay its whole generation."""
        self._known: dict[int, Plan] = {}

    def find(self, service: Service, message: bytes) -> Plan | None:
        """The plan for a message, if one of its kind has been seen."""
        plan = self._known.get(len(message))
        if plan is None or not self._is_of(service) or not message.startswith(plan.prefix):
            return None
        return plan

    def _is_of(self, service: Service) -> bool:
        return self._service is not None and self._service() is service

    def keep(
        self, service: Service, message: bytes, asked: Any, decoded: InferRequest, admitted: Work, bucket: int
    ) -> None:
        """Keep what was found out about a message, where the next one of its kind means the same.

        Args:
            service: Who admitted it.
            message: As received.
            asked: Decoded by protobuf.
            decoded: Its tensors.
            admitted: The same, as the first stage names them.
            bucket: Shape bucket there.
        """
        if asked.id or len(asked.raw_input_contents) != 1 or len(admitted.tensors) != 1:
            return
        ((name, tensor),) = admitted.tensors.items()
        raw = asked.raw_input_contents[0]
        prefix = message[: len(message) - len(raw)]
        if tensor.dtype not in _KEPT or not raw or len(prefix) > PREFIX_BYTES_MAX or not message.endswith(raw):
            return
        if not prefix.endswith(b"\x3a" + varint(len(raw))):  # field 7, and nothing after it
            return
        if not self._is_of(service) or len(self._known) >= PLANS_MAX:
            self._known.clear()
            self._service = weakref.ref(service)
        self._known[len(message)] = Plan(prefix, name, tensor.dtype, tensor.shape, bucket, decoded.wanted)


class Outputs:
    """Writes `ModelInferResponse` messages of one pipeline.

    Fields of a message may stand in any order, so the part that is the same for all replies of one form stands first.
    """

    def __init__(self, response: Any, name: str, version: str) -> None:
        self._response = response
        self._name = name
        self._version = version
        self._heads: dict[Any, bytes] = {}

    def encode(self, identity: str, tensors: Mapping[str, Tensor], wanted: Wanted) -> bytes:
        """One reply.

        Raises:
            RefusalError: 400 for an output that does not exist, 500 for one that has no form on the wire.
        """
        key = None if wanted.names is not None else tuple([(n, t.shape, t.dtype) for n, t in tensors.items()])
        head = self._heads.get(key)
        if head is None or key is None:
            response = self._response(model_name=self._name, model_version=self._version, id=identity)
            grpc_tensors.fill(response, tensors, wanted)
            if key is not None and all(t.dtype.isnative and t.dtype.kind in "biuf" for t in tensors.values()):
                if len(self._heads) >= PLANS_MAX:
                    self._heads.clear()
                same = self._response(model_name=self._name, model_version=self._version, outputs=response.outputs)
                self._heads[key] = same.SerializeToString()
            return bytes(response.SerializeToString())
        parts = [head]
        if identity:
            text = identity.encode()
            parts += (ID_TAG, varint(len(text)), text)
        for tensor in tensors.values():
            parts += (RAW_OUTPUT_TAG, varint(tensor.nbytes), tensor.tobytes())
        return b"".join(parts)


def varint(number: int) -> bytes:
    """Base 128, least significant group first."""
    if number < 128:
        return bytes((number,))
    groups = bytearray()
    while number >= 128:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
