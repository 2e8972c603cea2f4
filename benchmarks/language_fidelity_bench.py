"""Simulated times of a language model against measured ones, on stretches of two public traces.

The engines are profiled first, on a load of its own; then stretches that the profile has not seen are sent to a live
server, open loop, by a client in a process of its own that takes the time of every token, and simulated. Repeated live
runs say how far two measurements of one thing differ: what no simulation can be better than.

On a machine that others use, engines are faster and slower from one second to the next. So every run is simulated a
second time with the pace that its engines had, in windows of five seconds: what is wrong then is wrong in the model of
queues, steps and hand-overs, not in what the machine was taken to do.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.language_runs import (
    CHAT,
    Machine,
    Tails,
    asks_of,
    chat,
    load_process,
    sent,
    served,
    stretch_of,
    tails_of,
    trace_of,
    watch,
)
from loadslice.app.language_served import ServedStep, parts_of, served_steps, under_load
from loadslice.app.output import say
from loadslice.profiles.language import measure
from loadslice.profiles.language_fit import noise_of
from loadslice.sim.language import LanguageRun, summarise
from loadslice.sim.language_compare import run_router
from loadslice.sim.language_layout import FAULT_SLOW
from loadslice.sim.language_world import Surroundings, surroundings
from loadslice.spec.files import resolve_model, stamp
from loadslice.spec.language import Language
from loadslice.spec.language_journal import load_language_journal
from loadslice.spec.language_profile import SCHEMA, LanguageProfile, load_profile

PROFILE = os.environ.get("LANGUAGE_PROFILE")
REQUESTS = int(os.environ.get("LANGUAGE_REQUESTS", "120"))
ROUNDS = int(os.environ.get("LANGUAGE_ROUNDS", "3"))
BEGINS = tuple(float(one) for one in os.environ.get("LANGUAGE_BEGINS", "0.3,0.7").split(","))
SCALES = {"conv": 0.08, "code": 0.08}
"""Tokens for one of the trace: prompts of a GPU's model, made to fit one core's."""
UTILISATION = 0.5
"""Of the busier engine, by which the pace is chosen."""
REPLICAS = 20
WINDOW_NS = 5_000_000_000


def run() -> dict[str, Any]:
    """Profile, then measure and simulate; one row per figure."""
    language = chat()
    profile = load_profile(Path(PROFILE), language) if PROFILE else profiled(language)
    around = surroundings(language, profile)
    stretches = {
        f"{name} {begins:.0%}": stretch_of(
            trace_of(name), language, begins=begins, requests=REQUESTS, scale=SCALES[name]
        )
        for name in SCALES
        for begins in BEGINS
    }
    speeds = {name: speed_for(stretch, around) for name, stretch in stretches.items()}
    measured, stretch_steps = asyncio.run(live(language, profile, stretches, speeds))
    figures: dict[str, Any] = {}
    errors: dict[str, list[float]] = {field: [] for field in Tails._fields}
    known_errors: dict[str, list[float]] = {field: [] for field in Tails._fields}
    noises: dict[str, list[float]] = {field: [] for field in Tails._fields}
    for name, stretch in stretches.items():
        runs, machine = measured[name]
        paced = [
            [tails_of_run(one(stretch, own, speeds[name], seed, faults), around) for seed in range(REPLICAS)]
            for own, faults in (at_pace(language, profile, steps) for steps in stretch_steps[name])
        ]
        simulated = [tails_of_run(one(stretch, around, speeds[name], seed), around) for seed in range(REPLICAS)]
        span_s = float(stretch["arrival_s"][-1]) / speeds[name]
        others = np.mean([one.others_cpu_s / one.wall_s for one in machine])
        figures[f"{name}: requests, seconds"] = f"{len(stretch)} in {span_s:.0f} s, {others:.2f} cores busy with others"
        for index, field in enumerate(Tails._fields):
            live_ms = np.array([tails[index] for tails in runs])
            said_ms = float(np.mean([tails[index] for tails in simulated]))
            known_ms = [float(np.mean([tails[index] for tails in runs_of_one])) for runs_of_one in paced]
            known = float(np.mean([said / was - 1 for said, was in zip(known_ms, live_ms, strict=True)]))
            known_errors[field].append(abs(known))
            error, noise = said_ms / live_ms.mean() - 1, float(live_ms.std(ddof=1) / live_ms.mean())
            errors[field].append(abs(error))
            noises[field].append(noise)
            each = ", ".join(f"{value:.1f}" for value in live_ms)
            figures[f"{name}: {field}_ms"] = (
                f"measured {live_ms.mean():.1f} ({each}), simulated {said_ms:.1f}, "
                f"error {error:+.1%}, runs differ by {noise:.1%}; with the pace of each run known {known:+.1%}"
            )
    for field in Tails._fields:
        figures[f"{field}_error"] = float(np.mean(errors[field]))
        figures[f"{field}_error_at_known_pace"] = float(np.mean(known_errors[field]))
        figures[f"{field}_noise"] = float(np.mean(noises[field]))
    return figures


def profiled(language: Language) -> LanguageProfile:
    """As `loadslice profile` does it."""
    model = resolve_model(language.model, CHAT.parent)
    engines, handovers, beside, model_sha256 = measure(language, model, seconds=20, seed=0, tell=say)
    profile = LanguageProfile(
        stamp=stamp(SCHEMA, inputs={"language": CHAT, "model": model}, seed=0),
        language=language.language,
        model_sha256=model_sha256,
        context=language.context,
        engines=engines,
        handovers=handovers,
        beside=beside,
        serving=None,
        load_average_1m=os.getloadavg()[0],
        load_average_1m_after=None,
    )
    return under_load(profile, language, model, seconds=30, seed=0)


def one(
    stretch: pl.DataFrame, around: Surroundings, speed: float, seed: int, faults: NDArray[np.int64] | None = None
) -> LanguageRun:
    """One simulated run."""
    return run_router(stretch, around, around.language.router.policy, seed=seed, speed=speed, faults=faults)


def at_pace(
    language: Language, profile: LanguageProfile, steps: Sequence[ServedStep]
) -> tuple[Surroundings, NDArray[np.int64]]:
    """What surrounded the desk in one run: each engine's pace by windows of five seconds, and the noise within them."""
    names = list(language.engines)
    # Company is part of the pace that was seen.
    alone = msgspec.structs.replace(profile, beside={name: {} for name in names})
    began_ns = min(step.began_ns for step in steps)
    rows, engines = [], dict(alone.engines)
    for index, name in enumerate(names):
        mine = [step for step in steps if step.engine == index]
        parts = np.array(parts_of(mine, alone, names)[name])
        window = np.array([(step.began_ns - began_ns) // WINDOW_NS for step in mine], np.int64)
        left = []
        for number in np.unique(window):
            pace = float(parts[window == number].mean())
            rows.append((int(number) * WINDOW_NS, index, FAULT_SLOW, round(pace * 1e6)))
            left += (parts[window == number] / pace).tolist()
        engines[name] = msgspec.structs.replace(engines[name], noise=noise_of(left))
    return surroundings(language, msgspec.structs.replace(alone, engines=engines)), np.array(sorted(rows), np.int64)


def tails_of_run(finished: LanguageRun, around: Surroundings) -> Tails:
    """The figures that a client measures."""
    said = summarise(finished, around.basis, way_ms=around.way_ms)
    first, between = said.first_token_ms, said.between_tokens_ms
    return Tails(*(value or 0.0 for tail in (first, between) for value in (tail.p50, tail.p95, tail.p99)))


def speed_for(stretch: pl.DataFrame, around: Surroundings) -> float:
    """Pace at which the busier engine is as busy as asked, by the simulator."""
    low, high = 1e-4, 10.0
    for _ in range(16):
        speed = (low * high) ** 0.5
        said = summarise(one(stretch, around, speed, 0), around.basis)
        if max(engine.utilisation for engine in said.engines.values()) > UTILISATION:
            high = speed
        else:
            low = speed
    return low


async def live(
    language: Language, profile: LanguageProfile, stretches: dict[str, pl.DataFrame], speeds: dict[str, float]
) -> tuple[dict[str, tuple[list[Tails], list[Machine]]], dict[str, list[list[ServedStep]]]]:
    """Measure every stretch in every round, so that the machine's moods reach all of them.

    Returns:
        Figures and the machine of each run, and the steps of each.
    """
    counts: dict[str, list[tuple[int, int]]] = {name: [] for name in stretches}
    sent_so_far = 0
    found: dict[str, tuple[list[Tails], list[Machine]]] = {name: ([], []) for name in stretches}
    with load_process() as pool, tempfile.TemporaryDirectory(prefix="loadslice-") as scratch:
        folder = Path(scratch) / "journal"
        async with served(language, profile, folder) as server:
            for number in range(ROUNDS):
                for name, stretch in stretches.items():
                    end = watch()
                    heard = await sent(pool, server, asks_of(stretch, speeds[name], seed=number))
                    found[name][1].append(end())
                    counts[name].append((sent_so_far, sent_so_far + len(heard)))
                    sent_so_far += len(heard)
                    wrong = [answer for answer in heard if answer.error or answer.status != 200]
                    assert not wrong, f"{len(wrong)} answers failed, the first with {wrong[0].status}: {wrong[0].error}"
                    tails = tails_of(heard)
                    found[name][0].append(tails)
                    say(f"round {number + 1}, {name}: {' '.join(f'{value:.1f}' for value in tails)}")
        journal = load_language_journal(folder)
    steps = served_steps(journal)
    requests = journal.requests.sort("tag")
    begins: list[int] = requests["arrival_ns"].to_list()
    ends: list[int] = requests["end_ns"].to_list()
    spans = {name: [(begins[low], max(ends[low:high])) for low, high in mine] for name, mine in counts.items()}
    return found, {
        name: [[step for step in steps if low <= step.began_ns and step.ended_ns <= high] for low, high in mine]
        for name, mine in spans.items()
    }
