import json
from pathlib import Path

import pytest

from loadslice.app.cli import run


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_the_list_says_what_each_is_for_and_under_which_licence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["toolchain", "list", "--json"]) == 0
    states = {state["name"]: state for state in json.loads(capsys.readouterr().out)}
    assert states["qnn"]["targets"] == ["qnn-htp"]
    assert states["vela"]["installed"] is None
    assert all(state["licence"] for state in states.values())
    assert run(["toolchain", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "        licence: Apache-2.0" in lines
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == states.keys()


def test_installing_prints_the_licence_before_anything_happens(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["toolchain", "install", "rknn"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].startswith("licence: RKNN SDK License, proprietary")
    assert "--python PATH" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["install", "tensor-magic"], "there are qnn, vela, rknn, tflite"),
        (["compile", "m.onnx", "--for", "qnn-htp"], "no such file"),
        (["compile", "MODEL", "--for", "coral"], "no toolchain compiles for it"),
        (["compile", "MODEL", "--for", "ethos-u55-256"], "loadslice toolchain install vela"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "m.tflite").write_bytes(b"TFL3")
    given = [str(tmp_path / "m.tflite") if part == "MODEL" else part for part in arguments]
    assert run(["toolchain", *given]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err.splitlines()[-1]
