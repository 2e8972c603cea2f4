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


def test_what_is_absent_is_named_with_what_it_prevents(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "sophgo-sg2300x"]) == 0
    printed = capsys.readouterr().out
    assert "bandwidth: times cannot be modelled" in printed
    assert "idle power: energy and running cost are unknown" in printed
    assert "price: plans that use it have no cost" in printed


def test_prices_links_and_power_are_shown_with_basis_and_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "nvidia-h100-sxm-80gb"]) == 0
    printed = capsys.readouterr().out
    assert "4.916 USD, 2024-12, us-east-1, us-east-2" in printed
    assert "108 W at 0%, 700 W at 100%, derived, +-30%" in printed
    assert "launch              3 us, stated" in printed
    assert "measurement:" not in printed


def test_filters_list_the_catalogue_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "--kind", "gpu", "--precision", "int8", "--max-watts", "75", "--json"]) == 0
    caught = capsys.readouterr()
    assert sorted(json.loads(caught.out)["catalogue"]) == ["nvidia-l4", "nvidia-t4"]
    assert "measuring" not in caught.err
    assert run(["devices", "--min-memory-gb", "100"]) == 0
    assert "nvidia-h200-sxm-141gb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nvidia-l4", "--kind", "gpu"], "--kind filters the list"),
        (["--max-watts", "0.02"], "no device passes --max-watts"),
        (["--devices", "nowhere"], "no such folder"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_a_folder_of_ones_own_joins_and_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "l4.yaml").write_text("name: nvidia-l4\ntitle: Ours\nkind: gpu\n", encoding="utf-8")
    assert run(["devices", "nvidia-l4", "--devices", str(tmp_path)]) == 0
    assert "nvidia-l4: Ours (gpu)" in capsys.readouterr().out
