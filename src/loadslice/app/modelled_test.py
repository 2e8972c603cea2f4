import json
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper

from loadslice.app.cli import run

PIPELINE = """
version: 1
pipeline: two
engines:
  cpu0: {backend: onnxruntime, threads: 2}
  gpu0: {backend: twin, active_w: 72, idle_w: 28}
stages:
  - {name: score, model: model.onnx, engines: [gpu0, cpu0], batch: {gpu0: {size: 6}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline of one model with open rows."""
    weights = np.random.default_rng(0).random((256, 256), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 256])],
        [helper.make_tensor("w", TensorProto.FLOAT, [256, 256], weights.tobytes(), raw=True)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx"
    )
    (tmp_path / "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
    return tmp_path


def test_a_model_is_modelled_on_several_devices_with_an_interval(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", str(folder / "model.onnx"), "--model-for", "nvidia-l4", "--model-for", "fast=nvidia-t4"]
    assert run([*command, "--batch", "1", "--batch", "8"]) == 0
    printed = capsys.readouterr().out
    assert "9 of 10 between" in printed
    assert "Modelled, not measured" in printed
    assert run([*command, "--json", "--batch", "4"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(each["engine"], each["batch"], each["basis"]) for each in document["entries"]] == [
        ("nvidia-l4", 4, "modelled"),
        ("fast", 4, "modelled"),
    ]
    assert document["entries"][0]["error"]["device"] == "nvidia-l4"
    assert document["entries"][0]["energy_j"] > 0


def test_a_pipelines_engine_is_modelled_up_to_its_batch_and_what_was_measured_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {"variant": "score", "engine": "cpu0", "batch": 1, "latency_ms": {"p50": 3.0}, "basis": "measured"}
    (folder / "latency.json").write_text(json.dumps({"entries": [measured]}), encoding="utf-8")
    command = ["profile", str(folder / "pipeline.yaml"), "--measured", str(folder / "latency.json")]
    command += ["--model-for", "gpu0=nvidia-l4", "--model-for", "cpu0=amd-epyc-9654", "--out", str(folder / "out")]
    assert run([*command, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [(each["engine"], each["batch"], each["basis"]) for each in entries] == [
        ("cpu0", 1, "measured"),
        ("gpu0", 1, "modelled"),
        ("gpu0", 2, "modelled"),
        ("gpu0", 4, "modelled"),
        ("gpu0", 6, "modelled"),
    ]


def test_a_simulation_on_modelled_times_says_so_and_its_interval_holds_their_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", str(folder / "pipeline.yaml"), "--model-for", "gpu0=nvidia-l4"]
    assert run([*command, "--model-for", "cpu0=amd-epyc-9654", "--out", str(folder / "out")]) == 0
    pl.DataFrame({"arrival_s": np.arange(30) * 0.2}).write_parquet(folder / "trace.parquet")
    simulate = ["simulate", str(folder / "trace.parquet"), "--pipeline", str(folder / "pipeline.yaml")]
    capsys.readouterr()
    profile = str(folder / "out" / "latency.json")
    assert run([*simulate, "--profile", profile, "--replicas", "8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["basis"] == "simulated on modelled times"
    low, high = document["interval_95"]["latency_ms.p50"]
    assert low < document["latency_ms"]["p50"] < high
    assert high / low > 2


def test_fewer_threads_are_slower_and_narrower_numbers_faster(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ms(*options: str) -> float:
        assert run(["profile", str(folder / "model.onnx"), "--batch", "64", "--json", *options]) == 0
        return float(json.loads(capsys.readouterr().out)["entries"][0]["latency_ms"]["mean"])

    assert ms("--model-for", "amd-epyc-9654", "--threads", "2") > ms("--model-for", "amd-epyc-9654", "--threads", "32")
    assert ms("--model-for", "nvidia-t4", "--precision", "fp16") < ms("--model-for", "nvidia-t4")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.onnx", "--model-for", "nvidia-l5"], "near it: nvidia-l4"),
        (["model.onnx", "--model-for", "intel-npu-3720"], "states no bandwidth: times on it cannot be modelled"),
        (["model.onnx", "--model-for", "nvidia-t4", "--precision", "fp8"], "states no peak at fp8"),
        (["model.onnx", "--model-for", "amd-epyc-9654", "--threads", "200"], "has 96 cores, not 200"),
        (["model.onnx", "--model-for", "=nvidia-t4"], "no engine before '='"),
        (["pipeline.yaml", "--model-for", "nvidia-l4"], "name an engine of"),
        (["pipeline.yaml", "--batch", "4"], "--batch goes with --model-for"),
        (["nowhere.onnx", "--model-for", "nvidia-l4"], "no such file"),
    ],
)
def test_what_cannot_be_modelled_is_one_line(
    folder: Path,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert run(["profile", *arguments]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("loadslice")]
    assert len(said) == 1
    assert words in said[0]
