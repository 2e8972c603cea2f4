"""Virtual time around the token desk: merge arrivals, steps, hand-overs and timers, and carry decisions out.

At equal times steps come first (the lower engine before the higher), then hand-overs, timers, faults, and arrivals.
The loop decides nothing. A request produces as many tokens as the trace says its answer had.

An engine does one thing at a time, in the order it is told: an export or import waits for the step that runs, and the
next step waits for it, as in an engine's process.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.policy.kernel import by_reference, entry, kernel, rare
from loadslice.policy.layout import Int64s
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.layout import State, Tables
from loadslice.sim.draws import normal, uniform
from loadslice.sim.prefix import Caches, found, keep

EXPORTED, IMPORTED = desk.EXPORTED, desk.IMPORTED

# A request's row of the result.
A_OUTCOME, A_REASON, A_ROUTE, A_PREFILL, A_DECODE, A_FIRST_NS, A_END_NS, A_PRODUCED, A_HIT, A_PLACED, ANSWER_COLUMNS = (
    range(11)
)

# A hand-over on its way.
H_ROW, H_EPOCH, H_EXPORTED_NS, H_IMPORTED_NS, H_HALF_NS, H_TO, HANDOVER_COLUMNS = range(7)

# A fault: engine down or up, or its steps take a share (ppm) of their time more.
X_AT_NS, X_ENGINE, X_KIND, X_PPM, FAULT_COLUMNS = range(5)
FAULT_DOWN, FAULT_UP, FAULT_SLOW = range(3)

GAP_BINS = 4096
GAP_BINS_PER_E = 128.0
"""Histogram of the time between two tokens: bins a 128th of a power of e wide, 0.8 %, from 1 us."""

# What a step takes: this, and this per token of a prompt, sequence that decodes, token before one that decodes, and
# token before one of a prompt, which many tokens read at once.
S_STEP, S_TOKEN, S_ROW, S_ATTEND, S_PROMPT_ATTEND, STEP_COSTS = range(6)

# Totals of an engine.
B_BUSY_NS, B_ROWS, BUSY_COLUMNS = range(3)


@by_reference
class Prompts(NamedTuple):
    """The trace, lowered. R requests."""

    arrival_ns: Int64s
    priority: Int64s
    prompt: Int64s
    produce: Int64s
    """Tokens that its answer has."""
    new_max: Int64s
    first_by_ns: Int64s
    """Absolute, FOREVER: any time."""
    deadline_ns: Int64s
    block_start: Int64s
    """[R + 1] where its prefix blocks begin in ``blocks``"""
    blocks: Int64s
    block_tokens: int


@by_reference
class World(NamedTuple):
    """What surrounds the desk."""

    costs: NDArray[np.float64]
    """[E, STEP_COSTS] what steps take, ns: not always what the desk is told to expect"""
    step_sd: NDArray[np.float64]
    """[E] spread of a step's time, as a share of it"""
    beside_ppm: Int64s
    """[E, E] how much longer a step of the first takes while the second computes"""
    shape: NDArray[np.float64]
    """[E, most seats + 1] what steps with so many decoding sequences take, in parts of what the settings say"""
    noise: NDArray[np.float64]
    """[E, points] quantiles of steps in parts of that; 0 first: they are drawn with ``step_sd``"""
    handover_sd: float
    faults: Int64s
    """[faults, FAULT_COLUMNS] in time order"""


@by_reference
class Record(NamedTuple):
    """What a run leaves."""

    answers: Int64s
    """[R, ANSWER_COLUMNS]"""
    gaps: Int64s
    """[E, GAP_BINS] times between two tokens of one sequence, by the engine that decoded"""
    busy: Int64s
    """[E, BUSY_COLUMNS]"""
    journal: Int64s
    """[2] rolling hash of all effects, and their number"""


@kernel
def gap_bin(gap_ns: int) -> int:
    """Which bin of the histogram a time falls into."""
    if gap_ns <= 1000:
        return 0
    return min(GAP_BINS - 1, int(math.log(gap_ns / 1000.0) * GAP_BINS_PER_E))


@kernel
def drawn_ns(seed: int, world: World, state: State, engine: int, slow_ppm: int, steps: int) -> int:
    """Time that the step which just began takes: by its costs, never by what the desk has learned of it."""
    costs = world.costs[engine]
    decoding = 0
    time_ns = costs[S_STEP]
    for place in range(state.engines[engine, c.N_STEPPING]):
        row = state.rows[engine, place]
        sequence = state.sequences[row[c.P_SEQUENCE]]
        tokens = row[c.P_TOKENS]
        pairs = tokens * sequence[c.Q_COMPUTED] + tokens * tokens // 2
        if sequence[c.Q_FILLING] == 0:
            decoding += 1
            time_ns += costs[S_ROW] + pairs * costs[S_ATTEND]
        else:
            time_ns += tokens * costs[S_TOKEN] + pairs * costs[S_PROMPT_ATTEND]
    factor = slow_ppm / 1e6 * world.shape[engine, decoding]
    for other in range(state.engines.shape[0]):
        if other != engine and state.engines[other, c.N_STEPPING] > 0:
            factor *= 1.0 + world.beside_ppm[engine, other] / 1e6
    sd = world.step_sd[engine]
    if world.noise[engine, 0] > 0.0:
        place_of = uniform(seed, steps, engine) * (world.noise.shape[1] - 1)
        below = int(place_of)
        least, most = world.noise[engine, below], world.noise[engine, min(below + 1, world.noise.shape[1] - 1)]
        factor *= least + (place_of - below) * (most - least)
    elif sd > 0.0:
        # Lognormal with mean 1.
        spread = math.sqrt(math.log(1.0 + sd * sd))
        factor *= math.exp(spread * normal(seed, steps, engine) - 0.5 * spread * spread)
    return max(1, int(time_ns * factor))


