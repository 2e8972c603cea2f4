"""Virtual time around the policy core: merge arrivals, completions and timers, and carry decisions out.

Arrivals are read from the sorted trace and never pushed anywhere; each batch slot has at most one pending completion;
the core has one next timer. At equal times completions come first, then timers, faults, clients, and arrivals; among
completions the lower slot. The loop decides nothing.

A trace may come in parts. The loop stops before the first event after a part's last arrival; the next part begins with
the rows of requests that are still inside, so that a part knows all it may be asked about.
"""

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import desk, events
from loadslice.policy.kernel import entry, kernel, rare
from loadslice.policy.tables import Int64s, State, Tables
from loadslice.sim import clients
from loadslice.sim.attempts import ask_alike, attempt, attempt_apart
from loadslice.sim.carry_out import carry_out
from loadslice.sim.clients import Behaviour, Diary
from loadslice.sim.clockwork import Clockwork, change_speed, set_done
from loadslice.sim.faults import DOWN, FAULT_AT_NS, FAULT_ENGINE, FAULT_KIND, FAULT_PPM, PACE, UP
from loadslice.sim.record import (
    A_END_NS,
    A_OUTCOME,
    A_START_NS,
    N_CALLS,
    N_EFFECTS,
    N_EVENTS,
    N_FAULTS,
    Q_WORK,
    T_DONE_NS,
    Record,
    Traffic,
    asked,
    log_event,
    row_of,
)
from loadslice.sim.scene import Scene
from loadslice.sim.service import Service
from loadslice.spec.outcome import Outcome

COMPLETED = int(Outcome.COMPLETED)

OVERFULL = -1
"""The event log had too little room; nothing else can stop a run."""


@kernel
def complete(
    now_ns: int, slot: int, tables: Tables, state: State, traffic: Traffic, clockwork: Clockwork, record: Record
) -> None:
    """Tell the core that a batch has ended, with what its members ask of the next stage."""
    results = clockwork.results
    stage = state.batches[slot, c.B_STAGE]
    epoch = state.batches[slot, c.B_EPOCH]
    last = stage + 1 == tables.stages.shape[0]
    following = stage if last else stage + 1
    rows = traffic.arrival_ns.shape[0]
    log_event(record, (events.BATCH_DONE, now_ns, slot, epoch))
    # After the last stage nobody asks what its members ask next, unless it is to be written down.
    if not last or record.events.shape[0] > 0:
        for member in range(state.batches[slot, c.B_COUNT]):
            row = row_of(traffic, state.members[slot, member, c.M_TAG])
            work = asked(traffic, row if row < rows else row % rows, Q_WORK)
            results[member, 0] = traffic.items[work, following]
            results[member, 1] = traffic.bucket[work, following]
            log_event(record, (events.RESULT, now_ns, results[member, 0], results[member, 1]))
    # What the last stage has done is said by an outcome.
    if not last and record.timeline.shape[0] > 0:
        for member in range(state.batches[slot, c.B_COUNT]):
            belongs = state.members[slot, member]
            # One that has left the batch meanwhile runs elsewhere, or has ended.
            if state.requests[belongs[c.M_REQUEST], c.R_EPOCH] == belongs[c.M_EPOCH]:
                record.timeline[row_of(traffic, belongs[c.M_TAG]), stage, T_DONE_NS] = now_ns
    clockwork.running[slot] = 0
    desk.on_batch_done(now_ns, tables, state, slot, epoch, results)


@rare
def client_acts(
    now_ns: int,
    seed: int,
    tables: Tables,
    state: State,
    traffic: Traffic,
    behaviour: Behaviour,
    diary: Diary,
    clockwork: Clockwork,
    record: Record,
) -> bool:
    """The first thing that clients have planned happens; their trace is in one part, so that tags are rows.

    Returns:
        Whether the core was called.
    """
    requests = traffic.arrival_ns.shape[0]
    tag = diary.heap[0, clients.H_TAG]
    kind = diary.heap[0, clients.H_KIND]
    clients.drop_first(diary)
    if kind == clients.ATTEMPT:
        attempt_apart(now_ns, seed, tag, tables, state, traffic, behaviour, diary, clockwork, record)
        return True
    known = record.attempts[tag]
    inside = known[A_OUTCOME] == 0
    if kind == clients.GIVE_UP and (inside or known[A_OUTCOME] != COMPLETED) and known[A_END_NS] <= now_ns:
        answered = not inside and known[A_END_NS] < known[A_START_NS] + behaviour.timeout_ns
        if not answered:
            clients.come_back(now_ns, seed, behaviour, diary, tag, requests, 0)
    if inside and behaviour.cancels == 1:
        log_event(record, (events.CANCEL, now_ns, diary.row[tag], tag))
        desk.on_cancel(now_ns, tables, state, diary.row[tag], tag)
        return True
    return False


