"""The benchmark runner finds what is there, sums up honestly and refuses what is not."""

import importlib.util
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def runner():
    found = importlib.util.spec_from_file_location("loadslice_benchmarks", REPOSITORY / "benchmarks/__init__.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_benchmark_has_run() -> None:
    for name in runner().names():
        text = (REPOSITORY / f"benchmarks/{name}_bench.py").read_text(encoding="utf-8")
        assert "\ndef run(" in text, name


def test_benchmarks_that_are_run_once_are_there() -> None:
    assert set(runner().ONCE) <= set(runner().names())


def test_numbers_become_medians_with_their_spread_and_words_stay_words() -> None:
    runs = [{"took_s": 3.0, "class": "tidal"}, {"took_s": 1.0, "class": "tidal"}, {"took_s": 2.0, "class": "tidal"}]
    assert runner().summarise(runs) == {
        "took_s": {"median": 2.0, "min": 1.0, "max": 3.0},
        "class": {"value": "tidal"},
    }


def test_a_name_that_is_not_there_is_one_line_and_exit_2() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nothing"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "nothing" in ended.stderr
