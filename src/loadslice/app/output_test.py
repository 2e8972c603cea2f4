import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loadslice.app.output import Finite, check_folder, emit, say
from loadslice.spec.errors import InputError


@click.command()
@click.option("--x", type=Finite(min=0))
def echo(x: float) -> None:
    click.echo(x)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e999", "one"])
def test_what_is_no_finite_number_of_the_range_is_refused(text: str) -> None:
    assert CliRunner().invoke(echo, ["--x", text]).exit_code == 2


def test_a_folder_is_refused_before_work_is_done_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError):
        check_folder(tmp_path / "file")
    check_folder(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_names_out_of_a_file_cannot_move_the_cursor_or_forge_lines(capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, as_json=False, text=lambda: ["node a\nshipped\x1b[2Jb\x9b", "a\tb é"])
    assert capsys.readouterr().out == "node a\\x0ashipped\\x1b[2Jb\\x9b\na\tb é\n"
    say("two\nlines\x07")
    assert capsys.readouterr().err == "two\nlines\\x07\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_standard_output_is_one_readable_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "loadslice", "--help"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert b"disk is full" in done.stderr


def test_what_native_code_prints_does_not_get_into_our_document() -> None:
    script = (
        "import ctypes\n"
        "from loadslice.app.output import native\n"
        "with native():\n"
        "    ctypes.CDLL(None).printf(b'solver says\\n')\n"
        "print('{}')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("{}\n", "solver says\n")
