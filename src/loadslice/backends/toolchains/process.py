"""One question to one toolchain: a process of its own, with a deadline, a memory bound and an environment of its own.

A vendor's compiler may crash, hang, fill the disk or print anything. Whatever it does ends here as one readable line,
and nothing of it is left running.
"""

import contextlib
import json
import os
import signal
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

from loadslice.spec.errors import InputError
from loadslice.spec.files import reason

ANSWER_BYTES_MAX = 256 * 1024 * 1024
STDERR_SHOWN = 300
"""Characters of a vendor's last line that reach the user."""

DISK_WORDS = ("No space left on device", "ENOSPC", "disk full")
MEMORY_WORDS = ("MemoryError", "bad_alloc", "Cannot allocate memory", "out of memory")


class ToolchainError(InputError):
    """A toolchain gave no answer; others may still."""


def ask(
    name: str, python: str, request: dict[str, Any], folder: Path, *, deadline_s: float, memory_bytes: int
) -> dict[str, Any]:
    """Put a question to a toolchain and wait for its answer.

    Args:
        name: Of the toolchain; its script is ``ask_NAME.py``.
        python: The interpreter that has it.
        request: JSON; ``folder``, ``log`` and ``memory_bytes`` are added.
        folder: Where it may write; its home and temporary folder too.
        deadline_s: It is killed after this.
        memory_bytes: Bound on its data segment.

    Returns:
        The script's answer.

    Raises:
        ToolchainError: No answer, and why.
    """
    question = folder / "request.json"
    log = folder / "stderr.txt"
    asked = request | {"folder": str(folder), "log": str(log), "memory_bytes": memory_bytes}
    question.write_text(json.dumps(asked), encoding="utf-8")
    script = Path(str(resources.files(__package__) / "scripts" / f"ask_{name}.py"))
    # -E and -s: nothing of the user's own environment leaks in; -I would also hide the script's neighbour.
    command = [python, "-E", "-s", "-B", str(script), str(question)]
    try:
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,
            )
            try:
                out, _ = process.communicate(timeout=deadline_s)
            except BaseException as error:
                _end(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    late = f"toolchain '{name}': no answer within {deadline_s:g} s, stopped."
                    raise ToolchainError(f"{late} Give it longer with --timeout.") from error
                raise
    except OSError as error:
        raise ToolchainError(f"toolchain '{name}': cannot run {python}, {reason(error)}.") from error
    return _answer(name, process.returncode, out, log, memory_bytes)


def _environment(folder: Path) -> dict[str, str]:
    """A small environment: no settings, caches or proxies of the user's, and no telemetry."""
    threads = str(os.cpu_count() or 1)
    kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT") if key in os.environ}
    return kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "ORT_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": threads,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _answer(name: str, code: int, out: bytes, log: Path, memory_bytes: int) -> dict[str, Any]:
    said = _tail(log)
    if code < 0:
        raise ToolchainError(f"toolchain '{name}': crashed with {_signal(-code)}{_because(said, memory_bytes)}")
    try:
        if len(out) > ANSWER_BYTES_MAX:
            raise ValueError
        document = json.loads(out)
    except (ValueError, RecursionError) as error:
        raise ToolchainError(
            f"toolchain '{name}': ended with code {code} and no answer{_because(said, memory_bytes)}"
        ) from error
    if not isinstance(document, dict):
        raise ToolchainError(f"toolchain '{name}': its answer is not one.")
    if "error" in document:
        kind = document.get("kind") or ""
        text = _because(f"{kind} {document['error']}", memory_bytes, plain=str(document["error"]))
        raise ToolchainError(f"toolchain '{name}'{text}")
    return document


def _because(said: str, memory_bytes: int, plain: str | None = None) -> str:
    """The cause in plain words where it is a known one, else the vendor's own last line."""
    if said.startswith("disk ") or any(word in said for word in DISK_WORDS):
        return ": the disk is full. Free some space, or point TMPDIR elsewhere."
    if said.startswith("memory ") or any(word in said for word in MEMORY_WORDS):
        return (
            f": out of memory within its bound of {memory_bytes / 2**30:.1f} GiB. "
            "Give it more with --memory-gib, or compile a smaller part of the model."
        )
    text = (plain or said).strip()
    if len(text) > STDERR_SHOWN:
        whole = text[:STDERR_SHOWN].rpartition(". ")[0]
        text = whole or f"{text[:STDERR_SHOWN]} ..."
    text = text.rstrip(".!")
    return f": {text}." if text else "."


def _tail(log: Path) -> str:
    """The last line of a vendor's standard error that says something."""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - 16384))
        lines = [line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]
        telling = [line for line in lines if any(word in line for word in (*DISK_WORDS, *MEMORY_WORDS))]
        return (telling or lines or [""])[-1]
    return ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
