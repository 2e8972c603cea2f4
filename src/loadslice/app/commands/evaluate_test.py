import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app import cli
from loadslice.backends.checks import write_model
from loadslice.evaluate.checks import serving

BUILT_IN = """
version: 1
model: m.onnx
layers: [correctness, latency, attribution]
requests: 20
repeats: 1
floors: {latency_ratio: 100}
placements:
  - {name: one, built_in: one-engine}
  - {name: sliced, built_in: sliced}
  - {name: dual, built_in: dual-bank}
"""

PIPELINE = """
version: 1
pipeline: checks
engines: {one: {backend: onnxruntime}}
stages: [{name: model, model: %s, engine: one}]
"""

TWO = """
version: 1
inputs: given:samples
varied: model
layers: [correctness]
placements:
  - {name: old, pipeline: old.yaml}
  - {name: new, pipeline: new.yaml}
"""

GIVEN = """
import numpy as np
from loadslice.spec.work import Sample


def samples():
    draws = np.random.default_rng(0)
    return [Sample(f"s{n}", "", b"", tensors={"x": draws.normal(size=(2, 3, 8)).astype(np.float32)}) for n in range(4)]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "m.onnx")
    (tmp_path / "given.py").write_text(GIVEN)
    return tmp_path


def evaluated(folder: Path, text: str, *more: str) -> int:
    (folder / "e.yaml").write_text(text)
    return cli.run(["evaluate", str(folder / "e.yaml"), "--json", "--out", str(folder / "out"), *more])


@pytest.mark.live
def test_built_in_placements_of_one_model_answer_alike_and_leave_a_bundle_without_paths(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = evaluated(folder, BUILT_IN, "--bundle", str(folder / "b.zip"))
    report = json.loads(capsys.readouterr().out)
    assert [placed["state"] for placed in report["placements"]] == ["run", "run", "run"]
    layers = {layer["name"]: layer["figures"] for layer in report["layers"]}
    assert layers["correctness"]["dual"]["alike"] == "identical"
    assert layers["correctness"]["sliced"]["alike"] in ("identical", "slightly")
    assert layers["correctness"]["one"]["metric"] is None
    assert layers["latency"]["one"]["whole_ms_p50"] > 0
    parts = layers["attribution"]["one"]
    names = ("compute", "copy", "queueing", "scheduling", "front", "transport", "unexplained")
    assert sum(parts[f"{name}_ms"] for name in names) == pytest.approx(parts["latency_ms_mean"])
    assert code == (0 if report["verdict"] == "pass" else 3)
    assert json.loads((folder / "out" / "evaluation.json").read_bytes()) == report
    assert "seven dimensions" in (folder / "out" / "evaluation.html").read_text()
    with zipfile.ZipFile(folder / "b.zip") as archive:
        assert {"README.md", "environment.json", "evaluation.json", "evaluation.yaml", "m.onnx"} <= set(
            archive.namelist()
        )
        for name in archive.namelist():
            assert str(folder).encode() not in archive.read(name)


@pytest.mark.live
def test_a_model_whose_scale_is_off_by_two_percent_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(folder / "m.onnx")
    for stored in model.graph.initializer:
        if stored.name == "two":
            stored.CopyFrom(numpy_helper.from_array(np.float32(2.04).reshape(1), "two"))
    onnx.save(model, folder / "wrong.onnx")
    (folder / "old.yaml").write_text(PIPELINE % "m.onnx")
    (folder / "new.yaml").write_text(PIPELINE % "wrong.onnx")
    assert evaluated(folder, TWO) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "regression"
    assert {rule["code"] for rule in report["rules_fired"]} == {"outputs-clearly-different"}


def test_placements_of_two_models_are_refused_unless_that_is_what_is_varied(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = onnx.load(folder / "m.onnx")
    other.graph.name = "another"
    onnx.save(other, folder / "other.onnx")
    (folder / "old.yaml").write_text(PIPELINE % "m.onnx")
    (folder / "new.yaml").write_text(PIPELINE % "other.onnx")
    assert evaluated(folder, TWO.replace("varied: model\n", "")) == 2
    said = capsys.readouterr().err
    assert "placements 'old' and 'new' differ in model" in said
    assert "varied: model" in said


@pytest.mark.live
def test_a_placement_where_nobody_answers_is_not_run_and_no_pass(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        gone = server.url
    text = BUILT_IN.replace("{name: sliced, built_in: sliced}", f"{{name: gone, url: '{gone}'}}")
    text = text.replace("layers: [correctness, latency, attribution]", "layers: [correctness]")
    assert evaluated(folder, text) == 3
    report = json.loads(capsys.readouterr().out)
    states = {placed["name"]: placed["state"] for placed in report["placements"]}
    assert states == {"one": "run", "gone": "not_run", "dual": "run"}
    assert report["verdict"] == "incomplete"
    assert "nobody answers there" in next(one["why"] for one in report["placements"] if one["name"] == "gone")


@pytest.mark.live
def test_a_server_that_ends_under_evaluation_leaves_a_partial_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "given.py").write_text(GIVEN.replace('b"", tensors', 'b"200|{}") for n in range(4)]  # tensors'))
    with serving(close_after=14) as server:
        text = TWO.replace("varied: model\n", "").replace("[correctness]", "[correctness, latency, soak]")
        text = text.replace("pipeline: old.yaml", f"url: '{server.url}'").replace(
            "  - {name: new, pipeline: new.yaml}", ""
        )
        assert evaluated(folder, text) == 3
    report = json.loads(capsys.readouterr().out)
    (placed,) = report["placements"]
    assert placed["state"] == "died"
    assert report["verdict"] == "regression"
    layers = {layer["name"]: layer for layer in report["layers"]}
    assert layers["correctness"]["figures"]
    assert layers["soak"]["notes"] == ["Not measured: old."]


@pytest.mark.live
def test_a_baseline_is_compared_with_and_one_of_another_machine_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BUILT_IN.replace("  - {name: sliced, built_in: sliced}\n  - {name: dual, built_in: dual-bank}\n", "")
    evaluated(folder, text)
    capsys.readouterr()
    kept = folder / "baseline.json"
    before = json.loads((folder / "out" / "evaluation.json").read_bytes())
    before["environment"]["processor"] = "another machine"
    kept.write_text(json.dumps(before))
    assert evaluated(folder, text, "--baseline", str(kept)) == 2
    assert "processor: was another machine, is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["evaluate", "e.yaml", "--bundle", "b.tar"], "name a .zip file"),
        (["env", "check", "nowhere.json"], "nowhere.json: cannot be read"),
        (["env", "check", "e.yaml", "--varied", "weather"], "--varied 'weather'"),
        (["drill", "avalanche"], "which pipeline?"),
        (["drill", "earthquake", "--pipeline", "p.yaml"], "drill 'earthquake': not one of avalanche"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (folder / "e.yaml").write_text(BUILT_IN)
    monkeypatch.chdir(folder)
    assert cli.run(arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_an_environment_is_locked_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "environment.json"
    assert cli.run(["env", "lock", "-o", str(lock), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(lock.read_bytes())
    assert cli.run(["env", "check", str(lock)]) == 0
    changed = json.loads(lock.read_bytes())
    changed["runtime"]["numpy"] = "0.1"
    lock.write_text(json.dumps(changed))
    capsys.readouterr()
    assert cli.run(["env", "check", str(lock), "--json"]) == 3
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert (difference["variable"], difference["key"], difference["before"]) == ("runtime", "numpy", "0.1")
    assert cli.run(["env", "check", str(lock), "--varied", "runtime"]) == 0


def test_all_eighteen_drills_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["drill", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [drill["number"] for drill in listed] == list(range(1, 19))
