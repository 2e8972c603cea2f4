"""What `make study` makes of the study's exit code."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = "out/study/report.html"


@pytest.mark.parametrize(
    ("code", "is_result"), [(0, True), (3, True), (1, False), (2, False), (4, False), (130, False)]
)
def test_a_negative_verdict_is_a_result_and_a_failure_is_one(code: int, is_result: bool, tmp_path: Path) -> None:
    program = tmp_path / "loadslice"
    program.write_text(f"#!/bin/sh\necho {PATH}\nexit {code}\n")
    program.chmod(0o755)
    ended = subprocess.run(
        ["make", "--no-print-directory", "-o", ".venv/.run", "study", f"BIN={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode == 0) is is_result
    assert ("Error" not in ended.stderr) is is_result
    if is_result:
        assert (ended.stdout, ended.stderr) == (f"{PATH}\n", "")
