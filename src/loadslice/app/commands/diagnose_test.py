"""`diagnose` as a user runs it: on what other commands have left behind."""

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from loadslice.app import diagnose_run
from loadslice.app.cli import run
from loadslice.evaluate.diagnose.specimen import CAPACITY_PER_S, ONE, journal, one_engine, poisson, times
from loadslice.evaluate.scrape import Scrape
from loadslice.graph.rewrites.rewrites_test import quantised, transformer_block
from loadslice.spec.diagnosis import Diagnosis
from loadslice.variants import specimen

KEYS = {"symptom", "evidence", "cause", "remedy", "confidence"}

BUDGET = """
slo: {{p95_ms: 500}}
power: {{per_box_w: {}}}
scenario: interactive
"""


@pytest.fixture(autouse=True)
def no_toolchains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["diagnose", *map(str, arguments), "--json"]) == 0
    text = capsys.readouterr().out
    msgspec.json.decode(text, type=Diagnosis)
    document: dict[str, Any] = json.loads(text)
    assert all(one.keys() >= KEYS for one in document["findings"])
    return document


def rules(document: dict[str, Any]) -> set[str]:
    return {one["rule"] for one in document["findings"]}


def test_nothing_found_says_what_was_looked_at_and_ends_well(tmp_path, capsys) -> None:
    folder = journal(tmp_path / "run", one_engine(), ONE, poisson(0.75 * CAPACITY_PER_S, 60))
    document = diagnosed(capsys, folder, "--out", tmp_path / "d")
    assert document["findings"] == []
    assert {one["rule"] for one in document["looked_at"] if one["looked"]} >= {"queue-growth", "avalanche"}
    assert all(one["why"] for one in document["looked_at"] if not one["looked"])
    assert json.loads((tmp_path / "d/diagnosis.json").read_text()) == document
    assert run(["diagnose", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("nothing was found.\nlooked at: ")
    assert "not looked at: int8-loss: nothing compares answers" in said


def test_a_server_is_looked_at_often_enough_however_short_the_time_that_is_given(monkeypatch) -> None:
    looks = itertools.count()
    monkeypatch.setattr(diagnose_run.watch_server, "metrics", lambda _: Scrape(float(next(looks)), {}))
    monkeypatch.setattr(diagnose_run.watch_server, "is_here", lambda _: False)
    monkeypatch.delenv("LOADSLICE_ADMIN_TOKEN", raising=False)
    seen = diagnose_run.conclude("url", "server", [diagnose_run.of_server("http://127.0.0.1:1", None, 0.6, None)])
    assert {"queue-growth", "avalanche"} <= {one.rule for one in seen.looked_at if one.looked}


@pytest.mark.parametrize(("limit_w", "fires"), [(60, True), (150, False)])
def test_a_box_that_may_draw_less_than_its_gpu_does_is_at_its_wall(tmp_path, capsys, limit_w, fires) -> None:
    pipeline = one_engine(device="nvidia-l4", active_w=72.0, idle_w=16.0)
    folder = journal(tmp_path / "run", pipeline, ONE, poisson(0.85 * CAPACITY_PER_S, 60))
    (tmp_path / "budget.yaml").write_text(BUDGET.format(limit_w))
    document = diagnosed(capsys, folder, "--budget", tmp_path / "budget.yaml")
    assert ("power-wall" in rules(document)) is fires
    assert next(one for one in document["looked_at"] if one["rule"] == "power-wall")["looked"]


def test_operators_a_device_lacks_are_named_from_an_inspection_and_from_a_pipeline(tmp_path, capsys) -> None:
    onnx.save(quantised(transformer_block(13)), tmp_path / "block.onnx")
    assert run(["inspect", "block.onnx", "--device", "qnn-htp:soc_model=60", "--out", "kept"]) == 0
    (one,) = diagnosed(capsys, "kept")["findings"]
    assert "Erf x1" in one["evidence"]
    assert "--pass lift-opset-20+fuse-gelu" in one["remedy"]
    (tmp_path / "p.yaml").write_text(
        "version: 1\npipeline: p\nengines: {npu: {backend: twin, device: qnn-htp}}\n"
        "stages: [{name: s, model: block.onnx, engine: npu}]\n"
    )
    folder = journal(tmp_path / "run", one_engine(), ONE, poisson(0.75 * CAPACITY_PER_S, 30))
    document = diagnosed(capsys, folder, "--pipeline", "p.yaml")
    assert "unsupported-operator" in rules(document)


def test_a_model_that_a_device_runs_whole_is_no_finding(tmp_path, capsys) -> None:
    specimen.write_model(tmp_path / "m.onnx")
    shape = ("--shape", "image=1x3x16x16")
    assert run(["inspect", "m.onnx", *shape, "--device", "rockchip-rk3588-npu", "--out", "kept"]) == 0
    document = diagnosed(capsys, "kept")
    looked = next(one for one in document["looked_at"] if one["rule"] == "unsupported-operator")
    assert looked["looked"]
    assert document["findings"] == []


@pytest.mark.parametrize("fragile", [True, False])
def test_an_int8_variant_with_loss_is_found_and_one_without_is_not(tmp_path, capsys, fragile) -> None:
    for extra in ("nncf", "onnxslim", "openvino"):
        pytest.importorskip(extra, reason="the extra 'squeeze' is not installed")
    specimen.write_model(tmp_path / "m.onnx", fragile=fragile)
    specimen.write_inputs(tmp_path / "in", 16)
    run(["squeeze", "m.onnx", "--data", "in", "--target", "cpu-int8", "--seconds", "1", "--out", "kept"])
    document = diagnosed(capsys, "kept")
    assert ("int8-loss" in rules(document)) is fragile
    if fragile:
        assert document["findings"][0]["basis"] == "measured"


def test_a_folder_of_several_journals_has_the_findings_of_each(tmp_path, capsys) -> None:
    journal(tmp_path / "runs/well", one_engine(), ONE, poisson(0.75 * CAPACITY_PER_S, 60))
    burst = np.sort(np.concatenate([poisson(20, 60), 30 + poisson(100, 6, seed=2)]))
    journal(tmp_path / "runs/burst", one_engine(), ONE, burst)
    document = diagnosed(capsys, "runs")
    assert document["kind"] == "folder"
    assert "queue-growth" in rules(document)
    assert len(document["read"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "neither an address (http://...) nor a folder"),
        (["empty"], "nothing to diagnose in it"),
        (["http://127.0.0.1:1"], "cannot be read"),
        (["run", "--budget", "poor.yaml"], "power.per_box_w: missing"),
        (["run", "--pipeline", "absent.yaml"], "absent.yaml: cannot be read"),
        (["broken"], "broken/inspection.json"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, arguments, message) -> None:
    journal(tmp_path / "run", one_engine(), times(("v", "a", 1, 10.0)), poisson(20, 5))
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/inspection.json").write_text("{")
    (tmp_path / "poor.yaml").write_text("slo: {p95_ms: 500}\nscenario: interactive\n")
    assert run(["diagnose", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
