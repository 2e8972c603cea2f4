import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loadslice.plan.fleet import specimen
from loadslice.plan.sweep import WORTH, Ledger, local, sweep


def case(rate_per_s: float = 350.0):
    draws = np.random.default_rng(3)
    trace = pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / rate_per_s, 2500))})
    problem, judge = specimen.judged(trace)
    fleets = [np.array(counts, np.int64) for counts in itertools.product(range(4), repeat=3)]
    return problem, judge, fleets


def test_what_is_not_simulated_would_not_have_changed_the_answer() -> None:
    problem, judge, fleets = case()
    swept = sweep(problem, fleets, local(judge, 2))
    every = {number: judge(counts, np.array([3])) for number, counts in enumerate(fleets) if counts.any()}
    holding = [number for number, verdict in every.items() if verdict is not None and verdict.holds]
    cheapest = min(swept.cost_per_hour[number] for number in holding)
    assert swept.cheapest is not None
    assert swept.cost_per_hour[swept.cheapest] == pytest.approx(cheapest)
    assert len(swept.verdicts) < len(every)
    best_p99 = min(every[number].latency_ms.p99 for number in holding)
    seen_p99 = min(verdict.latency_ms.p99 for verdict in swept.verdicts.values() if verdict.holds)
    assert seen_p99 <= best_p99 * (1 + 2 * WORTH)


def test_where_only_the_cheapest_is_wanted_all_dearer_ones_are_settled_by_it() -> None:
    problem, judge, fleets = case()
    front, cheapest = sweep(problem, fleets, local(judge, 2)), sweep(problem, fleets, local(judge, 1), front=False)
    assert cheapest.cheapest == front.cheapest
    assert len(cheapest.verdicts) < len(front.verdicts) / 2
    assert len(cheapest.verdicts) + cheapest.bounded + cheapest.smaller + cheapest.dearer == len(fleets)


def test_a_front_that_was_found_by_samples_is_within_the_tolerance_of_all_fleets() -> None:
    draws = np.random.default_rng(5)
    trace = pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / 600, 60_000))})
    problem, judge = specimen.judged(trace)
    fleets = [np.array(counts, np.int64) for counts in itertools.product(range(4), repeat=3)]
    sample = judge.sample(share=0.2, least=1000)
    assert sample is not None
    swept = sweep(problem, fleets, local(judge, 2), sample=local(sample, 2))
    settled = len(swept.verdicts) + swept.bounded + swept.smaller + swept.dearer + swept.estimated
    assert settled == len(fleets)
    assert swept.estimated > swept.sampled / 3
    assert swept.sample_error is not None
    found = [(swept.cost_per_hour[n], v.latency_ms.p99, v.energy_j) for n, v in swept.verdicts.items() if v.holds]
    for number, counts in enumerate(fleets):
        verdict = judge(counts, np.array([3])) if counts.any() else None
        if verdict is None or not verdict.holds:
            continue
        own = swept.cost_per_hour[number], verdict.latency_ms.p99 / (1 - WORTH), verdict.energy_j / (1 - WORTH)
        assert any(all(a <= b + 1e-9 for a, b in zip(one, own, strict=True)) for one in found), counts


def test_more_machines_than_there_are_is_no_candidate() -> None:
    problem, judge, fleets = case()
    few = replace(problem, box_max=np.array([1]))
    swept = sweep(few, fleets, local(judge, 2))
    assert swept.verdicts
    for number in swept.verdicts:
        assert fleets[number] @ few.takes[:, 0] <= few.room[0, 0]
        assert fleets[number] @ few.takes[:, 1] <= few.room[0, 1]


def test_every_candidate_is_settled_once() -> None:
    problem, judge, fleets = case()
    told: list[tuple[int, int, int]] = []
    swept = sweep(problem, fleets, local(judge, 1), tell=lambda *numbers: told.append(numbers))
    assert len(swept.verdicts) + swept.bounded + swept.smaller + swept.dearer == len(fleets)
    assert told[-1][:2] == (len(fleets), len(fleets))


def test_an_interrupted_sweep_goes_on_from_its_file(tmp_path: Path) -> None:
    problem, judge, fleets = case()
    path = tmp_path / "simulated.jsonl"
    first = sweep(problem, fleets, local(Ledger(path, "a").judging(judge), 1))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    asked = 0

    def counting(counts, boxes):
        nonlocal asked
        asked += 1
        return judge(counts, boxes)

    ledger = Ledger(path, "a")
    again = sweep(problem, fleets, local(ledger.judging(counting), 1))
    assert ledger.found == 5
    assert asked == len(again.verdicts) - 5
    assert again.cheapest == first.cheapest


def test_verdicts_of_other_inputs_are_not_taken(tmp_path: Path) -> None:
    problem, judge, fleets = case()
    path = tmp_path / "simulated.jsonl"
    sweep(problem, fleets[:20], local(Ledger(path, "a").judging(judge), 1))
    other = Ledger(path, "b")
    sweep(problem, fleets[:20], local(other.judging(judge), 1))
    assert other.found == 0


def test_a_verdict_is_of_the_machines_that_its_engines_stood_in(tmp_path: Path) -> None:
    _, judge, fleets = case()
    path = tmp_path / "simulated.jsonl"
    Ledger(path, "a").judging(judge)(fleets[-1], np.array([1]))
    again = Ledger(path, "a")
    assert again.known(fleets[-1], np.array([2])) is None
    assert again.known(fleets[-1], np.array([1])) is not None
