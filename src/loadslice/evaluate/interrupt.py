"""How a run over the wire is interrupted: in order the first time, at once the second."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def first_signal_calls(stop: Callable[[int], None]) -> Iterator[None]:
    """Have the first SIGINT or SIGTERM call ``stop`` with its number; the second has its usual effect.

    Inside a running loop. Off the main thread, and where a system has no signals, nothing is changed.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def give_back() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)

    def interrupt(number: int) -> None:
        give_back()
        stop(number)

    try:
        for number in before:
            loop.add_signal_handler(number, interrupt, number)
    except (ValueError, RuntimeError, NotImplementedError):  # not the main thread, or not a system with signals
        yield
        return
    try:
        yield
    finally:
        give_back()
