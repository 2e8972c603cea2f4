"""Models in engine processes, as sessions like any other; and who runs where."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from loadslice.backends.base import PYTHON, REMOTE, Session, check_feeds, open_backend
from loadslice.backends.isolated.host import EngineProcess
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import Tensor

_OWN_PROCESS = ("onnxruntime", "openvino")
"""Runtimes that drive accelerators; on the processor they need no process of their own."""


def isolation(engine: Engine) -> Literal["inline", "thread", "process"]:
    """Where an engine's batches run.

    Raises:
        InputError: In a process of its own, which its backend cannot.
    """
    if engine.isolation == "process" and engine.backend == PYTHON:
        raise InputError(
            "isolation: process is for runtimes; Python stages hand any object on to each other, which shared memory "
            "does not hold. Use thread."
        )
    if engine.isolation == "process" and engine.backend in REMOTE:
        raise InputError(f"isolation: process: '{engine.backend}' runs in another server already. Use thread.")
    if engine.isolation != "auto":
        return engine.isolation
    device = (engine.device or "cpu").lower()
    return "process" if engine.backend in _OWN_PROCESS and not device.startswith("cpu") else "thread"


class IsolatedSession:
    """One model in an engine's process; survives the process, which loads it again when it is started anew."""

    def __init__(self, process: EngineProcess, model: Path) -> None:
        self.process = process
        self._number, self.inputs, self.outputs = process.open(model)
        self.is_numeric = all(info.dtype.kind in "biuf" for info in (*self.inputs, *self.outputs))
        """Whether no text has to be packed and unpacked."""

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`."""
        check_feeds(self.inputs, feeds)
        return self.process.run(self._number, feeds, slot)

    def reserve(self, slot: int) -> bool:
        """Have a slot alone without waiting, for `send`, `receive` and `free`; see `EngineProcess.reserve`."""
        return self.process.reserve(slot)

    def send(self, feeds: Mapping[str, Tensor], slot: int) -> int:
        """Begin a batch on a slot that the caller has alone.

        Returns:
            A file descriptor that is readable when the batch has come to something.

        Raises:
            StageInputError: A feed has the wrong name, type or shape.
            StageError: Feeds do not fit into the shared memory.
            EngineLostError: The process has ended.
        """
        check_feeds(self.inputs, feeds)
        self.process.send(self._number, feeds, slot)
        return self.process.fileno(slot)

    def receive(self, slot: int) -> dict[str, Tensor]:
        """What came of it; see `EngineProcess.receive`."""
        return self.process.receive(slot)

    def free(self, slot: int) -> None:
        """Let go of a slot."""
        self.process.free(slot)

    def room(self, slot: int, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Tensor] | None:
        """See `loadslice.backends.base.HasRoom.room`."""
        return self.process.room(self.inputs, shapes, slot)

    def lends(self, slot: int) -> bool:
        """See `EngineProcess.lends`."""
        return self.process.lends(slot)

    def hand_over_ns(self, slot: int) -> int:
        """See `EngineProcess.hand_over_ns`."""
        return self.process.hand_over_ns(slot)

    @property
    def late_runs(self) -> int:
        """Of an emulated device: runs that took longer here than there."""
        return self.process.late_runs

    def describe(self) -> dict[str, str | int]:
        """See `loadslice.backends.base.Session.describe`."""
        return self.process.describe(self._number)

    def close(self) -> None:
        """Free the model."""
        self.process.drop(self._number)


class Hosts:
    """Loads models where their engines run: here, or in one process for each engine that has its own.

    Args:
        tell: Told of each model before it is loaded; that may take for ever.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell
        self.processes: dict[str, EngineProcess] = {}
        """By engine."""

    def load(self, name: str, engine: Engine, model: Path) -> Session:
        """Load a model on an engine.

        Raises:
            InputError: As `loadslice.backends.base.Backend.load`, or the engine's backend cannot run there.
        """
        if self._tell is not None:
            self._tell(f"engine '{name}': loading {model.name}")
        try:
            where = isolation(engine)
        except InputError as error:
            raise InputError(f"engines.{name}.{error}") from error
        try:
            backend = open_backend(engine.backend)  # before its process, which would have to tell it
        except MissingExtraError:
            raise
        except InputError as error:
            raise InputError(f"engines.{name}: {error}") from error
        if where != "process":
            return backend.load(model, engine)
        if name not in self.processes:
            self.processes[name] = EngineProcess(name, engine)
        return IsolatedSession(self.processes[name], model)

    def stop(self) -> None:
        """End every process."""
        for process in self.processes.values():
            process.close()
        self.processes.clear()
