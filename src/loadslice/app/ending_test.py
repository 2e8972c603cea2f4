"""A SIGTERM ends a command in order, and what it started does not outlive it."""

import signal
import subprocess
import sys
from pathlib import Path

from loadslice.app.ending import TerminatedError, code_of, interruption

TOLD_TO_END = """
import os, signal
from loadslice.app.ending import TerminatedError, ended_in_order

try:
    with ended_in_order(), ended_in_order():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            print("cleaned")
except TerminatedError:
    print("in order", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
"""In a process of its own: where other tests ran before, a library may hold the signal."""


def test_a_sigterm_ends_the_block_in_order_and_then_has_its_usual_effect() -> None:
    ended = subprocess.run([sys.executable, "-c", TOLD_TO_END], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines() == ["cleaned", "in order"], ended.stderr
    assert ended.returncode == -signal.SIGTERM


OUT_OF_ORDER = """
import os, signal
from loadslice.app.ending import TerminatedError, ended_in_order

first, second = ended_in_order(), ended_in_order()
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
try:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
except TerminatedError:
    print("in order", flush=True)
second.__exit__(None, None, None)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_a_block_that_ends_before_one_inside_it_leaves_that_one_its_order() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OUT_OF_ORDER], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.splitlines() == ["in order", "True"], ended.stderr


COMMAND = """
import ctypes, os, signal, sys, threading
from pathlib import Path

from loadslice.app.ending import TerminatedError, code_of, interruption
import click
from loadslice.app import cli, ending
from loadslice.spec.files import replacing

ending.GRACE_S = 0.1


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def hang():
    "A native call that lets others run, and that no signal brings back."
    native, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    native.pthread_mutex_lock(lock)
    threading.Timer(0.05, terminate).start()
    native.pthread_mutex_lock(lock)


@click.command("check")
def write():
    with replacing(Path(sys.argv[1]) / "result") as path:
        path.write_text("half")
        ACT


cli.LazyGroup.get_command = lambda self, ctx, name: write  # whatever the name
sys.exit(cli.run(["check"]))
"""


def ended_by(act: str, folder: Path) -> tuple[int, list[str], list[Path]]:
    """Exit code, what was said, and what is left of a command that is terminated while it writes."""
    command = [sys.executable, "-c", COMMAND.replace("ACT", act), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, [line for line in ended.stderr.splitlines() if line], list(folder.iterdir())


def test_a_command_that_is_terminated_says_so_in_one_line_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    assert ended_by("terminate(); signal.pause()", tmp_path) == (143, ["loadslice: terminated"], [])


def test_a_library_that_does_not_come_back_does_not_keep_a_command_from_being_terminated(tmp_path: Path) -> None:
    code, said, _ = ended_by("hang()", tmp_path)
    assert (code, said) == (143, ["loadslice: terminated, and left what did not come back"])


def test_a_signal_that_a_part_has_heard_itself_ends_the_rest_with_its_own_code() -> None:
    assert isinstance(interruption(signal.SIGTERM), TerminatedError)
    assert type(interruption(signal.SIGINT)) is KeyboardInterrupt
    assert [code_of(number) for number in (signal.SIGINT, signal.SIGTERM)] == [130, 143]
