"""Live drills on a small pipeline with two engines, one of them in a process of its own."""

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app import cli, drill_run
from loadslice.backends.checks import write_model
from loadslice.spec.drill import BY_NAME, DrillResult

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


def test_several_pipelines_end_in_one_table(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = pipeline.with_name("q.yaml")
    other.write_text(PIPELINE.replace("pipeline: checks", "pipeline: others"))
    assert cli.run(["drill", "clock-jump", "flapping", "--pipeline", str(pipeline), "--pipeline", str(other)]) == 0
    table = capsys.readouterr().out.splitlines()[-4:]
    assert table[0].split() == ["checks", "s", "others", "s"]
    assert [line.split()[:3] for line in table[1:3]] == [["14", "clock-jump", "held"], ["15", "flapping", "–"]]
    assert table[3].startswith("2 held, 0 broken, 2 not applicable; 4 drills in ")


def test_pipelines_that_a_table_cannot_tell_apart_are_refused(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["drill", "clock-jump", "--pipeline", str(pipeline), "--pipeline", str(pipeline)]) == 2
    assert "another pipeline is called 'checks' too" in capsys.readouterr().err


def test_one_table_of_times_is_not_for_several_pipelines(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ["--profile", str(pipeline.with_name("latency.json"))]
    assert cli.run(["drill", "--pipeline", str(pipeline), "--pipeline", str(pipeline), *table]) == 2
    assert "whose table is it?" in capsys.readouterr().err


def test_a_server_that_is_gone_breaks_its_drill_and_not_the_command() -> None:
    def gone() -> DrillResult:
        raise ConnectionRefusedError(111, "Connection refused")

    found = drill_run._held(BY_NAME["poison"], gone)
    assert found.held is False
    assert found.figure.startswith("broke off: ConnectionRefusedError")


def test_a_drill_on_disturbed_times_says_so(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pipeline.parent / "latency.json"
    entry = {"variant": "model", "engine": "here", "batch": 1, "latency_ms": {"p50": 1.0}, "basis": "measured"}
    made = {"schema": "latency/1", "loadslice": "1", "machine": {"other_processes_cpu_pct": 74}}
    table.write_text(json.dumps({"entries": [entry], "stamp": made}))
    drill_run.open_field(pipeline, table, 0, 1.0)
    assert f"warning: {table}: other processes took 74 % of the machine" in capsys.readouterr().err
