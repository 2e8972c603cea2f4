"""The end of a process, seen when it begins: by two of its threads that do nothing but wait.

Whoever is killed gives its memory back before its sockets close and before it can be reaped. For two gigabytes that is
a third of a second, and several where others want the processors. All its threads end before, but the last, which does
that work: so one of any two is seen to end at once, and neither ever ends by itself. Linux tells of the end of a thread
since 6.9; where it does not, an end is seen when the sockets close.
"""

import os
import threading
from collections.abc import Sequence

PIDFD_THREAD = os.O_EXCL
"""To `os.pidfd_open`: a thread, rather than the process that it leads."""


def start_witnesses() -> tuple[int, ...]:
    """Start the two threads, in the process that is to be watched; returns their numbers."""
    threads = [threading.Thread(target=threading.Event().wait, name="witness", daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    return tuple(thread.native_id for thread in threads if thread.native_id is not None)


def watch(witnesses: Sequence[int]) -> list[int]:
    """File descriptors that are readable once the witnesses' process ends; none where the system cannot tell."""
    found = []
    for thread in witnesses:
        try:
            found.append(os.pidfd_open(thread, PIDFD_THREAD))
        except OSError:
            break  # an older system, no descriptor left, or it has ended: its sockets say so too
    return found
