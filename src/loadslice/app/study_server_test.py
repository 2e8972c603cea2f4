"""A server that was started for a while does not outlive whoever started it."""

import signal
import subprocess
import sys

TOLD_TO_END = """
import os, signal
from loadslice.app.study_server import ended_in_order

try:
    with ended_in_order(), ended_in_order():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            print("cleaned")
except SystemExit as ended:
    print("code", ended.code, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
"""In a process of its own: where other tests ran before, a library may hold the signal."""


def test_a_sigterm_ends_the_block_in_order_and_then_has_its_usual_effect() -> None:
    ended = subprocess.run([sys.executable, "-c", TOLD_TO_END], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.splitlines() == ["cleaned", f"code {128 + signal.SIGTERM}"], ended.stderr
    assert ended.returncode == -signal.SIGTERM


OUT_OF_ORDER = """
import os, signal
from loadslice.app.study_server import ended_in_order

first, second = ended_in_order(), ended_in_order()
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
try:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
except SystemExit:
    print("in order", flush=True)
second.__exit__(None, None, None)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_a_block_that_ends_before_one_inside_it_leaves_that_one_its_order() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OUT_OF_ORDER], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.splitlines() == ["in order", "True"], ended.stderr
