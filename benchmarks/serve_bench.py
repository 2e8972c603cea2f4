"""What serving costs: this server, direct ONNX Runtime in process, and peers that are installed, taken by turns.

`python -m benchmarks.serve_bench` runs rounds in which every target is asked in turn, so that whatever else the machine
does meets all of them, and prints medians over the rounds. Every figure of a target stands beside direct ONNX Runtime
measured in the same round: on a machine that is not quiet, ratios hold where microseconds do not.
"""

import asyncio
import contextlib
import resource
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import Figures, load_average_1m, peer_targets, serve_models
from benchmarks.serve_targets import Asked, Target, ask, build_client, has, ours, peer, scrape, wide
from loadslice.app.output import emit, json_option, keep, out_option, say

CLIENTS = (1, 8, 64)
PEER_NAMES = ("fastapi", "mosec")
"""The others are for `peers_bench`."""
IDLE = 10_000
Samples = dict[str, list[float]]


def run(rounds: int = 3, seconds: float = 2.0, python: Path = Path(sys.executable), only: str = "") -> Figures:
    """Measure everything.

    Args:
        rounds: Of each comparison.
        seconds: Each target is loaded for, per number of clients.
        python: Interpreter that has the peers' packages.
        only: Sections to run, as `SECTIONS` names them, apart by commas; empty: all.

    Returns:
        Medians. ``mlp_c8_loadslice_cpu_us``: model, clients, target, figure. ``_x_direct``: times direct ONNX Runtime,
        of requests per second or of CPU. ``null``: not measured.
    """
    figures: Figures = {"load_average_1m_before": load_average_1m()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        serve_models.write(folder)
        bench = Bench(folder, build_client(folder), python, rounds, seconds)
        for section in only.split(",") if only else SECTIONS:
            say(f"{section}")
            figures |= SECTIONS[section](bench)
    figures["load_average_1m_after"] = load_average_1m()
    return figures


class Bench:
    """What every section needs."""

    def __init__(self, folder: Path, client: Path, python: Path, rounds: int, seconds: float) -> None:
        self.folder = folder
        self.client = client
        self.rounds = rounds
        self.seconds = seconds
        self.python = python
        self.peers = [name for name in PEER_NAMES if all(has(python, one) for one in peer_targets.ALL[name].modules)]

    def request(self, name: str, content: bytes) -> Path:
        """A request as a file."""
        path = self.folder / f"{name}.request"
        path.write_bytes(content)
        return path

    def ask(self, target: Target, request: Path, clients: int) -> Asked:
        """Load a target for the time of one figure."""
        return ask(self.client, target, request, clients, self.seconds)

    def ask_long(self, target: Target, request: Path, clients: int) -> Asked:
        """The same for a model of milliseconds, of which many must have ended."""
        return ask(self.client, target, request, clients, 4 * self.seconds)


def compare_mlp(bench: Bench) -> Figures:
    """A tiny model, so that all that is seen is what a server adds."""
    model = bench.folder / "mlp.onnx"
    shape = (1, serve_models.WIDTH)
    requests = {
        "loadslice": bench.request("mlp", serve_models.request("mlp", shape)),
        "json": bench.request("mlp_json", serve_models.request("mlp", shape, as_json=True)),
    }
    samples: Samples = {}
    for _ in range(bench.rounds):
        _direct(bench, samples, "mlp", model, shape, threads=1)
        with ours(bench.folder / "mlp.yaml") as target:
            for clients in CLIENTS:
                _add(samples, f"mlp_c{clients}_loadslice", bench.ask(target, requests["loadslice"], clients))
                _add(samples, f"mlp_c{clients}_loadslice_json", bench.ask(target, requests["json"], clients))
            samples.setdefault("mlp_loadslice_pss_mb", []).append(target.pss_mb())
        for name in bench.peers:
            path = "/inference" if name == "mosec" else "/infer"
            raw = bench.request(f"mlp_{name}", serve_models.raw_request(path, shape))
            with peer(name, bench.python, model, f"1x{serve_models.WIDTH}", 1) as target:
                for clients in CLIENTS:
                    _add(samples, f"mlp_c{clients}_{name}", bench.ask(target, raw, clients))
                samples.setdefault(f"mlp_{name}_pss_mb", []).append(target.pss_mb())
    return _summary(samples, "mlp", direct_threads=dict.fromkeys(CLIENTS, 1))


def compare_three(bench: Bench) -> Figures:
    """Three tiny stages, each of which batches."""
    request = bench.request("three", serve_models.request("three", (1, serve_models.WIDTH)))
    samples: Samples = {}
    for _ in range(bench.rounds):
        with ours(bench.folder / "three.yaml") as target:
            for clients in CLIENTS:
                _add(samples, f"three_c{clients}_loadslice", bench.ask(target, request, clients))
    return {key: statistics.median(values) for key, values in samples.items()}


def compare_cnn(bench: Bench) -> Figures:
    """A model of some milliseconds on two workers, so that all that is seen is what a server wastes."""
    model = bench.folder / "cnn.onnx"
    shape = (1, *serve_models.IMAGE)
    request = bench.request("cnn", serve_models.request("cnn", shape))
    samples: Samples = {}
    for _ in range(bench.rounds):
        for threads in (1, 2):
            _direct(bench, samples, "cnn", model, shape, threads=threads)
        with ours(bench.folder / "cnn.yaml") as target:
            for clients in CLIENTS:
                _add(samples, f"cnn_c{clients}_loadslice", bench.ask_long(target, request, clients))
        for threads in (1, 2):
            _direct(bench, samples, "cnn", model, shape, threads=threads)
        if "fastapi" in bench.peers:
            raw = bench.request("cnn_fastapi", serve_models.raw_request("/infer", shape))
            with peer("fastapi", bench.python, model, "1x3x128x128", 2) as target:
                for clients in CLIENTS:
                    _add(samples, f"cnn_c{clients}_fastapi", bench.ask_long(target, raw, clients))
    return _summary(samples, "cnn", direct_threads={1: 1, 8: 2, 64: 2})


def mixed_shapes(bench: Bench) -> Figures:
    """32 requests of four widths at once: how many batches they were."""
    wires = [serve_models.request("mixed", (1, serve_models.WIDTHS[index % 4])) for index in range(32)]
    counts = []
    with ours(bench.folder / "mixed.yaml") as target:
        for _ in range(5):
            before = scrape(target, "loadslice_engine_batches_total")
            _at_once(target, wires)
            counts.append(scrape(target, "loadslice_engine_batches_total") - before)
    return {"mixed_32_requests_batches_median": statistics.median(counts), "mixed_32_requests_batches_max": max(counts)}


def queue_deadline(bench: Bench) -> Figures:
    """A deadline of 50 ms behind the only engine, which is busy for 400 ms: how late the refusal is.

    The engine is quick most of the time, so that the core has reason to let requests wait for it.
    """
    quick = serve_models.hold_request(0.002)
    holding = serve_models.hold_request(0.4)
    waiting = serve_models.hold_request(0.002, deadline_ms=50)
    late_ms: list[float] = []
    with ours(bench.folder / "busy.yaml") as target:
        for _ in range(10):
            for _ in range(40):
                _at_once(target, [quick])
            holder = threading.Thread(target=_at_once, args=(target, [holding]))
            holder.start()
            time.sleep(0.05)
            late_ms += [1e3 * took_s - 50 for took_s in _at_once(target, [waiting] * 4)]
            holder.join()
    return {"deadline_50ms_late_ms_p50": statistics.median(late_ms), "deadline_50ms_late_ms_max": max(late_ms)}


def many_engines(bench: Bench) -> Figures:
    """CPU per request with one engine and with 64, by turns."""
    samples: Samples = {}
    for _ in range(bench.rounds):
        for name, pipeline in (("engines1", "mlp"), ("engines64", "many")):
            request = bench.request(name, serve_models.request(pipeline, (1, serve_models.WIDTH)))
            with ours(bench.folder / f"{pipeline}.yaml") as target:
                samples.setdefault(f"{name}_c8_cpu_us", []).append(bench.ask(target, request, 8).cpu_us)
    figures: Figures = {key: statistics.median(values) for key, values in samples.items()}
    figures["engines64_x_engines1_cpu"] = _ratio(samples["engines64_c8_cpu_us"], samples["engines1_c8_cpu_us"])
    return figures


def many_connections(bench: Bench) -> Figures:
    """CPU per request and memory with few connections open and with 10,000 that do nothing, by turns."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    idle = min(IDLE, most - 512)
    request = bench.request("connections", serve_models.request("mlp", (1, serve_models.WIDTH)))
    few: list[float] = []
    many: list[float] = []
    per_connection: list[float] = []
    with wide(bench.folder / "mlp.yaml", idle + 256) as target:
        for _ in range(bench.rounds):
            few.append(bench.ask(target, request, 8).cpu_us)
            before_mb = target.pss_mb()
            with contextlib.ExitStack() as stack:
                for _ in range(idle):
                    stack.enter_context(socket.create_connection(("127.0.0.1", target.port), 10))
                many.append(bench.ask(target, request, 8).cpu_us)
                per_connection.append(1e6 * (target.pss_mb() - before_mb) / idle)
    return {
        "idle_connections": idle,
        "connections_few_c8_cpu_us": statistics.median(few),
        "connections_many_c8_cpu_us": statistics.median(many),
        "connections_many_x_few_cpu": _ratio(many, few),
        "idle_connection_bytes": max(per_connection),
    }


SECTIONS = {
    "mlp": compare_mlp,
    "three": compare_three,
    "cnn": compare_cnn,
    "mixed": mixed_shapes,
    "deadline": queue_deadline,
    "engines": many_engines,
    "connections": many_connections,
}


def _direct(bench: Bench, samples: Samples, name: str, model: Path, shape: tuple[int, ...], *, threads: int) -> None:
    rate, cpu_us = direct(model, shape, threads, min(bench.seconds, 2.0))
    samples.setdefault(f"{name}_direct{threads}_requests_per_s", []).append(rate)
    samples.setdefault(f"{name}_direct{threads}_cpu_us", []).append(cpu_us)


def direct(model: Path, shape: tuple[int, ...], threads: int, seconds: float) -> tuple[float, float]:
    """Requests per second of as many threads with nothing around the runtime, and CPU per request in microseconds."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    rows = np.zeros(shape, np.float32)
    counts = [0] * threads
    until_s = time.perf_counter() + seconds

    def work(index: int) -> None:
        while time.perf_counter() < until_s:
            for _ in range(1 if len(shape) > 2 else 200):
                session.run(None, {"x": rows})
                counts[index] += 1

    before_s, began_s = time.process_time(), time.perf_counter()
    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took_s, spent_s = time.perf_counter() - began_s, time.process_time() - before_s
    return sum(counts) / took_s, 1e6 * spent_s / sum(counts)


def _add(samples: Samples, key: str, asked: Asked) -> None:
    if asked.others:
        raise RuntimeError(f"{key}: {asked.others} replies were not 200")
    for figure in ("requests_per_s", "p50_ms", "p99_ms", "cpu_us"):
        samples.setdefault(f"{key}_{figure}", []).append(getattr(asked, figure))


def _summary(samples: Samples, model: str, direct_threads: dict[int, int]) -> Figures:
    """Medians, and ratios to direct of the same rounds."""
    figures: Figures = {key: statistics.median(values) for key, values in samples.items()}
    rounds = len(samples[f"{model}_c1_loadslice_cpu_us"])
    for clients, threads in direct_threads.items():
        for figure in ("requests_per_s", "cpu_us"):
            direct = samples[f"{model}_direct{threads}_{figure}"]
            each = len(direct) // rounds
            beside = [statistics.mean(direct[index * each : (index + 1) * each]) for index in range(rounds)]
            for key in [key for key in samples if key.startswith(f"{model}_c{clients}_") and key.endswith(figure)]:
                figures[f"{key}_x_direct"] = _ratio(samples[key], beside)
    return figures


def _ratio(values: list[float], beside: list[float]) -> float:
    return statistics.median([value / other for value, other in zip(values, beside, strict=True)])


def _at_once(target: Target, wires: list[bytes]) -> list[float]:
    """Send requests on connections of their own at one moment; seconds until each was answered."""

    async def all_of_them() -> list[float]:
        streams = [await asyncio.open_connection("127.0.0.1", target.port) for _ in wires]
        began_s = time.perf_counter()
        for (_, writer), wire in zip(streams, wires, strict=True):
            writer.write(wire)

        async def answered(reader: asyncio.StreamReader) -> float:
            await reader.readline()
            return time.perf_counter() - began_s

        took_s = await asyncio.gather(*(answered(reader) for reader, _ in streams))
        for _, writer in streams:
            writer.close()
        return took_s

    return asyncio.run(all_of_them())


@click.command(epilog="Example: python -m benchmarks.serve_bench --peers /tmp/peers/bin/python --out out/serve")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Of each comparison.")
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Of load per figure.")
@click.option(
    "--peers",
    "python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=Path(sys.executable),
    help="Interpreter that has the peers' packages; those it has not are left out.",
)
@click.option("--only", default="", help=f"Sections, apart by commas: {', '.join(SECTIONS)}.")
@json_option
@out_option
def command(rounds: int, seconds: float, python: Path, only: str, as_json: bool, out: Path | None) -> None:
    """Compare this server with direct ONNX Runtime and with peers, by turns on this machine."""
    unknown = [one for one in only.split(",") if one and one not in SECTIONS]
    if unknown:
        raise click.BadParameter(f"'{unknown[0]}' is none of {', '.join(SECTIONS)}", param_hint="--only")
    figures = run(rounds, seconds, python, only)
    keep(figures, out, "serve_bench.json")
    emit(figures, as_json=as_json, text=lambda: _lines(figures))


def _lines(figures: dict[str, Any]) -> Iterator[str]:
    for key, value in figures.items():
        yield f"{key:<48} {value:>12,.4g}" if isinstance(value, int | float) else f"{key:<48} {value}"


if __name__ == "__main__":
    command()
