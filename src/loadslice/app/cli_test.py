import os
import signal
import subprocess
import sys

import pytest

from loadslice.app import cli


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["nonsense"],
        ["replay", "--nonsense"],
        ["serve", "p.yaml", "--http", "no"],
        ["trace", "import", "x", "--format", "no", "-o", "y"],
        ["batch", "a.jsonl", "http://127.0.0.1:1", "--class", "best"],
        ["simulate", "x"],
    ],
)
def test_a_wrong_command_line_is_one_line_that_says_where_to_look(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "--help`" in said.err


def test_no_help_page_prints_a_bound_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        cli.run([name, "--help"])
    assert "None" not in capsys.readouterr().out


def test_an_interrupt_while_the_command_line_is_imported_ends_in_order() -> None:
    # The interrupt arrives when the first module of ours asks for another: as early as a user's could.
    script = (
        "import os, signal, sys, importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'loadslice.app.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from loadslice.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert ended.returncode == 130 == 128 + signal.SIGINT
    assert ended.stderr == "loadslice: interrupted\n"
