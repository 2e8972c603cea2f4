"""`inspect` with operator support: tables without any compiler, and compilers that fail."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from loadslice.app.cli import run
from loadslice.graph.coverage_test import TABLE
from loadslice.graph.rewrites.rewrites_test import quantised, transformer_block


@pytest.fixture(autouse=True)
def toolchains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of toolchains."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "loadslice" / "toolchains"


@pytest.fixture
def block(tmp_path: Path) -> Path:
    onnx.save(quantised(transformer_block(13)), tmp_path / "block.onnx")
    return tmp_path / "block.onnx"


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["inspect", *arguments, "--json"]) == 0
    devices: dict[str, Any] = json.loads(capsys.readouterr().out)["devices"]
    return devices


def broken(toolchains: Path, body: str) -> None:
    """A QNN toolchain whose interpreter does ``body``."""
    home = toolchains / "qnn"
    home.mkdir(parents=True)
    python = home / "python"
    python.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    python.chmod(0o755)
    mark = {"name": "qnn", "python": str(python), "versions": {}, "ours": False}
    (home / "toolchain.json").write_bytes(msgspec.json.encode(mark))


def test_without_a_compiler_the_table_answers_and_names_its_version(
    block: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    fit = inspected(capsys, str(block), "--device", "qnn-htp:soc_model=60")["qnn-htp:soc_model=60"]
    assert fit["basis"] == "table"
    assert "2.7.0 on onnxruntime 1.32.0" in fit["source"]
    assert [entry["op"] for entry in fit["unsupported"]].count("Erf") == 1
    assert all(entry["reason"] and entry["source"] for entry in fit["unsupported"])
    assert (fit["segments"], fit["unknown_nodes"]) == (2, 0)
    assert fit["transfer_bytes"] == sum(transfer["bytes"] for transfer in fit["transfers"])
    assert fit["remedies"][0]["rewrite"] == "lift-opset-20+fuse-gelu"
    assert fit["coverage_notes"][-1].endswith("`loadslice toolchain install qnn`")
    assert (fit["bound"], fit["fits"]) == (None, None)


def test_the_text_says_what_falls_back_and_what_would_help(block: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert run(["inspect", str(block), "--device", "qnn-htp"]) == 0
    printed = capsys.readouterr().out
    assert "falls back: 1 x Erf: not supported by the QNN provider" in printed
    assert "`loadslice rewrite --pass lift-opset-20+fuse-gelu` takes 3 of the fallbacks away" in printed


def test_a_device_of_the_catalogue_has_its_roofline_and_its_table(
    block: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = inspected(capsys, str(block), "--device", "arm-ethos-u55-256")["arm-ethos-u55-256"]
    assert fit["bound"] is not None
    assert "ethos-u-vela" in fit["source"]
    assert any("loadslice toolchain compile MODEL.tflite --for ethos-u55-256" in note for note in fit["coverage_notes"])


def test_a_device_without_a_table_stays_unknown(block: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = inspected(capsys, str(block), "--device", "hailo-8")["hailo-8"]
    assert fit["source"] is fit["unsupported"] is fit["supported_nodes_share"] is None


def test_a_table_of_the_users_own_is_a_device_of_its_own(
    block: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(TABLE, encoding="utf-8")
    fit = inspected(capsys, str(block), "--table", str(tmp_path / "mine.yaml"))["my-npu"]
    assert fit["source"] == "our lab, run 12, firmware 3.1 (measured)"
    assert fit["segments"] is None
    assert fit["unknown_nodes"] > 0


def test_a_users_table_for_a_known_device_takes_the_place_of_ours(
    block: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = TABLE.replace("facts:", "devices: {hailo-8: hailo-8}\nfacts:", 1)
    (tmp_path / "mine.yaml").write_text(own, encoding="utf-8")
    found = inspected(capsys, str(block), "--table", str(tmp_path / "mine.yaml"), "--device", "hailo-8")
    assert set(found) == {"hailo-8"}
    assert found["hailo-8"]["source"].startswith("our lab")


@pytest.mark.skipif(os.name == "nt", reason="the stand-in interpreter is a shell script")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("kill -SEGV $$", "crashed with SIGSEGV"),
        ("sleep 60", "no answer within 1 s"),
        ("echo 'No space left on device' >&2; exit 1", "the disk is full"),
    ],
)
def test_a_compiler_that_fails_is_one_line_and_the_table_and_other_devices_go_on(
    block: Path, toolchains: Path, capsys: pytest.CaptureFixture[str], body: str, words: str
) -> None:
    broken(toolchains, body)
    asked = ["--device", "qnn-htp", "--device", "arm-ethos-u55-256", "--timeout", "1", "--json"]
    assert run(["inspect", str(block), *asked]) == 0
    printed = capsys.readouterr()
    told = [line for line in printed.err.splitlines() if line.startswith("loadslice: ")]
    assert len(told) == 1
    assert words in told[0]
    devices = json.loads(printed.out)["devices"]
    assert devices["qnn-htp"]["basis"] == devices["arm-ethos-u55-256"]["basis"] == "table"
    assert any(words in note for note in devices["qnn-htp"]["coverage_notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "qnn-htp:soc=60"], "has no option 'soc'"),
        (["--device", "nvidia-l4:sm=89"], "only a compiler's target takes options"),
        (["--table", "absent.yaml"], "cannot be read"),
        (["--device", "no-such-npu"], "not in the catalogue"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(
    block: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["inspect", str(block), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert words in printed.err
