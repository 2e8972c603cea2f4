"""How a sequence ends, and how one that lost its place finds another."""

from loadslice.policy.kernel import kernel, rare
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.memory import end_import, give_back
from loadslice.policy.tokens.queues import leave, say, unwait, wait
from loadslice.policy.tokens.router import may_decode, may_prefill
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.route import Route

FAILED, EXPIRED, SHED = int(Outcome.FAILED), int(Outcome.EXPIRED), int(Outcome.SHED)
ENGINE_DOWN, DEADLINE, HOPELESS = int(Reason.ENGINE_DOWN), int(Reason.DEADLINE), int(Reason.HOPELESS)
FALLBACK = int(Route.FALLBACK)


@kernel
def tell_end(state: State, sequence: int, outcome: int, reason: int, hint_ns: int) -> None:
    """Deliver the one outcome of a sequence."""
    state.counters[c.C_OUTCOMES + outcome] += 1
    say(state, c.ENDED, sequence, outcome, reason, hint_ns)


@rare
def forget(now_ns: int, state: State, sequence: int) -> None:
    """Give back what a sequence holds and free its row."""
    give_back(now_ns, state, sequence)
    row = state.sequences[sequence]
    row[c.Q_STATUS] = c.FREE
    row[c.Q_IN_STEP] = 0
    row[c.Q_DOOMED] = 0
    row[c.Q_EPOCH] += 1
    row[c.Q_NEXT] = state.counters[c.C_FREE_HEAD]
    state.counters[c.C_FREE_HEAD] = sequence
    state.counters[c.C_IN_SYSTEM] -= 1


@rare
def finish(now_ns: int, state: State, sequence: int, outcome: int, reason: int, hint_ns: int) -> None:
    """End a sequence wherever it stands.

    What a running step or a hand-over still reads is given back when that ends: until then the row is doomed.
    """
    row = state.sequences[sequence]
    if row[c.Q_DOOMED] == 1:
        return
    tell_end(state, sequence, outcome, reason, hint_ns)
    if row[c.Q_STATUS] == c.WAITING:
        unwait(state, sequence)
    elif row[c.Q_IN_STEP] == 1 or row[c.Q_STATUS] == c.HANDING_OVER:
        row[c.Q_DOOMED] = 1
        end_import(state, sequence)
        return
    else:
        leave(state, sequence)
    forget(now_ns, state, sequence)


@rare
def find_place(now_ns: int, tables: Tables, state: State, sequence: int) -> None:
    """Queue a sequence that stands nowhere and holds nothing, or fail it.

    All it has computed is gone; the tokens it has produced are computed again with its prompt.
    """
    row = state.sequences[sequence]
    row[c.Q_COMPUTED] = 0
    row[c.Q_HIT] = 0
    row[c.Q_FILLING] = 1
    row[c.Q_HANDED] = 0
    row[c.Q_EPOCH] += 1
    tokens = row[c.Q_PROMPT] + row[c.Q_PRODUCED]
    most = row[c.Q_PROMPT] + row[c.Q_NEW_MAX]
    best_decode, best_prefill = -1, -1
    for turn in range(tables.engines.shape[0]):
        # The engine it was on first: it may still be the only one with its prefix, or the only one at all.
        decode = (row[c.Q_DECODE] + turn) % tables.engines.shape[0]
        if not may_decode(tables, state, decode, most):
            continue
        if may_prefill(tables, state, decode, decode, tokens):
            best_decode, best_prefill = decode, decode
            break
        for prefill in range(tables.engines.shape[0]):
            if best_decode < 0 and may_prefill(tables, state, prefill, decode, tokens):
                best_decode, best_prefill = decode, prefill
    if best_decode < 0 or row[c.Q_ATTEMPTS] >= tables.run[c.T_ATTEMPTS]:
        tell_end(state, sequence, FAILED, ENGINE_DOWN, 0)
        forget(now_ns, state, sequence)
        return
    row[c.Q_DECODE] = best_decode
    row[c.Q_PREFILL] = best_prefill
    state.counters[c.C_FALLBACKS] += 1
    say(state, c.PLACED, sequence, best_prefill, best_decode, FALLBACK)
    wait(state, sequence, best_prefill)


@rare
def preempt(now_ns: int, tables: Tables, state: State, sequence: int) -> None:
    """Take a running sequence's seat and blocks away; it waits for both again, by its age."""
    row = state.sequences[sequence]
    engine = row[c.Q_AT]
    state.engines[engine, c.N_PREEMPTIONS] += 1
    say(state, c.PREEMPTED, sequence, engine, 0, 0)
    leave(state, sequence)
    give_back(now_ns, state, sequence)
    find_place(now_ns, tables, state, sequence)


@kernel
def watch_time(state: State, at_ns: int) -> None:
    """Have the sweep run at this time at the latest."""
    if at_ns < state.counters[c.C_EARLIEST_NS]:
        state.counters[c.C_EARLIEST_NS] = at_ns


@rare
def sweep(now_ns: int, tables: Tables, state: State) -> None:
    """End what is past a deadline, fail what is past its lease, and know when to look again."""
    counters = state.counters
    earliest_ns = c.FOREVER
    for sequence in range(state.sequences.shape[0]):
        row = state.sequences[sequence]
        if row[c.Q_STATUS] == c.FREE:
            continue
        if row[c.Q_STATUS] == c.HANDING_OVER and row[c.Q_LEASE_NS] <= now_ns:
            counters[c.C_LEASES_EXPIRED] += 1
            fail_handover(now_ns, tables, state, sequence)
            if row[c.Q_STATUS] == c.FREE:
                continue
        due_ns = row[c.Q_DEADLINE_NS]
        if row[c.Q_PRODUCED] == 0:
            due_ns = min(due_ns, row[c.Q_FIRST_BY_NS])
        if row[c.Q_DOOMED] == 0 and due_ns <= now_ns:
            finish(now_ns, state, sequence, EXPIRED, DEADLINE, 0)
            if row[c.Q_STATUS] == c.FREE:
                continue
        if row[c.Q_DOOMED] == 0:
            earliest_ns = min(earliest_ns, due_ns)
        if row[c.Q_STATUS] == c.HANDING_OVER:
            earliest_ns = min(earliest_ns, row[c.Q_LEASE_NS])
    counters[c.C_EARLIEST_NS] = earliest_ns


@rare
def fail_handover(now_ns: int, tables: Tables, state: State, sequence: int) -> None:
    """A hand-over came to nothing: compute the prompt again where its KV was to go."""
    row = state.sequences[sequence]
    state.counters[c.C_HANDOVERS_FAILED] += 1
    row[c.Q_STATUS] = c.RUNNING  # it stands in no list; what follows queues it, or frees it
    give_back(now_ns, state, sequence)
    if row[c.Q_DOOMED] == 1:
        forget(now_ns, state, sequence)
        return
    row[c.Q_ATTEMPTS] += 1
    find_place(now_ns, tables, state, sequence)
