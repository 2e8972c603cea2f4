"""What the core has just said, done to the world of a run: batches start, clients hear, the record is kept."""

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import Int64s, State
from loadslice.sim import clients
from loadslice.sim.clients import Behaviour, Diary
from loadslice.sim.clockwork import Clockwork, change_speed, set_done, set_speed
from loadslice.sim.energy import Energy, batch_j
from loadslice.sim.record import (
    A_END_NS,
    A_HINT_NS,
    A_OUTCOME,
    A_REASON,
    A_START_NS,
    A_WRONG,
    N_CALLS,
    N_EFFECTS,
    N_ENDED,
    QUEUE_EXACT,
    T_BATCH_ROWS,
    T_DISPATCHED_NS,
    T_DONE_NS,
    T_ENGINE,
    T_ENQUEUED_NS,
    T_REASON,
    T_VERSION,
    Record,
    Traffic,
    cell_of_queue,
    row_of,
)
from loadslice.sim.service import Service, slot_ns
from loadslice.spec.outcome import Outcome, Reason

COMPLETED, CANCELLED, NO_REASON = int(Outcome.COMPLETED), int(Outcome.CANCELLED), int(Reason.NONE)


@kernel
def start_batch(
    now_ns: int,
    seed: int,
    state: State,
    service: Service,
    energy: Energy,
    traffic: Traffic,
    clockwork: Clockwork,
    record: Record,
    slot: int,
) -> None:
    """A batch starts on a well engine that has the machine to itself; `change_speed` knows better."""
    batch = state.batches[slot]
    stage = batch[c.B_STAGE]
    engine = batch[c.B_ENGINE]
    first = state.members[slot, 0, c.M_TAG]
    took_ns = slot_ns(service, seed, now_ns, first, stage, engine, batch[c.B_BUCKET], batch[c.B_PADDED])
    took_ns += batch[c.B_LOAD_NS]
    clockwork.running[slot] = 1
    clockwork.left_ns[slot] = took_ns
    clockwork.since_ns[slot] = now_ns
    clockwork.speed[slot] = 1.0
    set_done(clockwork, slot, now_ns + max(1, int(took_ns + 0.5)))
    if clockwork.pace_ppm[engine] != c.PPM:
        pace = clockwork.pace_ppm[engine]
        set_speed(now_ns, clockwork, slot, c.PPM / pace if pace > 0 else 0.0)
    if energy.measured[engine] == 1:
        record.batches_j[engine] += batch_j(energy, stage, engine, batch[c.B_BUCKET], batch[c.B_ROWS])
    timed = record.timeline.shape[0] > 0
    if timed or clockwork.wrong[engine] == 1:
        for member in range(batch[c.B_COUNT]):
            row = row_of(traffic, state.members[slot, member, c.M_TAG])
            if clockwork.wrong[engine] == 1:
                record.attempts[row, A_WRONG] = 1
            if timed:
                record.timeline[row, stage, T_DISPATCHED_NS] = now_ns
                record.timeline[row, stage, T_BATCH_ROWS] = batch[c.B_ROWS]


@kernel
def end_attempt(
    now_ns: int, seed: int, effect: Int64s, traffic: Traffic, behaviour: Behaviour, diary: Diary, record: Record
) -> None:
    """An attempt has its outcome; a client that is still there hears of it, and may come back."""
    tag = effect[c.F_TAG]
    row = row_of(traffic, tag)
    attempt = record.attempts[row]
    attempt[A_OUTCOME] = effect[c.F_A]
    attempt[A_REASON] = effect[c.F_B]
    attempt[A_HINT_NS] = effect[c.F_C]
    attempt[A_END_NS] = now_ns
    if record.timeline.shape[0] > 0 and effect[c.F_A] == COMPLETED and effect[c.F_B] == NO_REASON:
        record.timeline[row, effect[c.F_D], T_DONE_NS] = now_ns
    record.ended[record.counts[N_ENDED]] = row
    record.counts[N_ENDED] += 1
    # One that has cancelled planned itself what comes next.
    refused = effect[c.F_A] != COMPLETED and effect[c.F_A] != CANCELLED
    if behaviour.timeout_ns > 0 and refused and now_ns < attempt[A_START_NS] + behaviour.timeout_ns:
        clients.come_back(now_ns, seed, behaviour, diary, tag, traffic.arrival_ns.shape[0], effect[c.F_C])


@rare
def write_effect(record: Record, effect: Int64s) -> None:
    """Append one effect to the log of them."""
    for column in range(c.EFFECT_COLUMNS):
        record.effects[record.counts[N_EFFECTS], column] = effect[column]
    record.counts[N_EFFECTS] += 1


@kernel
def carry_out(
    now_ns: int,
    seed: int,
    state: State,
    service: Service,
    energy: Energy,
    traffic: Traffic,
    behaviour: Behaviour,
    diary: Diary,
    clockwork: Clockwork,
    record: Record,
) -> None:
    """Do what the core has just said."""
    started = False
    for index in range(state.counters[c.C_EFFECTS]):
        effect = state.effects[index]
        kind = effect[c.F_KIND]
        if record.effects.shape[0] > 0:
            write_effect(record, effect)
        if kind == c.OUTCOME:
            end_attempt(now_ns, seed, effect, traffic, behaviour, diary, record)
        elif kind == c.PLACED:
            engine = effect[c.F_B]
            waiting = state.engines[engine, c.N_QUEUED] * 1
            record.queue_seen[engine, waiting if waiting < QUEUE_EXACT else cell_of_queue(waiting)] += 1
            if diary.row.shape[0] > 0:
                diary.row[effect[c.F_TAG]] = effect[c.F_D]
            if record.timeline.shape[0] > 0:
                line = record.timeline[row_of(traffic, effect[c.F_TAG]), effect[c.F_A]]
                line[T_ENGINE] = engine
                line[T_REASON] = effect[c.F_C]
                line[T_ENQUEUED_NS] = now_ns
                line[T_VERSION] = state.requests[effect[c.F_D], c.R_VERSION]
        elif kind == c.DISPATCH:
            start_batch(now_ns, seed, state, service, energy, traffic, clockwork, record, effect[c.F_TAG])
            started = True
    record.counts[N_CALLS] += 1
    if started and service.cores < np.inf:
        change_speed(now_ns, service, state, clockwork)
