"""Decisions compiled by a process that then ends: ``python -P -m loadslice.serve.compiled WHAT``.

The compiler leaves 300 to 540 MB behind in whoever calls it, for as long as that lives. Where decisions have not been
compiled before, a process of their own compiles them into the cache, and the server loads them from there as it does
every other time. Where that fails the server compiles for itself: it costs memory and nothing else.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

log = logging.getLogger(__name__)

What = Literal["pipeline", "language"]

COMPILE_S_MAX = 900.0
"""Longest time it may take: 14 s on a quiet machine, 100 s on one with eight times its work."""

PIPELINE = """
version: 1
pipeline: compiled
engines: {host: {backend: python}}
stages: [{name: any, python: "any:any", engine: host}]
"""

LANGUAGE = """
version: 1
language: compiled
model: any
engines: {host: {backend: llama, cost: {step_ms: 1, token_us: 1, row_us: 1}}}
"""


def is_compiled(entry: Callable[..., object]) -> bool:
    """Whether a decision that Python calls is in the cache; true also where there is no cache to put it in."""
    # numba's own names: where they are no more, everything counts as compiled and is so by whoever calls it first.
    cache = getattr(getattr(entry, "_cache", None), "_cache_file", None)
    index = getattr(cache, "_index_path", None)
    return index is None or Path(index).exists()


def compile_apart(what: What, entry: Callable[..., object]) -> None:
    """Have decisions compiled into the cache, unless they are there; blocks, for a minute perhaps.

    Args:
        what: Whose decisions.
        entry: One of them.
    """
    if is_compiled(entry):
        return
    log.info("decisions are compiled, once for this version: a minute perhaps, and never again")
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, what],
            stdin=subprocess.PIPE,  # its end tells the process that we have gone, however that came
            stdout=2,
            env=os.environ | {"ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"},
        ) as process:
            try:
                code = process.wait(COMPILE_S_MAX)
            finally:
                process.kill()
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("decisions are compiled in this process, which keeps the memory for it: %s", error)
    else:
        if code != 0:
            log.warning("decisions are compiled in this process, which keeps the memory for it: exit code %d", code)


def main(what: str) -> None:
    """Compile, in a process of its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the server's group, and the server's to answer
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    import msgspec

    if what == "pipeline":
        from loadslice.policy.tables import lower
        from loadslice.serve.core import warm_kernels
        from loadslice.spec.pipeline import Pipeline, check

        warm_kernels(lower(check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "compiled")))
    else:
        from loadslice.policy.tokens.tables import lower as lower_language
        from loadslice.serve.language.server import warm_desk
        from loadslice.spec.language import Language

        warm_desk(lower_language(msgspec.yaml.decode(LANGUAGE, type=Language)))


def _end_with_the_server() -> None:
    while os.read(0, 64):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
