"""How a command ends: its exit codes, and by a signal in order, even where a library does not come back.

Ctrl-C is Python's own affair. A SIGTERM would end the process where it stands: with files half-written beside their
places, folders that were being filled, and servers that nobody stops any more.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

NEGATIVE = 3
"""Exit code of what was done, and found against what was asked about."""
INCOMPLETE = 4
"""Exit code of what was done in part: a step failed, so that what was found is no verdict on the whole."""
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

GRACE_S = 10.0
"""How long a library that does not come back may keep the main thread from hearing of a SIGTERM."""


class TerminatedError(KeyboardInterrupt):
    """A SIGTERM has come. What ends in order when it is interrupted ends so now."""


def code_of(number: int) -> int:
    """Exit code of what a signal ended early and in order."""
    return 128 + number


def interruption(number: int) -> KeyboardInterrupt:
    """What ends the rest, where a part has heard a signal itself and ended in order."""
    return TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt()


_in_order = 0
"""Blocks of `ended_in_order` that are open. They may end in any order: the last of them gives SIGTERM back."""

_heard = threading.Event()
"""Whether the main thread has been told."""


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Let a SIGTERM end the block as an exception does, and leave no process behind; on the main thread only."""
    global _in_order
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or (_in_order == 0 and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL):
        yield
        return
    if _in_order == 0:
        signal.signal(signal.SIGTERM, _leave)
    _in_order += 1
    try:
        yield
    finally:
        _in_order -= 1
        if _in_order == 0 and signal.getsignal(signal.SIGTERM) is _leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(_number: int, _frame: FrameType | None) -> None:
    _heard.set()
    raise TerminatedError


@contextlib.contextmanager
def ended_at_last() -> Iterator[None]:
    """Have a SIGTERM end the process though the main thread is inside a library that hangs; on the main thread only.

    A loop that takes signals itself takes this over, and has its own way with them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _heard.clear()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), name="ending", daemon=True).start()
    try:
        yield
    finally:
        now = signal.set_wakeup_fd(before)
        if now not in (-1, writing):
            signal.set_wakeup_fd(now)
        os.close(writing)


def _watch(reading: int) -> None:
    while numbers := os.read(reading, 64):
        if signal.SIGTERM in numbers and not _heard.wait(GRACE_S):
            os.write(2, b"loadslice: terminated, and left what did not come back\n")
            os._exit(TERMINATED)
    os.close(reading)
