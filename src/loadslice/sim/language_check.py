"""Checks the journal of a language model: its books, its clock, and every decision taken again by the token desk."""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl

from loadslice.policy.layout import Int64s
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.books import faults
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.tables import fresh, lower
from loadslice.sim.finding import Finding, adds_up, ended_once, goes_forward, is_closed
from loadslice.spec.errors import InputError
from loadslice.spec.language import check_language
from loadslice.spec.language_journal import EVENTS, LanguageJournal
from loadslice.spec.outcome import OUTCOMES

LOOKS = 20_000
"""The books are checked after every event of a run of so many, else after so many, evenly."""


class Retaken(NamedTuple):
    """What taking every decision again has shown."""

    effects_sha256: str
    outcomes: dict[int, int]
    """By tag, outcome codes."""
    state: State
    looks: int
    fault: str | None
    """The first promise that the books broke, with the number of its event."""
    malformed: str | None
    """The first event that cannot have been one of this run; nothing after it was taken."""


def check_language_journal(journal: LanguageJournal) -> list[Finding]:
    """Check everything that a journal can show.

    Raises:
        InputError: The language file in the journal, or its tables, cannot be read.
    """
    return [*_books(journal), *_decisions(journal)]


def _books(journal: LanguageJournal) -> Iterator[Finding]:
    head, requests = journal.head, journal.requests
    yield is_closed(head.clean)
    if head.clean:
        yield adds_up(head.requests, head.outcomes, requests.height)
    yield ended_once(requests, requests.filter(~pl.col("outcome").is_in(list(OUTCOMES))).height)
    yield goes_forward(journal.events)


def _decisions(journal: LanguageJournal) -> Iterator[Finding]:
    head = journal.head
    language = check_language(head.file, "journal.json")
    try:
        tables = Tables(
            run=np.array(head.tables.run, np.int64),
            engines=np.array(head.tables.engines, np.int64),
            links=np.array(head.tables.links, np.int64),
        )
    except (ValueError, OverflowError) as error:
        raise InputError(
            "journal.json: the tables have rows of different lengths, or numbers beyond 64 bits."
        ) from error
    again = lower(language, head.costs, head.beside)
    same = all(
        one.shape == other.shape and bool((one == other).all()) for one, other in zip(tables, again, strict=True)
    )
    yield Finding(
        promise="the tables are those of the language file",
        held=same,
        figure="equal" if same else "they differ: another version lowers this file otherwise",
    )
    if not same:
        return
    retaken = retake(journal.events, journal.arguments, tables, language.max_sequences)
    count = journal.events.height
    yield Finding(
        promise="every event is one of this run",
        held=retaken.malformed is None,
        figure=retaken.malformed or f"{count} events",
    )
    yield Finding(
        promise="the books balance after every event",
        held=retaken.fault is None,
        figure=retaken.fault or f"{retaken.looks} of {count} events looked at",
    )
    codes = {name: code + 1 for code, name in enumerate(OUTCOMES)}
    told = dict(zip(journal.requests["tag"].to_list(), journal.requests["outcome"].to_list(), strict=True))
    other = sum(retaken.outcomes.get(tag) != codes.get(outcome) for tag, outcome in told.items())
    missing = len(retaken.outcomes.keys() - told.keys()) if head.clean else 0
    yield Finding(
        promise="the decisions give the outcomes that clients were told",
        held=other == missing == 0,
        figure=f"{other} of {len(told)} differ, {missing} are not in the journal",
    )
    if head.clean:
        equal = retaken.effects_sha256 == head.effects_sha256
        yield Finding(
            promise="the same decisions again",
            held=equal,
            figure=f"{retaken.effects_sha256[:12]} {'is' if equal else 'is not'} {str(head.effects_sha256)[:12]}",
        )
        counters = retaken.state.counters.tolist() == head.counters
        yield Finding(
            promise="the same counters in the end", held=counters, figure="equal" if counters else "they differ"
        )


def retake(events: pl.DataFrame, arguments: pl.DataFrame, tables: Tables, max_sequences: int) -> Retaken:
    """Call the desk again with every event of a journal.

    Args:
        events: In order; `spec.language_journal.TABLES`.
        arguments: Of all of them.
        tables: That was decided with.
        max_sequences: Of the run.
    """
    state = fresh(tables, max_sequences)
    values = arguments["value"].to_numpy()
    digest = hashlib.sha256()
    outcomes: dict[int, int] = {}
    every = max(1, -(-events.height // LOOKS))
    at = looks = 0
    fault = malformed = None
    for number, (kind, now_ns, count) in enumerate(events.iter_rows()):
        mine = values[at : at + count]
        at += count
        if (
            len(mine) != count
            or now_ns < state.counters[c.C_NOW_NS]
            or not call_desk(kind, now_ns, mine, tables, state)
        ):
            malformed = f"event {number} ({EVENTS[kind] if 0 <= kind < len(EVENTS) else kind}) cannot be taken"
            break
        effects = state.effects[: int(state.counters[c.C_EFFECTS])]
        digest.update(effects.tobytes())
        for effect in effects[effects[:, c.F_KIND] == c.ENDED].tolist():
            outcomes[effect[c.F_TAG]] = effect[c.F_A]
        if fault is None and number % every == 0:
            looks += 1
            broken = faults(tables, state)
            fault = f"event {number}: {broken[0]}" if broken else None
    return Retaken(digest.hexdigest(), outcomes, state, looks, fault, malformed)


def call_desk(kind: int, now_ns: int, mine: Int64s, tables: Tables, state: State) -> bool:
    """Call the desk once more as a server did; false: no server can have called it like this."""
    name = EVENTS[kind] if 0 <= kind < len(EVENTS) else ""
    engines = tables.engines.shape[0]
    plain = [int(one) for one in mine]
    if name == "arrival" and len(plain) == 6 + engines:
        tag, priority, prompt, new_max, first_by_ns, deadline_ns = plain[:6]
        hits = np.array(plain[6:], np.int64)
        if not 0 <= priority < c.CLASSES or prompt < 1 or new_max < 1 or (hits < 0).any() or (hits >= prompt).any():
            return False
        desk.on_arrival(now_ns, tables, state, tag, priority, prompt, new_max, first_by_ns, deadline_ns, hits)
    elif name == "step_done" and 2 <= len(plain) <= 2 + state.rows.shape[1]:
        ends = np.zeros(state.rows.shape[1], np.int64)
        ends[: len(plain) - 2] = plain[2:]
        desk.on_step_done(now_ns, tables, state, plain[0], plain[1], ends)
    elif name == "handover" and len(plain) == 3:
        desk.on_handover(now_ns, tables, state, *plain)
    elif name == "cancel" and len(plain) == 2:
        desk.on_cancel(now_ns, tables, state, *plain)
    elif name in ("engine_down", "engine_up") and len(plain) == 1:
        (desk.on_engine_down if name == "engine_down" else desk.on_engine_up)(now_ns, tables, state, plain[0])
    elif name == "timer" and not plain:
        desk.on_timer(now_ns, tables, state)
    elif name == "drain" and not plain:
        desk.on_drain(now_ns, tables, state)
    else:
        return False
    return True
