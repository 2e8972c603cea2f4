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
from collections.abc import Callable, Sequence

import msgspec

from loadslice.backends.isolated.launch import in_words
from loadslice.backends.isolated.witnesses import watch
from loadslice.backends.language import messages as m

log = logging.getLogger(__name__)

WORKER = "loadslice.backends.language.worker"

SLOT_BYTES_PER_TOKEN = 1 << 20
"""Slots are made before engines have said what their KV takes. More than any common model has, for pages that nobody
writes are not taken: a decoder of 70 billion parameters has 655 kB in float32."""

END_S = 10.0
"""Longest time that a process which was killed may take to be gone."""


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
        on_end: Called on the loop, once, as soon as it ends by itself; `gone` says how, and when the next may start.
    """

    def __init__(
        self,
        name: str,
        load: m.Load,
        slots: SharedSlots,
        on_message: Callable[[m.FromEngine], None],
        on_end: Callable[[], None],
    ) -> None:
        self.name = name
        self.starts = 0
        self._load = load
        self._slots = slots
        self._on_message = on_message
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: subprocess.Popen[bytes] | None = None
        """One that gives its memory back."""
        self._channel: socket.socket | None = None
        self._life: int | None = None
        self._witnesses: list[int] = []
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

        Raises:
            OSError: The system does not start it.
        """
        assert self._process is None
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life, ours_of_life = os.pipe()
        command = [
            *(sys.executable, "-P", "-m", WORKER, "--name", self.name, "--channel", str(theirs.fileno())),
            *("--life", str(life), "--memory", str(self._slots.fd), "--memory-bytes", str(self._slots.total_bytes)),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # a runtime that talks must not talk into our caller's documents
                pass_fds=(life, theirs.fileno(), self._slots.fd),
                env=os.environ | {"ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
            )
        except BaseException:
            ours.close()
            os.close(ours_of_life)
            raise
        finally:
            os.close(life)
            theirs.close()
        self.starts += 1
        ours.setblocking(False)
        self._channel, self._life = ours, ours_of_life
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
        """End the process whatever it does; returns at once, `on_end` is called when it ends."""
        if self._process is not None:
            self._process.kill()

    async def gone(self) -> str:
        """Wait until a process that has ended has given everything back; returns how it ended.

        Raises:
            TimeoutError: It was killed and does not end: inside a driver, the system may not be able to.
        """
        process = self._ending
        if process is None:
            return "not started"
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(process.pid)  # nobody else has waited for it, so it is still there
        try:
            is_gone = asyncio.Event()
            loop.add_reader(pidfd, is_gone.set)
            async with asyncio.timeout(END_S):
                await is_gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return self._reap(process)

    def close(self) -> None:
        """End the process and wait until it is gone; `on_end` is not called."""
        self.kill()
        self._let_go()
        if self._ending is not None:
            self._reap(self._ending)

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
                self._end()
                return
            try:
                message = m.from_engine.decode(raw)
            except msgspec.DecodeError as error:
                log.error("engine '%s' is ended: it says what is no message: %s", self.name, error)
                self.kill()
                continue
            if isinstance(message, m.Started):
                self._watch(message.witnesses)
            else:
                self._on_message(message)

    def _watch(self, witnesses: Sequence[int]) -> None:
        assert self._loop is not None
        self._witnesses = watch(witnesses)
        for witness in self._witnesses:
            self._loop.add_reader(witness, self._witnessed)

    def _witnessed(self) -> None:
        """It ends: what it said before is heard, and then nobody waits for its sockets to close."""
        self._read()
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._let_go()
            self._on_end()

    def _let_go(self) -> None:
        """Close what led to the process; what is left of it is ending."""
        if self._process is None:
            return
        assert self._loop is not None
        assert self._channel is not None
        assert self._life is not None
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        for witness in self._witnesses:
            self._loop.remove_reader(witness)
            os.close(witness)
        self._witnesses = []
        self._channel.close()
        self._unsent.clear()
        os.close(self._life)
        self._process.kill()  # whoever closed its end of the channel computes nothing more
        self._channel = self._life = None
        self._process, self._ending = None, self._process

    def _reap(self, process: subprocess.Popen[bytes]) -> str:
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            log.error(
                "engine '%s': its process %d was killed and does not end; it is left behind", self.name, process.pid
            )
            return "killed, and not gone"
        self._ending = None
        return in_words(code)