@rare
def carry_out(
    now_ns: int,
    seed: int,
    tables: Tables,
    state: State,
    world: World,
    record: Record,
    step_ends_ns: Int64s,
    slow_ppm: Int64s,
    free_ns: Int64s,
    handovers: Int64s,
    inside: Int64s,
) -> None:
    """Do what the desk has just said, in order. ``inside``: [N] request of each sequence row."""
    digest = record.journal[0]
    for index in range(state.counters[c.C_EFFECTS]):
        effect = state.effects[index]
        for column in range(c.EFFECT_COLUMNS):
            digest = (digest * 1_000_003 + effect[column]) & 0x7FFFFFFFFFF
        kind, tag, row = effect[c.F_KIND], effect[c.F_TAG], effect[c.F_ROW]
        if kind == c.PLACED:
            answer = record.answers[tag]
            answer[A_ROUTE] = effect[c.F_C]
            answer[A_PREFILL] = effect[c.F_A]
            answer[A_DECODE] = effect[c.F_B]
            if answer[A_PLACED] == 0:
                answer[A_HIT] = state.sequences[row, c.Q_HIT]
            answer[A_PLACED] += 1
            inside[row] = tag
        elif kind == c.STEP:
            engine = effect[c.F_A]
            steps = state.engines[engine, c.N_STEPS]
            took_ns = drawn_ns(seed, world, state, engine, slow_ppm[engine], steps)
            step_ends_ns[engine] = max(now_ns, free_ns[engine]) + took_ns
            record.busy[engine, B_BUSY_NS] += took_ns
            record.busy[engine, B_ROWS] += effect[c.F_C]
        elif kind == c.HAND_OVER:
            place = 0
            while handovers[place, H_ROW] >= 0:
                place += 1
            link = tables.links[effect[c.F_A], effect[c.F_B]]
            took_ns = link[c.K_BASE_NS] + state.sequences[row, c.Q_COMPUTED] * link[c.K_TOKEN_NS]
            if world.handover_sd > 0.0:
                took_ns = int(took_ns * math.exp(world.handover_sd * normal(seed, tag, 77)))
            source = effect[c.F_A]
            began_ns = max(now_ns, free_ns[source])
            if step_ends_ns[source] < c.FOREVER:
                began_ns = max(began_ns, step_ends_ns[source])
            handovers[place, H_ROW] = row
            handovers[place, H_EPOCH] = effect[c.F_C]
            handovers[place, H_EXPORTED_NS] = began_ns + took_ns // 2
            handovers[place, H_IMPORTED_NS] = c.FOREVER
            handovers[place, H_HALF_NS] = took_ns - took_ns // 2
            handovers[place, H_TO] = effect[c.F_B]
            free_ns[source] = began_ns + took_ns // 2
        elif kind == c.ENDED:
            answer = record.answers[tag]
            answer[A_OUTCOME] = effect[c.F_A]
            answer[A_REASON] = effect[c.F_B]
            answer[A_END_NS] = now_ns
            if row >= 0:
                answer[A_FIRST_NS] = state.sequences[row, c.Q_FIRST_NS]
                answer[A_PRODUCED] = state.sequences[row, c.Q_PRODUCED]
    record.journal[0] = digest
    record.journal[1] += state.counters[c.C_EFFECTS]


@rare
def step_end(
    now_ns: int,
    tables: Tables,
    state: State,
    prompts: Prompts,
    caches: Caches,
    record: Record,
    ends: Int64s,
    inside: Int64s,
    engine: int,
) -> None:
    """An engine's step has ended: say which sequences end with it, and count the times between tokens."""
    rows = state.engines[engine, c.N_STEPPING]
    for place in range(rows):
        sequence = state.rows[engine, place, c.P_SEQUENCE]
        produced = state.sequences[sequence, c.Q_PRODUCED]
        ends[place] = 1 if produced + 1 >= prompts.produce[inside[sequence]] else 0
        if produced == 0 and state.rows[engine, place, c.P_SAMPLES] == 1:
            request = inside[sequence]
            keep(caches, engine, prompts.blocks[prompts.block_start[request] : prompts.block_start[request + 1]])
    desk.on_step_done(now_ns, tables, state, engine, state.engines[engine, c.N_EPOCH], ends)
    for place in range(rows):
        if state.gaps[engine, place] >= 0:
            record.gaps[engine, gap_bin(state.gaps[engine, place])] += 1


