"""Virtual time around the policy core: merge arrivals, completions and timers, and carry decisions out.

Arrivals are read from the sorted trace and never pushed anywhere; each batch slot has at most one pending completion;
the core has one next timer. At equal times completions come first, then timers, then arrivals; among completions the
lower slot. The loop decides nothing.

Engines of one machine slow each other: a running batch moves at ``1 / contention`` while another slot runs, and all
share the cores once busy threads outnumber them. Whenever the set of running batches changes, what is left of each is
carried over to the new speed.
"""

from typing import NamedTuple

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import desk, events
from loadslice.policy.kernel import kernel
from loadslice.policy.tables import Int64s, State, Tables
from loadslice.sim.service import Float64s, Service, draw_ns


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
    """What a run leaves behind."""

    outcome: Int64s
    """[N]"""
    reason: Int64s
    """[N]"""
    end_ns: Int64s
    """[N]"""
    hint_ns: Int64s
    """[N]"""
    timeline: Int64s
    """[N or 0, S, TIMELINE_COLUMNS]"""
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

OVERFULL = -1
"""The event log had too little room; nothing else can stop a run."""


class Clockwork(NamedTuple):
    """Completions in flight. One row per batch slot."""

    done_ns: Int64s
    """[slots] FOREVER when idle"""
    left_ns: Float64s
    """[slots] work left, in ns of having the machine to itself"""
    speed: Float64s
    """[slots] work done per ns"""
    since_ns: Int64s
    """[slots] when ``left_ns`` was true"""
    results: Int64s
    """[largest batch, 2] scratch: what a batch's members ask of the next stage"""


def idle_clockwork(state: State) -> Clockwork:
    """Nothing in flight. Made outside the loop: compiled code allocates nothing."""
    slots = len(state.batches)
    return Clockwork(
        np.full(slots, c.FOREVER, np.int64),
        np.zeros(slots),
        np.ones(slots),
        np.zeros(slots, np.int64),
        np.zeros((state.members.shape[1], 2), np.int64),
    )


@kernel
def log_event(record: Record, row: tuple[int, ...]) -> None:
    """Append one call to the event log."""
    at = record.counts[N_EVENTS]
    for column in range(len(row)):
        record.events[at, column] = row[column]
    record.counts[N_EVENTS] = at + 1


@kernel
def change_speed(now_ns: int, service: Service, state: State, clockwork: Clockwork) -> None:
    """Carry what is left of every running batch over to the speed of the present company."""
    busy = 0
    threads = 0
    for slot in range(clockwork.done_ns.shape[0]):
        if clockwork.done_ns[slot] < c.FOREVER:
            sharing = service.threads[state.batches[slot, c.B_ENGINE]]
            threads += sharing
            busy += 1 if sharing > 0 else 0
    crowding = max(1.0, threads / service.cores)
    for slot in range(clockwork.done_ns.shape[0]):
        if clockwork.done_ns[slot] == c.FOREVER:
            continue
        batch = state.batches[slot]
        engine = batch[c.B_ENGINE]
        speed = 1.0
        if service.threads[engine] > 0:
            if busy > 1:
                speed = 1.0 / service.contention[batch[c.B_STAGE], engine, batch[c.B_BUCKET]]
            speed /= crowding
        if speed == clockwork.speed[slot]:
            continue
        clockwork.left_ns[slot] -= (now_ns - clockwork.since_ns[slot]) * clockwork.speed[slot]
        clockwork.since_ns[slot] = now_ns
        clockwork.speed[slot] = speed
        clockwork.done_ns[slot] = now_ns + max(1, int(clockwork.left_ns[slot] / speed + 0.5))


@kernel
def carry_out(now_ns: int, seed: int, state: State, service: Service, clockwork: Clockwork, record: Record) -> None:
    """Do what the core has just said."""
    shared = service.cores < np.inf
    started = False
    timed = record.timeline.shape[0] > 0
    for index in range(state.counters[c.C_EFFECTS]):
        effect = state.effects[index]
        kind = effect[c.F_KIND]
        if record.effects.shape[0] > 0:
            for column in range(c.EFFECT_COLUMNS):
                record.effects[record.counts[N_EFFECTS], column] = effect[column]
            record.counts[N_EFFECTS] += 1
        if kind == c.DISPATCH:
            slot = effect[c.F_TAG]
            batch = state.batches[slot]
            stage = effect[c.F_B]
            first = state.members[slot, 0, c.M_TAG]
            took_ns = draw_ns(service, seed, first, stage, effect[c.F_A], batch[c.B_BUCKET], batch[c.B_ROWS])
            clockwork.done_ns[slot] = now_ns + max(1, int(took_ns + 0.5))
            clockwork.left_ns[slot] = took_ns
            clockwork.speed[slot] = 1.0
            clockwork.since_ns[slot] = now_ns
            started = True
            if timed:
                for member in range(batch[c.B_COUNT]):
                    line = record.timeline[state.members[slot, member, c.M_TAG], stage]
                    line[T_DISPATCHED_NS] = now_ns
                    line[T_BATCH_ROWS] = batch[c.B_ROWS]
        elif kind == c.PLACED:
            seen = state.engines[effect[c.F_B], c.N_QUEUED]
            record.queue_seen[effect[c.F_B], min(seen, QUEUE_SEEN - 1)] += 1
            if timed:
                line = record.timeline[effect[c.F_TAG], effect[c.F_A]]
                line[T_ENGINE] = effect[c.F_B]
                line[T_REASON] = effect[c.F_C]
                line[T_ENQUEUED_NS] = now_ns
        elif kind == c.OUTCOME:
            tag = effect[c.F_TAG]
            record.outcome[tag] = effect[c.F_A]
            record.reason[tag] = effect[c.F_B]
            record.hint_ns[tag] = effect[c.F_C]
            record.end_ns[tag] = now_ns
    record.counts[N_CALLS] += 1
    if shared and started:
        change_speed(now_ns, service, state, clockwork)


