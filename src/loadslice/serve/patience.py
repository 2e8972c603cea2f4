"""Waiting for what may never come back: a runtime that hangs while it loads a model, a stage that hangs on its example.

Whatever may hang runs on a thread that keeps no process from ending; whoever waits is told of each step, and waits for
each so long.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from loadslice.spec.errors import InputError

T = TypeVar("T")

STEP_S = 300.0
"""Longest time that loading a model, or warming it up, may take; compilers of accelerators are slow."""

LOOK_S = 0.1
"""How soon whoever waits notices that nothing is waited for any more."""

Step = Callable[[str], None]
"""Told of what begins now."""


def unwatched(_what: str) -> None:
    """Nobody waits."""


class Patience:
    """Has something done, step by step.

    Args:
        step_s: Longest time of each step.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        self._step_s = step_s
        self._what = "starting"
        self._since_s = time.monotonic()
        self._is_over = False

    def step(self, what: str) -> None:
        """The next step begins; called by what is being done.

        Args:
            what: As a message begins with it: ``stage 'x' on engine 'y': loading``.

        Raises:
            InputError: Nobody waits any more, so that it can end itself.
        """
        if self._is_over:
            raise InputError(f"{what}: given up.")
        self._what, self._since_s = what, time.monotonic()

    def run(self, work: Callable[[], T]) -> T:
        """Do it; blocks.

        Raises:
            InputError: A step takes too long, or `give_up` was called; what hangs is left behind.
        """
        ended = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def do() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                errors.append(error)
            finally:
                ended.set()

        self._since_s = time.monotonic()
        threading.Thread(target=do, name="patience", daemon=True).start()
        while not ended.wait(LOOK_S):
            if self._is_over:
                raise InputError(f"{self._what}: given up.")
            if time.monotonic() - self._since_s > self._step_s:
                self._is_over = True
                raise InputError(
                    f"{self._what}: has not come back for {self._step_s:g} s, so it hangs. Leave that engine or stage "
                    "out, or find out with `loadslice profile` whether it runs by itself."
                )
        if errors:
            raise errors[0]
        return results[0]

    def give_up(self) -> None:
        """Wait no longer."""
        self._is_over = True
