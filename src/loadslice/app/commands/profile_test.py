import json
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app.cli import run
from loadslice.app.commands.profile import _lines
from loadslice.backends import checks
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds

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


NOISY = """
from loadslice.spec.work import Sample, Work
print("imported")
def inputs():
    print("inputs")
    return [Sample("one", "text/plain", b"x")]
def say(work):
    print("stage")
    return Work({}, work.context)
"""


def test_what_stages_and_inputs_print_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "p.yaml").write_text(
        "version: 1\npipeline: noisy\ninputs: noisy:inputs\nengines: {host: {backend: python}}\n"
        'stages: [{name: say, python: "noisy:say", engine: host}]\n'
    )
    assert run(["profile", str(tmp_path / "p.yaml"), "--seconds", "0.05", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["entries"][0]["variant"] == "say"
    assert {"imported", "inputs", "stage"} <= set(printed.err.split())


def test_several_sessions_say_how_far_they_differ(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", str(folder / "p.yaml"), "--inputs", str(folder / "inputs"), "--seconds", "0.2"]
    assert run([*arguments, "--sessions", "3", "--json"]) == 0
    drift = json.loads(capsys.readouterr().out)["drift"]
    assert drift["runs"] == 3
    assert drift["between_runs"] >= 0


def test_the_longest_of_a_few_runs_is_not_printed_as_a_p99_without_a_word() -> None:
    entry = Entry(variant="v", engine="e", batch=1, latency_ms=Milliseconds(p50=1.0, p99=2.0), n=3, basis="measured")
    few, enough = (
        "\n".join(_lines(LatencyTable(entries=[msgspec.structs.replace(entry, n=n)]), None)) for n in (3, 100)
    )
    assert "p99: of fewer than 100 runs (n) it is hardly more than the longest of them." in few
    assert "p99: of" not in enough
