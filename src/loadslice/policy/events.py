"""The event log: every call into the core as one row, so that a run can be decided again from its journal.

A row is ``[kind, now_ns, 9 arguments]``; a BATCH_DONE is followed by one RESULT row per member. `decide` feeds rows
to the core and is what live and simulated journals are replayed with.
"""

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.kernel import kernel
from loadslice.policy.tables import Int64s, State, Tables

ARRIVAL, BATCH_DONE, BATCH_FAILED, CANCEL, TIMER, ENGINE_DOWN, ENGINE_UP, DRAIN, RESULT = range(9)
EVENT_NAMES = (
    "arrival",
    "batch_done",
    "batch_failed",
    "cancel",
    "timer",
    "engine_down",
    "engine_up",
    "drain",
    "result",
)
EVENT_COLUMNS = 11


@kernel
def decide(events: Int64s, tables: Tables, state: State, results: Int64s, effects: Int64s) -> int:
    """Feed a whole event log to the core.

    Args:
        events: [n, EVENT_COLUMNS] in the order they happened.
        tables: What never changes.
        state: Fresh; changed.
        results: [largest batch, 2] scratch.
        effects: [capacity, EFFECT_COLUMNS], filled with all effects in order.

    Returns:
        Number of effects, or -1 when ``effects`` was too small.
    """
    count = 0
    index = 0
    while index < events.shape[0]:
        event = events[index]
        index += 1
        kind = event[0]
        now_ns = event[1]
        answer = 0
        if kind == ARRIVAL:
            desk.on_arrival(
                now_ns,
                tables,
                state,
                event[2],
                event[3],
                event[4],
                event[5],
                event[6],
                event[7],
                event[8],
                event[9],
                event[10],
            )
        elif kind == BATCH_DONE:
            members = 0
            while index < events.shape[0] and events[index, 0] == RESULT:
                results[members, 0] = events[index, 2]
                results[members, 1] = events[index, 3]
                members += 1
                index += 1
            answer = desk.on_batch_done(now_ns, tables, state, event[2], event[3], results)
        elif kind == BATCH_FAILED:
            answer = desk.on_batch_failed(now_ns, tables, state, event[2], event[3])
        elif kind == CANCEL:
            answer = desk.on_cancel(now_ns, tables, state, event[2], event[3])
        elif kind == TIMER:
            desk.on_timer(now_ns, tables, state)
        elif kind == ENGINE_DOWN:
            answer = desk.on_engine_down(now_ns, tables, state, event[2])
        elif kind == ENGINE_UP:
            answer = desk.on_engine_up(now_ns, tables, state, event[2])
        elif kind == DRAIN:
            desk.on_drain(now_ns, tables, state)
        if answer == c.REFUSED:
            continue
        said = state.counters[c.C_EFFECTS]
        if count + said > effects.shape[0]:
            return -1
        for row in range(said):
            for column in range(c.EFFECT_COLUMNS):
                effects[count + row, column] = state.effects[row, column]
        count += said
    return count
