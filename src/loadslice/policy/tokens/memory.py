"""KV blocks, seats and hand-over slots: who holds what. Every number here is changed in this file alone.

Rules: a sequence holds a seat and blocks at its decoding engine from before its prompt is begun, so that a computed
prompt always has where to go; blocks for tokens to come are taken one at a time, as they are needed.
"""

from loadslice.policy.kernel import kernel, rare
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.queues import mark, say


@kernel
def blocks_for(tables: Tables, tokens: int) -> int:
    """Blocks that hold so many tokens."""
    block = tables.run[c.T_BLOCK]
    return int((tokens + block - 1) // block)


@kernel
def is_remote(state: State, sequence: int) -> bool:
    """Whether its prompt is computed on another engine than continues it."""
    return bool(state.sequences[sequence, c.Q_PREFILL] != state.sequences[sequence, c.Q_DECODE])


@kernel
def has_room(tables: Tables, state: State, engine: int, blocks: int) -> bool:
    """Whether an engine has a seat and so many blocks free."""
    counts, settings = state.engines[engine], tables.engines[engine]
    return bool(
        counts[c.N_SEATS_USED] < settings[c.E_SEATS] and counts[c.N_BLOCKS_USED] + blocks <= settings[c.E_BLOCKS]
    )


@rare
def reserve_decode(now_ns: int, tables: Tables, state: State, sequence: int) -> bool:
    """Take a seat and blocks at the decoding engine, and a slot of the link to it; false: there is no room."""
    row = state.sequences[sequence]
    prefill, decode = row[c.Q_PREFILL], row[c.Q_DECODE]
    # One token more than are known: the first step that continues it must not find itself without a block.
    blocks = blocks_for(tables, row[c.Q_PROMPT] + row[c.Q_PRODUCED] + 1)
    if not has_room(tables, state, decode, blocks):
        return False
    if prefill != decode:
        if state.slots[prefill, decode] >= tables.links[prefill, decode, c.K_SLOTS]:
            return False
        state.slots[prefill, decode] += 1
        row[c.Q_SLOT] = 1
    state.engines[decode, c.N_SEATS_USED] += 1
    state.engines[decode, c.N_BLOCKS_USED] += blocks
    row[c.Q_DECODE_BLOCKS] = blocks
    row[c.Q_SEATED_NS] = now_ns
    return True


@rare
def let_older_reserve(now_ns: int, tables: Tables, state: State, sequence: int) -> bool:
    """Give the decoding engine's room first to whoever waits for it elsewhere and is of a higher class, or older.

    Prompts that are computed there come from its own queue, which it looks at first whenever room is given back; those
    that wait at other engines would never get any.

    Returns:
        False: one of them wants room and there is none.
    """
    row = state.sequences[sequence]
    decode = row[c.Q_DECODE]
    for engine in range(state.engines.shape[0]):
        if engine == row[c.Q_AT] or state.engines[engine, c.N_WAITING] == 0:
            continue
        if tables.links[engine, decode, c.K_SLOTS] <= state.slots[engine, decode]:
            continue
        for priority in range(row[c.Q_CLASS] + 1):
            other = state.waiting[engine, priority, c.W_HEAD]
            while other >= 0 and tables.links[engine, decode, c.K_SLOTS] > state.slots[engine, decode]:
                rival = state.sequences[other]
                if priority == row[c.Q_CLASS] and rival[c.Q_ARRIVAL_NS] >= row[c.Q_ARRIVAL_NS]:
                    break
                wants = rival[c.Q_DECODE] == decode and rival[c.Q_DECODE_BLOCKS] == 0
                if wants and not reserve_decode(now_ns, tables, state, other):
                    return False
                other = rival[c.Q_NEXT]
    return True


@rare
def take_seats(now_ns: int, tables: Tables, state: State, sequence: int) -> bool:
    """Take what a sequence needs before its prompt is begun.

    Returns:
        False: the decoding engine, the prefilling one or the link between them has no room. A reservation at the
        decoding engine is kept.
    """
    row = state.sequences[sequence]
    if row[c.Q_DECODE_BLOCKS] == 0:
        if not let_older_reserve(now_ns, tables, state, sequence):
            return False
        if not reserve_decode(now_ns, tables, state, sequence):
            return False
    if not is_remote(state, sequence):
        return True
    prefill = row[c.Q_PREFILL]
    held = blocks_for(tables, row[c.Q_PROMPT] + row[c.Q_PRODUCED])
    if not has_room(tables, state, prefill, held):
        return False
    state.engines[prefill, c.N_SEATS_USED] += 1
    state.engines[prefill, c.N_BLOCKS_USED] += held
    row[c.Q_PREFILL_BLOCKS] = held
    return True


@kernel
def grow(tables: Tables, state: State, sequence: int, tokens: int) -> bool:
    """Have blocks for so many tokens at the decoding engine; false: there is none left."""
    row = state.sequences[sequence]
    missing = blocks_for(tables, tokens) - row[c.Q_DECODE_BLOCKS]
    if missing <= 0:
        return True
    engine = row[c.Q_DECODE]
    if state.engines[engine, c.N_BLOCKS_USED] + missing > tables.engines[engine, c.E_BLOCKS]:
        return False
    state.engines[engine, c.N_BLOCKS_USED] += missing
    row[c.Q_DECODE_BLOCKS] += missing
    return True


@rare
def give_back_prefill(state: State, sequence: int) -> None:
    """Give back what a remote sequence holds at the engine that computes its prompt."""
    row = state.sequences[sequence]
    if row[c.Q_PREFILL_BLOCKS] == 0:
        return
    prefill = row[c.Q_PREFILL]
    state.engines[prefill, c.N_SEATS_USED] -= 1
    state.engines[prefill, c.N_BLOCKS_USED] -= row[c.Q_PREFILL_BLOCKS]
    row[c.Q_PREFILL_BLOCKS] = 0
    say(state, c.FREED, sequence, prefill, 0, 0)
    mark(state, prefill)


@rare
def await_import(state: State, sequence: int) -> None:
    """Have the decoding engine's next step wait for a sequence whose KV it is about to read.

    An engine obeys in order: a step planned now would be computed after the import all the same, without the sequence.
    """
    row = state.sequences[sequence]
    if row[c.Q_IMPORTING] == 0:
        row[c.Q_IMPORTING] = 1
        state.engines[row[c.Q_DECODE], c.N_IMPORTING] += 1


@rare
def end_import(state: State, sequence: int) -> None:
    """Undo `await_import`, whatever came of it."""
    row = state.sequences[sequence]
    if row[c.Q_IMPORTING] == 1:
        row[c.Q_IMPORTING] = 0
        state.engines[row[c.Q_DECODE], c.N_IMPORTING] -= 1
        mark(state, row[c.Q_DECODE])


@rare
def give_back_slot(state: State, sequence: int) -> None:
    """Give back its slot of the link; nobody waits for its KV any more."""
    end_import(state, sequence)
    row = state.sequences[sequence]
    if row[c.Q_SLOT] == 1:
        row[c.Q_SLOT] = 0
        state.slots[row[c.Q_PREFILL], row[c.Q_DECODE]] -= 1
        mark(state, row[c.Q_PREFILL])


@rare
def give_back(now_ns: int, state: State, sequence: int) -> None:
    """Give back everything that a sequence holds."""
    give_back_prefill(state, sequence)
    give_back_slot(state, sequence)
    row = state.sequences[sequence]
    if row[c.Q_DECODE_BLOCKS] == 0:
        return
    engine = row[c.Q_DECODE]
    counts = state.engines[engine]
    counts[c.N_SEATS_USED] -= 1
    counts[c.N_BLOCKS_USED] -= row[c.Q_DECODE_BLOCKS]
    row[c.Q_DECODE_BLOCKS] = 0
    held_ns = now_ns - row[c.Q_SEATED_NS]
    counts[c.N_HELD_NS] = held_ns if counts[c.N_HELD_NS] == 0 else (7 * counts[c.N_HELD_NS] + held_ns) // 8
    say(state, c.FREED, sequence, engine, 0, 0)
    mark(state, engine)
    for other in range(state.engines.shape[0]):
        # Whoever waits for a seat or a block here may wait in another engine's queue.
        if state.engines[other, c.N_WAITING] > 0:
            mark(state, other)