@entry(inlined=False)
def run(
    seed: int,
    tables: Tables,
    state: State,
    prompts: Prompts,
    world: World,
    caches: Caches,
    record: Record,
    step_ends_ns: Int64s,
    slow_ppm: Int64s,
    free_ns: Int64s,
    handovers: Int64s,
    inside: Int64s,
    ends: Int64s,
    hits: Int64s,
) -> int:
    """Run a whole trace.

    Args:
        seed: Of every draw.
        tables: Lowered.
        state: Fresh; changed.
        prompts: In order of arrival.
        world: What surrounds the desk.
        caches: Prefix caches, changed.
        record: Zeroed; filled.
        step_ends_ns: [E] scratch, FOREVER.
        slow_ppm: [E] scratch, PPM.
        free_ns: [E] scratch, zeros: when an engine is done with the exports and imports it has been told of.
        handovers: [slots of all links + 1, HANDOVER_COLUMNS] scratch, rows -1.
        inside: [N] scratch.
        ends: [R] scratch.
        hits: [E] scratch.

    Returns:
        Virtual time when the last request had ended, ns.
    """
    engines = tables.engines.shape[0]
    arrived, total = 0, prompts.arrival_ns.shape[0]
    fault = 0
    now_ns = 0
    while arrived < total or state.counters[c.C_IN_SYSTEM] > 0:
        at_ns, kind, which = c.FOREVER, -1, 0
        for engine in range(engines):
            if step_ends_ns[engine] < at_ns:
                at_ns, kind, which = step_ends_ns[engine], 0, engine
        for place in range(handovers.shape[0]):
            if handovers[place, H_ROW] >= 0:
                due_ns = min(handovers[place, H_EXPORTED_NS], handovers[place, H_IMPORTED_NS])
                if due_ns < at_ns:
                    at_ns, kind, which = due_ns, 1, place
        timer_ns = desk.next_timer_ns(state)
        if timer_ns < at_ns:
            at_ns, kind = timer_ns, 2
        if fault < world.faults.shape[0] and world.faults[fault, X_AT_NS] < at_ns:
            at_ns, kind = world.faults[fault, X_AT_NS], 3
        if arrived < total and prompts.arrival_ns[arrived] < at_ns:
            at_ns, kind = prompts.arrival_ns[arrived], 4
        if kind < 0:
            break
        now_ns = at_ns
        state.counters[c.C_EFFECTS] = 0
        if kind == 0:
            step_ends_ns[which] = c.FOREVER
            step_end(now_ns, tables, state, prompts, caches, record, ends, inside, which)
        elif kind == 1:
            flight = handovers[which]
            row, epoch = flight[H_ROW], flight[H_EPOCH]
            if flight[H_EXPORTED_NS] < c.FOREVER and flight[H_EXPORTED_NS] <= flight[H_IMPORTED_NS]:
                flight[H_EXPORTED_NS] = c.FOREVER
                target = flight[H_TO]
                begins_ns = max(now_ns, free_ns[target])
                if step_ends_ns[target] < c.FOREVER:
                    begins_ns = max(begins_ns, step_ends_ns[target])
                flight[H_IMPORTED_NS] = begins_ns + flight[H_HALF_NS]
                free_ns[target] = flight[H_IMPORTED_NS]
                desk.on_handover(now_ns, tables, state, row, epoch, EXPORTED)
            else:
                flight[H_ROW] = -1
                desk.on_handover(now_ns, tables, state, row, epoch, IMPORTED)
        elif kind == 2:
            desk.on_timer(now_ns, tables, state)
        elif kind == 3:
            what = world.faults[fault]
            engine = what[X_ENGINE]
            if what[X_KIND] == FAULT_DOWN:
                step_ends_ns[engine] = c.FOREVER
                free_ns[engine] = now_ns
                desk.on_engine_down(now_ns, tables, state, engine)
            elif what[X_KIND] == FAULT_UP:
                desk.on_engine_up(now_ns, tables, state, engine)
            else:
                slow_ppm[engine] = what[X_PPM]
            fault += 1
        else:
            first, last = prompts.block_start[arrived], prompts.block_start[arrived + 1]
            prompt = prompts.prompt[arrived]
            for engine in range(engines):
                cached = found(caches, engine, prompts.blocks[first:last]) * prompts.block_tokens
                hits[engine] = min(cached, prompt - 1)
            desk.on_arrival(
                now_ns,
                tables,
                state,
                arrived,
                prompts.priority[arrived],
                prompt,
                prompts.new_max[arrived],
                prompts.first_by_ns[arrived],
                prompts.deadline_ns[arrived],
                hits,
            )
            arrived += 1
        carry_out(now_ns, seed, tables, state, world, record, step_ends_ns, slow_ppm, free_ns, handovers, inside)
    return now_ns
