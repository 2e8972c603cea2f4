"""How fast things are: modules named ``*_bench.py`` that have ``run() -> dict``, and what runs them.

Each repeat runs in a process of its own, so that peak memory and warm caches of one benchmark do not reach the next.
"""

import importlib
import os
import statistics
import time
from pathlib import Path
from typing import Any

from loadslice.app.process_apart import process_apart

SUFFIX = "_bench"

ONCE = frozenset(
    {
        "console",
        "decay",
        "fidelity",
        "knee",
        "language",
        "language_fidelity",
        "language_peers",
        "language_router",
        "ocr_service",
        "peers",
        "serve",
        "soak",
    }
)
"""Benchmarks that repeat what has to be repeated themselves; they are run once."""

Figures = dict[str, Any]
"""What a benchmark's ``run()`` gives: units in the names, numbers or words."""


def names() -> list[str]:
    """Benchmarks that are there."""
    return sorted(path.stem.removesuffix(SUFFIX) for path in Path(__file__).parent.glob(f"*{SUFFIX}.py"))


def run_once(name: str) -> Figures:
    """Run one benchmark in this process."""
    found: Figures = importlib.import_module(f"benchmarks.{name}{SUFFIX}").run()
    return found


def run_apart(name: str) -> Figures:
    """Run one benchmark in a fresh process."""
    with process_apart() as pool:
        return pool.submit(run_once, name).result()


def summarise(runs: list[Figures]) -> dict[str, Figures]:
    """Median, least and most of each number over the repeats; of words, the last.

    Args:
        runs: At least one; all with the same keys.
    """
    summary: dict[str, Figures] = {}
    for key in runs[0]:
        values = [run[key] for run in runs]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            summary[key] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        else:
            summary[key] = {"value": values[-1]}
    return summary


def measure(name: str, repeats: int) -> dict[str, Any]:
    """One benchmark with what the machine was doing before and after."""
    repeats = 1 if name in ONCE else repeats
    before, began_s = load_average_1m(), time.perf_counter()
    runs = [run_apart(name) for _ in range(repeats)]
    return {
        "name": name,
        "repeats": repeats,
        "load_average_1m_before": before,
        "load_average_1m_after": load_average_1m(),
        "took_s": time.perf_counter() - began_s,
        "figures": summarise(runs),
    }


def load_average_1m() -> float | None:
    """Processes that wanted a processor, over the last minute; ``None`` where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
