"""This server beside those that install from packages, by turns on this machine, as ratios to direct ONNX Runtime.

    python -m benchmarks.peers_bench --peers /tmp/peers --only mosec,fastapi

The tiny model of `serve_bench`, so that all that is seen is the server. ``--peers`` is a folder with a virtual
environment for each peer, by its name (``python -m venv DIR/litserve; DIR/litserve/bin/pip install litserve
onnxruntime``); one that is not there, or does not start, is left out with the reason. In each round direct ONNX Runtime
and every server are asked in turn, by one client.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks import Figures, load_average_1m, peer_targets, serve_models
from benchmarks.serve_bench import CLIENTS, direct
from benchmarks.serve_targets import Target, ask, build_client, ours, peer
from loadslice.app.output import emit, json_option, keep, out_option, say
from loadslice.spec.errors import InputError

SHAPE = (1, serve_models.WIDTH)
REPLIES_MIN = 3
"""Per client and stretch of load; of a peer that gives fewer there is no figure."""
FIGURES = ("requests_per_s", "p50_ms", "p99_ms", "cpu_us")
Samples = dict[str, list[float]]


def run(rounds: int = 3, seconds: float = 2.0, folder: Path | None = None, only: str = "") -> Figures:
    """Measure.

    Args:
        rounds: Of all in turn.
        seconds: Of load per figure.
        folder: With an environment for each peer; ``None``: whatever this interpreter has.
        only: Peers by name, apart by commas; empty: all.

    Returns:
        Medians; ``c8_litserve_requests_per_s``: clients, server, figure, ``_x_direct`` beside direct in the same round.
    """
    figures: Figures = {"load_average_1m_before": load_average_1m()}
    interpreters: dict[str, Path] = {}
    for name in only.split(",") if only else peer_targets.ALL:
        python = Path(sys.executable) if folder is None else folder / name / "bin" / "python"
        found = _version(python, peer_targets.ALL[name])
        figures[f"{name}_version"] = found or "not installed"
        if found is not None:
            interpreters[name] = python
    with tempfile.TemporaryDirectory() as made:
        bench = _Bench(Path(made), rounds, seconds)
        samples: Samples = {}
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            bench.round(samples, interpreters, figures)
    figures |= _summary(samples, rounds)
    figures["load_average_1m_after"] = load_average_1m()
    return figures


class _Bench:
    """The model, the client, and what each server is asked."""

    def __init__(self, folder: Path, rounds: int, seconds: float) -> None:
        self._folder = folder
        self._rounds = rounds
        self._seconds = seconds
        serve_models.write(folder)
        self._client = build_client(folder)

    def round(self, samples: Samples, interpreters: dict[str, Path], figures: Figures) -> None:
        """Direct, ours and every peer once; a peer that fails is taken out."""
        model = self._folder / "mlp.onnx"
        rate, cpu_us = direct(model, SHAPE, 1, self._seconds)
        samples.setdefault("direct_requests_per_s", []).append(rate)
        samples.setdefault("direct_cpu_us", []).append(cpu_us)
        with ours(self._folder / "mlp.yaml") as target:
            self._ask(samples, "loadslice", target, serve_models.request("mlp", SHAPE))
            self._ask(samples, "loadslice_json", target, serve_models.request("mlp", SHAPE, as_json=True))
        for name, python in list(interpreters.items()):
            try:
                with peer(name, python, model, f"1x{serve_models.WIDTH}", 1) as target:
                    self._ask(samples, name, target, peer_targets.ALL[name].request(SHAPE))
            except InputError as error:
                figures[f"{name}_failed"] = str(error)
                del interpreters[name]
                for key in [key for key in samples if key.split("_")[1] == name]:
                    del samples[key]

    def _ask(self, samples: Samples, name: str, target: Target, wire: bytes) -> None:
        request = self._folder / f"{name}.request"
        request.write_bytes(wire)
        for clients in CLIENTS:
            found = ask(self._client, target, request, clients, self._seconds)
            if found.requests_per_s * self._seconds < REPLIES_MIN * clients:
                continue  # a figure of a few replies would say how long the time was
            for figure in FIGURES:
                samples.setdefault(f"c{clients}_{name}_{figure}", []).append(getattr(found, figure))
            samples.setdefault(f"c{clients}_{name}_not_200", []).append(found.others)
        samples.setdefault(f"all_{name}_pss_mb", []).append(target.pss_mb())


def _summary(samples: Samples, rounds: int) -> Figures:
    figures: Figures = {key: statistics.median(values) for key, values in samples.items() if len(values) == rounds}
    for figure in ("requests_per_s", "cpu_us"):
        beside = samples[f"direct_{figure}"]
        for key in [key for key in figures if key.endswith(f"_{figure}") and not key.startswith("direct")]:
            ratios = [value / other for value, other in zip(samples[key], beside, strict=True)]
            figures[f"{key}_x_direct"] = statistics.median(ratios)
    return figures


def _version(python: Path, one: peer_targets.Peer) -> str | None:
    """Of an installed peer; ``None``: it is not there."""
    names = ", ".join((*one.modules, "onnxruntime", "importlib.metadata"))
    code = f"import {names}; print(importlib.metadata.version('{one.package}'))"
    try:
        found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.split()[-1] if found.returncode == 0 else None


@click.command(epilog="Example: python -m benchmarks.peers_bench --peers /tmp/peers --rounds 3 --out out/peers")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Of all in turn.")
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Of load per figure.")
@click.option("--peers", "folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Environments.")
@click.option("--only", default="", help=f"Peers, apart by commas: {', '.join(peer_targets.ALL)}; default: all.")
@json_option
@out_option
def command(rounds: int, seconds: float, folder: Path | None, only: str, as_json: bool, out: Path | None) -> None:
    """Compare this server with peers that install from packages."""
    unknown = [one for one in only.split(",") if one and one not in peer_targets.ALL]
    if unknown:
        raise click.BadParameter(f"'{unknown[0]}' is none of {', '.join(peer_targets.ALL)}", param_hint="--only")
    figures = run(rounds, seconds, folder, only)
    keep(figures, out, "peers_bench.json")
    emit(figures, as_json=as_json, text=lambda: _lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    for key, value in figures.items():
        yield f"{key:<44} {value:>12,.4g}" if isinstance(value, int | float) else f"{key:<44} {value}"


if __name__ == "__main__":
    command()
