"""What engines do with what the token desk says: steps at the pace that they have, hand-overs, faults.

An engine does one thing at a time, in the order it is told: an export or import waits for the step that runs, and the
next step waits for it, as in an engine's process. A step that runs goes on at the pace that its engine has: slower
while a neighbour computes or a fault says so, and only so long.
"""

import math

from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import Int64s
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.layout import State, Tables
from loadslice.sim.draws import normal, uniform
from loadslice.sim.language_layout import (
    A_DECODE,
    A_END_NS,
    A_FIRST_NS,
    A_HIT,
    A_OUTCOME,
    A_PLACED,
    A_PREFILL,
    A_PRODUCED,
    A_REASON,
    A_ROUTE,
    B_BUSY_NS,
    B_ROWS,
    COLD_AFTER_NS,
    FAULT_DOWN,
    FAULT_HANG,
    FAULT_SLOW,
    FAULT_UP,
    H_EPOCH,
    H_EXPORTED_NS,
    H_HALF_NS,
    H_IMPORTED_NS,
    H_ROW,
    H_TO,
    S_ATTEND,
    S_PROMPT_ATTEND,
    S_ROW,
    S_STEP,
    S_TOKEN,
    STILL,
    X_ENGINE,
    X_KIND,
    X_PPM,
    Float64s,
    Hands,
    Prompts,
    Record,
    World,
    gap_bin,
)
from loadslice.sim.prefix import Caches, keep


@kernel
def part_of(quantiles: Float64s, place: float) -> float:
    """The value that a share of all is below, between two quantiles on a line."""
    at = place * (quantiles.shape[0] - 1)
    below = int(at)
    least, most = quantiles[below], quantiles[min(below + 1, quantiles.shape[0] - 1)]
    return float(least + (at - below) * (most - least))


@kernel
def tokens_of(state: State, engine: int) -> int:
    """Tokens of the step that just began."""
    tokens = 0
    for place in range(state.engines[engine, c.N_STEPPING]):
        tokens += state.rows[engine, place, c.P_TOKENS]
    return int(tokens)


@kernel
def drawn_ns(seed: int, world: World, state: State, engine: int, more_ns: int) -> int:
    """Time that the step which just began takes alone: by its costs, never by what the desk has learned of it.

    ``more_ns`` is what it takes longer for how its engine comes to it.
    """
    costs = world.costs[engine]
    steps = state.engines[engine, c.N_STEPS]
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
    time_ns = time_ns * world.shape[engine, decoding] + more_ns
    sd = world.step_sd[engine]
    if world.noise[engine, 0] > 0.0:
        time_ns *= part_of(world.noise[engine], uniform(seed, steps, engine))
    elif sd > 0.0:
        # Lognormal with mean 1.
        spread = math.sqrt(math.log(1.0 + sd * sd))
        time_ns *= math.exp(spread * normal(seed, steps, engine) - 0.5 * spread * spread)
    return max(1, int(time_ns))


@kernel
def pace_of(world: World, state: State, hand: Hands, engine: int) -> float:
    """Times longer that an engine's steps take now, for its faults and for neighbours that compute."""
    pace = hand.slow_ppm[engine] / 1e6
    if hand.hung[engine] > 0:
        pace *= STILL
    for other in range(state.engines.shape[0]):
        if other != engine and state.engines[other, c.N_STEPPING] > 0:
            pace *= 1.0 + world.beside_ppm[engine, other] / 1e6
    return float(pace)


@rare
def retime(now_ns: int, world: World, state: State, hand: Hands) -> None:
    """Have what is left of every step go on at its engine's pace, and what waits for its end wait as much longer."""
    for engine in range(state.engines.shape[0]):
        ends_ns = hand.step_ends_ns[engine]
        if ends_ns == c.FOREVER:
            continue
        pace = pace_of(world, state, hand, engine)
        if pace == hand.pace[engine]:
            continue
        left_ns = ends_ns - max(now_ns, hand.step_began_ns[engine])
        later_ns = int(left_ns * (pace / hand.pace[engine])) - left_ns
        hand.pace[engine] = pace
        hand.step_ends_ns[engine] += later_ns
        if hand.free_ns[engine] <= ends_ns:
            continue
        hand.free_ns[engine] += later_ns
        for place in range(hand.handovers.shape[0]):
            flight = hand.handovers[place]
            if flight[H_ROW] < 0 or flight[H_TO] != engine or flight[H_IMPORTED_NS] == c.FOREVER:
                continue
            if flight[H_IMPORTED_NS] - flight[H_HALF_NS] >= ends_ns:
                flight[H_IMPORTED_NS] += later_ns


