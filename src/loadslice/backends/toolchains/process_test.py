"""Whatever a toolchain's process does becomes one line. The interpreters here misbehave for real."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadslice.backends.toolchains.process import ToolchainError, ask

pytestmark = pytest.mark.skipif(os.name == "nt", reason="stand-in interpreters are shell scripts")

GIB = 2**30


def put(tmp_path: Path, body: str, *, deadline_s: float = 20.0) -> dict[str, Any]:
    """Ask an interpreter that runs ``body`` whatever script it is given."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    python.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    return ask("qnn", str(python), {"model": "m"}, folder, deadline_s=deadline_s, memory_bytes=GIB)


def test_an_answer_comes_back_and_noise_on_stderr_is_none(tmp_path: Path) -> None:
    assert put(tmp_path, "echo noise >&2; echo '{\"a\": 1}'") == {"a": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("kill -SEGV $$", "toolchain 'qnn': crashed with SIGSEGV."),
        ("echo 'QNN: bad graph' >&2; exit 7", "ended with code 7 and no answer: QNN: bad graph."),
        ("echo 'this is no JSON'", "no answer"),
        ("echo '[1]'", "its answer is not one"),
        ("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "the disk is full"),
        ('echo \'{"error": "No space left on device", "kind": "disk"}\'', "the disk is full"),
        ("echo 'std::bad_alloc' >&2; kill -ABRT $$", "out of memory within its bound of 1.0 GiB"),
        ('echo \'{"error": "opset 99 is unknown"}\'', "toolchain 'qnn': opset 99 is unknown."),
    ],
)
def test_every_way_to_fail_is_one_line(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(ToolchainError) as caught:
        put(tmp_path, body)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_that_hangs_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"no answer within 0\.5 s, stopped"):
        put(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; wait", deadline_s=0.5)
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="cannot run /nowhere/python"):
        ask("qnn", "/nowhere/python", {}, tmp_path, deadline_s=5, memory_bytes=GIB)


def test_nothing_of_our_environment_reaches_it_and_telemetry_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    put(tmp_path, f"env > {tmp_path}/env; echo '{{}}'")
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text(encoding="utf-8").splitlines())
    assert seen["ORT_DISABLE_TELEMETRY"] == "1"
    assert seen["DO_NOT_TRACK"] == "1"
    assert seen["HOME"] == seen["TMPDIR"] == str(tmp_path / "work")
    assert not {"AWS_SECRET_ACCESS_KEY", "PYTHONPATH"} & set(seen)


def test_the_real_script_says_what_its_interpreter_lacks(tmp_path: Path) -> None:
    """The interpreter of these tests has no QNN provider; the script's own protocol carries that back."""
    request = {"model": "m", "options": {}, "names": [], "numerics": False, "inputs": None}
    with pytest.raises(ToolchainError, match="No module named 'onnxruntime_qnn'"):
        ask("qnn", sys.executable, request, tmp_path, deadline_s=60, memory_bytes=64 * GIB)
    assert json.loads((tmp_path / "request.json").read_text(encoding="utf-8"))["folder"] == str(tmp_path)
