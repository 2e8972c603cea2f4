"""Starting an engine's process: what it is given, and how it ended."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from loadslice.backends.isolated.arena import Arena
from loadslice.spec.pipeline import Engine

WORKER = "loadslice.backends.isolated.worker"


class Launched(NamedTuple):
    """A process that has just been started."""

    process: subprocess.Popen[bytes]
    ours: list[socket.socket]
    """Our ends: control, pulse, then one for each slot."""
    life: int
    """Our end of the pipe whose closing ends it."""


def launch(name: str, engine: Engine, arenas: Sequence[Arena]) -> Launched:
    """Start the process of one engine.

    Args:
        name: Of the engine.
        engine: As in the pipeline file.
        arenas: Shared memory of each slot.

    Raises:
        OSError: The system does not start it.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2 + len(arenas))]
    theirs = [other.fileno() for _, other in pairs]
    memory = [arena.fd for arena in arenas]
    slots = ",".join(f"{channel}:{fd}" for channel, fd in zip(theirs[2:], memory, strict=True))
    limit_mb = engine.memory_limit_mb
    life, ours_of_life = os.pipe()
    command = [
        *(sys.executable, "-P", "-m", WORKER, "--name", name),
        *("--control", str(theirs[0]), "--pulse", str(theirs[1]), "--life", str(life), "--slots", slots),
        *("--section-bytes", str(arenas[0].section_bytes)),
        *("--memory-bytes", str(0 if limit_mb is None else round(limit_mb * 1e6))),
    ]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,  # a runtime that talks must not talk into our caller's documents
            pass_fds=(life, *theirs, *memory),
            env=os.environ | {"ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
        )
    except BaseException:
        os.close(ours_of_life)
        for ours, _ in pairs:
            ours.close()
        raise
    finally:
        os.close(life)
        for _, other in pairs:
            other.close()
    return Launched(process, [ours for ours, _ in pairs], ours_of_life)


def in_words(code: int) -> str:
    """How a process ended, by `subprocess.Popen.returncode`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
