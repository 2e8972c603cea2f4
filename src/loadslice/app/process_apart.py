"""A process for one piece of work, which never outlives the process that asked for it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor


@contextlib.contextmanager
def process_apart() -> Iterator[ProcessPoolExecutor]:
    """A pool of one fresh process, started; interrupted when the block is left early, ended when its parent is."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, initializer=_follow_parent) as pool:
        number = pool.submit(os.getpid).result()
        try:
            yield pool
        except BaseException:
            # Leaving the pool waits for what runs in it, which may be an hour of measuring.
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGINT)
            raise


def _follow_parent() -> None:
    threading.Thread(target=_end_after, daemon=True).start()


def _end_after() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    # Engines that were started here notice by their own lines that this process is gone.
    os._exit(1)
