"""Decisions compiled apart: only where they are not in the cache, and never in the way of serving."""

import logging
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from loadslice.policy import events
from loadslice.policy.tokens import desk
from loadslice.serve import compiled
from loadslice.serve.compiled import compile_apart, is_compiled

pytestmark = pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="there is nothing to compile")


def entry(index: Path) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        _cache=types.SimpleNamespace(_cache_file=types.SimpleNamespace(_index_path=str(index)))
    )


def test_numba_still_says_where_what_it_has_compiled_is_kept() -> None:
    for decision in (events.decide, desk.on_step_done):
        assert Path(decision._cache._cache_file._index_path).suffix == ".nbi"


@pytest.mark.parametrize("what", ["pipeline", "language"])
def test_the_process_does_what_a_server_would_without_being_given_anything(what: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "loadslice.serve.compiled", what], stdin=subprocess.PIPE
    ) as made:
        assert made.wait(900) == 0


def test_what_is_in_the_cache_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decide.nbi").touch()
    monkeypatch.setattr(subprocess, "Popen", None)
    compile_apart("pipeline", entry(tmp_path / "decide.nbi"))
    compile_apart("pipeline", print)
    assert is_compiled(print), "what has no cache is compiled by whoever calls it"


@pytest.mark.parametrize(("code", "said"), [("", 0), ("raise SystemExit(3)", 1), ("import time; time.sleep(60)", 1)])
def test_a_process_that_fails_is_said_and_the_server_compiles_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, said: int
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "stand_in.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compiled, "__name__", "stand_in")
    monkeypatch.setattr(compiled, "COMPILE_S_MAX", 1.0 if "sleep" in code else 60.0)
    compile_apart("pipeline", entry(tmp_path / "none.nbi"))
    assert len(caplog.records) == said


def test_the_process_ends_when_its_server_has_gone() -> None:
    code = "from loadslice.serve import compiled; compiled._end_with_the_server()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1
