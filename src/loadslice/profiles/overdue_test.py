import subprocess
import sys
from pathlib import Path

import pytest

from loadslice.profiles import measure as measuring
from loadslice.profiles.jobs import Job, Jobs, Key
from loadslice.profiles.overdue import EXIT_CODE, Overdue

KEY = Key("det", "npu0", 2, (3, 4))

HANGS = """
import time
from loadslice.profiles.overdue import Overdue
with Overdue(0.1) as overdue:
    overdue.begin("stage 'x' on engine 'npu0': loading")
    time.sleep(600)
"""

PROFILE = """
import sys
from loadslice.app.cli import run
sys.exit(run(["profile", sys.argv[1], "--inputs", sys.argv[2], "--step-timeout", "0.2", "--out", sys.argv[3]]))
"""


def test_what_does_not_come_back_ends_the_process_with_one_line() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == EXIT_CODE
    (line,) = ended.stderr.splitlines()
    assert line.startswith("loadslice: stage 'x' on engine 'npu0': loading: has not come back for 0.1 s")


@pytest.mark.parametrize("run", ["warm-up", "alone", "contended"])
def test_every_run_is_looked_after_and_only_while_it_runs(run: str) -> None:
    told: list[str] = []
    overdue = Overdue(-1.0, told.append)
    job = Job(KEY, True, lambda _slot: overdue.look())
    if run == "warm-up":
        measuring._warm_up(Jobs([[job]], {}, [], []), {"npu0": 1}, overdue)
    else:
        with measuring._Threads({"npu0": 1}, overdue) as threads:
            if run == "alone":
                threads.timed(job, 0)
            else:
                slot = measuring._Slot(0, [[job]], measuring._Recording([[job]], {"npu0": 1}, 1))
                with measuring._Load([slot], threads, 0.0, to_the_end=True) as load:
                    load.wait()
                load.check()
    assert told
    assert all(text.startswith("'det' on engine 'npu0', 2 rows of 3x4: has not come back") for text in told)
    before = len(told)
    overdue.look()
    assert len(told) == before


def test_a_stage_that_hangs_on_its_input_ends_a_profile_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text("import time\n\n\ndef stay(work):\n    time.sleep(600)\n")
    stage = '{name: stay, python: "hanging:stay", engine: host}'
    (tmp_path / "p.yaml").write_text(
        f"version: 1\npipeline: p\nengines: {{host: {{backend: python}}}}\nstages: [{stage}]\n"
    )
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "one.txt").write_text("x")
    given = [str(tmp_path / name) for name in ("p.yaml", "inputs", "out")]
    ended = subprocess.run(
        [sys.executable, "-c", PROFILE, *given], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == EXIT_CODE, ended.stderr
    assert "input 'one" in ended.stderr.splitlines()[-1]
    assert "at stage 'stay': has not come back for 0.2 s, so it hangs" in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "out" / "latency.json").exists()
