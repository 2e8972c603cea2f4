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
