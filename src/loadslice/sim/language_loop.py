"""Virtual time around the token desk: merge arrivals, steps, hand-overs and timers, and have decisions carried out.

At equal times steps come first (the lower engine before the higher), then hand-overs, timers, engines that are given
up, faults, and arrivals. The loop decides nothing. A request produces as many tokens as the trace says its answer had.
"""

from loadslice.policy.kernel import entry
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.layout import State, Tables
from loadslice.sim.language_hands import carry_out, fail, handover_moves, lose, repace, step_end
from loadslice.sim.language_layout import (
    H_EXPORTED_NS,
    H_IMPORTED_NS,
    H_ROW,
    X_AT_NS,
    Hands,
    Prompts,
    Record,
    World,
)
from loadslice.sim.prefix import Caches, found

STEP, HANDOVER, TIMER, LATE, FAULT, ARRIVAL = range(6)
"""Kinds of events."""


@entry(inlined=False)
def run(
    seed: int,
    tables: Tables,
    state: State,
    prompts: Prompts,
    world: World,
    caches: Caches,
    record: Record,
    hand: Hands,
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
        hand: As `hands` makes it; changed.

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
            if hand.step_ends_ns[engine] < at_ns:
                at_ns, kind, which = hand.step_ends_ns[engine], STEP, engine
        for place in range(hand.handovers.shape[0]):
            if hand.handovers[place, H_ROW] >= 0:
                due_ns = min(hand.handovers[place, H_EXPORTED_NS], hand.handovers[place, H_IMPORTED_NS])
                if due_ns < at_ns:
                    at_ns, kind, which = due_ns, HANDOVER, place
        timer_ns = desk.next_timer_ns(state)
        if timer_ns < at_ns:
            at_ns, kind = timer_ns, TIMER
        for engine in range(engines):
            if hand.hung[engine] == 1 and desk.late_at_ns(state, engine, desk.LATE_NS) < at_ns:
                at_ns, kind, which = desk.late_at_ns(state, engine, desk.LATE_NS), LATE, engine
        if fault < world.faults.shape[0] and world.faults[fault, X_AT_NS] < at_ns:
            at_ns, kind = world.faults[fault, X_AT_NS], FAULT
        if arrived < total and prompts.arrival_ns[arrived] < at_ns:
            at_ns, kind = prompts.arrival_ns[arrived], ARRIVAL
        if kind < 0:
            break
        now_ns = max(now_ns, at_ns)
        state.counters[c.C_EFFECTS] = 0
        if kind == STEP:
            step_end(now_ns, tables, state, prompts, caches, record, hand, which)
        elif kind == HANDOVER:
            handover_moves(now_ns, tables, state, hand, which)
        elif kind == TIMER:
            desk.on_timer(now_ns, tables, state)
        elif kind == FAULT:
            fail(now_ns, tables, state, hand, world.faults[fault])
            fault += 1
        elif kind == LATE:
            hand.hung[which] = 2
            lose(now_ns, tables, state, hand, which)
        else:
            first, last = prompts.block_start[arrived], prompts.block_start[arrived + 1]
            prompt = prompts.prompt[arrived]
            for engine in range(engines):
                cached = found(caches, engine, prompts.blocks[first:last]) * prompts.block_tokens
                hand.hits[engine] = min(cached, prompt - 1)
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
                hand.hits,
            )
            arrived += 1
        carry_out(now_ns, seed, tables, state, world, record, hand)
        repace(now_ns, world, state, hand)
    return now_ns
