"""The server's side of an engine process: start it, hand it batches, notice its end.

Rules of this file: whoever waits for a batch of a process that has died learns it at once (`line`); a process that
hangs is killed by whoever watches it, and then the same holds.
"""

import contextlib
import logging
import os
import resource
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadslice.backends.base import EngineError, TensorInfo
from loadslice.backends.isolated.launch import in_words, launch
from loadslice.backends.isolated.line import Line
from loadslice.backends.isolated.messages import (
    MESSAGE_BYTES_MAX,
    Answer,
    Describe,
    Drop,
    Load,
    Loaded,
    Order,
    Refused,
    Said,
    answer_decoder,
    encoder,
)
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.twin import TwinEngine
from loadslice.spec.work import Tensor

log = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0
"""How long a process that was killed may take to be gone, and whoever has a batch there to learn it."""

LOAD_TIMEOUT_S = 300.0
"""Longest time that loading a model may take; compilers of accelerators are slow."""

ORDER_TIMEOUT_S = 30.0
"""The same of everything else that is not a batch."""


class EngineLostError(EngineError):
    """The engine's process has ended or is not back yet.

    Args:
        message: One line.
        while_running: Whether it ended while it had the caller's batch.
    """

    def __init__(self, message: str, *, while_running: bool = False) -> None:
        super().__init__(message)
        self.while_running = while_running


