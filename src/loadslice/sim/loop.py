"""Virtual time around the policy core: merge arrivals, completions and timers, and carry decisions out.

Arrivals are read from the sorted trace and never pushed anywhere; each batch slot has at most one pending completion;
the core has one next timer. At equal times completions come first, then timers, faults, clients, and arrivals; among
completions the lower slot. The loop decides nothing.
"""

from typing import NamedTuple

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import desk, events
from loadslice.policy.kernel import entry, kernel
from loadslice.policy.versions import NO_KEY
from loadslice.policy.tables import Int64s, State, Tables
from loadslice.sim import clients
from loadslice.sim.clients import Behaviour, Diary
from loadslice.sim.clockwork import Clockwork, change_speed, set_speed
from loadslice.sim.faults import DOWN, FAULT_AT_NS, FAULT_ENGINE, FAULT_KIND, FAULT_PPM, PACE, UP
from loadslice.sim.service import Service, slot_ns
from loadslice.spec.outcome import Outcome


class Traffic(NamedTuple):
    """Requests in arrival order. N requests, W kinds of work, S stages."""

    arrival_ns: Int64s
    """[N] not falling"""
    priority: Int64s
    """[N]"""
    deadline_ns: Int64s
    """[N] relative to arrival; FOREVER for none"""
    tokens: Int64s
    """[N] -1 unknown"""
    source: Int64s
    """[N]"""
    precision: Int64s
    """[N]"""
    work: Int64s
    """[N] row of ``items`` and ``bucket``"""
    items: Int64s
    """[W, S]"""
    bucket: Int64s
    """[W, S]"""


class Record(NamedTuple):
    """What a run leaves behind. A attempts: as many as requests unless clients come back."""

    start_ns: Int64s
    """[A] when the attempt reached the core; -1: it never did"""
    outcome: Int64s
    """[A]"""
    reason: Int64s
    """[A]"""
    end_ns: Int64s
    """[A]"""
    hint_ns: Int64s
    """[A]"""
    wrong: Int64s
    """[A] 1 when an engine answered it wrongly at some stage"""
    timeline: Int64s
    """[A or 0, S, TIMELINE_COLUMNS]"""
    queue_seen: Int64s
    """[E, QUEUE_SEEN] how often a placement found that many waiting, itself included"""
    events: Int64s
    """[capacity or 0, EVENT_COLUMNS]"""
    effects: Int64s
    """[capacity or 0, EFFECT_COLUMNS]"""
    counts: Int64s
    """[3] event rows, effect rows, core calls"""


T_ENGINE, T_REASON, T_ENQUEUED_NS, T_DISPATCHED_NS, T_DONE_NS, T_BATCH_ROWS, TIMELINE_COLUMNS = range(7)
QUEUE_SEEN = 1024
N_EVENTS, N_EFFECTS, N_CALLS = range(3)
COMPLETED, CANCELLED = int(Outcome.COMPLETED), int(Outcome.CANCELLED)

OVERFULL = -1
"""The event log had too little room; nothing else can stop a run."""


@kernel
def log_event(record: Record, row: tuple[int, ...]) -> None:
    """Append one call to the event log, where one is kept."""
    if record.events.shape[0] == 0:
        return
    at = record.counts[N_EVENTS]
    for column in range(len(row)):
        record.events[at, column] = row[column]
    record.counts[N_EVENTS] = at + 1


