"""The token desk: one call per fact, one question. Both shells call these and nothing else.

Every call takes ``now_ns`` first and leaves its effects, in order, in ``state.effects[:state.counters[C_EFFECTS]]``.
A fact that does not apply (an old epoch, a row that is free) answers ``REFUSED`` and changes nothing.
"""

from loadslice.policy.deadlines import HINT_FLOOR_NS
from loadslice.policy.kernel import entry, kernel, rare
from loadslice.policy.layout import Int64s
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.ends import HOPELESS, SHED, fail_handover, finish, forget, sweep, watch_time
from loadslice.policy.tokens.estimate import learn, meet, prompt_ns, wait_ns
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.memory import await_import, give_back_prefill, give_back_slot
from loadslice.policy.tokens.queues import join, leave, mark, say, unwait, wait
from loadslice.policy.tokens.router import choose_decode, choose_prefill, is_remote_route, route
from loadslice.policy.tokens.rows import move, take_row
from loadslice.policy.tokens.steps import plan_step
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.route import Route

REJECTED, CANCELLED = int(Outcome.REJECTED), int(Outcome.CANCELLED)
TABLE_FULL, QUEUE_FULL, DISPLACED = int(Reason.TABLE_FULL), int(Reason.QUEUE_FULL), int(Reason.DISPLACED)
INELIGIBLE, DRAINING, CLIENT_GONE = int(Reason.INELIGIBLE), int(Reason.DRAINING), int(Reason.CLIENT_GONE)
NO_ROUTE = int(Route.NONE)

LATE_NS = 5_000_000_000
LATE_TIMES = 20
"""A step that takes longer than both that time and so many times what was expected: the engine hangs."""

EXPORTED, IMPORTED, BROKEN = 0, 1, 2
"""What `on_handover` is told: the KV has left the first engine, it has reached the second, or it is lost."""


@kernel
def begin(now_ns: int, state: State) -> None:
    """Open an event: time goes forward, effects start anew."""
    assert now_ns >= state.counters[c.C_NOW_NS]
    state.counters[c.C_NOW_NS] = now_ns
    state.counters[c.C_EFFECTS] = 0


@rare
def close(now_ns: int, tables: Tables, state: State) -> None:
    """Close an event: what is due ends, engines that were touched begin their next step, the next timer is known."""
    if state.counters[c.C_EARLIEST_NS] <= now_ns:
        sweep(now_ns, tables, state)
    done = 0
    while done < state.counters[c.C_DIRTY]:
        engine = state.dirty[done]
        state.engines[engine, c.N_DIRTY] = 0
        plan_step(now_ns, tables, state, engine)
        done += 1
        if done == tables.engines.shape[0]:
            # Planning may touch other engines again: start over with those that are marked now.
            left = state.counters[c.C_DIRTY] - done
            for place in range(left):
                state.dirty[place] = state.dirty[done + place]
            state.counters[c.C_DIRTY] = left
            done = 0
    state.counters[c.C_DIRTY] = 0
    state.counters[c.C_NEXT_TIMER_NS] = state.counters[c.C_EARLIEST_NS]


@rare
def refuse(state: State, tag: int, outcome: int, reason: int, hint_ns: int) -> int:
    """End a request at the door; it never had a row."""
    state.counters[c.C_OUTCOMES + outcome] += 1
    say(state, c.ENDED, -1, outcome, reason, max(hint_ns, HINT_FLOOR_NS))
    state.effects[state.counters[c.C_EFFECTS] - 1, c.F_TAG] = tag
    return c.REFUSED


@rare
def drained_ns(now_ns: int, tables: Tables, state: State) -> int:
    """How long the engine with the longest wait of all has one."""
    longest = 0
    for engine in range(state.engines.shape[0]):
        longest = max(longest, wait_ns(now_ns, tables, state, engine, c.CLASSES - 1))
    return longest


@rare
def displace(now_ns: int, state: State, engine: int, priority: int) -> bool:
    """End the newest waiting sequence of the lowest class below ``priority``; false: there is none."""
    for lower in range(c.CLASSES - 1, priority, -1):
        sequence = state.waiting[engine, lower, c.W_TAIL]
        if sequence >= 0:
            finish(now_ns, state, sequence, SHED, DISPLACED, HINT_FLOOR_NS)
            return True
    return False


