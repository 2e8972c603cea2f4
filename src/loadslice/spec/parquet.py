"""The door to Parquet files that somebody else may have written, or a disk damaged.

The reader of such files trusts the lengths that they state. Most damage ends in an exception or a panic, but one byte
in a page's header is enough to have it ask for memory that no machine has, and then the whole process is ended. So a
process of its own reads every file first, as it will be read here, and only what it came through is.
What it takes: a quarter of a second to start, once, and as long again as reading takes.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from loadslice.spec.files import opened

PROVE_S = 60.0
"""Longest time a proof may take, and a second more for each of `PROVE_BYTES_PER_S`."""
PROVE_BYTES_PER_S = 1 << 20
DIED = "its reader dies of it"


def fault(paths: Iterable[Path], rows_at_once: int | None = None) -> str | None:
    """What is wrong with Parquet files.

    Args:
        paths: Files, which must not change between this and their being read.
        rows_at_once: Of a file that is read in parts, for it may be larger than memory.

    Returns:
        The first fault, in one line; ``None``: each can be read whole.

    Raises:
        OSError: One is not there or may not be read.
    """
    for path in paths:
        if not str(path).isascii() and _is_no_text(str(path)):
            return "its name is not UTF-8, which its reader needs; rename it"
        with opened(path) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
        why = _PROVER.prove(path, size_bytes, rows_at_once)
        if why is not None:
            return why
    return None


def get_ready() -> None:
    """Start the process that proves, for whoever is about to read a file and has something to do before."""
    _PROVER.get_ready()


def _is_no_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return False


class _Prover:
    """Keeps one process that proves, and starts another when it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._elsewhere: subprocess.Popen[str] | None = None
        """Of the process that this one was forked from."""

    def prove(self, path: Path, size_bytes: int, rows_at_once: int | None) -> str | None:
        """Have one file read; what is wrong with it."""
        with self._lock:
            process = self._running()
            timer = threading.Timer(PROVE_S + size_bytes / PROVE_BYTES_PER_S, process.kill)
            timer.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps([str(path.absolute()), rows_at_once]) + "\n")
                process.stdin.flush()
                told = process.stdout.readline()
            except OSError:
                told = ""
            finally:
                timer.cancel()
            if not told.endswith("\n"):
                self.stop()
                return DIED
            why: str | None = json.loads(told)
            return why

    def get_ready(self) -> None:
        """Start the process, if it does not run, and wait for nothing."""
        with self._lock:
            self._running()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        # -P: what lies in the working directory is not imported.
        command = [sys.executable, "-P", "-m", "loadslice.spec.parquet_prover"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self._process

    def stop(self) -> None:
        """End the process; the next proof starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.communicate()

    def forget(self) -> None:
        """In a process that was forked: the other one's is not ours to ask."""
        self._lock = threading.Lock()
        self._elsewhere, self._process = self._process, None


_PROVER = _Prover()
atexit.register(_PROVER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROVER.forget)
