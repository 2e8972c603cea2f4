"""What an engine's next step computes: who is admitted, whose prompt advances by how much, who is preempted.

Rules of this file, in order: sequences that decode are never left out of a step, but for want of a block; what is left
of the token budget goes to prompts, by class and age; a step in which somebody decodes, or that somebody waits for, is
kept under the engine's limit by taking less of a prompt, yet a prompt always advances by `LEAST_TOKENS`; a waiting
sequence takes the place of a running one only when its class is higher.
"""

from loadslice.policy.deadlines import HINT_FLOOR_NS
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.ends import HOPELESS, SHED, finish, preempt
from loadslice.policy.tokens.estimate import late_ns, prompt_ns, scaled, step_ns, tokens_within, wait_ns
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.memory import blocks_for, grow, has_room, take_seats
from loadslice.policy.tokens.queues import is_decoding, join, left_to_compute, say, unwait

LATE_MOST_PPM = 64_000_000
"""Tokens that are owed or may come late at most, in millionths: what was saved long ago buys nothing now."""


@kernel
def is_whole_elsewhere(state: State, sequence: int, engine: int) -> bool:
    """Whether a row here only computes a prompt for another engine."""
    return bool(state.sequences[sequence, c.Q_DECODE] != engine)


@rare
def victim(state: State, engine: int, above: int) -> int:
    """The newest running sequence of the lowest class, if that class is lower than ``above``; -1: there is none."""
    chosen = -1
    for place in range(state.engines[engine, c.N_RUNNING]):
        sequence = state.running[engine, place]
        row = state.sequences[sequence]
        if row[c.Q_CLASS] <= above or is_whole_elsewhere(state, sequence, engine):
            continue
        if chosen < 0:
            chosen = sequence
            continue
        best = state.sequences[chosen]
        if row[c.Q_CLASS] > best[c.Q_CLASS] or (row[c.Q_CLASS] == best[c.Q_CLASS] and row[c.Q_ORDER] > best[c.Q_ORDER]):
            chosen = sequence
    return chosen


