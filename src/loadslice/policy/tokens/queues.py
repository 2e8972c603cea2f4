"""Waiting lists, running sets and effects: the only places where a sequence changes where it stands.

Rules of this file: a sequence is in exactly one waiting list while WAITING and in exactly one running set while
RUNNING; nothing here decides anything.
"""

from loadslice.policy.kernel import kernel, rare
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State


@kernel
def say(state: State, kind: int, sequence: int, a: int, b: int, detail: int) -> None:
    """Add an effect; ``sequence`` -1: it is about an engine."""
    count = state.counters[c.C_EFFECTS]
    row = state.effects[count]
    row[c.F_KIND] = kind
    row[c.F_TAG] = state.sequences[sequence, c.Q_TAG] if sequence >= 0 else -1
    row[c.F_ROW] = sequence
    row[c.F_A] = a
    row[c.F_B] = b
    row[c.F_C] = detail
    state.counters[c.C_EFFECTS] = count + 1


@kernel
def mark(state: State, engine: int) -> None:
    """Have an engine looked at before the event ends."""
    if state.engines[engine, c.N_DIRTY] == 0:
        state.engines[engine, c.N_DIRTY] = 1
        state.dirty[state.counters[c.C_DIRTY]] = engine
        state.counters[c.C_DIRTY] += 1


@kernel
def left_to_compute(state: State, sequence: int) -> int:
    """Tokens whose KV is missing before the next one can be sampled."""
    row = state.sequences[sequence]
    return int(row[c.Q_PROMPT] + row[c.Q_PRODUCED] - row[c.Q_COMPUTED])


@kernel
def add_backlog(state: State, engine: int, sequence: int, sign: int) -> None:
    """Count what is missing of a prompt for whoever comes after it, newcomers of its class and of those below; or not.

    Args:
        state: Changed.
        engine: Where it stands.
        sequence: Its prompt is missing, or part of it.
        sign: 1 to count it, -1 to count it no longer: before its tokens change, and anew after.
    """
    row = state.sequences[sequence]
    tokens = left_to_compute(state, sequence)
    pairs = tokens * row[c.Q_COMPUTED] + tokens * tokens // 2
    for lower in range(row[c.Q_CLASS], c.CLASSES):
        state.backlog[engine, lower] += sign * tokens
        state.backlog_pairs[engine, lower] += sign * pairs


@kernel
def is_decoding(state: State, sequence: int) -> bool:
    """Whether its next row is one token that continues it, rather than a piece of its prompt."""
    return bool(state.sequences[sequence, c.Q_FILLING] == 0)


@rare
def wait(state: State, sequence: int, engine: int) -> None:
    """Put a sequence into an engine's waiting list, behind whoever of its class came before it.

    A sequence that comes back (preempted, or its hand-over failed) is older than most: the walk from the tail ends
    where its arrival puts it.
    """
    row = state.sequences[sequence]
    line = state.waiting[engine, row[c.Q_CLASS]]
    before = line[c.W_TAIL]
    while before >= 0 and state.sequences[before, c.Q_ARRIVAL_NS] > row[c.Q_ARRIVAL_NS]:
        before = state.sequences[before, c.Q_PREVIOUS]
    after = line[c.W_HEAD] if before < 0 else state.sequences[before, c.Q_NEXT]
    row[c.Q_PREVIOUS] = before
    row[c.Q_NEXT] = after
    if before >= 0:
        state.sequences[before, c.Q_NEXT] = sequence
    else:
        line[c.W_HEAD] = sequence
    if after >= 0:
        state.sequences[after, c.Q_PREVIOUS] = sequence
    else:
        line[c.W_TAIL] = sequence
    line[c.W_COUNT] += 1
    row[c.Q_STATUS] = c.WAITING
    row[c.Q_AT] = engine
    state.engines[engine, c.N_WAITING] += 1
    add_backlog(state, engine, sequence, 1)
    mark(state, engine)


@rare
def unwait(state: State, sequence: int) -> None:
    """Take a waiting sequence out of its list; the order of the others is unchanged."""
    row = state.sequences[sequence]
    engine = row[c.Q_AT]
    line = state.waiting[engine, row[c.Q_CLASS]]
    before, after = row[c.Q_PREVIOUS], row[c.Q_NEXT]
    if before >= 0:
        state.sequences[before, c.Q_NEXT] = after
    else:
        line[c.W_HEAD] = after
    if after >= 0:
        state.sequences[after, c.Q_PREVIOUS] = before
    else:
        line[c.W_TAIL] = before
    line[c.W_COUNT] -= 1
    state.engines[engine, c.N_WAITING] -= 1
    add_backlog(state, engine, sequence, -1)
    mark(state, engine)


@rare
def join(state: State, sequence: int, engine: int) -> None:
    """Add a sequence to an engine's running set, as its newest."""
    counts = state.engines[engine]
    row = state.sequences[sequence]
    state.running[engine, counts[c.N_RUNNING]] = sequence
    counts[c.N_RUNNING] += 1
    if not is_decoding(state, sequence):
        add_backlog(state, engine, sequence, 1)
    state.counters[c.C_ORDER] += 1
    row[c.Q_ORDER] = state.counters[c.C_ORDER]
    row[c.Q_STATUS] = c.RUNNING
    row[c.Q_AT] = engine
    mark(state, engine)


@rare
def leave(state: State, sequence: int) -> None:
    """Take a sequence out of its running set; the order of the others is unchanged."""
    row = state.sequences[sequence]
    engine = row[c.Q_AT]
    counts = state.engines[engine]
    place = 0
    while state.running[engine, place] != sequence:
        place += 1
    for later in range(place, counts[c.N_RUNNING] - 1):
        state.running[engine, later] = state.running[engine, later + 1]
    counts[c.N_RUNNING] -= 1
    if not is_decoding(state, sequence):
        add_backlog(state, engine, sequence, -1)
    mark(state, engine)
