"""Work in a process of its own ends with the one that asked for it, however that ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ASKING = """
import os, sys, time
from pathlib import Path
from loadslice.app.process_apart import process_apart
if __name__ == "__main__":
    with process_apart() as pool:
        Path(sys.argv[1]).write_text(str(pool.submit(os.getpid).result()))
        pool.submit(time.sleep, 60).result()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_work_apart_ends_with_whoever_asked(how: signal.Signals, tmp_path: Path) -> None:
    script, note = tmp_path / "asking.py", tmp_path / "pid"
    script.write_text(ASKING)
    asking = subprocess.Popen([sys.executable, str(script), str(note)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not (note.is_file() and note.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        working = psutil.Process(int(note.read_text()))
        asking.send_signal(how)
        asking.wait(30)
        working.wait(30)  # Fails where it goes on.
    finally:
        if asking.poll() is None:
            asking.kill()
            asking.wait()
