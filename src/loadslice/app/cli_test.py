import json
import os
import signal
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["serv"], "'serve'?"),
        (["trace", "imprt", "x"], "'import'?"),
        (["serve", "p.yaml", "--htp", "1"], "'--http'"),
    ],
)
def test_what_is_nearly_right_is_answered_with_what_was_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    said = capsys.readouterr().err
    assert " Did you mean " in said
    assert meant in said
    assert "? See `loadslice" in said


@pytest.mark.parametrize("command", [["story", "URL", "3"], ["check", "URL"], ["serve", "URL"]])
def test_an_address_in_the_place_of_a_file_is_named_as_it_was_typed(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:1"
    assert cli.run([url if word == "URL" else word for word in command]) == 2
    said = capsys.readouterr().err
    assert said == f"loadslice: {url}: is an address, and a file or a folder is wanted here.\n"


def test_no_help_page_prints_a_bound_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        cli.run([name, "--help"])
    assert "None" not in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "where",
    [
        "exec(f'import os; os.kill(os.getpid(), {number:d})')",
        "try: os.kill(os.getpid(), number)\n    except BaseException as error: raise ImportError('no') from error",
    ],
)
def test_a_signal_amid_an_import_that_makes_something_else_of_it_has_its_code(
    where: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Text that is executed leaves a mark of an interrupt in Python; extension modules make an ImportError of it."""
    here = f"""
import os, signal, sys
from loadslice.app import cli
number = signal.Signals({number:d})
def command(*_):
    {where}
cli.root.main = lambda **_: command()
from loadslice.__main__ import main
main()
"""
    (tmp_path / "amid.py").write_text(here, encoding="utf-8")
    line = [sys.executable, "-m", "amid"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert ended.stderr == f"loadslice: {'interrupted' if number == signal.SIGINT else 'terminated'}\n"
    assert ended.returncode == 128 + number


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


COMMAND = f"{sys.executable} -m loadslice"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash; what it prints last is the exit code."""
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("asked", ["--help", "trace import --help", "devices --kind npu --json"])
def test_a_reader_that_has_gone_has_read_what_it_wanted(asked: str) -> None:
    # The reader is gone before anything can be written, so that it is never chance who is first.
    ended = shell(f"( {COMMAND} {asked}; echo $? >&2 ) | true; wait")
    assert ended.stderr.splitlines()[-1] == "0"
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_result_that_cannot_be_written_is_one_line_and_exit_2() -> None:
    ended = shell(f"{COMMAND} --help > /dev/full; echo $?")
    assert ended.stderr == "loadslice: standard output cannot be written, the disk is full.\n"
    assert ended.stdout == "2\n"
    assert shell(f"{COMMAND} check none 2> /dev/full; echo $?").stdout == "2\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/somewhere/odd"), "loadslice: /somewhere/odd: "),
        (ConnectionResetError(104, "Connection reset by peer"), "loadslice: ConnectionResetError at cli_test.py:"),
    ],
)
def test_an_error_of_the_system_that_is_not_standard_outputs_names_its_own_place(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli.root, "main", fail)
    assert cli.run(["check"]) == 2
    text = capsys.readouterr().err
    assert text.startswith(said)
    assert text.count("\n") == 1
    assert "standard output" not in text


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 0), ("<&-", 0), ("<&- >&- 2>&-", 0)])
def test_streams_that_were_closed_are_taken_for_nobody_who_reads(closed: str, code: int, tmp_path) -> None:
    ended = shell(f"cd {tmp_path}; {COMMAND} env lock -o lock.json {closed}; echo $? > code")
    assert (tmp_path / "code").read_text() == f"{code}\n"
    assert "Traceback" not in ended.stderr
    written = (tmp_path / "lock.json").read_bytes()
    assert written.startswith(b"{")
    assert written.endswith(b"}\n"), "nothing that was printed stands in it"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_any_encoding_is_told_everything_and_json_is_utf_8(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "漢.jsonl").write_text('{"arrival_s": 0.0}\n{"arrival_s": 1.0}\n')
    ended = [
        subprocess.run(
            [sys.executable, "-m", "loadslice", *asked],
            env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}, cwd=tmp_path, capture_output=True,
            timeout=60, check=False,
        )
        for asked in (["portrait", "漢.jsonl"], ["portrait", "漢.jsonl", "--json"], ["check", "漢"])
    ]  # fmt: skip
    assert [one.returncode for one in ended] == [0, 0, 2], [one.stderr for one in ended]
    assert "漢" in json.dumps(json.loads(ended[1].stdout), ensure_ascii=False)
    assert any("漢".encode(one, "backslashreplace") in ended[2].stderr for one in (encoding, "utf-8"))


def test_a_name_that_no_result_could_hold_is_refused_with_what_to_do() -> None:
    ended = subprocess.run(
        [sys.executable.encode(), b"-m", b"loadslice", b"check", b"a\xff"], capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == b"loadslice: 'a\\udcff': is not UTF-8, and results that name it must be. Rename it.\n"
