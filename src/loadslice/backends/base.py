"""What every runtime must do for us. A backend loads models; a session runs one model on one engine.

What holds for every session (`backends/checks.py` proves it): feeds are never changed; equal feeds give equal outputs;
``max_inflight`` callers may run at once, each with a slot of its own, and get what a lone caller gets; outputs belong
to the caller and no later run writes over them; a feed with a wrong name, type or shape is refused by name.
"""

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.pipeline import SPLIT, Engine
from loadslice.spec.twin import TWIN
from loadslice.spec.work import StageInputError, Tensor

PYTHON = "python"
"""The backend of engines that run Python stages; it loads no model."""

_MODULES = {
    "onnxruntime": "loadslice.backends.onnxruntime",
    "openvino": "loadslice.backends.openvino",
    TWIN: "loadslice.backends.twin",
    SPLIT: "loadslice.backends.split",
    "remote-oip": "loadslice.backends.remote_oip",
    "remote-openai": "loadslice.backends.remote_openai",
}

REMOTE = ("remote-oip", "remote-openai")
"""Backends whose work is done by another server; the model is a name there and no file here."""

BACKENDS = (*_MODULES, PYTHON)
"""What ``engines.NAME.backend`` may say."""


class EngineError(Exception):
    """A runtime failed while it ran a batch: the engine's fault, not the request's."""


class NotPreparedError(EngineError):
    """A batch that was made ready cannot be run so, and none of its model is made ready any more: `Session.run` it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output of a model."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    """``None``: any length."""


class Session(Protocol):
    """One model, loaded on one engine."""

    @property
    def inputs(self) -> list[TensorInfo]:
        """In the model's order."""

    @property
    def outputs(self) -> list[TensorInfo]:
        """In the model's order."""

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """Run one batch; blocks, with the GIL released while the runtime computes.

        Args:
            feeds: Input name -> rows; not changed.
            slot: 0 to ``max_inflight - 1``; no two calls may share a slot at the same time.

        Returns:
            Output name -> rows, owned by the caller.

        Raises:
            StageInputError: A feed has the wrong name, type or shape.
            EngineError: The runtime failed.
        """

    def describe(self) -> dict[str, str | int]:
        """Runtime and version, the device really used, threads, precision."""

    def close(self) -> None:
        """Free the model. No run may follow."""


@runtime_checkable
class HasRoom(Protocol):
    """A session that can say where it wants its inputs."""

    def room(self, slot: int, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Tensor] | None:
        """Memory that `Session.run` reads in place, for inputs of these shapes in the model's order.

        Args:
            slot: As in `Session.run`; the next call for this slot may give the same memory.
            shapes: By input.

        Returns:
            To be written to and given to `run` as it is; ``None``: bring your own.

        Raises:
            StageInputError: The model takes no such shapes.
        """


class Place(Protocol):
    """Where outputs shall be written."""

    def __call__(self, infos: list[TensorInfo], shapes: list[tuple[int, ...]]) -> dict[str, Tensor] | None:
        """Memory for tensors of these shapes; ``None``: there is none."""


class Prepares(Protocol):
    """A session that can make a batch ready once and run it many times."""

    def prepared(self, feeds: Mapping[str, Tensor], slot: int, place: Place) -> Callable[[], None] | None:
        """Make a batch ready.

        Args:
            feeds: In memory that stays where it is; what is there when it runs is what counts.
            slot: As in `Session.run`.
            place: Asked for the outputs' memory.

        Returns:
            Runs it, and raises `NotPreparedError` where only `Session.run` can, `EngineError` where the runtime fails;
            ``None``: only `Session.run` runs it.

        Raises:
            StageInputError: A feed has the wrong name, type or shape.
        """


class Backend(Protocol):
    """One runtime."""

    def load(self, model: Path, engine: Engine) -> Session:
        """Load a model for ``engine.max_inflight`` concurrent callers of ``engine.threads`` threads each.

        Raises:
            InputError: Not a model, or the runtime has no such device here. Never another device instead.
        """


def open_backend(name: str) -> Backend:
    """Import a runtime.

    Raises:
        InputError: No such backend, or it loads no models (``python``).
        MissingExtraError: The runtime is not installed.
    """
    if name == PYTHON:
        raise InputError(f"backend '{PYTHON}' runs Python stages only; give the stage `python: module:function`.")
    if name not in _MODULES:
        close = difflib.get_close_matches(name, BACKENDS, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        raise InputError(f"backend '{name}' is not known (there are {', '.join(BACKENDS)}).{meant}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(name):
            raise
        raise MissingExtraError(name, f"backend '{name}'") from error
    return cast(Backend, module.BACKEND)


def check_feeds(inputs: list[TensorInfo], feeds: Mapping[str, Tensor]) -> None:
    """Refuse feeds that a model cannot take.

    Raises:
        StageInputError: Names the input, what it is and what it must be.
    """
    known = {info.name: info for info in inputs}
    for name in feeds:
        if name not in known:
            raise StageInputError(f"input '{name}' is not one of this model's ({', '.join(known)}).")
    for info in inputs:
        tensor = feeds.get(info.name)
        if tensor is None:
            raise StageInputError(f"input '{info.name}' is missing.")
        if tensor.dtype != info.dtype:
            raise StageInputError(f"input '{info.name}' is {tensor.dtype}, it must be {info.dtype}.")
        if not _fits(tensor.shape, info.shape):
            wanted = "x".join("?" if side is None else str(side) for side in info.shape)
            given = "x".join(map(str, tensor.shape))
            raise StageInputError(f"input '{info.name}' has shape {given}, it must be {wanted}.")


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        want is None or side == want for side, want in zip(shape, wanted, strict=True)
    )