@kernel
def complete(
    now_ns: int,
    slot: int,
    tables: Tables,
    state: State,
    traffic: Traffic,
    clockwork: Clockwork,
    record: Record,
) -> None:
    """Tell the core that a batch has ended, with what its members ask of the next stage."""
    results = clockwork.results
    stage = state.batches[slot, c.B_STAGE]
    count = state.batches[slot, c.B_COUNT]
    epoch = state.batches[slot, c.B_EPOCH]
    following = min(stage + 1, tables.stages.shape[0] - 1)
    logged = record.events.shape[0] > 0
    if logged:
        log_event(record, (events.BATCH_DONE, now_ns, slot, epoch))
    for member in range(count):
        tag = state.members[slot, member, c.M_TAG]
        work = traffic.work[tag]
        results[member, 0] = traffic.items[work, following]
        results[member, 1] = traffic.bucket[work, following]
        if logged:
            log_event(record, (events.RESULT, now_ns, results[member, 0], results[member, 1]))
        if record.timeline.shape[0] > 0:
            record.timeline[tag, stage, T_DONE_NS] = now_ns
    clockwork.done_ns[slot] = c.FOREVER
    desk.on_batch_done(now_ns, tables, state, slot, epoch, results)


@kernel
def run(
    seed: int, tables: Tables, state: State, service: Service, traffic: Traffic, clockwork: Clockwork, record: Record
) -> int:
    """Simulate to the end of the last request.

    Args:
        seed: Start of every draw.
        tables: What never changes.
        state: Fresh; idle again afterwards.
        service: Service-time distributions.
        traffic: Requests.
        clockwork: From `idle_clockwork`; changed.
        record: Filled.

    Returns:
        Core calls made, or OVERFULL.
    """
    slots = state.batches.shape[0]
    requests = traffic.arrival_ns.shape[0]
    logged = record.events.shape[0] > 0
    shared = service.cores < np.inf
    arrival = 0
    while True:
        done_slot = 0
        done_ns = clockwork.done_ns[0]
        for slot in range(1, slots):
            if clockwork.done_ns[slot] < done_ns:
                done_ns = clockwork.done_ns[slot]
                done_slot = slot
        timer_ns = desk.next_timer_ns(state)
        arrival_ns = traffic.arrival_ns[arrival] if arrival < requests else c.FOREVER
        now_ns = min(done_ns, timer_ns, arrival_ns)
        if now_ns == c.FOREVER:
            return int(record.counts[N_CALLS])
        if logged and (
            record.counts[N_EVENTS] + state.members.shape[1] + 2 > record.events.shape[0]
            or record.counts[N_EFFECTS] + state.effects.shape[0] > record.effects.shape[0]
        ):
            return OVERFULL
        if done_ns == now_ns:
            complete(now_ns, done_slot, tables, state, traffic, clockwork, record)
            if shared:
                change_speed(now_ns, service, state, clockwork)
        elif timer_ns == now_ns:
            if logged:
                log_event(record, (events.TIMER, now_ns, 0, 0))
            desk.on_timer(now_ns, tables, state)
        else:
            work = traffic.work[arrival]
            relative_ns = traffic.deadline_ns[arrival]
            deadline_ns = arrival_ns + relative_ns if relative_ns < c.FOREVER else c.FOREVER
            items = traffic.items[work, 0]
            bucket = traffic.bucket[work, 0]
            tokens = traffic.tokens[arrival]
            source = traffic.source[arrival]
            priority = traffic.priority[arrival]
            precision = traffic.precision[arrival]
            if logged:
                log_event(
                    record,
                    (events.ARRIVAL, now_ns, arrival, priority, deadline_ns, items, bucket, tokens, source, precision),
                )
            desk.on_arrival(
                now_ns, tables, state, arrival, priority, deadline_ns, items, bucket, tokens, source, precision
            )
            arrival += 1
        carry_out(now_ns, seed, state, service, clockwork, record)
