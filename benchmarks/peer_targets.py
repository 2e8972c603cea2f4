"""Servers that ours is compared with: how each is started, and in which form it is asked.

Each is asked in the form that it takes most cheaply without a client library of its own: raw bytes where the handler
sees the body, binary tensors of the Open Inference Protocol where it speaks them, JSON otherwise.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import serve_models

PEERS = Path(__file__).parent / "peers"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them.

    Attributes:
        package: Distribution, for its version.
        modules: That must be importable.
        form: What a request carries, for people.
        request: Makes one of the model ``mlp``.
        runs: Arguments after the interpreter, from the script and the port; ``None``: the script, the model, the shape,
            the workers and the port.
    """

    package: str
    modules: tuple[str, ...]
    form: str
    request: Callable[[Shape], bytes]
    runs: Callable[[Path, int], list[str]] | None = None

    def command(self, name: str, python: Path, model: Path, shape: str, workers: int, port: int) -> list[str]:
        """What starts it."""
        script = PEERS / f"{name}_app.py"
        if self.runs is not None:
            return [str(python), *self.runs(script, port)]
        return [str(python), str(script), str(model), shape, str(workers), str(port)]


def environment(model: Path, shape: str, workers: int) -> dict[str, str]:
    """For peers whose command line is their own, and so that none of them phones home."""
    return {
        "PEER_MODEL": str(model),
        "PEER_SHAPE": shape,
        "PEER_WORKERS": str(workers),
        "BENTOML_DO_NOT_TRACK": "True",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }


def _raw(path: str) -> Callable[[Shape], bytes]:
    return lambda shape: serve_models.raw_request(path, shape)


def _json(path: str) -> Callable[[Shape], bytes]:
    def made(shape: Shape) -> bytes:
        rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32).round(4)
        return serve_models.post(path, json.dumps({"x": rows.tolist()}).encode(), "application/json")

    return made


def _binary(shape: Shape) -> bytes:
    return serve_models.request("mlp", shape)


def _oip_json(shape: Shape) -> bytes:
    return serve_models.request("mlp", shape, as_json=True)


ALL = {
    "mosec": Peer(
        "mosec", ("mosec",), "raw bytes", _raw("/inference"),
        lambda script, port: [str(script), "--address", "127.0.0.1", "--port", str(port), "--log-level", "error"],
    ),
    "fastapi": Peer("fastapi", ("fastapi", "uvicorn", "uvloop", "httptools"), "raw bytes", _raw("/infer")),
    "kserve": Peer("kserve", ("kserve",), "binary tensors", _binary),
    "mlserver": Peer("mlserver", ("mlserver",), "JSON", _oip_json),
    "litserve": Peer("litserve", ("litserve",), "JSON", _json("/predict")),
    "bentoml": Peer(
        "bentoml", ("bentoml",), "JSON", _json("/predict"),
        lambda script, port: [
            "-m", "bentoml", "serve", f"{script.stem}:Peer", "--working-dir", str(script.parent), "--host", "127.0.0.1",
            "--port", str(port),
        ],
    ),
    "ray": Peer("ray", ("ray.serve",), "raw bytes", _raw("/infer")),
}  # fmt: skip