@rare
def carry_out(now_ns: int, seed: int, tables: Tables, state: State, world: World, record: Record, hand: Hands) -> None:
    """Do what the desk has just said, in order."""
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
            hand.inside[row] = tag
        elif kind == c.STEP:
            engine = effect[c.F_A]
            hand.pace[engine] = pace_of(world, state, hand, engine)
            hand.step_began_ns[engine] = max(now_ns, hand.free_ns[engine])
            more_ns, tokens = 0, tokens_of(state, engine)
            if hand.step_began_ns[engine] - hand.ended_ns[engine] >= COLD_AFTER_NS:
                more_ns += world.cold_ns[engine]
            if tokens != hand.tokens[engine]:
                more_ns += world.reshape_ns[engine]
            hand.tokens[engine] = tokens
            alone_ns = drawn_ns(seed, world, state, engine, more_ns)
            hand.step_ends_ns[engine] = hand.step_began_ns[engine] + max(1, int(alone_ns * hand.pace[engine]))
            record.busy[engine, B_ROWS] += effect[c.F_C]
        elif kind == c.HAND_OVER:
            place = 0
            while hand.handovers[place, H_ROW] >= 0:
                place += 1
            link = tables.links[effect[c.F_A], effect[c.F_B]]
            took_ns = link[c.K_BASE_NS] + state.sequences[row, c.Q_COMPUTED] * link[c.K_TOKEN_NS]
            took_ns = int(took_ns * part_of(world.handover_noise, uniform(seed, tag, 77)))
            # Its prompt's last step has just ended, and the next has not been told of yet.
            source = effect[c.F_A]
            began_ns = max(now_ns, hand.free_ns[source])
            flight = hand.handovers[place]
            flight[H_ROW] = row
            flight[H_EPOCH] = effect[c.F_C]
            flight[H_EXPORTED_NS] = began_ns + took_ns // 2
            flight[H_IMPORTED_NS] = c.FOREVER
            flight[H_HALF_NS] = took_ns - took_ns // 2
            flight[H_TO] = effect[c.F_B]
            hand.free_ns[source] = began_ns + took_ns // 2
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
    hand: Hands,
    engine: int,
) -> None:
    """An engine's step has ended: say which sequences end with it, and count the times between tokens."""
    rows = state.engines[engine, c.N_STEPPING]
    record.busy[engine, B_BUSY_NS] += now_ns - hand.step_began_ns[engine]
    hand.step_ends_ns[engine] = c.FOREVER
    hand.ended_ns[engine] = now_ns
    for place in range(rows):
        sequence = state.rows[engine, place, c.P_SEQUENCE]
        request = hand.inside[sequence]
        produced = state.sequences[sequence, c.Q_PRODUCED]
        hand.ends[place] = 1 if produced + 1 >= prompts.produce[request] else 0
        if produced == 0 and state.rows[engine, place, c.P_SAMPLES] == 1:
            keep(caches, engine, prompts.blocks[prompts.block_start[request] : prompts.block_start[request + 1]])
    desk.on_step_done(now_ns, tables, state, engine, state.engines[engine, c.N_EPOCH], hand.ends)
    for place in range(rows):
        if state.gaps[engine, place] >= 0:
            record.gaps[engine, gap_bin(state.gaps[engine, place])] += 1


@rare
def handover_moves(now_ns: int, tables: Tables, state: State, hand: Hands, place: int) -> None:
    """A hand-over's KV has been written, and is then read when its engine comes to it; or it has been read."""
    flight = hand.handovers[place]
    row, epoch = flight[H_ROW], flight[H_EPOCH]
    if flight[H_EXPORTED_NS] < c.FOREVER and flight[H_EXPORTED_NS] <= flight[H_IMPORTED_NS]:
        flight[H_EXPORTED_NS] = c.FOREVER
        target = flight[H_TO]
        begins_ns = max(now_ns, hand.free_ns[target])
        if hand.step_ends_ns[target] < c.FOREVER:
            begins_ns = max(begins_ns, hand.step_ends_ns[target])
        flight[H_IMPORTED_NS] = begins_ns + flight[H_HALF_NS]
        hand.free_ns[target] = flight[H_IMPORTED_NS]
        desk.on_handover(now_ns, tables, state, row, epoch, desk.EXPORTED)
    else:
        flight[H_ROW] = -1
        desk.on_handover(now_ns, tables, state, row, epoch, desk.IMPORTED)


@rare
def lose(now_ns: int, tables: Tables, state: State, hand: Hands, engine: int) -> None:
    """An engine is lost with all that it has in hand."""
    hand.step_ends_ns[engine] = c.FOREVER
    hand.free_ns[engine] = now_ns
    desk.on_engine_down(now_ns, tables, state, engine)


@rare
def fail(now_ns: int, tables: Tables, state: State, hand: Hands, fault: Int64s) -> None:
    """A fault begins or ends."""
    engine, kind = fault[X_ENGINE], fault[X_KIND]
    if kind == FAULT_DOWN:
        lose(now_ns, tables, state, hand, engine)
    elif kind == FAULT_UP:
        hand.hung[engine] = min(hand.hung[engine], 1)
        desk.on_engine_up(now_ns, tables, state, engine)
    elif kind == FAULT_SLOW:
        hand.slow_ppm[engine] = fault[X_PPM]
    elif kind == FAULT_HANG:
        hand.hung[engine] = 1
    else:
        if hand.hung[engine] == 2:
            desk.on_engine_up(now_ns, tables, state, engine)
        hand.hung[engine] = 0