class EngineProcess:
    """One engine in a process of its own.

    Args:
        name: Of the engine.
        engine: As in the pipeline file.
    """

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.starts = 0
        self.pid: int | None = None
        self.last_end: str | None = None
        """How the last process ended; ``None``: none has."""
        self.ready = threading.Event()
        """Whether callers may run batches: set by whoever has started and warmed it up."""
        section_bytes = -(-round(engine.hand_over_mb * 1e6) // resource.getpagesize()) * resource.getpagesize()
        self._engine = engine
        self._lines: list[Line] = []
        try:
            for _ in range(engine.max_inflight):
                self._lines.append(Line(section_bytes))
        except BaseException:
            for line in self._lines:
                line.arena.close()
            raise
        self._models: dict[int, Path] = {}
        self._next_model = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: list[socket.socket] = []
        self._control: socket.socket | None = None
        self._pulse: socket.socket | None = None
        self._life: int | None = None
        self._orders = threading.Lock()
        self._starter: int | None = None
        self._closing = threading.Lock()
        self._ending = threading.Lock()
        self._left: list[subprocess.Popen[bytes]] = []
        """Killed and not gone when they were last looked at."""
        self._is_closed = False
        self.alone = threading.Lock()
        """Held by whoever runs a request that may have ended the process before."""

    # -- life

    def start(self) -> None:
        """Start the process anew and load the models it had; the caller's thread alone may run them until `ready`.

        Raises:
            InputError: A model cannot be loaded (any more).
            EngineLostError: It ended while it started.
        """
        self.end()
        with self._closing:
            if self._is_closed:
                raise EngineLostError(f"engine '{self.name}': its server stops.")
            self._starter = threading.get_ident()
            self._spawn()
        for number, model in list(self._models.items()):
            self._load(number, model)

    def end(self) -> int | None:
        """Kill the process, if there is one, and wait until it is gone; callers inside learn it.

        Returns:
            The process where it does not end: inside a driver, the system may not be able to.
        """
        self.ready.clear()
        self.kill()
        with self._ending:
            left = self._wait_for_end()
            for index, line in enumerate(self._lines):
                # Whoever has a batch there is told by the socket's end, and lets go of the line.
                if line.lock.acquire(timeout=END_TIMEOUT_S):
                    line.channel = None
                    line.lock.release()
                elif self._ours:
                    log.error("engine %s: slot %d is not let go of", self.name, index)
                    self._ours[2 + index].detach()  # closed, its number could be another's while somebody waits there
            for ours in self._ours:
                ours.close()
            self._ours = []
            self._control = self._pulse = None
            if self._life is not None:
                os.close(self._life)
                self._life = None
        return left

    def _wait_for_end(self) -> int | None:
        process = self._process
        self._left = [left for left in self._left if left.poll() is None]
        if process is None:
            return None
        for ours in self._ours:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)  # or nobody would learn of an end that does not come
        pid = None
        try:
            self.last_end = in_words(process.wait(END_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            pid = process.pid
            self.last_end = "killed, and not gone"
            log.error("engine %s: its process %d was killed and does not end; it is left behind", self.name, pid)
            self._left.append(process)
        self._process = None
        self.pid = None
        return pid

    def close(self) -> int | None:
        """End the process and let its memory go; it is not started again.

        Returns:
            As `end`.
        """
        with self._closing:
            self._is_closed = True
        left = self.end()
        lines, self._lines = self._lines, []
        for line in lines:
            line.arena.close()
        return left

    def kill(self) -> None:
        """End the process whatever it does; returns at once."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()

    def _spawn(self) -> None:
        self._process, self._ours, self._life = launch(self.name, self._engine, [line.arena for line in self._lines])
        self.pid = self._process.pid
        self.starts += 1
        self._control, self._pulse = self._ours[0], self._ours[1]
        self._pulse.setblocking(False)
        for line, ours in zip(self._lines, self._ours[2:], strict=True):
            line.channel = ours

    def memory_bytes(self) -> int | None:
        """Resident memory now; ``None``: there is no process."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * resource.getpagesize()

    # -- pulse

    def ping(self) -> None:
        """Ask whether the process lives; never blocks."""
        if self._pulse is not None:
            try:
                self._pulse.send(b".")
            except OSError:
                return  # it is gone, or so many are out that one more says nothing

    def has_answered(self) -> bool:
        """Whether anything has come back since this was last asked; never blocks."""
        answered = False
        while self._pulse is not None:
            try:
                if not self._pulse.recv(64):
                    break
            except OSError:
                break
            answered = True
        return answered

    # -- models

    def open(self, model: Path) -> tuple[int, list[TensorInfo], list[TensorInfo]]:
        """Load a model; starts the process where there is none.

        Returns:
            Its number here, its inputs and its outputs.

        Raises:
            InputError: It cannot be loaded.
            EngineLostError: The process ended meanwhile.
        """
        if self._process is None:
            self.start()
            self.ready.set()
        number = self._next_model
        self._next_model += 1
        loaded = self._load(number, model)
        self._models[number] = model
        return number, [told.info() for told in loaded.inputs], [told.info() for told in loaded.outputs]

    def _load(self, number: int, model: Path) -> Loaded:
        is_twin = isinstance(self._engine, TwinEngine)
        order = Load(number, str(model), msgspec.msgpack.encode(self._engine), is_twin)
        answer = self._order(order, LOAD_TIMEOUT_S)
        if isinstance(answer, Refused):
            raise InputError(answer.text)
        assert isinstance(answer, Loaded)
        return answer

    def drop(self, number: int) -> None:
        """Free a model; of a process that has ended there is nothing to free."""
        self._models.pop(number, None)
        try:
            self._order(Drop(number))
        except EngineLostError:
            log.debug("engine %s: its process is gone and the model with it", self.name)

    def describe(self, number: int) -> dict[str, str | int]:
        """What runs a model.

        Raises:
            EngineLostError: The process has ended.
        """
        answer = self._order(Describe(number))
        assert isinstance(answer, Said)
        return answer.words

    def _order(self, order: Order, timeout_s: float = ORDER_TIMEOUT_S) -> Answer:
        with self._orders:
            control = self._control
            if control is None:
                raise EngineLostError(f"engine '{self.name}': its process is not there.")
            try:
                control.settimeout(timeout_s)
                control.send(encoder.encode(order))
                raw = control.recv(MESSAGE_BYTES_MAX)
            except TimeoutError as error:
                self.kill()  # it may answer later, when something else has been asked
                raise EngineLostError(
                    f"engine '{self.name}': its process has not answered for {timeout_s:g} s and is ended."
                ) from error
            except OSError as error:
                raise self._lost() from error
        if not raw:
            raise self._lost()
        return answer_decoder.decode(raw)

    def _lost(self, *, while_running: bool = False) -> EngineLostError:
        return EngineLostError(f"engine '{self.name}': its process has ended.", while_running=while_running)

    # -- batches

    @property
    def late_runs(self) -> int:
        """Of an emulated device, so far."""
        return max((line.late_runs for line in self._lines), default=0)

    def run(self, number: int, feeds: Mapping[str, Tensor], slot: int) -> dict[str, Tensor]:
        """Run one batch; blocks, with the GIL released while the process computes.

        Raises:
            StageInputError: The model cannot take these feeds.
            StageError: Feeds or outputs do not fit into the shared memory.
            EngineLostError: The process has ended.
            EngineError: The runtime failed.
        """
        with self._lines[slot].lock:
            self.send(number, feeds, slot)
            return self.receive(slot)

    def reserve(self, slot: int) -> bool:
        """Have a slot's line alone, without waiting for it; false: there is something on it, or no process.

        Whoever has it calls `send`, `receive` once `fileno` is readable, and `free` whatever came of them.
        """
        return self.ready.is_set() and self._lines[slot].lock.acquire(blocking=False)

    def free(self, slot: int) -> None:
        """Let go of a slot's line."""
        self._lines[slot].lock.release()

    def fileno(self, slot: int) -> int:
        """Readable when the batch that was sent has come to something, be it the process's end."""
        channel = self._lines[slot].channel
        assert channel is not None, "whoever has reserved it has sent a batch there"
        return channel.fileno()

    def send(self, number: int, feeds: Mapping[str, Tensor], slot: int) -> None:
        """Hand a batch over on a line that the caller has alone.

        Raises:
            StageError: Feeds do not fit into the shared memory.
            EngineLostError: The process has ended, or another one has come since memory was given out.
        """
        line = self._lines[slot]
        if line.channel is None or not self._is_open_to_caller():
            raise EngineLostError(f"engine '{self.name}': its process is not back yet.")
        if line.starts != self.starts and any(line.arena.is_input(tensor) for tensor in feeds.values()):
            # Warming up a process that has come since has written over this batch.
            raise EngineLostError(f"engine '{self.name}': its process is another one.")
        try:
            line.send(number, feeds)
        except OSError as error:
            self.ready.clear()
            raise self._lost() from error

    def receive(self, slot: int) -> dict[str, Tensor]:
        """Take what came of it; blocks until that is there.

        Raises:
            StageInputError: The model cannot take these feeds.
            StageError: Outputs do not fit into the shared memory.
            EngineLostError: The process has ended.
            EngineError: The runtime failed.
        """
        try:
            return self._lines[slot].receive()
        except OSError as error:
            self.ready.clear()  # while the slot is ours, so that this is never about the next process
            raise self._lost(while_running=True) from error

    def room(self, infos: list[TensorInfo], shapes: tuple[tuple[int, ...], ...], slot: int) -> dict[str, Tensor] | None:
        """Shared memory that a slot's next batch may be written to in place; ``None``: there is none for it now."""
        line = self._lines[slot]
        if not self._is_open_to_caller():
            return None  # whoever warms the next process up writes there
        line.starts = self.starts
        return line.arena.room(infos, shapes)

    def lends(self, slot: int) -> bool:
        """Whether a slot's next outputs may stay where they come; otherwise they are copied, for all else is in use."""
        return len(self._lines[slot].arena.free()) > 1

    def _is_open_to_caller(self) -> bool:
        return self.ready.is_set() or self._starter == threading.get_ident()

    def hand_over_ns(self, slot: int) -> int:
        """Of a slot's last run, what was not computing: copies, and waking each other up."""
        return self._lines[slot].hand_over_ns
