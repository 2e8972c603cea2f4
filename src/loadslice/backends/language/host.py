"""Starts an engine's process and carries messages to and from it, on an event loop's thread.

A process that ends, however, is told of once; nothing it said before is lost. Its shared memory has no name that could
be left behind.
"""

import asyncio
import logging
import mmap
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable

import msgspec

from loadslice.backends.language import messages as m

log = logging.getLogger(__name__)

WORKER = "loadslice.backends.language.worker"


class SharedSlots:
    """Memory that all engines of one server have mapped, in equal slots, one per hand-over.

    Args:
        slots: How many; 0: none is needed.
        slot_bytes: Room for one prompt's KV and a header.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        rounded = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.total_bytes = slots * rounded
        self.fd = os.memfd_create("loadslice-kv", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.total_bytes)
        self._free = list(range(slots))

    def take(self) -> int:
        """A free slot; the token desk has counted that there is one."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Undo `take`."""
        assert slot not in self._free
        self._free.append(slot)

    @property
    def free(self) -> int:
        """Slots that no hand-over holds."""
        return len(self._free)

    def close(self) -> None:
        """Let the memory go once every engine has ended."""
        os.close(self.fd)


class LanguageProcess:
    """One engine in a process of its own.

    Args:
        name: Of the engine.
        load: What it loads.
        slots: Shared with the other engines.
        on_message: Called on the loop with everything it says.
        on_end: Called on the loop, once, when it has ended by itself; with how.
    """

    def __init__(
        self,
        name: str,
        load: m.Load,
        slots: SharedSlots,
        on_message: Callable[[m.FromEngine], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.name = name
        self.starts = 0
        self._load = load
        self._slots = slots
        self._on_message = on_message
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._life: int | None = None
        self._unsent: deque[bytes] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; ``None``: there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; `messages.Ready` or `messages.Failed` says when it has loaded. Call on the loop.

        Costs are measured once: what has ended is wanted back soon, and a server elsewhere that is just coming back
        needs no load that nobody waits for.
        """
        assert self._process is None
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life, self._life = os.pipe()
        command = [
            *(sys.executable, "-P", "-m", WORKER, "--name", self.name, "--channel", str(theirs.fileno())),
            *("--life", str(life), "--memory", str(self._slots.fd), "--memory-bytes", str(self._slots.total_bytes)),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,  # a runtime that talks must not talk into our caller's documents
            pass_fds=(life, theirs.fileno(), self._slots.fd),
            env=os.environ | {"ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
        )
        os.close(life)
        theirs.close()
        self.starts += 1
        ours.setblocking(False)
        self._channel = ours
        self._loop.add_reader(ours.fileno(), self._read)
        self.send(self._load)
        self._load = msgspec.structs.replace(self._load, measure=False)

    def send(self, message: m.ToEngine) -> None:
        """Say something; never blocks. To a process that has ended, nothing is said."""
        if self._channel is None:
            return
        self._unsent.append(m.encoder.encode(message))
        self._write()

    def kill(self) -> None:
        """End the process whatever it does; returns at once, `on_end` is called when it is gone."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process and wait until it is gone; `on_end` is not called."""
        self.kill()
        self._forget()

    def _write(self) -> None:
        assert self._loop is not None
        while self._unsent and self._channel is not None:
            try:
                self._channel.send(self._unsent[0])
            except BlockingIOError:
                self._loop.add_writer(self._channel.fileno(), self._write)
                return
            except OSError:
                self._unsent.clear()  # it has ended; the reader learns how
                break
            self._unsent.popleft()
        if self._channel is not None:
            self._loop.remove_writer(self._channel.fileno())

    def _read(self) -> None:
        while self._channel is not None:
            try:
                raw = self._channel.recv(m.MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                raw = b""
            if not raw:
                self._on_end(self._forget())
                return
            try:
                message = m.from_engine.decode(raw)
            except msgspec.DecodeError as error:
                log.error("engine '%s' is ended: it says what is no message: %s", self.name, error)
                self.kill()
                continue
            self._on_message(message)

    def _forget(self) -> str:
        """Reap the process and close what led to it; returns how it ended."""
        if self._channel is not None:
            assert self._loop is not None
            self._loop.remove_reader(self._channel.fileno())
            self._loop.remove_writer(self._channel.fileno())
            self._channel.close()
            self._channel = None
        self._unsent.clear()
        if self._life is not None:
            os.close(self._life)
            self._life = None
        if self._process is None:
            return "not started"
        self._process.kill()  # whoever closed its end of the channel computes nothing more
        code = self._process.wait()
        self._process = None
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
