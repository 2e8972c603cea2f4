"""Whether a server that runs for long grows: memory, descriptors and threads under steady load with clients that leave.

    python -m benchmarks.soak_bench --minutes 60 --rate 300

A server as a user starts it, with both fronts and a journal, is asked at a steady rate, by default 70 % of what it can
do: most requests with binary tensors, some as JSON, a few over gRPC where ``grpcio`` is there. With ``--paced`` an
engine says what it can do, eight places of 20 ms each, and not the processor, which may have other work. Meanwhile
10,000 clients leave in the middle of a request, half of them by a reset. What the server holds is sampled; the first
sixth of the run, in which caches and memory pools fill, is left out of the slope. Then 10,000 connections that do
nothing are opened on a server of their own, for what each costs.
"""

import contextlib
import resource
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import Figures, load_average_1m, serve_models
from benchmarks.serve_targets import Target, ask, build_client, ended, family, free_port, loading, ours, wide
from benchmarks.trend import trend
from loadslice.app.output import emit, json_option, keep, out_option, say

LOAD = 0.7
"""Of what closed-loop clients get, where no rate is given."""
JSON_SHARE = 0.1
CONNECTIONS = 16
GRPC_PER_S = 10.0
LEAVERS = 10_000
IDLE = 10_000
WARM_SHARE = 1 / 6
SAMPLES = 720
SAMPLE_S_MIN = 0.5
FLAT_SHARE_PER_HOUR = 0.01
"""Memory that grows by less an hour, for sure, is called flat."""


@dataclass(slots=True)
class Samples:
    """What the server held, at times since the soak began."""

    at_s: list[float]
    rss_mb: list[float]
    pss_mb: list[float]
    descriptors: list[float]
    threads: list[float]

    def take(self, at_s: float, target: Target) -> None:
        """One sample of all its processes."""
        statuses = [_status(pid) for pid in family(target.pid)]
        self.at_s.append(at_s)
        self.rss_mb.append(sum(status.get("VmRSS", 0) for status in statuses) * 1024 / 1e6)
        self.pss_mb.append(target.pss_mb())
        self.threads.append(sum(status.get("Threads", 0) for status in statuses))
        self.descriptors.append(sum(_descriptors(pid) for pid in family(target.pid)))


