import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app.cli import run
from loadslice.backends import checks

PIPELINE = """
version: 1
pipeline: tensors
engines: {cpu: {backend: onnxruntime}}
stages: [{name: model, model: m.onnx, engine: cpu}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    checks.write_model(tmp_path / "m.onnx")
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "inputs").mkdir()
    np.savez(tmp_path / "inputs" / "one.npz", x=np.ones((2, 3, 4), np.float32))
    return tmp_path


def test_json_is_one_document_on_stdout_and_the_file_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    arguments = ["profile", str(folder / "p.yaml"), "--inputs", str(folder / "inputs"), "--seconds", "0.05"]
    assert run([*arguments, "--json", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert json.loads((out / "latency.json").read_text()) == document
    (entry,) = document["entries"]
    assert {"variant", "engine", "batch", "shape", "latency_ms", "energy_j", "n", "basis"} <= set(entry)
    assert (entry["variant"], entry["engine"], entry["batch"], entry["basis"]) == ("model", "cpu", 2, "measured")
    assert "pipeline" in document["stamp"]["inputs"]


def test_a_person_gets_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", str(folder / "p.yaml"), "--inputs", str(folder / "inputs"), "--seconds", "0.05"]
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["stage", "engine", "shape", "rows", "p50"]
    assert lines[1].split()[:4] == ["model", "cpu", "any", "2"]


def test_bad_input_is_one_line_and_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert run(["profile", str(folder / "p.yaml"), "--out", str(out)]) == 2
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert "Add `inputs: module:function`" in error
    assert not out.exists()
