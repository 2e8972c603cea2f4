"""What must hold between any two events; tests and simulated runs call it, decisions never do."""

import numpy as np

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables
from loadslice.spec.outcome import Outcome


def faults(tables: Tables, state: State) -> list[str]:
    """Every promise that the state breaks, in words; empty: none."""
    rows = state.sequences
    inside = rows[:, c.Q_STATUS] != c.FREE
    found: list[str] = []

    def expect(holds: bool, text: str) -> None:
        if not holds:
            found.append(text)

    counters = state.counters
    ended = int(counters[c.C_OUTCOMES : c.C_OUTCOMES + 7].sum())
    doomed = int((inside & (rows[:, c.Q_DOOMED] == 1)).sum())
    expect(int(counters[c.C_OUTCOMES + Outcome.NONE]) == 0, "an outcome without a name")
    expect(int(counters[c.C_SUBMITTED]) == ended + int(inside.sum()) - doomed, "submitted = inside + ended, each once")
    expect(int(counters[c.C_IN_SYSTEM]) == int(inside.sum()), "rows in use are counted")
    block = int(tables.run[c.T_BLOCK])
    for engine in range(state.engines.shape[0]):
        counts, settings = state.engines[engine], tables.engines[engine]
        here = inside & (rows[:, c.Q_DECODE] == engine)
        there = inside & (rows[:, c.Q_PREFILL] == engine)
        seats = int((here & (rows[:, c.Q_DECODE_BLOCKS] > 0)).sum() + (there & (rows[:, c.Q_PREFILL_BLOCKS] > 0)).sum())
        blocks = int(rows[here, c.Q_DECODE_BLOCKS].sum() + rows[there, c.Q_PREFILL_BLOCKS].sum())
        expect(
            int(counts[c.N_SEATS_USED]) == seats, f"engine {engine}: seats {counts[c.N_SEATS_USED]} are held by {seats}"
        )
        expect(int(counts[c.N_BLOCKS_USED]) == blocks, f"engine {engine}: blocks are held by sequences")
        expect(0 <= seats <= settings[c.E_SEATS], f"engine {engine}: seats within their number")
        expect(0 <= blocks <= settings[c.E_BLOCKS], f"engine {engine}: blocks within their number")
        at = inside & (rows[:, c.Q_AT] == engine)
        waiting = set(np.flatnonzero(at & (rows[:, c.Q_STATUS] == c.WAITING)).tolist())
        running = set(np.flatnonzero(at & (rows[:, c.Q_STATUS] == c.RUNNING)).tolist())
        listed = state.running[engine, : counts[c.N_RUNNING]].tolist()
        expect(set(listed) == running and len(listed) == len(running), f"engine {engine}: running set")
        lined = [s for priority in range(c.CLASSES) for s in _line(state, engine, priority)]
        expect(set(lined) == waiting and len(lined) == len(waiting), f"engine {engine}: waiting lists")
        expect(int(counts[c.N_WAITING]) == len(lined), f"engine {engine}: waiting are counted")
        expect(len(lined) <= int(settings[c.E_QUEUE]) + rows.shape[0], f"engine {engine}: queue within its limit")
        backlog, pairs = [0] * c.CLASSES, [0] * c.CLASSES
        for s in (*lined, *listed):
            if rows[s, c.Q_FILLING] == 1:
                missing = int(rows[s, c.Q_PROMPT] + rows[s, c.Q_PRODUCED] - rows[s, c.Q_COMPUTED])
                for lower in range(int(rows[s, c.Q_CLASS]), c.CLASSES):
                    backlog[lower] += missing
                    pairs[lower] += missing * int(rows[s, c.Q_COMPUTED]) + missing * missing // 2
        expect(state.backlog[engine].tolist() == backlog, f"engine {engine}: backlog by class")
        expect(state.backlog_pairs[engine].tolist() == pairs, f"engine {engine}: pairs of the backlog by class")
        step = state.rows[engine, : counts[c.N_STEPPING]]
        members = step[:, c.P_SEQUENCE].tolist()
        expect(len(set(members)) == len(members), f"engine {engine}: a sequence once in a step")
        expect(
            int(step[:, c.P_TOKENS].sum()) <= max(int(settings[c.E_STEP_TOKENS]), len(members)),
            f"engine {engine}: step within its tokens",
        )
        expect(
            set(members) == set(np.flatnonzero(at & (rows[:, c.Q_IN_STEP] == 1)).tolist()),
            f"engine {engine}: who is in the step",
        )
        importing = int((here & (rows[:, c.Q_IMPORTING] == 1)).sum())
        expect(int(counts[c.N_IMPORTING]) == importing, f"engine {engine}: who is read before its next step")
        idle = counts[c.N_STEPPING] == 0 and counts[c.N_DOWN] == 0 and importing == 0
        expect(not (idle and listed), f"engine {engine}: idle beside sequences that could advance")
        for sequence in listed:
            row = rows[sequence]
            held = row[c.Q_DECODE_BLOCKS] if row[c.Q_DECODE] == engine else row[c.Q_PREFILL_BLOCKS]
            due = int(row[c.Q_COMPUTED] + sum(step[step[:, c.P_SEQUENCE] == sequence, c.P_TOKENS]))
            expect(held * block >= due, f"sequence {sequence}: computes into blocks that it holds")
    for prefill in range(state.slots.shape[0]):
        for decode in range(state.slots.shape[0]):
            held = int(
                (
                    inside
                    & (rows[:, c.Q_SLOT] == 1)
                    & (rows[:, c.Q_PREFILL] == prefill)
                    & (rows[:, c.Q_DECODE] == decode)
                ).sum()
            )
            expect(int(state.slots[prefill, decode]) == held, f"link {prefill}-{decode}: slots are held by sequences")
            expect(
                held <= int(tables.links[prefill, decode, c.K_SLOTS]),
                f"link {prefill}-{decode}: slots within their number",
            )
    return found


def _line(state: State, engine: int, priority: int) -> list[int]:
    line: list[int] = []
    sequence = int(state.waiting[engine, priority, c.W_HEAD])
    while sequence >= 0:
        line.append(sequence)
        assert len(line) <= state.sequences.shape[0], "a waiting list goes in a circle"
        sequence = int(state.sequences[sequence, c.Q_NEXT])
    return line
