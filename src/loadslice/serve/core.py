"""The compiled policy core as the live shell calls it: what happens is noted, decided in batches, and logged.

Calling the compiled core costs five microseconds, of which deciding is a tenth. What happens in one turn of the loop is
therefore collected, each event with its own time, and decided in one call. Every event is decided through its row of
`policy.events`, so that the rows replay to the same decisions.
"""

import hashlib
import struct
from array import array
from collections.abc import Callable

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import State, Tables, fresh

EVENTS_MAX = 32
"""Events decided in one call; beyond that, a call costs no less per event."""

event_row = struct.Struct(f"={events.EVENT_COLUMNS}q").pack
"""Makes one event's row of `policy.events`; an array that is given its numbers one by one takes twice as long."""

short_row = struct.Struct(f"=4q{8 * (events.EVENT_COLUMNS - 4)}x").pack
"""The same of an event that has its kind, its time and two numbers."""

ITEMS_MAX = events.ITEMS_MAX - 1
"""Rows without a single value in them can be any number."""


class Core:
    """Owns tables and state.

    Args:
        tables: Lowered pipeline.
        state: Fresh.
        has_canary: Whether requests have a version.
        keep_events: Whether to log events for a journal.
    """

    def __init__(self, tables: Tables, state: State, *, has_canary: bool, keep_events: bool) -> None:
        self.tables = tables
        self.state = state
        self.decisions = hashlib.sha256()
        """Over all effects, in order."""
        self.waiting: list[bytearray] = []
        """Events that have not been decided yet, at most `EVENTS_MAX` in each."""
        self._events = array("q")
        self._keep_events = keep_events
        # A version is read from its request's row, which the next event may give to another request.
        self._events_max = 1 if has_canary else EVENTS_MAX
        self._last_events = self._events_max
        """Events in the last of those that wait."""
        self._call = _entry_of(tables, state)
        self._results = np.zeros((state.members.shape[1], 2), np.int64)
        # Room for the most that so many events can say; pages that nothing is written to take no memory.
        self._effects = np.empty((EVENTS_MAX * len(state.effects), c.EFFECT_COLUMNS + 1), np.int64)

    def note(self, rows: bytes | bytearray) -> None:
        """Have an event decided about: its row, and those of its results behind it."""
        if self._last_events >= self._events_max:
            self.waiting.append(bytearray(rows))
            self._last_events = 1
        else:
            self.waiting[-1] += rows
            self._last_events += 1

    def decide(self) -> list[list[int]]:
        """Decide about the first of what waits.

        Returns:
            What is to be done, in order: effects of `policy.columns`, each with its time behind it.
        """
        noted = self.waiting.pop(0)
        if not self.waiting:
            self._last_events = self._events_max
        rows = np.frombuffer(noted, np.int64).reshape(-1, events.EVENT_COLUMNS)
        count = self._call(rows, self.tables, self.state, self._results, self._effects)
        assert count >= 0, "every event of ours is one, and there is room for what it says"
        effects = self._effects[:count]
        if self._keep_events:
            self._events.frombytes(noted)
            self.decisions.update(np.ascontiguousarray(effects[:, : c.EFFECT_COLUMNS]).data)
        said: list[list[int]] = effects.tolist()
        return said

    def take_events(self) -> "array[int]":
        """Rows of decided events since they were last taken, as one flat array."""
        taken, self._events = self._events, array("q")
        return taken


def warm_kernels(tables: Tables) -> None:
    """Compile the one entry the shell calls (or load it from the cache), as the shell calls it."""
    _entry_of(tables, fresh(tables, max_requests=1))


def _entry_of(tables: Tables, state: State) -> Callable[..., int]:
    """The compiled `policy.events.decide` itself, where it has been compiled for arguments like ours alone.

    Calling it through its dispatcher costs five microseconds each time to find out which of its compiled forms fits
    forty arrays; there is one, and our arguments never change their types.
    """
    results = np.zeros((state.members.shape[1], 2), np.int64)
    log = np.frombuffer(array("q"), np.int64).reshape(-1, events.EVENT_COLUMNS)
    events.decide(log, tables, state, results, np.empty((1, c.EFFECT_COLUMNS + 1), np.int64))
    forms = list(getattr(events.decide, "overloads", {}).values())
    for form in forms:
        # Intermediate code, 14 MB of it, for other kernels to be built from; nothing is built from this one.
        if hasattr(form.library, "_shared_module"):
            form.library._shared_module = None  # noqa: SLF001
    entry: Callable[..., int] = forms[0].entry_point if len(forms) == 1 else events.decide
    return entry
