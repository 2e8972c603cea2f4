"""A server in a process of its own for the length of a replay, started and stopped by process id."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadslice.app.ending import ended_in_order
from loadslice.spec.files import write_bytes

READY_S_MAX = 180.0
"""Loading models and, the first time, compiling kernels."""
STOP_S_MAX = 30.0
POLL_S = 0.05
LOG_TAIL_CHARACTERS = 300


class ServerError(Exception):
    """The server could not be started; the text is one line with the end of its log."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Processor time of the process and its children so far."""
        total = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory_bytes(self) -> int:
        """Resident memory of the process and its children."""
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE


@contextlib.contextmanager
def serving(
    pipeline: Path | str,
    folder: Path,
    profile: Path | None,
    *,
    journal: bool = True,
    dilate: float = 1.0,
    more: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Serve a pipeline on a free loopback port until the block ends.

    Args:
        pipeline: Pipeline file, or a model in a repository.
        folder: Gets ``journal/``, ``server.log`` and, while it runs, ``ready``.
        profile: Latency table.
        journal: Keep one.
        dilate: Seconds here for one on its emulated devices.
        more: Further options of `loadslice serve`.
        secrets: Environment variables that hold secrets of the server's.

    Raises:
        ServerError: It ended, or was not ready in time.
    """
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    log = folder / "server.log"
    write_bytes(log, b"")  # also shows that the folder can be written to
    command = [sys.executable, "-m", "loadslice", "serve", str(pipeline), "--http", "0", "--ready-file", str(ready)]
    command += ["--profile", str(profile)] if profile is not None else []
    command += ["--journal", str(folder / "journal")] if journal else []
    command += ["--dilate", f"{dilate:g}"] if dilate != 1 else []
    command += more
    with ended_in_order(), log.open("ab") as stream:
        # A session of its own: Ctrl-C reaches only us, and we stop the server in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            env={**os.environ, **(secrets or {})},
        )
        try:
            yield Served(_wait_ready(process, ready, log), psutil.Process(process.pid))
        finally:
            _stop(process)
            ready.unlink(missing_ok=True)


def _wait_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    waiting = threading.Event()
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        if ready.is_file() and (url := ready.read_text(encoding="utf-8").strip()):
            return url
        if process.poll() is not None:
            raise ServerError(f"the server ended with code {process.returncode}: {_tail(log)}")
        waiting.wait(POLL_S)
    raise ServerError(f"the server was not ready within {READY_S_MAX:.0f} s: {_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        if process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S_MAX)
    finally:  # also where waiting was interrupted
        if process.poll() is None:
            process.kill()
            process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][-LOG_TAIL_CHARACTERS:] if lines else "its log is empty"