def run(minutes: float = 1.0, rate_per_s: float | None = None, journal: bool = True, pipeline: str = "mlp") -> Figures:
    """Soak a server.

    Args:
        minutes: Of load.
        rate_per_s: Requests; None: `LOAD` of what the server can do.
        journal: Whether it writes one, for which it loads a large library.
        pipeline: Of `serve_models`, one that answers to ``mlp``.

    Returns:
        Slopes an hour with their 95 % intervals and verdicts, latencies, and memory of an idle connection.
    """
    figures: Figures = {"load_average_1m_before": load_average_1m()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        serve_models.write(folder)
        client = build_client(folder)
        options = ("--journal", "journal") if journal else ()
        figures |= _soak(folder / f"{pipeline}.yaml", client, minutes * 60, rate_per_s, options)
        figures |= _idle(folder)
    figures["load_average_1m_after"] = load_average_1m()
    return figures


def _soak(served: Path, client: Path, seconds: float, rate_per_s: float | None, options: tuple[str, ...]) -> Figures:
    shape, folder = (1, serve_models.WIDTH), served.parent
    binary, as_json = folder / "binary.request", folder / "json.request"
    binary.write_bytes(serve_models.request("mlp", shape))
    as_json.write_bytes(serve_models.request("mlp", shape, as_json=True))
    grpc_port = free_port()
    samples = Samples([], [], [], [], [])
    with ours(served, "--grpc", str(grpc_port), *options) as target:
        if rate_per_s is None:
            rate_per_s = LOAD * ask(client, target, binary, CONNECTIONS, 3.0).requests_per_s
        say(f"soak: {rate_per_s:,.0f} requests/s for {seconds / 60:g} minutes")
        cpu_before_s = target.cpu_s()
        over = threading.Event()
        with contextlib.ExitStack() as stack:
            loads = [
                stack.enter_context(loading(client, target, path, CONNECTIONS, seconds, share * rate_per_s))
                for path, share in ((binary, 1 - JSON_SHARE), (as_json, JSON_SHARE))
            ]
            stack.callback(over.set)
            left = _Leavers(target, binary.read_bytes(), seconds, over)
            calls = _Calls(grpc_port, shape, over)
            for thread in (left, calls):
                thread.start()
            _sample(samples, target, seconds)
            found = [ended(process) for process in loads]
            over.set()
            for thread in (left, calls):
                thread.join()
        spent_s = target.cpu_s() - cpu_before_s
        samples.take(seconds, target)
    completed = sum(one["completed"] for one in found)
    figures: Figures = {
        "soak_minutes": seconds / 60,
        "soak_rate_per_s": rate_per_s,
        "soak_completed": completed,
        "soak_not_200": sum(one["others"] for one in found),
        "soak_grpc_calls": calls.count if calls.error is None else calls.error,
        "soak_clients_that_left": left.count,
        "soak_p50_ms": found[0]["p50_us"] / 1e3,
        "soak_p99_ms": found[0]["p99_us"] / 1e3,
        "soak_cpu_share": spent_s / seconds,
    }
    return figures | _trends(samples, seconds)


def _sample(samples: Samples, target: Target, seconds: float) -> None:
    began_s = time.monotonic()
    every_s = max(SAMPLE_S_MIN, seconds / SAMPLES)
    while (at_s := time.monotonic() - began_s) < seconds:
        samples.take(at_s, target)
        if len(samples.at_s) % (SAMPLES // 12) == 0:
            say(f"soak: {at_s / 60:.1f} minutes, {samples.rss_mb[-1]:.1f} MB resident")
        time.sleep(min(every_s, max(0.0, seconds - at_s)))


def _trends(samples: Samples, seconds: float) -> Figures:
    counted = [index for index, at_s in enumerate(samples.at_s) if at_s >= WARM_SHARE * seconds]
    figures: Figures = {}
    for key in ("rss_mb", "pss_mb"):
        values: list[float] = getattr(samples, key)
        found = trend([samples.at_s[index] for index in counted], [values[index] for index in counted])
        figures |= {
            f"soak_{key}_first": values[0],
            f"soak_{key}_warm": values[counted[0]],
            f"soak_{key}_last": values[-1],
            f"soak_{key}_per_hour": found.per_hour,
            f"soak_{key}_per_hour_low": found.low,
            f"soak_{key}_per_hour_high": found.high,
            f"soak_{key}_verdict": found.verdict(FLAT_SHARE_PER_HOUR),
        }
    for key in ("descriptors", "threads"):
        values = getattr(samples, key)
        figures |= {
            f"soak_{key}_warm": statistics.median(values[counted[0] : counted[0] + 20]),
            f"soak_{key}_max": max(values),
            f"soak_{key}_last": values[-1],
        }
    return figures


def _idle(folder: Path) -> Figures:
    """Memory of a connection that was opened and says nothing, and of one that has asked once and stays."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(IDLE, most - 512)
    wire = serve_models.request("mlp", (1, serve_models.WIDTH))
    figures: Figures = {"idle_connections": count}
    for key, first in (("silent", b""), ("kept_alive", wire)):
        with wide(folder / "mlp.yaml", count + 256) as target, contextlib.ExitStack() as stack:
            _asked_once(target, wire, stack)
            before_mb = target.pss_mb()
            for _ in range(count):
                _asked_once(target, first, stack)
            figures[f"idle_{key}_bytes_each"] = 1e6 * (target.pss_mb() - before_mb) / count
            figures[f"idle_{key}_pss_mb"] = target.pss_mb()
    return figures


def _asked_once(target: Target, wire: bytes, stack: contextlib.ExitStack) -> None:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", target.port), 10))
    if wire:
        connection.sendall(wire)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


class _Leavers(threading.Thread):
    """Clients that send a part of a request and go, evenly over nine tenths of the time."""

    def __init__(self, target: Target, wire: bytes, seconds: float, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address = ("127.0.0.1", target.port)
        self._wire = wire
        self._gap_s = 0.9 * seconds / LEAVERS
        self._over = over
        self.count = 0

    def run(self) -> None:
        began_s = time.monotonic()
        while self.count < LEAVERS and not self._over.wait(
            max(0.0, began_s + self.count * self._gap_s - time.monotonic())
        ):
            with socket.create_connection(self._address, 10) as connection:
                # The lengths go through the head, the JSON part, the tensor, and the whole of it.
                connection.sendall(self._wire[: 1 + self.count % len(self._wire)])
                if self.count % 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.count += 1


class _Calls(threading.Thread):
    """A few requests over gRPC."""

    def __init__(self, port: int, shape: tuple[int, ...], over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._rows = np.zeros(shape, np.float32)
        self._over = over
        self.count = 0
        self.error: str | None = None

    def run(self) -> None:
        try:
            import grpc

            from loadslice.serve.grpc_messages import SERVICE, messages
        except ImportError:
            self.error = "grpcio is not installed"
            return
        made: Any = messages().classes["ModelInferRequest"](model_name="mlp")
        made.inputs.add(name="x", datatype="FP32", shape=self._rows.shape)
        made.raw_input_contents.append(self._rows.tobytes())
        wire = made.SerializeToString()
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            while not self._over.wait(1 / GRPC_PER_S):
                try:
                    infer(wire, timeout=10)
                except grpc.RpcError as error:
                    self.error = f"after {self.count} calls: {error.code()}"
                    return
                self.count += 1


def _status(pid: int) -> dict[str, int]:
    """The numbers of ``/proc/PID/status``; sizes in kB."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                found[key] = int(words[0])
    return found


def _descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


@click.command(epilog="Example: python -m benchmarks.soak_bench --minutes 60 --rate 300 --out out/soak")
@click.option("--minutes", type=click.FloatRange(0.5, 10_000), default=1.0, show_default=True, help="Of load.")
@click.option("--rate", type=click.FloatRange(1, 1e6), help="Requests per second; default: 70 % of what it can do.")
@click.option("--journal/--no-journal", default=True, show_default=True, help="Whether the server writes one.")
@click.option("--paced", is_flag=True, help="Make a waiting engine the bottleneck, not the processor.")
@json_option
@out_option
def command(minutes: float, rate: float | None, journal: bool, paced: bool, as_json: bool, out: Path | None) -> None:
    """Soak this server and say whether it grows."""
    figures = run(minutes, rate, journal, "paced" if paced else "mlp")
    keep(figures, out, "soak_bench.json")
    emit(figures, as_json=as_json, text=lambda: _lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    for key, value in figures.items():
        yield f"{key:<40} {value:>12,.4g}" if isinstance(value, int | float) else f"{key:<40} {value}"


if __name__ == "__main__":
    command()
