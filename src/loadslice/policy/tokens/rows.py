"""What one row of a step came to: part of a prompt, a token, an end, or a sequence that goes elsewhere."""

from loadslice.policy.kernel import rare
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.ends import find_place, finish, forget, watch_time
from loadslice.policy.tokens.estimate import wait_for_second
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.memory import give_back, is_remote
from loadslice.policy.tokens.queues import add_backlog, leave, say
from loadslice.spec.outcome import Outcome, Reason

COMPLETED, FAILED = int(Outcome.COMPLETED), int(Outcome.FAILED)
NO_REASON, ENGINE_FAILED = int(Reason.NONE), int(Reason.ENGINE_FAILED)


@rare
def hand_over(now_ns: int, tables: Tables, state: State, sequence: int) -> None:
    """A prompt has been computed for another engine: have its KV taken there."""
    row = state.sequences[sequence]
    leave(state, sequence)
    row[c.Q_STATUS] = c.HANDING_OVER
    row[c.Q_EPOCH] += 1
    row[c.Q_LEASE_NS] = now_ns + tables.run[c.T_LEASE_NS]
    state.counters[c.C_HANDOVERS] += 1
    watch_time(state, row[c.Q_LEASE_NS])
    say(state, c.HAND_OVER, sequence, row[c.Q_PREFILL], row[c.Q_DECODE], row[c.Q_EPOCH])


@rare
def move(now_ns: int, tables: Tables, state: State, sequence: int) -> None:
    """A sequence that stands in no list has lost an engine: give back what it holds and find it another place."""
    row = state.sequences[sequence]
    give_back(now_ns, state, sequence)
    row[c.Q_LOST] = 0
    row[c.Q_ATTEMPTS] += 1
    find_place(now_ns, tables, state, sequence)


@rare
def take_row(now_ns: int, tables: Tables, state: State, engine: int, place: int, said: int) -> None:
    """One row of a step has been computed."""
    step = state.rows[engine, place]
    sequence = step[c.P_SEQUENCE]
    row = state.sequences[sequence]
    row[c.Q_IN_STEP] = 0
    if said == c.LATE and row[c.Q_DOOMED] == 0 and row[c.Q_LOST] == 0:
        return
    filling = row[c.Q_FILLING] == 1
    if filling:
        add_backlog(state, engine, sequence, -1)
    row[c.Q_COMPUTED] += step[c.P_TOKENS]
    if filling:
        add_backlog(state, engine, sequence, 1)
    if row[c.Q_DOOMED] == 1 or row[c.Q_LOST] == 1:
        leave(state, sequence)
        if row[c.Q_DOOMED] == 1:
            forget(now_ns, state, sequence)
        else:
            move(now_ns, tables, state, sequence)
        return
    if said == c.LOST:
        finish(now_ns, state, sequence, FAILED, ENGINE_FAILED, 0)
        return
    if step[c.P_SAMPLES] == 0:
        return
    row[c.Q_FILLING] = 0
    gap_ns = now_ns - row[c.Q_LAST_NS] if row[c.Q_PRODUCED] > 0 else -1
    state.gaps[engine, place] = gap_ns
    if row[c.Q_HANDED] == 1:
        row[c.Q_HANDED] = 0
        if row[c.Q_PRODUCED] == 1:
            wait_for_second(state, engine, gap_ns)
    if row[c.Q_PRODUCED] == 0:
        row[c.Q_FIRST_NS] = now_ns
    row[c.Q_LAST_NS] = now_ns
    row[c.Q_PRODUCED] += 1
    if said == c.ENDS or row[c.Q_PRODUCED] >= row[c.Q_NEW_MAX]:
        finish(now_ns, state, sequence, COMPLETED, NO_REASON, 0)
    elif is_remote(state, sequence):
        hand_over(now_ns, tables, state, sequence)
