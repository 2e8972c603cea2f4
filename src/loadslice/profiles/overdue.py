"""Ends a measurement whose runtime does not come back.

What hangs inside of a library cannot be interrupted, and holds a thread that the process would wait for at its end. So
the process ends: with one line that says what hangs, and nothing half-written, for files are put into their places
whole. A library that hangs and keeps Python's lock as well is beyond this; a second SIGTERM, or SIGKILL, is for that.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn, Self

STEP_S = 300.0
"""Longest time that loading a model, or one run, may take; compilers of accelerators are slow. As in a server."""

LOOKS = 10
"""How often within that time it is looked whether something has taken so long."""

EXIT_CODE = 2


def leave(text: str) -> NoReturn:
    """End the process, with one line."""
    os.write(2, f"loadslice: {text}\n".encode(errors="backslashreplace"))
    os._exit(EXIT_CODE)


class Overdue:
    """Knows what every thread is at, and since when; while it is open, it looks whether one does not come back.

    Args:
        step_s: Longest time that one thing may take.
        give_up: Told once what hangs; does not return.
    """

    def __init__(self, step_s: float = STEP_S, give_up: Callable[[str], object] = leave) -> None:
        self._step_s = step_s
        self._give_up = give_up
        self._since: dict[int, tuple[object, float]] = {}
        """By thread."""
        self._closed = threading.Event()

    def begin(self, what: object) -> None:
        """This thread begins something.

        Args:
            what: As the message shall name it; made text only then.
        """
        self._since[threading.get_ident()] = what, time.monotonic()

    def end(self) -> None:
        """It has come back."""
        self._since.pop(threading.get_ident(), None)

    def look(self) -> None:
        """Give up where something has taken too long."""
        for what, since_s in list(self._since.values()):
            if time.monotonic() - since_s > self._step_s:
                self._give_up(
                    f"{what}: has not come back for {self._step_s:g} s, so it hangs; nothing was measured. Leave that "
                    "engine out, or have `loadslice profile` wait longer with --step-timeout."
                )

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="overdue", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._step_s / LOOKS):
            self.look()