@entry(inlined=False)
def on_arrival(
    now_ns: int,
    tables: Tables,
    state: State,
    tag: int,
    priority: int,
    prompt: int,
    new_max: int,
    first_by_ns: int,
    deadline_ns: int,
    hits: Int64s,
) -> int:
    """A request has arrived.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        tag: The shell's own number for the request; comes back in every effect about it.
        priority: Class index, 0 highest.
        prompt: Tokens, at least 1.
        new_max: Tokens to produce at most, at least 1.
        first_by_ns: Absolute time by which its first token must be there; FOREVER: any.
        deadline_ns: The same for its last.
        hits: [E] tokens of its prompt whose KV each engine's prefix cache holds, each below ``prompt``.

    Returns:
        Row of the sequence, or REFUSED when it was refused at the door (its ENDED is among the effects).
    """
    begin(now_ns, state)
    counters = state.counters
    counters[c.C_SUBMITTED] += 1
    sequence = counters[c.C_FREE_HEAD]
    if counters[c.C_DRAINING] == 1:
        return refuse(state, tag, REJECTED, DRAINING, drained_ns(now_ns, tables, state))
    if sequence < 0:
        return refuse(state, tag, REJECTED, TABLE_FULL, drained_ns(now_ns, tables, state))
    if prompt + new_max > tables.run[c.T_CONTEXT]:
        return refuse(state, tag, REJECTED, INELIGIBLE, 0)
    decode = choose_decode(now_ns, tables, state, priority, prompt, new_max, hits)
    if decode < 0:
        return refuse(state, tag, REJECTED, INELIGIBLE, 0)
    remote = choose_prefill(now_ns, tables, state, priority, decode, prompt, hits)
    way = route(now_ns, tables, state, priority, remote, decode, prompt, hits)
    if way == NO_ROUTE:
        return refuse(state, tag, REJECTED, INELIGIBLE, 0)
    meet(state, decode)
    prefill = remote if is_remote_route(way) else decode
    start_ns = wait_ns(now_ns, tables, state, prefill, priority)
    first_ns = now_ns + start_ns + prompt_ns(tables, state, prefill, prompt - hits[prefill], hits[prefill])
    if first_ns > min(first_by_ns, deadline_ns):
        return refuse(state, tag, SHED, HOPELESS, start_ns)
    row = state.sequences[sequence]
    counters[c.C_FREE_HEAD] = row[c.Q_NEXT]  # before anybody is displaced, whose row the shells still read
    is_full = state.engines[prefill, c.N_WAITING] >= tables.engines[prefill, c.E_QUEUE]
    if is_full and not displace(now_ns, state, prefill, priority):
        counters[c.C_FREE_HEAD] = sequence
        return refuse(state, tag, REJECTED, QUEUE_FULL, start_ns)
    counters[c.C_IN_SYSTEM] += 1
    row[c.Q_TAG] = tag
    row[c.Q_CLASS] = priority
    row[c.Q_PROMPT] = prompt
    row[c.Q_NEW_MAX] = new_max
    row[c.Q_PRODUCED] = 0
    row[c.Q_COMPUTED] = hits[prefill]
    row[c.Q_HIT] = hits[prefill]
    row[c.Q_FILLING] = 1
    row[c.Q_PREFILL] = prefill
    row[c.Q_DECODE] = decode
    row[c.Q_ARRIVAL_NS] = now_ns
    row[c.Q_FIRST_BY_NS] = first_by_ns
    row[c.Q_DEADLINE_NS] = deadline_ns
    row[c.Q_FIRST_NS] = 0
    row[c.Q_LAST_NS] = 0
    row[c.Q_ATTEMPTS] = 0
    row[c.Q_HANDED] = 0
    say(state, c.PLACED, sequence, prefill, decode, way)
    wait(state, sequence, prefill)
    watch_time(state, min(first_by_ns, deadline_ns))
    close(now_ns, tables, state)
    return int(sequence)


@entry(inlined=False)
def on_step_done(now_ns: int, tables: Tables, state: State, engine: int, epoch: int, ends: Int64s) -> int:
    """An engine has computed its step.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed. ``gaps[engine]`` has, for each row of this step, the time since its sequence's token before
            (-1: it is the first, or none was sampled).
        engine: Which.
        epoch: As the STEP said.
        ends: [R] what each row came to: GOES_ON, ENDS (a stop token or text), LATE or LOST.

    Returns:
        Rows of the step, or REFUSED.
    """
    if engine < 0 or engine >= state.engines.shape[0]:
        return c.REFUSED
    counts = state.engines[engine]
    if counts[c.N_STEPPING] == 0 or counts[c.N_EPOCH] != epoch:
        return c.REFUSED
    begin(now_ns, state)
    rows = counts[c.N_STEPPING]
    counts[c.N_STEPPING] = 0
    late = 0
    for place in range(rows):
        late += ends[place] == c.LATE
    if late == 0 and counts[c.N_ROWS_BEHIND] == 0:
        # A step that somebody was late in, and the one that closes it, say nothing of what steps take.
        learn(state, engine, now_ns - counts[c.N_STEP_BEGAN_NS])
    counts[c.N_ROWS_BEHIND] = late
    for place in range(rows):
        state.gaps[engine, place] = -1
        take_row(now_ns, tables, state, engine, place, ends[place])
    mark(state, engine)
    close(now_ns, tables, state)
    return int(rows)