@rare
def befall(
    now_ns: int, change: Int64s, tables: Tables, state: State, service: Service, clockwork: Clockwork, record: Record
) -> bool:
    """Something changes about an engine.

    Returns:
        Whether the core was told.
    """
    engine = change[FAULT_ENGINE]
    kind = change[FAULT_KIND]
    if kind == PACE:
        clockwork.pace_ppm[engine] = change[FAULT_PPM]
        change_speed(now_ns, service, state, clockwork)
        return False
    if kind == DOWN:
        for slot in range(clockwork.running.shape[0]):
            if state.batches[slot, c.B_ENGINE] == engine:
                clockwork.running[slot] = 0
                set_done(clockwork, slot, c.FOREVER)
        log_event(record, (events.ENGINE_DOWN, now_ns, engine, 0))
        desk.on_engine_down(now_ns, tables, state, engine)
        return True
    if kind == UP:
        log_event(record, (events.ENGINE_UP, now_ns, engine, 0))
        desk.on_engine_up(now_ns, tables, state, engine)
        return True
    clockwork.wrong[engine] = change[FAULT_PPM]
    return False


@kernel
def due_ns(faults: Int64s, fault: int) -> int:
    """When a fault befalls; FOREVER: there are no more."""
    return int(faults[fault, FAULT_AT_NS]) if fault < faults.shape[0] else c.FOREVER


@entry(inlined=False)
def run(seed: int, scene: Scene) -> int:
    """Simulate to the end of the last request, or of a part that others follow.

    Args:
        seed: Start of every draw.
        scene: State, diary and clockwork are changed, the record is filled.

    Returns:
        Core calls made, or OVERFULL.
    """
    tables, state, service, energy = scene.tables, scene.state, scene.service, scene.energy
    traffic, faults, behaviour, diary = scene.traffic, scene.faults, scene.behaviour, scene.diary
    clockwork, record = scene.clockwork, scene.record
    rows = traffic.arrival_ns.shape[0]
    arrival = traffic.carried.shape[0]
    to_tag = traffic.first_tag - arrival
    fault = record.counts[N_FAULTS]
    fault_ns = due_ns(faults, fault)
    ask_alike(traffic, clockwork.asks)
    while arrival < rows or traffic.more == 0:
        done_slot = clockwork.earliest[1]
        done_ns = clockwork.done_ns[done_slot]
        timer_ns = state.counters[c.C_NEXT_TIMER_NS]
        client_ns = clients.due_ns(diary)
        arrival_ns = traffic.arrival_ns[arrival] if arrival < rows else c.FOREVER
        others_ns = min(done_ns, timer_ns, client_ns)
        is_arrival = arrival_ns < min(others_ns, fault_ns)
        # Faults after the last request change nothing, but one may be what a standing engine waits for.
        only_faults = not is_arrival and min(others_ns, arrival_ns) == c.FOREVER
        if only_faults and (fault_ns == c.FOREVER or state.counters[c.C_IN_SYSTEM] == 0):
            break
        now_ns = min(others_ns, fault_ns, arrival_ns)
        if record.events.shape[0] > 0 and (
            record.counts[N_EVENTS] + state.members.shape[1] + 2 > record.events.shape[0]
            or record.counts[N_EFFECTS] + state.effects.shape[0] > record.effects.shape[0]
        ):
            return OVERFULL
        called = True
        if is_arrival:
            attempt(
                now_ns, seed, arrival, arrival + to_tag, tables, state, traffic, behaviour, diary, clockwork, record
            )
            arrival += 1
        elif done_ns == now_ns:
            complete(now_ns, done_slot, tables, state, traffic, clockwork, record)
            if service.cores < np.inf:
                change_speed(now_ns, service, state, clockwork)
        elif timer_ns == now_ns:
            log_event(record, (events.TIMER, now_ns, 0, 0))
            desk.on_timer(now_ns, tables, state)
        elif fault_ns == now_ns:
            called = befall(now_ns, faults[fault], tables, state, service, clockwork, record)
            fault += 1
            fault_ns = due_ns(faults, fault)
            record.counts[N_FAULTS] = fault
        else:
            called = client_acts(now_ns, seed, tables, state, traffic, behaviour, diary, clockwork, record)
        if called:
            carry_out(now_ns, seed, state, service, energy, traffic, behaviour, diary, clockwork, record)
        # Mostly the slot has been given another batch by now, and plays its matches with that alone.
        if done_ns == now_ns and clockwork.running[done_slot] == 0:
            set_done(clockwork, done_slot, c.FOREVER)
    return int(record.counts[N_CALLS])
