"""From a model to a server of its slices: what `loadslice slice` writes answers what the whole model answers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from loadslice.app.cli import run as run_command
from loadslice.app.twins import resolved
from loadslice.graph.cuts import flow
from loadslice.graph.load import load as load_model
from loadslice.graph.shapes import infer
from loadslice.graph.specimen import transformer
from loadslice.spec.files import sha256_file
from loadslice.spec.pipeline import load

pytestmark = pytest.mark.live

SHAPES = {"ids": [2, 9], "mask": [2, 9]}


def write_times(folder: Path) -> None:
    """Two engines, each fifty times as fast as the other on its third, and a third, of the operators."""
    onnx.save(transformer(), folder / "t.onnx")
    keys = flow(infer(load_model(folder / "t.onnx", weights=True), SHAPES)).keys
    middle = [len(keys) // 3 <= place <= 2 * len(keys) // 3 for place in range(len(keys))]
    link = {"bytes_per_s": None, "sync_us": 0, "basis": "host"}
    devices = {
        name: {
            "basis": "measured",
            "source": "test",
            "nodes_ms": {key: 0.1 if here == (name == "b") else 5.0 for key, here in zip(keys, middle, strict=True)},
            "link": link,
        }
        for name in ("a", "b")
    }
    document = {"model_sha256": sha256_file(folder / "t.onnx"), "shapes": SHAPES, "devices": devices}
    (folder / "times.json").write_text(json.dumps(document))


async def ask(client: Any, name: str, feeds: dict[str, Any]) -> tuple[dict[str, Any], str]:
    kinds = {"int64": "INT64", "float32": "FP32"}
    inputs = [
        {"name": key, "datatype": kinds[str(value.dtype)], "shape": list(value.shape), "data": value.ravel().tolist()}
        for key, value in feeds.items()
    ]
    async with client.post(f"/v2/models/{name}/infer", json={"inputs": inputs}) as reply:
        document = json.loads(await reply.read())
        assert reply.status == 200, document
        return document, reply.headers["x-loadslice-timing"]


def test_slices_on_two_engines_answer_what_the_whole_model_answers(tmp_path: Path, serving: Any) -> None:
    write_times(tmp_path)
    shapes = [text for name, sides in SHAPES.items() for text in ("--shape", f"{name}={'x'.join(map(str, sides))}")]
    command = [
        "slice",
        str(tmp_path / "t.onnx"),
        "--devices",
        "a=local,b=local",
        "--times",
        str(tmp_path / "times.json"),
    ]
    assert run_command([*command, *shapes, "--out", str(tmp_path / "out"), "--json"]) == 0
    served = load(tmp_path / "out" / "pipeline.yaml")
    assert [stage.engine for stage in served.stages] == ["a", "b", "a"]
    drawn = np.load(tmp_path / "out" / "slice_inputs.npz")
    whole = onnxruntime.InferenceSession(str(tmp_path / "t.onnx"), providers=["CPUExecutionProvider"])

    async def run() -> None:
        async with serving(served, tmp_path / "out") as (_, client):
            async with client.get("/v2/models/t") as reply:
                told = json.loads(await reply.read())
            assert [entry["name"] for entry in told["inputs"]] == ["ids", "mask"]
            assert [entry["name"] for entry in told["outputs"]] == ["h3"]
            for number in range(4):
                feeds = {name: drawn[f"{number}/{name}"] for name in SHAPES}
                document, timing = await ask(client, "t", feeds)
                (output,) = document["outputs"]
                assert output["name"] == "h3"
                (wanted,) = whole.run(["h3"], feeds)
                np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), wanted, rtol=1e-4, atol=1e-5)
            assert [part.partition(";")[0] for part in timing.split(", ")] == ["slice0", "slice1", "slice2"]
            assert timing.count("copy=") == 3

    asyncio.run(run())


BANKS = """
version: 1
pipeline: banks
engines: {n.bank0: {backend: onnxruntime}, n.bank1: {backend: onnxruntime}}
stages:
  - name: whole
    model: t.onnx
    engines: [{split: batch, on: [n.bank0, n.bank1]}]
"""


def test_two_banks_serve_a_batch_together_and_joining_counts_as_copying(tmp_path: Path, serving: Any) -> None:
    onnx.save(transformer(), tmp_path / "t.onnx")
    (tmp_path / "banks.yaml").write_text(BANKS)
    served = resolved(load(tmp_path / "banks.yaml"), tmp_path)
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(0, 2, (6, 9)) for name in SHAPES}
    (wanted,) = onnxruntime.InferenceSession(str(tmp_path / "t.onnx")).run(["h3"], feeds)

    async def run() -> None:
        async with serving(served, tmp_path) as (server, client):
            document, timing = await ask(client, "banks", feeds)
            (output,) = document["outputs"]
            np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), wanted, rtol=1e-4, atol=1e-5)
            assert float(timing.partition("copy=")[2].partition(";")[0]) > 0
            assert [engine["name"] for engine in server.generation.engines.describe()] == ["n.bank0+n.bank1"]

    asyncio.run(run())
