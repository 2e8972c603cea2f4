"""What flows between the stages of a pipeline, and the errors a stage may raise.

Rules: row tensors go to engines, context never does; dimension 0 of every row tensor counts rows; zero rows are work
like any other (an image without text), only that no engine runs for them.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Tensor = npt.NDArray[Any]
"""A NumPy array of any type; dimension 0 counts rows."""


@dataclass(frozen=True, slots=True)
class RawInput:
    """A request body that is not tensors: the context the first stage finds."""

    content_type: str
    """As the client stated it, for instance ``image/png``."""
    body: bytes


@dataclass(slots=True)
class Work:
    """One request between two stages."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    """What the next model stage reads, by input name; every tensor has the same dimension 0."""
    context: Any = None
    """Kept beside and handed on unchanged by model stages; a Python stage may read and replace it."""

    @property
    def items(self) -> int:
        """Rows of work; a request that has no tensors yet is one row."""
        for tensor in self.tensors.values():
            return int(tensor.shape[0])
        return 1

    def check(self) -> None:
        """Refuse tensors that are not rows.

        Raises:
            ValueError: Not a dict of arrays, no row dimension, or row counts that differ; names the tensor.
        """
        if not isinstance(self.tensors, dict):
            raise ValueError(f"tensors must be a dict of arrays by name, not {type(self.tensors).__name__}.")
        for name, tensor in self.tensors.items():
            if not isinstance(name, str):
                raise ValueError(f"tensor {name!r:.64} must be named by a text.")
            if not isinstance(tensor, np.ndarray) or tensor.ndim == 0:
                raise ValueError(f"tensor '{name}' must be an array whose dimension 0 counts rows.")
            if tensor.shape[0] != self.items:
                first = next(iter(self.tensors))
                raise ValueError(f"tensor '{name}' has {tensor.shape[0]} rows where '{first}' has {self.items}.")


@dataclass(frozen=True, slots=True)
class Sample:
    """One example input, as the function a pipeline names under ``inputs:`` gives it."""

    name: str
    content_type: str
    body: bytes
    truth: list[str] | None = None
    """What the right answer says, in reading order; ``None``: not known."""
    tensors: dict[str, Tensor] | None = None
    """For a pipeline whose first stage is a model; the body is then not used."""

    def work(self) -> Work:
        """The input as the first stage finds it."""
        if self.tensors is not None:
            return Work(dict(self.tensors))
        return Work(context=RawInput(self.content_type, self.body))


class StageError(Exception):
    """A stage could not do its work on one request. The request fails, the engine stays healthy."""

    client_fault: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class StageInputError(StageError):
    """What the client sent cannot be used: not an image, a tensor of the wrong type.

    Args:
        message: One line for the client.
        unsupported_type: The content type itself is refused (HTTP 415) and not only this content (400).
    """

    client_fault: ClassVar[bool] = True

    def __init__(self, message: str, *, unsupported_type: bool = False) -> None:
        super().__init__(message)
        self.unsupported_type = unsupported_type