@entry(inlined=False)
def on_handover(now_ns: int, tables: Tables, state: State, sequence: int, epoch: int, what: int) -> int:
    """A hand-over has come a step further, or to nothing: EXPORTED, IMPORTED or BROKEN."""
    if sequence < 0 or sequence >= state.sequences.shape[0]:
        return c.REFUSED
    row = state.sequences[sequence]
    if row[c.Q_STATUS] != c.HANDING_OVER or row[c.Q_EPOCH] != epoch:
        return c.REFUSED
    begin(now_ns, state)
    if what == BROKEN:
        fail_handover(now_ns, tables, state, sequence)
    else:
        give_back_prefill(state, sequence)
        if row[c.Q_DOOMED] == 1:
            # Nobody reads what has been written for it.
            row[c.Q_STATUS] = c.RUNNING
            forget(now_ns, state, sequence)
        elif what == EXPORTED:
            await_import(state, sequence)
        else:
            give_back_slot(state, sequence)
            row[c.Q_HANDED] = 1
            row[c.Q_PREFILL] = row[c.Q_DECODE]
            join(state, sequence, row[c.Q_DECODE])
    close(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_cancel(now_ns: int, tables: Tables, state: State, sequence: int, tag: int) -> int:
    """The client has gone."""
    if sequence < 0 or sequence >= state.sequences.shape[0]:
        return c.REFUSED
    row = state.sequences[sequence]
    if row[c.Q_STATUS] == c.FREE or row[c.Q_TAG] != tag or row[c.Q_DOOMED] == 1:
        return c.REFUSED
    begin(now_ns, state)
    finish(now_ns, state, sequence, CANCELLED, CLIENT_GONE, 0)
    close(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_timer(now_ns: int, tables: Tables, state: State) -> None:
    """It is the time that `next_timer_ns` said, or later."""
    begin(now_ns, state)
    close(now_ns, tables, state)


@entry(inlined=False)
def on_engine_down(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """An engine is lost with all KV on it; what it still says about its step is of an old epoch."""
    if engine < 0 or engine >= state.engines.shape[0] or state.engines[engine, c.N_DOWN] == 1:
        return c.REFUSED
    begin(now_ns, state)
    counts = state.engines[engine]
    for place in range(counts[c.N_STEPPING]):
        state.sequences[state.rows[engine, place, c.P_SEQUENCE], c.Q_IN_STEP] = 0
    counts[c.N_DOWN] = 1
    counts[c.N_EPOCH] += 1
    counts[c.N_STEPPING] = 0
    counts[c.N_ROWS_BEHIND] = 0
    for sequence in range(state.sequences.shape[0]):
        row = state.sequences[sequence]
        if row[c.Q_STATUS] == c.FREE or (row[c.Q_PREFILL] != engine and row[c.Q_DECODE] != engine):
            continue
        if row[c.Q_STATUS] == c.HANDING_OVER:
            fail_handover(now_ns, tables, state, sequence)
            continue
        if row[c.Q_IN_STEP] == 1:
            row[c.Q_LOST] = 1  # its prompt is being computed by an engine that is up
            continue
        if row[c.Q_STATUS] == c.WAITING:
            unwait(state, sequence)
        else:
            leave(state, sequence)
        if row[c.Q_DOOMED] == 1:
            forget(now_ns, state, sequence)
        else:
            move(now_ns, tables, state, sequence)
    close(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_engine_up(now_ns: int, tables: Tables, state: State, engine: int) -> int:
    """An engine is back, with nothing in its KV."""
    if engine < 0 or engine >= state.engines.shape[0] or state.engines[engine, c.N_DOWN] == 0:
        return c.REFUSED
    begin(now_ns, state)
    state.engines[engine, c.N_DOWN] = 0
    mark(state, engine)
    close(now_ns, tables, state)
    return 0


@entry(inlined=False)
def on_drain(now_ns: int, tables: Tables, state: State) -> None:
    """Admit nothing from now on."""
    begin(now_ns, state)
    state.counters[c.C_DRAINING] = 1
    close(now_ns, tables, state)


@entry(inlined=False)
def next_timer_ns(state: State) -> int:
    """When `on_timer` wants to be called; FOREVER: not at all."""
    return int(state.counters[c.C_NEXT_TIMER_NS])


@entry(inlined=False)
def late_at_ns(state: State, engine: int, least_ns: int) -> int:
    """When an engine's step has taken ``least_ns``, and so long that it hangs; FOREVER: it computes none."""
    counts = state.engines[engine]
    if counts[c.N_STEPPING] == 0:
        return int(c.FOREVER)
    return int(counts[c.N_STEP_BEGAN_NS] + max(least_ns, LATE_TIMES * counts[c.N_STEP_EXPECTED_NS]))
