"""How a toolchain's script hears what is asked and answers: run by another interpreter, with its standard library only.

The request is a JSON file, the answer one JSON document on standard output. Vendors' libraries print there too, so the
real output is put aside first and everything they print goes to standard error.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Any

NEAR = 0.9
"""Of the memory bound; a process that has used more than this was stopped by it."""


class RefusedError(Exception):
    """The toolchain will not take this model; the message is for the user."""


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Read the request that the command line names, answer it, and never let a traceback be the answer."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with open(sys.argv[1], encoding="utf-8") as stream:  # noqa: PTH123 - this file runs on any Python 3
        request = json.load(stream)
    _bound_memory(request.get("memory_bytes"))
    try:
        document = answer(request)
    except RefusedError as error:
        document = {"error": str(error), **_cause(request.get("memory_bytes"))}
    except MemoryError:
        document = {"error": "out of memory", "kind": "memory"}
    except OSError as error:
        document = {"error": error.strerror or str(error), "kind": "disk" if error.errno == 28 else "os"}
    except Exception as error:  # noqa: BLE001 - vendors' exceptions have no common base
        traceback.print_exc()
        text = last_line(str(error)).removeprefix(f"{type(error).__name__}: ")
        document = {"error": f"{type(error).__name__}: {text}", **_cause(request.get("memory_bytes"))}
    json.dump(document, out)
    out.flush()
    # Some of these libraries crash while they are torn down, after the answer is out.
    os._exit(0)


def _bound_memory(limit_bytes: Any) -> None:
    """Let an allocation fail rather than the machine."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (int(limit_bytes), int(limit_bytes)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _cause(limit_bytes: Any) -> dict[str, str]:
    """Whether memory was the trouble: a library that catches its failed allocations reports something else."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status", encoding="utf-8") as stream:  # noqa: PTH123
        used = next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmData"))
        if limit_bytes and used > NEAR * int(limit_bytes):
            return {"kind": "memory"}
    return {}


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def versions(*distributions: str) -> dict[str, str]:
    """Versions of installed distributions; absent ones are left out."""
    found = {}
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
