"""Runs that write over each other's memory are the runs that have their own."""

import numpy as np
import polars as pl

from loadslice.sim import simulate
from loadslice.sim.course import Prepared
from loadslice.sim.room import RecordRoom
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import CLASSES, Engine, Pipeline, Stage, check


def prepared(requests: int, *, overhead: bool) -> Prepared:
    draws = np.random.default_rng(requests)
    trace = pl.DataFrame(
        {
            "arrival_s": np.cumsum(draws.exponential(0.004, requests)),
            "class": np.array(CLASSES)[draws.integers(0, len(CLASSES), requests)],
        }
    )
    pipeline = check(
        Pipeline(
            version=1, pipeline="p", engines={"a": Engine(backend="twin")},
            stages=[Stage(name="find", variant="v", engine="a"), Stage(name="read", variant="w", engine="a")],
        ),
        "test",
    )  # fmt: skip
    times = Milliseconds(mean=1.5, family="exponential")
    entries = [Entry(variant=v, engine="a", batch=1, latency_ms=times, basis="modelled") for v in ("v", "w")]
    took = Milliseconds(p50=1.0, p90=3.0) if overhead else None
    return simulate.prepare(trace, pipeline, LatencyTable(entries=entries, overhead_ms=took))


def test_a_run_in_a_room_is_the_same_whatever_ran_there_before() -> None:
    room = RecordRoom()
    for requests, overhead in ((300, True), (200, False), (500, True), (100, False), (500, False)):
        ready = prepared(requests, overhead=overhead)
        alone, there = simulate.run(ready), simulate.run(ready, room=room)
        assert (alone.record.attempts == there.record.attempts).all(), (requests, overhead)
        assert (alone.record.timeline == there.record.timeline).all(), (requests, overhead)
        assert simulate.summarise(alone) == simulate.summarise(there)


def test_a_room_is_asked_of_the_system_once() -> None:
    room, ready = RecordRoom(), prepared(300, overhead=False)
    first, second = (simulate.run(ready, room=room).record for _ in range(2))
    for name in ("attempts", "ended", "timeline"):
        assert np.shares_memory(getattr(first, name), getattr(second, name)), name
