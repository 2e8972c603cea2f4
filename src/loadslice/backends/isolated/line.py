"""One slot's way to an engine's process and back: its socket, its shared memory, and the batch that is there now.

Rules of this file: a socket answers or closes, there is no third way, so whoever waits for a batch of a process that
has died learns it at once; whoever holds the line has it alone, from before a batch is written until its outputs are
taken.
"""

import select
import socket
import threading
import time
from collections.abc import Mapping

from loadslice.backends.base import EngineError
from loadslice.backends.isolated.arena import INPUTS, Arena, TooLargeError
from loadslice.backends.isolated.messages import MESSAGE_BYTES_MAX, Failed, Placed, Run, encoder, ran_decoder
from loadslice.spec.work import StageError, StageInputError, Tensor


class Line:
    """One slot.

    Args:
        section_bytes: Most that goes through shared memory at once.
    """

    def __init__(self, section_bytes: int) -> None:
        self.arena = Arena.create(section_bytes)
        self.lock = threading.Lock()
        self.channel: socket.socket | None = None
        self.hand_over_ns = 0
        """Of the last run, what was not computing: copies, and waking each other up."""
        self.late_runs = 0
        """Of an emulated device, so far."""
        self.starts = 0
        """Which process was there when memory was last given out to be written to."""
        self._message = bytearray(MESSAGE_BYTES_MAX)
        self._began_ns = 0
        self._placed: list[Placed] = []

    def send(self, number: int, feeds: Mapping[str, Tensor]) -> None:
        """Hand a batch over; the caller holds the line.

        Args:
            number: Of the model.
            feeds: Are copied unless they are in the line's memory already.

        Raises:
            StageError: Feeds do not fit into the shared memory.
            OSError: The process has ended.
        """
        assert self.channel is not None
        self._began_ns = time.perf_counter_ns()
        try:
            self._placed = self.arena.put(feeds, INPUTS)
        except TooLargeError as error:
            raise StageError(str(error)) from error
        self.channel.send(encoder.encode(Run(number, self._placed, self.arena.free()[0])))

    def receive(self) -> dict[str, Tensor]:
        """Take what came of the batch; blocks until it is there. The caller holds the line.

        Raises:
            StageInputError: The model cannot take these feeds.
            StageError: Outputs do not fit into the shared memory.
            EngineError: The runtime failed.
            OSError: The process has ended.
        """
        assert self.channel is not None
        size = self._received()  # raises where it died with our message unread
        if size == 0:
            raise ConnectionResetError
        answer = ran_decoder.decode(memoryview(self._message)[:size])
        if isinstance(answer, Failed):
            raise _fault(answer)
        outputs = self.arena.taken(answer.outputs)
        self.arena.release(self._placed)
        self.arena.release(answer.outputs)
        self.late_runs = answer.late_runs
        self.hand_over_ns = time.perf_counter_ns() - self._began_ns - answer.compute_ns
        return outputs

    def _received(self) -> int:
        """Bytes of the next message, once it is there; 0: the process has ended."""
        assert self.channel is not None
        while True:
            try:
                return self.channel.recv_into(self._message)
            except BlockingIOError:
                # A loop makes non-blocking what it has ever watched, also for threads that wait by themselves.
                there = select.poll()
                there.register(self.channel, select.POLLIN)
                there.poll()


def _fault(answer: Failed) -> Exception:
    if answer.kind == "input":
        return StageInputError(answer.text)
    return StageError(answer.text) if answer.kind == "size" else EngineError(answer.text)
