"""The event log: every call into the core as one row, so that a run can be decided again from its journal.

A row is ``[kind, now_ns, 11 arguments]``; a BATCH_DONE is followed by one RESULT row per member. `decide` feeds rows
to the core and is what live and simulated journals are replayed with.
"""

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.batch_end import is_running
from loadslice.policy.kernel import entry, kernel
from loadslice.policy.layout import Int64s, State, Tables

ARRIVAL, BATCH_DONE, BATCH_FAILED, CANCEL, TIMER, ENGINE_DOWN, ENGINE_UP, DRAIN, RESULT, ROLLOUT = range(10)
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
    "rollout",
)
EVENT_COLUMNS = 13

NO_ROOM, MALFORMED = -1, -2

ITEMS_MAX = 1 << 31
"""More rows than any request has; bounds what a file may make the core add up."""


@kernel
def is_well_formed(event: Int64s, tables: Tables, state: State) -> bool:
    """Whether a row from a file may be fed to the core: its kind, its time, and every index the core will use."""
    kind = event[0]
    if (
        not ARRIVAL <= kind <= ROLLOUT
        or kind == RESULT
        or event[1] < state.counters[c.C_NOW_NS]
        or event[1] >= c.FOREVER
    ):
        return False
    if kind == ARRIVAL:
        return bool(
            0 <= event[3] < c.CLASSES
            and 0 <= event[4] <= c.FOREVER
            and 1 <= event[5] < ITEMS_MAX
            and 0 <= event[6] < tables.stages[0, c.S_BUCKETS]
            and 0 <= event[11] < tables.tenants.shape[0]
        )
    return True


@kernel
def is_result(event: Int64s, tables: Tables, stage: int) -> bool:
    """Whether a RESULT row names rows and a bucket that the next stage has."""
    following = min(stage + 1, tables.stages.shape[0] - 1)
    return bool(-1 <= event[2] < ITEMS_MAX and event[2] != 0 and 0 <= event[3] < tables.stages[following, c.S_BUCKETS])


@entry(inlined=False)
def decide(events: Int64s, tables: Tables, state: State, results: Int64s, effects: Int64s) -> int:
    """Feed a whole event log to the core.

    Args:
        events: [n, EVENT_COLUMNS] in the order they happened.
        tables: What never changes.
        state: Fresh; changed.
        results: [largest batch, 2] scratch.
        effects: [capacity, EFFECT_COLUMNS], filled with all effects in order; one column more is filled with the time
            of each one's event.

    Returns:
        Number of effects; NO_ROOM when ``effects`` was too small; MALFORMED when a row cannot be an event of this run,
        with its index in ``results[0, 0]``.
    """
    timed = effects.shape[1] > c.EFFECT_COLUMNS
    count = 0
    index = 0
    while index < events.shape[0]:
        event = events[index]
        if not is_well_formed(event, tables, state):
            results[0, 0] = index
            return MALFORMED
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
                event[11],
                event[12],
            )
        elif kind == BATCH_DONE:
            members = 0
            slot = event[2]
            # What a batch of an old epoch gives back says nothing; there may be more of it than runs there now.
            runs = is_running(state, slot, event[3])
            count_max = state.batches[slot, c.B_COUNT] if runs else results.shape[0]
            while index < events.shape[0] and events[index, 0] == RESULT:
                if members >= count_max or (
                    runs and not is_result(events[index], tables, state.batches[slot, c.B_STAGE])
                ):
                    results[0, 0] = index
                    return MALFORMED
                results[members, 0] = events[index, 2]
                results[members, 1] = events[index, 3]
                members += 1
                index += 1
            if runs and members < count_max:
                results[0, 0] = index - members - 1
                return MALFORMED
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
        elif kind == ROLLOUT:
            answer = desk.on_rollout(now_ns, tables, state, event[2])
        if answer == c.REFUSED:
            continue
        said = state.counters[c.C_EFFECTS]
        if count + said > effects.shape[0]:
            return NO_ROOM
        for row in range(said):
            for column in range(c.EFFECT_COLUMNS):
                effects[count + row, column] = state.effects[row, column]
            if timed:
                effects[count + row, c.EFFECT_COLUMNS] = now_ns
        count += said
    return count
