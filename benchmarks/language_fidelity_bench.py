"""Simulated times of a language model against measured ones, on stretches of two public traces.

The engines are profiled first, each alone. Then stretches that the profile has not seen are sent to a live server, open
loop, by a client in a process of its own that takes the time of every token; and simulated. Repeated live runs say how
far two measurements of one thing differ: what no simulation can be better than. So each figure stands with its error,
with where 19 of 20 measured means lie, with where 19 of 20 simulated ones do when requests, steps and the pace of the
minute are drawn anew, and with how many values are beyond the percentile: of fifty gaps the 99th percentile is the
longest, and no two runs have the same.

A machine is not as fast in one minute as in another. So before every stretch a load of its own is served, prompts of
all lengths, and what its steps took sets the costs that the stretches are simulated with: no step of a stretch does.
The desk begins with what it had learned when the stretch began. Every run is simulated a second time with the pace that
its engines had, in windows of five seconds: what is wrong then is wrong in the model of queues, steps and hand-overs,
not in what the machine was taken to do.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    sent,
    served,
    stretch_of,
    tails_of,
    trace_of,
    watch,
)
from loadslice.app.language_served import Served, as_seen, load_for, parts_of
from loadslice.app.language_served import served as served_by
from loadslice.app.output import say
from loadslice.app.process_apart import process_apart
from loadslice.evaluate.language_client import Ask, Heard
from loadslice.profiles.language import measure
from loadslice.profiles.language_fit import noise_of
from loadslice.sim.draws import t_95
from loadslice.sim.language import LanguageRun, summarise
from loadslice.sim.language_compare import run_router
from loadslice.sim.language_layout import FAULT_SLOW
from loadslice.sim.language_world import Surroundings, surroundings
from loadslice.spec.files import resolve_model, stamp
from loadslice.spec.language import Language
from loadslice.spec.language_journal import LanguageJournal, load_language_journal
from loadslice.spec.language_profile import SCHEMA, LanguageProfile, load_profile


class Scale(NamedTuple):
    """Tokens for one of the trace."""

    prompts: float
    answers: float


PROFILE = os.environ.get("LANGUAGE_PROFILE")
REQUESTS = int(os.environ.get("LANGUAGE_REQUESTS", "90"))
ROUNDS = int(os.environ.get("LANGUAGE_ROUNDS", "3"))
BEGINS = tuple(float(one) for one in os.environ.get("LANGUAGE_BEGINS", "0.3").split(","))
SCALES = {"conv": Scale(0.08, 0.12), "code": Scale(0.08, 0.5)}
"""Prompts of a GPU's model, made to fit one core's; answers so long that there are some thousand gaps in all: those of
the code trace have 28 tokens where its prompts have two thousand."""
UTILISATION = 0.5
"""Of the busier engine, by which the pace is chosen."""
PROFILE_S, CALIBRATION_S = 8.0, 10.0
"""For each engine alone, and of the load before each stretch."""
REPLICAS = 20
WINDOW_NS = 5_000_000_000
GOAL = 0.05


class Sent(NamedTuple):
    """Requests that were sent one after the other."""

    name: str
    """Of the stretch; empty: the load that costs come from."""
    heard: list[Heard]
    machine: Machine


class Seen(NamedTuple):
    """The same, as the journal has them."""

    sent: Sent
    requests: pl.DataFrame
    served: Served


def run() -> dict[str, Any]:
    """Profile, then measure and simulate; one row per figure."""
    language = chat()
    alone = load_profile(Path(PROFILE), language) if PROFILE else profiled(language)
    around = surroundings(language, alone)
    stretches = {
        f"{name} {begins:.0%}": stretch_of(
            trace_of(name),
            language,
            begins=begins,
            requests=REQUESTS,
            scale=SCALES[name].prompts,
            answers=SCALES[name].answers,
        )
        for name in SCALES
        for begins in BEGINS
    }
    speeds = {name: speed_for(stretch, around) for name, stretch in stretches.items()}
    with tempfile.TemporaryDirectory(prefix="loadslice-") as scratch:
        folder = Path(scratch) / "journal"
        found = asyncio.run(live(language, alone, stretches, speeds, folder))
        seen = list(as_journalled(found, load_language_journal(folder)))
    loads = [one for one in seen if not one.sent.name]
    profile = calibrated(alone, loads)
    around = surroundings(language, profile, told=alone)
    paces = [pace_rows(parts_of(one.served.steps, profile, list(language.engines))) for one in loads]
    figures: dict[str, Any] = {}
    judged: list[Judged] = []
    for name, stretch in stretches.items():
        mine = [one for one in seen if one.sent.name == name]
        said = [simulated(stretch, around, speeds[name], one.served, paces) for one in mine]
        known = [at_pace(stretch, language, profile, alone, one.served, speeds[name]).mean(0) for one in mine]
        judged += told_of(name, stretch, speeds[name], mine, np.array(said), np.array(known), figures)
    count = len(judged)
    figures["figures_within_5_percent"] = f"{sum(abs(one.error) <= GOAL for one in judged)} of {count}"
    figures["figures_within_5_percent_at_known_pace"] = f"{sum(abs(one.at_pace) <= GOAL for one in judged)} of {count}"
    figures["figures_where_19_of_20_simulated_lie"] = f"{sum(one.is_inside for one in judged)} of {count}"
    sure = [one for one in judged if one.half <= GOAL]
    figures["figures_measured_within_5_percent"] = f"{len(sure)} of {count}"
    figures["of_those_simulated_within_5_percent"] = f"{sum(abs(one.error) <= GOAL for one in sure)} of {len(sure)}"
    return figures


class Judged(NamedTuple):
    """One figure of one stretch; shares of what was measured."""

    error: float
    at_pace: float
    """The error with the pace of each run known."""
    half: float
    """19 of 20 measured means lie within so much."""
    is_inside: bool
    """Whether the measured mean lies where 19 of 20 simulated ones do."""


def told_of(
    name: str,
    stretch: pl.DataFrame,
    speed: float,
    seen: Sequence[Seen],
    said: NDArray[np.float64],
    known: NDArray[np.float64],
    figures: dict[str, Any],
) -> list[Judged]:
    """Put what is known of a stretch among the figures.

    Args:
        name: Of the stretch.
        stretch: Its requests.
        speed: Its pace.
        seen: Measured runs.
        said: [runs, replicas, figures] simulated for each of them.
        known: [runs, figures] means of what is simulated with the pace of each run known.
        figures: Added to.
    """
    live_ms = np.array([tails_of(one.sent.heard) for one in seen])
    others = np.mean([one.sent.machine.others_cpu_s / one.sent.machine.wall_s for one in seen])
    span_s = float(stretch["arrival_s"][-1]) / speed
    figures[f"{name}: requests, seconds"] = f"{len(stretch)} in {span_s:.0f} s, {others:.2f} cores busy with others"
    mean_ms = live_ms.mean(0)
    runs, replicas = said.shape[:2]
    spread = live_ms.std(0, ddof=1) / mean_ms if runs > 1 else np.full(len(mean_ms), np.nan)
    half = t_95(runs - 1) * spread / np.sqrt(runs) if runs > 1 else spread
    said_ms = said.mean((0, 1))
    luck_ms = t_95(replicas - 1) * said.std(1, ddof=1).mean(0) * np.sqrt(1 / runs + 1 / (runs * replicas))
    at_pace = (known / live_ms - 1).mean(0)
    counts = {
        "first": sum(one.first_ms is not None for run in seen for one in run.sent.heard),
        "between": sum(len(one.gaps_ms) for run in seen for one in run.sent.heard),
    }
    judged = []
    for index, field in enumerate(Tails._fields):
        each = ", ".join(f"{value:.1f}" for value in live_ms[:, index])
        low, high = said_ms[index] - luck_ms[index], said_ms[index] + luck_ms[index]
        one = Judged(
            error=float(said_ms[index] / mean_ms[index] - 1),
            at_pace=float(at_pace[index]),
            half=float(half[index]),
            is_inside=bool(low <= mean_ms[index] <= high),
        )
        judged.append(one)
        kind, _, quantile = field.partition("_p")
        beyond = round(counts[kind] * (1 - int(quantile) / 100))
        figures[f"{name}: {field}_ms"] = (
            f"measured {mean_ms[index]:.1f} ({each}; 19 of 20 means lie within {one.half:.1%}; {beyond} of "
            f"{counts[kind]} beyond), simulated {said_ms[index]:.1f} ({low:.1f} to {high:.1f}: the measured one lies "
            f"{'inside' if one.is_inside else 'outside'}), error {one.error:+.1%}; with the pace of each run known "
            f"{one.at_pace:+.1%}"
        )
    return judged


def profiled(language: Language) -> LanguageProfile:
    """Each engine alone, as `loadslice profile` measures it."""
    model = resolve_model(language.model, CHAT.parent)
    engines, handovers, beside, model_sha256 = measure(language, model, seconds=PROFILE_S, seed=0, tell=say)
    return LanguageProfile(
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


def calibrated(alone: LanguageProfile, seen: Sequence[Seen]) -> LanguageProfile:
    """A profile whose steps take what they took in the loads before the stretches."""
    return as_seen(
        alone,
        Served(
            [step for one in seen for step in one.served.steps],
            [handover for one in seen for handover in one.served.handovers],
            [],
        ),
        pl.concat([one.requests for one in seen]),
        [heard for one in seen for heard in one.sent.heard],
        sum(one.sent.machine.wall_s for one in seen),
    )


def pace_rows(parts: Mapping[str, Sequence[float]]) -> NDArray[np.int64]:
    """Faults that make engines as fast as they were in one load: which minute a stretch meets is luck too."""
    means = [float(np.mean(mine)) if mine else 1.0 for mine in parts.values()]
    rows = [(0, engine, FAULT_SLOW, round(mean * 1e6)) for engine, mean in enumerate(means)]
    return np.array(rows, np.int64)


def one(
    stretch: pl.DataFrame,
    around: Surroundings,
    speed: float,
    seed: int,
    faults: NDArray[np.int64] | None = None,
    learned: NDArray[np.int64] | None = None,
) -> LanguageRun:
    """One simulated run."""
    policy = around.language.router.policy
    return run_router(stretch, around, policy, seed=seed, speed=speed, faults=faults, learned=learned)


def at_pace(
    stretch: pl.DataFrame,
    language: Language,
    profile: LanguageProfile,
    told: LanguageProfile,
    found: Served,
    speed: float,
) -> NDArray[np.float64]:
    """As `simulated`, by engines that have the pace, by windows of five seconds, that they had in a measured run."""
    names = list(language.engines)
    # Company is part of the pace that was seen.
    alone = msgspec.structs.replace(profile, beside={name: {} for name in names})
    steps = found.steps
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
    around = surroundings(language, msgspec.structs.replace(alone, engines=engines), told=told)
    faults = np.array(sorted(rows), np.int64)
    return simulated(stretch, around, speed, found, [faults])


def simulated(
    stretch: pl.DataFrame,
    around: Surroundings,
    speed: float,
    found: Served,
    paces: Sequence[NDArray[np.int64]],
) -> NDArray[np.float64]:
    """[replicas, figures] of a stretch, in runs that differ in their luck, at each pace in turn.

    The desk begins with what the server's had learned.
    """
    learned = found.learned[0]
    runs = [one(stretch, around, speed, seed, paces[seed % len(paces)], learned) for seed in range(REPLICAS)]
    return np.array([tails_of_run(run, around) for run in runs])


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
    language: Language,
    profile: LanguageProfile,
    stretches: dict[str, pl.DataFrame],
    speeds: dict[str, float],
    journal: Path,
) -> list[Sent]:
    """Measure every stretch in every round, so that the machine's moods reach all of them, a load before each."""
    found: list[Sent] = []
    with process_apart() as pool:
        async with served(language, profile, journal) as server:

            async def send(name: str, asks: list[Ask]) -> None:
                end = watch()
                heard = await sent(pool, server, asks)
                found.append(Sent(name, heard, end()))
                wrong = [answer for answer in heard if answer.error or answer.status != 200]
                assert not wrong, f"{len(wrong)} answers failed, the first with {wrong[0].status}: {wrong[0].error}"
                tails = " ".join(f"{value:.1f}" for value in tails_of(heard))
                say(f"round {number + 1}, {name or 'the load that costs come from'}: {tails}")

            for number in range(ROUNDS):
                for place, (name, stretch) in enumerate(stretches.items()):
                    seed = number * len(stretches) + place
                    await send("", load_for(profile, language, seconds=CALIBRATION_S, seed=seed))
                    await send(name, asks_of(stretch, speeds[name], seed=number))
    return found


def as_journalled(found: Sequence[Sent], journal: LanguageJournal) -> Iterator[Seen]:
    """Requests and steps of each load: the next begins when the one before has ended."""
    all_served = served_by(journal)
    requests = journal.requests.sort("tag")
    at = 0
    for sent_then in found:
        mine = requests.slice(at, len(sent_then.heard))
        learned = all_served.learned[at : at + len(mine)]
        at += len(mine)
        begins, ends = mine["arrival_ns"].min(), mine["end_ns"].max()
        assert isinstance(begins, int)
        assert isinstance(ends, int)
        steps = [one for one in all_served.steps if begins <= one.ended_ns <= ends]
        handovers = [one for one in all_served.handovers if begins <= one.ended_ns <= ends]
        yield Seen(sent_then, mine, Served(steps, handovers, learned))
