"""Live drills on a small pipeline with two engines, one of them in a process of its own."""

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app import cli
from loadslice.backends.checks import write_model

PIPELINE = """
version: 1
pipeline: checks
inputs: given:samples
engines:
  apart: {backend: onnxruntime, isolation: process}
  here: {backend: onnxruntime}
stages:
  - {name: model, model: m.onnx, engines: [apart, here], timeout_ms: 8000}
"""

GIVEN = """
import numpy as np
from loadslice.spec.work import Sample


def samples():
    draws = np.random.default_rng(0)
    return [Sample(f"s{n}", "", b"", tensors={"x": draws.normal(size=(2, 3, 8)).astype(np.float32)}) for n in range(4)]
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    write_model(tmp_path / "m.onnx")
    (tmp_path / "given.py").write_text(GIVEN)
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.mark.live
@pytest.mark.parametrize("name", ["engine-killed", "device-lost", "poison", "clients-leave", "corrupt-version"])
def test_a_live_drill_is_held(pipeline: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code = cli.run(["drill", name, "--pipeline", str(pipeline), "--json"])
    report = json.loads(capsys.readouterr().out)
    (drill,) = report["drills"]
    assert drill["held"] is True, drill["figure"]
    assert drill["basis"] == "measured"
    assert code == 0


@pytest.mark.live
def test_a_drill_that_has_nothing_to_break_is_never_held(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.write_text(PIPELINE.replace("[apart, here]", "[here]"))
    assert cli.run(["drill", "engine-killed", "device-lost", "--pipeline", str(pipeline), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [drill["held"] for drill in report["drills"]] == [None, None]
    assert report["not_applicable"] == 2
    assert all(drill["figure"].startswith("not applicable: ") for drill in report["drills"])


def test_without_an_input_a_drill_says_what_to_add(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.write_text(PIPELINE.replace("inputs: given:samples\n", ""))
    assert cli.run(["drill", "avalanche", "--pipeline", str(pipeline)]) == 2
    assert "names no example inputs" in capsys.readouterr().err
