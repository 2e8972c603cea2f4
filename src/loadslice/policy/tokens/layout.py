"""The arrays of the token desk: `Tables`, which a run never changes, and `State`. E engines, N sequences, R seats."""

from typing import NamedTuple

from loadslice.policy.kernel import by_reference
from loadslice.policy.layout import Int64s


@by_reference
class Tables(NamedTuple):
    """What a run never changes."""

    run: Int64s
    """[RUN_SETTINGS]"""
    engines: Int64s
    """[E, ENGINE_SETTINGS]"""
    links: Int64s
    """[E, E, LINK_SETTINGS] from the prefilling engine to the decoding one, and what company costs"""


@by_reference
class State(NamedTuple):
    """What decisions change. Fixed size; full means a named refusal."""

    sequences: Int64s
    """[N, SEQUENCE_COLUMNS]"""
    engines: Int64s
    """[E, ENGINE_COLUMNS]"""
    waiting: Int64s
    """[E, CLASSES, WAITING_COLUMNS]"""
    backlog: Int64s
    """[E, CLASSES] tokens of prompts that wait or are being computed, in a class and those above it"""
    backlog_pairs: Int64s
    """[E, CLASSES] of those, tokens before each token, summed"""
    running: Int64s
    """[E, R] sequences in order of admission, the first N_RUNNING are valid"""
    rows: Int64s
    """[E, R, ROW_COLUMNS] the step that runs now"""
    gaps: Int64s
    """[E, R] of the step that ended last: time since each row's token before, ns; -1: there was none"""
    slots: Int64s
    """[E, E] hand-overs that hold a slot of the link"""
    blocked: Int64s
    """[E] scratch: decoding engines that had no room in this round"""
    counters: Int64s
    """[COUNTERS]"""
    dirty: Int64s
    """[2 * E] engines to look at before the event ends"""
    effects: Int64s
    """[capacity, EFFECT_COLUMNS]; the first counters[C_EFFECTS] rows are this event's"""
