"""The benchmark runner finds what is there, sums up honestly and refuses what is not."""

import importlib.util
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def runner():
    return loaded("__init__")


def loaded(name: str):
    found = importlib.util.spec_from_file_location(f"loadslice_benchmarks_{name}", REPOSITORY / f"benchmarks/{name}.py")
    assert found is not None
    assert found.loader is not None
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
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


def test_what_is_flat_grows_or_cannot_be_told_is_said_so() -> None:
    trend = loaded("trend").trend
    draw = random.Random(5)
    hours = [index / 100 for index in range(100)]
    times_s = [3600 * hour for hour in hours]
    noise = [draw.gauss(0, 0.1) for _ in hours]
    flat = trend(times_s, [200 + one for one in noise])
    grows = trend(times_s, [200 + 5 * hour + one for hour, one in zip(hours, noise, strict=True)])
    falls = trend(times_s, [200 - 5 * hour + one for hour, one in zip(hours, noise, strict=True)])
    wild = trend(times_s, [200 + 20 * math.sin(9 * hour) for hour in hours])
    assert [one.verdict(0.01) for one in (flat, grows, falls, wild)] == ["flat", "grows", "falls", "undecided"]
    assert grows.low < 5 < grows.high
    with pytest.raises(ValueError, match="a trend needs 20 or more"):
        trend(times_s[:19], noise[:19])
