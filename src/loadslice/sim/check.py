"""Checks a journal, live or simulated: its books, its clock, and every decision taken again by the core."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from loadslice.policy import columns as c
from loadslice.policy import events, invariants, watch
from loadslice.policy.tables import Int64s, State, Tables, fresh, lower, rule_sources
from loadslice.sim import check_tables
from loadslice.sim.finding import Finding, adds_up, ended_once, goes_forward, is_closed
from loadslice.sim.journal import effects_sha256
from loadslice.spec import journal as spec
from loadslice.spec import latency as latency_file
from loadslice.spec import pipeline as pipeline_file
from loadslice.spec.errors import InputError
from loadslice.spec.journal import Journal, pipeline_of
from loadslice.spec.latency import LatencyTable

LOOKS = 1000
"""The state is checked whole at most this many times, evenly over the events."""

LOOKED_ROWS = 2_000_000
"""Rows of the state that all looks together go through; each walks as many as ``max_requests``."""

ROOM_ROWS = 1_000_000
"""Effects there is room for at a time, where one event cannot have more."""

FOLLOWED = 200_000
"""Events that are followed one by one; each costs some 50 us."""


def check(journal: Journal, folder: Path) -> list[Finding]:
    """Check everything a journal can show.

    Args:
        journal: From `spec.journal.load`.
        folder: Where it stands; a run with a profile keeps it there as ``latency.json``.

    Returns:
        Findings, each a promise with what was found.

    Raises:
        InputError: The pipeline text in the journal cannot be read.
    """
    return [*_books(journal), *_clock(journal), *_decisions(journal, folder)]


def _books(journal: Journal) -> Iterator[Finding]:
    head, requests = journal.head, journal.requests
    yield is_closed(head.clean)
    if head.clean or any(head.outcomes.values()):
        yield adds_up(head.requests, head.outcomes, requests.height)
    yield ended_once(requests, requests["outcome"].null_count())


def _clock(journal: Journal) -> Iterator[Finding]:
    yield goes_forward(journal.events)
    rows = journal.stages.join(journal.requests.select("tag", "arrival_ns", "end_ns"), on="tag")
    order = ["arrival_ns", "enqueued_ns", "dispatched_ns", "started_ns", "done_ns"]
    broken = 0
    for earlier, later in itertools.pairwise(order):
        broken += rows.filter(pl.col(earlier) > pl.col(later)).height
    yield Finding(
        promise="arrive <= enqueue <= dispatch <= start <= done",
        held=broken == 0,
        figure=f"{broken} of {rows.height} passages out of order",
    )


def _decisions(journal: Journal, folder: Path) -> Iterator[Finding]:
    pipeline = pipeline_of(journal, folder)
    tables = lower(pipeline, _latency(folder), rule_sources(pipeline))
    state = fresh(tables, pipeline.max_requests)
    table = journal.events.select(list(spec.EVENT_COLUMNS))
    if any(table.null_count().row(0)):
        raise InputError(f"{folder}/events.parquet: columns must be whole numbers without gaps.")
    logged = np.ascontiguousarray(table.to_numpy())
    if not len(logged):
        yield Finding(
            promise="the core takes the same decisions again",
            held=journal.requests.is_empty(),
            figure=f"no event is here, {journal.requests.height} requests are",
        )
        return
    timed, broken = _decide(logged, tables, state)
    effects = timed[:, : c.EFFECT_COLUMNS]
    if journal.head.clean or journal.head.effects_sha256 is not None:
        yield Finding(
            promise="the core takes the same decisions again",
            held=effects_sha256(effects) == journal.head.effects_sha256,
            figure=f"{len(logged)} calls, {len(effects)} decisions",
        )
    yield Finding(promise="every invariant of the state holds", held=not broken, figure=broken or "all hold")
    if not broken:
        yield _followed(logged, pipeline, tables)
        yield from check_tables.compare(journal, pipeline, logged, timed)
    ended = effects[effects[:, c.F_KIND] == c.OUTCOME, c.F_TAG]
    yield Finding(
        promise="every outcome was decided once",
        held=len(ended) == len(np.unique(ended)),
        figure=f"{len(ended)} decided, {len(np.unique(ended))} different requests",
    )


def _followed(logged: Int64s, pipeline: pipeline_file.Pipeline, tables: Tables) -> Finding:
    """Hold every event by itself to the promises of the policy page; the first of a long journal."""
    starts = np.flatnonzero(logged[:, 0] != events.RESULT)
    rows = len(logged) if len(starts) <= FOLLOWED else int(starts[FOLLOWED])
    state = fresh(tables, pipeline.max_requests)
    broken = watch.follow(logged[:rows], pipeline, tables, state, look_every=look_interval(len(starts), state))
    followed = min(len(starts), FOLLOWED)
    return Finding(
        promise="every event keeps the promises of the policy",
        held=not broken,
        figure=broken or f"{followed} of {len(starts)} events followed one by one",
    )


def _latency(folder: Path) -> LatencyTable | None:
    path = folder / "latency.json"
    return latency_file.load(path) if path.is_file() else None


def look_interval(count: int, state: State) -> int:
    """Events from one look at the whole state to the next."""
    looks = max(1, min(LOOKS, LOOKED_ROWS // len(state.requests)))
    return -(-count // looks) or 1


def _decide(logged: Int64s, tables: Tables, state: State) -> tuple[Int64s, str]:
    """Feed the events in slices that end between two of them, and look at the state now and then.

    Returns:
        [n, EFFECT_COLUMNS + 1] effects, each with the time of its event, and the first promise that is broken.
    """
    scratch = np.zeros((state.members.shape[1], 2), np.int64)
    starts = np.flatnonzero(logged[:, 0] != events.RESULT)
    look_every = look_interval(len(starts), state)
    step = min(look_every, max(1, ROOM_ROWS // len(state.effects)))
    effects = np.zeros((len(state.effects) * step, c.EFFECT_COLUMNS + 1), np.int64)
    said: list[Int64s] = [effects[:0]]
    cuts = [0, *starts[step::step].tolist(), len(logged)]
    unseen = 0
    for begin, end in itertools.pairwise(cuts):
        count = events.decide(logged[begin:end], tables, state, scratch, effects)
        assert count != events.NO_ROOM, "there is room for every effect an event can have"
        if count == events.MALFORMED:
            row = begin + int(scratch[0, 0])
            return np.concatenate(said), f"event row {row} cannot be one of this run: {logged[row].tolist()}"
        said.append(effects[:count].copy())
        unseen += step
        if unseen < look_every and end < len(logged):
            continue
        unseen = 0
        try:
            invariants.check(tables, state)
        except AssertionError as error:
            return np.concatenate(said), f"after event row {end - 1}: {error}"
    return np.concatenate(said), ""