@kernel
def start_batch(
    now_ns: int, seed: int, state: State, service: Service, clockwork: Clockwork, record: Record, slot: int
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
    clockwork.done_ns[slot] = now_ns + max(1, int(took_ns + 0.5))
    if clockwork.pace_ppm[engine] != c.PPM:
        pace = clockwork.pace_ppm[engine]
        set_speed(now_ns, clockwork, slot, c.PPM / pace if pace > 0 else 0.0)
    timed = record.timeline.shape[0] > 0
    if timed or clockwork.wrong[engine] == 1:
        for member in range(batch[c.B_COUNT]):
            tag = state.members[slot, member, c.M_TAG]
            record.wrong[tag] |= clockwork.wrong[engine]
            if timed:
                record.timeline[tag, stage, T_DISPATCHED_NS] = now_ns
                record.timeline[tag, stage, T_BATCH_ROWS] = batch[c.B_ROWS]


@kernel
def carry_out(
    now_ns: int,
    seed: int,
    state: State,
    service: Service,
    behaviour: Behaviour,
    diary: Diary,
    clockwork: Clockwork,
    record: Record,
    requests: int,
) -> None:
    """Do what the core has just said."""
    started = False
    for index in range(state.counters[c.C_EFFECTS]):
        effect = state.effects[index]
        kind = effect[c.F_KIND]
        tag = effect[c.F_TAG]
        if record.effects.shape[0] > 0:
            for column in range(c.EFFECT_COLUMNS):
                record.effects[record.counts[N_EFFECTS], column] = effect[column]
            record.counts[N_EFFECTS] += 1
        if kind == c.DISPATCH:
            start_batch(now_ns, seed, state, service, clockwork, record, tag)
            started = True
        elif kind == c.PLACED:
            seen = state.engines[effect[c.F_B], c.N_QUEUED]
            record.queue_seen[effect[c.F_B], min(seen, QUEUE_SEEN - 1)] += 1
            if diary.row.shape[0] > 0:
                diary.row[tag] = effect[c.F_D]
            if record.timeline.shape[0] > 0:
                line = record.timeline[tag, effect[c.F_A]]
                line[T_ENGINE] = effect[c.F_B]
                line[T_REASON] = effect[c.F_C]
                line[T_ENQUEUED_NS] = now_ns
        elif kind == c.OUTCOME:
            record.outcome[tag] = effect[c.F_A]
            record.reason[tag] = effect[c.F_B]
            record.hint_ns[tag] = effect[c.F_C]
            record.end_ns[tag] = now_ns
            # A client that is still there hears of it, and may come back; one that has cancelled planned that itself.
            refused = effect[c.F_A] != COMPLETED and effect[c.F_A] != CANCELLED
            if behaviour.timeout_ns > 0 and refused and now_ns < record.start_ns[tag] + behaviour.timeout_ns:
                clients.come_back(now_ns, seed, behaviour, diary, tag, requests, effect[c.F_C])
    record.counts[N_CALLS] += 1
    if started and service.cores < np.inf:
        change_speed(now_ns, service, state, clockwork)


@kernel
def complete(
    now_ns: int, slot: int, tables: Tables, state: State, traffic: Traffic, clockwork: Clockwork, record: Record
) -> None:
    """Tell the core that a batch has ended, with what its members ask of the next stage."""
    results = clockwork.results
    stage = state.batches[slot, c.B_STAGE]
    epoch = state.batches[slot, c.B_EPOCH]
    following = min(stage + 1, tables.stages.shape[0] - 1)
    requests = traffic.arrival_ns.shape[0]
    log_event(record, (events.BATCH_DONE, now_ns, slot, epoch))
    for member in range(state.batches[slot, c.B_COUNT]):
        tag = state.members[slot, member, c.M_TAG]
        work = traffic.work[tag if tag < requests else tag % requests]
        results[member, 0] = traffic.items[work, following]
        results[member, 1] = traffic.bucket[work, following]
        log_event(record, (events.RESULT, now_ns, results[member, 0], results[member, 1]))
        if record.timeline.shape[0] > 0:
            record.timeline[tag, stage, T_DONE_NS] = now_ns
    clockwork.running[slot] = 0
    clockwork.done_ns[slot] = c.FOREVER
    desk.on_batch_done(now_ns, tables, state, slot, epoch, results)


@kernel
def attempt(
    now_ns: int,
    seed: int,
    tag: int,
    tables: Tables,
    state: State,
    traffic: Traffic,
    behaviour: Behaviour,
    diary: Diary,
    record: Record,
) -> None:
    """An attempt of a request arrives."""
    requests = traffic.arrival_ns.shape[0]
    logical = tag if tag < requests else tag % requests
    number = 1 if tag < requests else tag // requests + 1
    relative_ns = traffic.deadline_ns[logical]
    if behaviour.timeout_ns > 0:
        clients.start_waiting(now_ns, seed, behaviour, diary, tag)
        if behaviour.states_deadline == 1:
            relative_ns = min(relative_ns, behaviour.timeout_ns)
        if behaviour.states_attempt == 0:
            number = 1
    deadline_ns = now_ns + relative_ns if relative_ns < c.FOREVER else c.FOREVER
    work = traffic.work[logical]
    items = traffic.items[work, 0]
    bucket = traffic.bucket[work, 0]
    tokens = traffic.tokens[logical]
    source = traffic.source[logical]
    priority = traffic.priority[logical]
    precision = traffic.precision[logical]
    record.start_ns[tag] = now_ns
    log_event(
        record,
        (events.ARRIVAL, now_ns, tag, priority, deadline_ns, items, bucket, tokens, source, precision, number, 0, NO_KEY),
    )
    desk.on_arrival(
        now_ns, tables, state, tag, priority, deadline_ns, items, bucket, tokens, source, precision, number, 0, NO_KEY
    )


@kernel
def client_acts(
    now_ns: int,
    seed: int,
    tables: Tables,
    state: State,
    traffic: Traffic,
    behaviour: Behaviour,
    diary: Diary,
    record: Record,
) -> bool:
    """The first thing that clients have planned happens.

    Returns:
        Whether the core was called.
    """
    requests = traffic.arrival_ns.shape[0]
    tag = diary.heap[0, clients.H_TAG]
    kind = diary.heap[0, clients.H_KIND]
    clients.drop_first(diary)
    if kind == clients.ATTEMPT:
        attempt(now_ns, seed, tag, tables, state, traffic, behaviour, diary, record)
        return True
    inside = record.outcome[tag] == 0
    if kind == clients.GIVE_UP and (inside or record.outcome[tag] != COMPLETED) and record.end_ns[tag] <= now_ns:
        answered = not inside and record.end_ns[tag] < record.start_ns[tag] + behaviour.timeout_ns
        if not answered:
            clients.come_back(now_ns, seed, behaviour, diary, tag, requests, 0)
    if inside and behaviour.cancels == 1:
        log_event(record, (events.CANCEL, now_ns, diary.row[tag], tag))
        desk.on_cancel(now_ns, tables, state, diary.row[tag], tag)
        return True
    return False


@kernel
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
                clockwork.done_ns[slot] = c.FOREVER
        log_event(record, (events.ENGINE_DOWN, now_ns, engine, 0))
        desk.on_engine_down(now_ns, tables, state, engine)
        return True
    if kind == UP:
        log_event(record, (events.ENGINE_UP, now_ns, engine, 0))
        desk.on_engine_up(now_ns, tables, state, engine)
        return True
    clockwork.wrong[engine] = change[FAULT_PPM]
    return False


@entry(inlined=False)
def run(
    seed: int,
    tables: Tables,
    state: State,
    service: Service,
    traffic: Traffic,
    faults: Int64s,
    behaviour: Behaviour,
    diary: Diary,
    clockwork: Clockwork,
    record: Record,
) -> int:
    """Simulate to the end of the last request.

    Args:
        seed: Start of every draw.
        tables: What never changes.
        state: Fresh; idle again afterwards.
        service: Service-time distributions.
        traffic: Requests.
        faults: [changes, FAULT_COLUMNS] in order of time.
        behaviour: Clients.
        diary: From `clients.empty_diary`; changed.
        clockwork: From `idle_clockwork`; changed.
        record: Filled.

    Returns:
        Core calls made, or OVERFULL.
    """
    slots = state.batches.shape[0]
    requests = traffic.arrival_ns.shape[0]
    arrival = 0
    fault = 0
    while True:
        done_slot = 0
        done_ns = clockwork.done_ns[0]
        for slot in range(1, slots):
            if clockwork.done_ns[slot] < done_ns:
                done_ns = clockwork.done_ns[slot]
                done_slot = slot
        timer_ns = state.counters[c.C_NEXT_TIMER_NS]
        client_ns = clients.due_ns(diary)
        arrival_ns = traffic.arrival_ns[arrival] if arrival < requests else c.FOREVER
        work_ns = min(done_ns, timer_ns, client_ns, arrival_ns)
        fault_ns = faults[fault, FAULT_AT_NS] if fault < faults.shape[0] else c.FOREVER
        # Faults after the last request change nothing, but one may be what a standing engine waits for.
        if work_ns == c.FOREVER and (fault_ns == c.FOREVER or state.counters[c.C_IN_SYSTEM] == 0):
            return int(record.counts[N_CALLS])
        now_ns = min(work_ns, fault_ns)
        if record.events.shape[0] > 0 and (
            record.counts[N_EVENTS] + state.members.shape[1] + 2 > record.events.shape[0]
            or record.counts[N_EFFECTS] + state.effects.shape[0] > record.effects.shape[0]
        ):
            return OVERFULL
        called = True
        if done_ns == now_ns:
            complete(now_ns, done_slot, tables, state, traffic, clockwork, record)
            if service.cores < np.inf:
                change_speed(now_ns, service, state, clockwork)
        elif timer_ns == now_ns:
            log_event(record, (events.TIMER, now_ns, 0, 0))
            desk.on_timer(now_ns, tables, state)
        elif fault_ns == now_ns:
            called = befall(now_ns, faults[fault], tables, state, service, clockwork, record)
            fault += 1
        elif client_ns == now_ns:
            called = client_acts(now_ns, seed, tables, state, traffic, behaviour, diary, record)
        else:
            attempt(now_ns, seed, arrival, tables, state, traffic, behaviour, diary, record)
            arrival += 1
        if called:
            carry_out(now_ns, seed, state, service, behaviour, diary, clockwork, record, requests)
