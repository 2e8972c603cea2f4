"""A device gets no operator that its table keeps off it, and the plan says what that costs."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadslice.app.cli import run
from loadslice.graph.specimen import transformer
from loadslice.spec.files import write_bytes

pytest.importorskip("scipy")

NPU = "rockchip-rk3588-npu"
TABLE = f"""
target: mine
title: a guide
devices: {{{NPU}: mine}}
unlisted: %s
facts:
  - source: vendor's guide
    version: "2.1"
    basis: derived
    method: read
    rules:
      - {{place: device, ops: [MatMul, Add, Mul, Reshape, Transpose]}}
      - {{place: host, ops: [Softmax], reason: no exponent unit}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    document = transformer()
    for index, node in enumerate(document.graph.node):
        node.name = f"{node.op_type}_{index}"
    write_bytes(tmp_path / "m.onnx", document.SerializeToString())
    (tmp_path / "table.yaml").write_text(TABLE % "host")
    (tmp_path / "open.yaml").write_text(TABLE % "unknown")
    return tmp_path


def plan_of(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    arguments = ["slice", "m.onnx", "--devices", f"gpu0=nvidia-l4,npu0={NPU}", "--no-compile", "--json"]
    assert run([*arguments, "--shape", "ids=2x12", "--shape", "mask=2x12", *more]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_what_the_users_table_keeps_off_falls_back_and_is_priced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(capsys, "--table", "table.yaml")
    said = plan["coverage"]["npu0"]
    assert said["basis"] == "table"
    assert "vendor's guide, 2.1" in said["source"]
    kinds = {one["op"]: one for one in said["fallbacks"]}
    assert kinds["Softmax"]["reason"] == "no exponent unit"
    assert not kinds.keys() & {"MatMul", "Add", "Mul", "Reshape", "Transpose"}
    assert said["fallback_ops"] == sum(one["count"] for one in said["fallbacks"]) > 0
    assert said["fallback_ms"] == pytest.approx(sum(one["ms"] for one in said["fallbacks"]))
    alone = next(row for row in plan["assignments"] if row["name"] == "npu0 only")
    assert alone["reason"] == f"npu0 cannot run {said['fallback_ops']} of {plan['ops']} operators"
    assert "gpu0" not in plan["coverage"]


def test_no_slice_on_the_device_holds_what_it_does_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, "--table", "table.yaml", "--link", "npu0=1000:0", "--objective", "latency")
    priority = next(row for row in plan["assignments"] if row["name"] == "priority")
    assert priority["devices"]["npu0"]["ops"] <= plan["ops"] - plan["coverage"]["npu0"]["fallback_ops"]
    assert priority["transfers"] > 2


def test_an_operator_that_no_source_knows_is_kept_off(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = plan_of(capsys, "--table", "table.yaml")["coverage"]["npu0"]
    unsure = plan_of(capsys, "--table", "open.yaml")["coverage"]["npu0"]
    assert unsure["fallback_ops"] == strict["fallback_ops"]
    assert "no source says that it runs there" in {one["reason"] for one in unsure["fallbacks"]}


def test_operators_of_one_name_are_told_apart_by_their_type(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = plan_of(capsys, "--table", "table.yaml")["coverage"]["npu0"]["fallbacks"]
    document = transformer()
    for node in document.graph.node:
        node.name = "same"
    write_bytes(folder / "m.onnx", document.SerializeToString())
    assert plan_of(capsys, "--table", "table.yaml")["coverage"]["npu0"]["fallbacks"] == named


def test_a_person_reads_who_says_so_and_what_it_costs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["slice", "m.onnx", "--devices", f"gpu0=nvidia-l4,npu0={NPU}", "--no-compile", "--table", "table.yaml"]
    assert run([*arguments, "--shape", "ids=2x12", "--shape", "mask=2x12"]) == 0
    text = capsys.readouterr().out
    assert "npu0 leaves" in text
    assert "by table: vendor's guide, 2.1" in text
    assert "no exponent unit" in text


def test_a_table_of_no_device_asked_for_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["slice", "m.onnx", "--devices", "gpu0=nvidia-l4,gpu1=nvidia-t4", "--table", "table.yaml"]
    assert run([*arguments, "--shape", "ids=2x12", "--shape", "mask=2x12"]) == 2
    assert "stands for none of --devices" in capsys.readouterr().err
