import json
from pathlib import Path

import pytest

from loadslice.app.cli import run


def test_this_machine_comes_first_and_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["local", "catalogue"]
    assert document["local"]["device"]["peak_ops_per_s"]["fp32"]["basis"] == "measured"
    assert document["catalogue"]["nvidia-l4"]["peak_ops_per_s"]["int8"]["basis"] == "derived"


def test_the_list_has_a_line_per_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("this machine: ")
    assert printed.index("\nlocal ") < printed.index("\namd-epyc-9654 ")


def test_one_device_is_explained_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "nvidia-l4"]) == 0
    printed = capsys.readouterr().out
    assert "derived: half of the 485e+12 with sparsity" in printed
    assert "idle                28 W, measured: the board's own sensor" in printed


def test_a_file_of_ones_own_is_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\ntitle: Mine\nkind: npu\nshared_memory: true\n", encoding="utf-8")
    assert run(["devices", str(tmp_path / "mine.yaml")]) == 0
    assert "the host's" in capsys.readouterr().out
    assert run(["devices", "nobody"]) == 2