@rare
def find_blocks(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Have a block for the next token of every sequence that decodes here, preempting the least of them if need be."""
    place = 0
    while place < state.engines[engine, c.N_RUNNING]:
        sequence = state.running[engine, place]
        if not is_decoding(state, sequence):
            place += 1
            continue
        tokens = state.sequences[sequence, c.Q_COMPUTED] + 1
        while not grow(tables, state, sequence, tokens):
            least = victim(state, engine, -1)
            preempt(now_ns, tables, state, least)
            if least == sequence:
                break
        # Who was preempted may have stood before this one: look for its place again.
        place = 0
        while place < state.engines[engine, c.N_RUNNING] and state.running[engine, place] != sequence:
            place += 1
        if place < state.engines[engine, c.N_RUNNING]:
            place += 1
        else:
            place = 0


@rare
def make_room(now_ns: int, tables: Tables, state: State, sequence: int) -> bool:
    """Preempt sequences of lower classes until a waiting one has its seat and blocks; false: it cannot have them."""
    row = state.sequences[sequence]
    decode = row[c.Q_DECODE]
    if row[c.Q_DECODE_BLOCKS] > 0:
        return False  # it has its seat; what it lacks nobody of lower class holds
    if state.engines[decode, c.N_STEPPING] > 0:
        return False  # what runs is not interrupted; this is asked again when the step has ended
    blocks = blocks_for(tables, row[c.Q_PROMPT] + row[c.Q_PRODUCED] + 1)
    others, room = 0, tables.engines[decode, c.E_BLOCKS] - state.engines[decode, c.N_BLOCKS_USED]
    for place in range(state.engines[decode, c.N_RUNNING]):
        other = state.sequences[state.running[decode, place]]
        if other[c.Q_CLASS] > row[c.Q_CLASS] and other[c.Q_DECODE] == decode:
            others += 1
            room += other[c.Q_DECODE_BLOCKS]
    if room < blocks or others == 0:
        return False  # nobody is thrown out for nothing
    while not has_room(tables, state, decode, blocks):
        preempt(now_ns, tables, state, victim(state, decode, row[c.Q_CLASS]))
    return True


@rare
def seat_higher(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Give the first waiting sequence of each class a seat that a lower class holds.

    Before the step is planned: whoever is in it already cannot be preempted.
    """
    for priority in range(c.CLASSES - 1):
        sequence = state.waiting[engine, priority, c.W_HEAD]
        while sequence >= 0:
            if not take_seats(now_ns, tables, state, sequence):
                if not make_room(now_ns, tables, state, sequence):
                    break
                if not take_seats(now_ns, tables, state, sequence):
                    break
            unwait(state, sequence)
            join(state, sequence, engine)
            sequence = state.waiting[engine, priority, c.W_HEAD]


@rare
def admit(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """Start the prompt of the first waiting sequence that can have all it needs; returns it, -1: none can.

    One whose decoding engine has no room holds up those behind it that want the same engine, and nobody else.
    """
    for decode in range(state.blocked.shape[0]):
        state.blocked[decode] = 0
    for priority in range(c.CLASSES):
        sequence = state.waiting[engine, priority, c.W_HEAD]
        while sequence >= 0:
            row = state.sequences[sequence]
            following = row[c.Q_NEXT]
            if state.blocked[row[c.Q_DECODE]] == 0:
                if take_seats(now_ns, tables, state, sequence):
                    unwait(state, sequence)
                    join(state, sequence, engine)
                    return int(sequence)
                state.blocked[row[c.Q_DECODE]] = 1
            sequence = following
    return -1


@rare
def shed_hopeless(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """End what waits here and cannot have its next token in time, even if it were begun now."""
    for priority in range(c.CLASSES):
        sequence = state.waiting[engine, priority, c.W_HEAD]
        while sequence >= 0:
            row = state.sequences[sequence]
            following = row[c.Q_NEXT]
            due_ns = row[c.Q_DEADLINE_NS]
            if row[c.Q_PRODUCED] == 0:
                due_ns = min(due_ns, row[c.Q_FIRST_BY_NS])
            if due_ns < c.FOREVER:
                missing = left_to_compute(state, sequence)
                if now_ns + prompt_ns(tables, state, engine, missing, row[c.Q_COMPUTED]) > due_ns:
                    hint_ns = max(HINT_FLOOR_NS, wait_ns(now_ns, tables, state, engine, c.CLASSES - 1))
                    finish(now_ns, state, sequence, SHED, HOPELESS, hint_ns)
            sequence = following


@kernel
def add_row(state: State, engine: int, count: int, sequence: int, tokens: int) -> None:
    """Write one row of the step being planned."""
    row = state.rows[engine, count]
    row[c.P_SEQUENCE] = sequence
    row[c.P_TOKENS] = tokens
    row[c.P_SAMPLES] = 1 if tokens == left_to_compute(state, sequence) else 0
    state.sequences[sequence, c.Q_IN_STEP] = 1


@kernel
def pairs_of(state: State, sequence: int, tokens: int) -> int:
    """Tokens before each of a row's tokens, summed."""
    return int(tokens * state.sequences[sequence, c.Q_COMPUTED] + tokens * tokens // 2)


@kernel
def piece(tables: Tables, state: State, engine: int, sequence: int, budget: int, room_ns: int) -> int:
    """Tokens of a prompt to take into a step that has this much of its budgets left."""
    settings = tables.engines[engine]
    missing = left_to_compute(state, sequence)
    tokens = min(missing, min(settings[c.E_CHUNK], budget))
    fits = tokens_within(tables, state, engine, room_ns, state.sequences[sequence, c.Q_COMPUTED])
    return int(min(tokens, fits))


@rare
def plan_step(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Begin an idle engine's next step, if there is anything for it to compute."""
    counts, settings = state.engines[engine], tables.engines[engine]
    if counts[c.N_DOWN] == 1 or counts[c.N_STEPPING] > 0 or counts[c.N_IMPORTING] > 0:
        return
    find_blocks(now_ns, tables, state, engine)
    if counts[c.N_WAITING] > 0:
        shed_hopeless(now_ns, tables, state, engine)
        seat_higher(now_ns, tables, state, engine)
    rows, pairs = 0, 0
    for place in range(counts[c.N_RUNNING]):
        sequence = state.running[engine, place]
        if is_decoding(state, sequence):
            add_row(state, engine, rows, sequence, 1)
            pairs += pairs_of(state, sequence, 1)
            rows += 1
    decoding = rows
    budget = settings[c.E_STEP_TOKENS] - rows
    room_ns = c.FOREVER
    # Who holds a seat and is not here yet has a first token, or soon will have, and waits for the step that runs then.
    is_held_up = decoding > 0 or counts[c.N_SEATS_USED] > counts[c.N_RUNNING]
    if is_held_up and settings[c.E_STEP_NS_MAX] < c.FOREVER:
        room_ns = settings[c.E_STEP_NS_MAX] - step_ns(tables, state, engine, 0, decoding, pairs, 0)
    prompt_tokens, prompt_pairs = 0, 0
    for priority in range(c.CLASSES):
        for place in range(counts[c.N_RUNNING]):
            sequence = state.running[engine, place]
            row = state.sequences[sequence]
            if row[c.Q_CLASS] != priority or row[c.Q_IN_STEP] == 1 or budget <= 0:
                continue
            if room_ns <= 0 and prompt_tokens > 0:
                continue
            tokens = piece(tables, state, engine, sequence, budget, room_ns)
            prompt_pairs += pairs_of(state, sequence, tokens)
            add_row(state, engine, rows, sequence, tokens)
            rows += 1
            budget -= tokens
            prompt_tokens += tokens
            if room_ns < c.FOREVER:
                room_ns -= scaled(tables, state, engine, tokens * settings[c.E_TOKEN_NS])
    while budget > 0 and (room_ns > 0 or prompt_tokens == 0) and counts[c.N_WAITING] > 0:
        sequence = admit(now_ns, tables, state, engine)
        if sequence < 0:
            break
        tokens = piece(tables, state, engine, sequence, budget, room_ns)
        prompt_pairs += pairs_of(state, sequence, tokens)
        add_row(state, engine, rows, sequence, tokens)
        rows += 1
        budget -= tokens
        prompt_tokens += tokens
        if room_ns < c.FOREVER:
            room_ns -= scaled(tables, state, engine, tokens * settings[c.E_TOKEN_NS])
    if rows == 0:
        return
    expected_ns = step_ns(tables, state, engine, prompt_tokens, decoding, pairs, prompt_pairs)
    late = decoding if prompt_tokens > 0 and expected_ns > late_ns(tables, state, engine) else 0
    late_ppm = counts[c.N_LATE_PPM] + decoding * tables.run[c.T_LATE_PPM] - late * c.PPM
    counts[c.N_LATE_PPM] = min(LATE_MOST_PPM, max(-LATE_MOST_PPM, late_ppm))
    counts[c.N_STEPPING] = rows
    counts[c.N_EPOCH] += 1
    counts[c.N_STEP_BEGAN_NS] = now_ns
    counts[c.N_STEP_EXPECTED_NS] = expected_ns
    counts[c.N_STEPS] += 1
    counts[c.N_PREFILL_TOKENS] += prompt_tokens
    counts[c.N_DECODE_TOKENS] += decoding
    say(state, c.STEP, -1, engine, counts[c.N_EPOCH], rows)
