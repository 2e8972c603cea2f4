"""From a decoded body to the work that the first stage takes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadslice.backends.base import check_feeds
from loadslice.backends.gather import bucket_shape
from loadslice.serve.datatypes import BYTES, name_of
from loadslice.serve.oip import InferRequest
from loadslice.serve.refusals import RefusalError
from loadslice.serve.stages import LoadedStage
from loadslice.spec.work import RawInput, StageInputError, Tensor, Work

RAW_TYPES = ("text/plain", "application/json", "application/octet-stream")
"""Content types of raw requests, beside ``image/*``."""

KIND_MAX = 256
"""No registered content type comes near this."""

OCTETS = "application/octet-stream"


class Admission:
    """Checks what a client sent against what the first stage takes, before the core hears of it."""

    def __init__(self, first: LoadedStage) -> None:
        self._first = first

    @property
    def takes_raw(self) -> bool:
        """Whether bytes that are not tensors make sense here."""
        return self._first.stable.inputs is None

    def metadata(self) -> list[dict[str, Any]]:
        """The pipeline's inputs, in the protocol's words; a Python stage takes bytes."""
        if self._first.stable.inputs is None:
            return [{"name": "body", "datatype": BYTES, "shape": [1]}]
        return [
            {
                "name": info.name,
                "datatype": name_of(info.dtype),
                "shape": [-1 if side is None else side for side in info.shape],
            }
            for info in self._first.stable.inputs
        ]

    def raw(self, content_type: str, body: bytes) -> tuple[Work, int]:
        """Work for a raw request, and its bucket.

        Raises:
            RefusalError: 415 for a type that is not taken here.
        """
        kind = content_type.partition(";")[0].strip().lower()
        if not kind.isascii() or len(kind) > KIND_MAX:
            raise RefusalError(415, "the content type is not one")
        if not kind.startswith("image/") and kind not in RAW_TYPES:
            raise RefusalError(415, f"content type '{kind[:64]}' is not image/* or one of {', '.join(RAW_TYPES)}")
        if not self.takes_raw:
            raise RefusalError(415, "this pipeline takes tensors; send them to /v2/models/NAME/infer")
        return Work(context=RawInput(kind, body)), 0

    def tensors(self, request: InferRequest) -> tuple[Work, int]:
        """Work for an inference request, and its bucket.

        Raises:
            RefusalError: 400, or 415, for tensors that the first stage cannot take.
        """
        work = Work(request.tensors)
        try:
            work.check()
            if self._first.stable.inputs is None:
                return self._for_python(request, work), 0
            work.tensors = self._for_model(self._first.stable.inputs[0].name, work.tensors)
            bucket = self._first.bucket_of(work)
            check_feeds(self._first.stable.inputs, self._as_fed(work.tensors, bucket))
        except StageInputError as error:
            raise RefusalError(415 if error.unsupported_type else 400, str(error)) from error
        except ValueError as error:
            raise RefusalError(400, str(error)) from error
        return work, bucket

    def _for_python(self, request: InferRequest, work: Work) -> Work:
        """One BYTES element is a raw body that came as a tensor."""
        if len(work.tensors) == 1:
            ((name, tensor),) = work.tensors.items()
            if tensor.dtype.kind == "O" and tensor.size == 1:
                element = tensor.reshape(-1)[0]
                body = element if isinstance(element, bytes) else str(element).encode()
                return Work(context=RawInput(request.content_types.get(name, OCTETS), body))
        return work

    def _for_model(self, first_name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Names as the model has them, where there is no doubt; text as text."""
        assert self._first.stable.inputs is not None
        if len(tensors) == len(self._first.stable.inputs) == 1:
            tensors = {first_name: next(iter(tensors.values()))}
        return {
            name: _as_text(name, tensor) if tensor.dtype.kind == "O" else tensor for name, tensor in tensors.items()
        }

    def _as_fed(self, tensors: Mapping[str, Tensor], bucket: int) -> dict[str, Tensor]:
        """Stand-ins of the shapes the runtime will see: the first input is padded to its bucket. Costs no memory."""
        assert self._first.stable.inputs is not None
        shape = bucket_shape(self._first.stage, bucket)
        name = self._first.stable.inputs[0].name
        if shape is None or name not in tensors or list(tensors[name].shape[1:]) == shape:
            return dict(tensors)
        given = tensors[name]
        padded = np.broadcast_to(np.empty((), given.dtype), (given.shape[0], *shape))
        return {**tensors, name: padded}


def _as_text(name: str, tensor: Tensor) -> Tensor:
    """Runtimes take text as ``str``; the binary extension brings it as bytes."""
    try:
        values = [value.decode() if isinstance(value, bytes) else value for value in tensor.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise StageInputError(f"input '{name}' is not UTF-8.") from error
    text = np.empty(tensor.size, np.object_)
    text[:] = values
    return text.reshape(tensor.shape)
