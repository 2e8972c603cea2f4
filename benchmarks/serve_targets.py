"""Starts what `serve_bench` measures, asks it, and reads what that cost."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peer_targets
from loadslice.spec.errors import InputError

READY_S = 120.0
QUIET = {"ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True)
class Target:
    """A running server."""

    name: str
    pid: int
    port: int

    def cpu_s(self) -> float:
        """Processor time of its process and all that it started."""
        return sum(_cpu_s(pid) for pid in family(self.pid))

    def pss_mb(self) -> float:
        """Memory of all of them, shared pages divided among who shares them, MB of 10**6 bytes."""
        return sum(_pss_kb(pid) for pid in family(self.pid)) * 1024 / 1e6


@dataclass(frozen=True, slots=True)
class Asked:
    """What a stretch of load saw."""

    requests_per_s: float
    others: int
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """Of the server, per request."""


def build_client(folder: Path) -> Path:
    """Compile the load client.

    Raises:
        InputError: There is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise InputError("serve_bench: its load client needs a C compiler (cc, gcc or clang). Install one.")
    client = folder / "load"
    subprocess.run([compiler, "-O2", "-o", client, peer_targets.PEERS / "load.c"], check=True)
    return client


def ask(client: Path, target: Target, request: Path, clients: int, seconds: float) -> Asked:
    """Load a target with closed-loop clients for a while, after a short warm-up."""
    _load(client, target, request, clients, min(0.5, seconds))
    before_s = target.cpu_s()
    found = _load(client, target, request, clients, seconds)
    spent_s = target.cpu_s() - before_s
    count = found["completed"] + found["others"]
    return Asked(
        requests_per_s=found["completed"] / seconds,
        others=int(found["others"]),
        p50_ms=found["p50_us"] / 1e3,
        p99_ms=found["p99_us"] / 1e3,
        cpu_us=1e6 * spent_s / max(1, count),
    )


def _load(client: Path, target: Target, request: Path, clients: int, seconds: float) -> dict[str, float]:
    with loading(client, target, request, clients, seconds) as process:
        return ended(process)


@contextlib.contextmanager
def loading(
    client: Path, target: Target, request: Path, clients: int, seconds: float, rate_per_s: float | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a load; at the block's end it is over.

    Args:
        client: As `build_client` made it.
        target: Who is asked.
        request: What, as a file.
        clients: Connections.
        seconds: How long.
        rate_per_s: Requests due; None: each client asks again when it was answered.
    """
    command = [client, "127.0.0.1", target.port, clients, seconds, 0, request, *([rate_per_s] if rate_per_s else [])]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> dict[str, float]:
    """What a load saw, once it has ended.

    Raises:
        InputError: It ended early.
    """
    told, _ = process.communicate()
    if process.returncode:
        raise InputError(f"serve_bench: the load client ended with {process.returncode}; its reason stands above.")
    found: dict[str, float] = json.loads(told)
    return found


@contextlib.contextmanager
def ours(pipeline: Path, *options: str) -> Iterator[Target]:
    """`loadslice serve` as a user starts it."""
    command = [sys.executable, "-m", "loadslice", "serve", pipeline.name, "--http", "0", *options]
    with _started("loadslice", command, pipeline.parent, {}) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if not words:
            raise InputError("serve_bench: `loadslice serve` did not start.")
        yield Target("loadslice", process.pid, int(words[1].rsplit(":", 1)[1]))


@contextlib.contextmanager
def wide(pipeline: Path, connections: int) -> Iterator[Target]:
    """Our server with a higher limit on connections than a user can set."""
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom loadslice.serve.limits import Limits\n"
        "from loadslice.serve.loop import new_loop\nfrom loadslice.serve.server import Server\n"
        "from loadslice.spec import pipeline\n"
        "async def main():\n"
        "    served = pipeline.load(Path(sys.argv[1]))\n"
        "    limits = Limits(connections_max=int(sys.argv[2]))\n"
        "    server = Server(served, Path(sys.argv[1]).parent, port=0, limits=limits)\n"
        "    await server.start()\n    print(server.url, flush=True)\n    await asyncio.Event().wait()\n"
        "with asyncio.Runner(loop_factory=new_loop) as runner:\n    runner.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(pipeline), str(connections)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().strip().rsplit(":", 1)[1])
            yield Target("loadslice", process.pid, port)
        finally:
            process.kill()


@contextlib.contextmanager
def peer(name: str, python: Path, model: Path, shape: str, workers: int) -> Iterator[Target]:
    """A peer, on a port that was free, once it answers.

    Raises:
        InputError: It did not start; the end of what it said is in the message.
    """
    port, one = free_port(), peer_targets.ALL[name]
    command = one.command(name, python, model, shape, workers, port)
    wire = one.request(tuple(int(side) for side in shape.split("x")))
    extra = peer_targets.environment(model, shape, workers)
    with _started(name, command, model.parent, extra) as process:
        until = time.monotonic() + READY_S
        while process.poll() is None and time.monotonic() < until and not _answers(port, wire):
            _pause(0.2)
        if process.poll() is not None or not _answers(port, wire):
            said = (model.parent / f"{name}.log").read_text(errors="replace").split()
            raise InputError(f"peer {name} did not start: {' '.join(said)[-300:]}")
        _pause(2.0)  # workers of some come up one after the other
        yield Target(name, process.pid, port)


def _answers(port: int, wire: bytes) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(wire)
        return connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    return False


def has(python: Path, module: str) -> bool:
    """Whether an interpreter has a package."""
    found = subprocess.run([str(python), "-c", f"import {module}, onnxruntime"], capture_output=True, check=False)
    return found.returncode == 0


def scrape(target: Target, name: str) -> float:
    """Sum of one metric of ours over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


@contextlib.contextmanager
def _started(name: str, command: list[str], folder: Path, extra: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    log = (folder / f"{name}.log").open("w")
    with (
        log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | QUIET | extra,
            stdout=subprocess.PIPE if name == "loadslice" else log,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            below = family(process.pid)
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            for pid in below[1:]:  # some leave processes behind
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _pss_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pause(for_s: float) -> None:
    time.sleep(for_s)
