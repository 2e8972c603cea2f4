"""The arrays that decisions are taken on: `Tables`, which a run never changes, and `State`, which decisions change.

S stages, E engines, L lanes, T tenants (0: whoever has no guarantee). B lanes of one stage: its buckets, the last of
them "fits none", once per version.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class Tables(NamedTuple):
    """What a run never changes."""

    run: Int64s
    """[RUN_SETTINGS]"""
    engines: Int64s
    """[E, ENGINE_SETTINGS]"""
    stages: Int64s
    """[S, STAGE_SETTINGS]"""
    breakers: Int64s
    """[S, BREAKER_SETTINGS] window 0: the stage has none"""
    pairs: Int64s
    """[S, E, PAIR_SETTINGS]"""
    preference: Int64s
    """[S, E] engine indices in preference order, then -1"""
    rank: Int64s
    """[S, E] an engine's place in that order"""
    eligible: Int64s
    """[S, E, B] 1 where the engine takes the lane"""
    rules: Int64s
    """[rules, RULE_SETTINGS] in file order"""
    base_ns: Int64s
    """[S, E, B] expected service time of a batch, before rows are counted; 0: unknown"""
    row_ns: Int64s
    """[S, E, B] expected service time per row"""
    price: Int64s
    """[S, E, B] energy (nJ) or money (1e-12 of a unit) of one row in a full batch; read by ``cheapest``"""
    tenants: Int64s
    """[T] guaranteed share, ppm"""
    steps: Int64s
    """[1 + steps] the canary's share by step, ppm; step 0 is none"""
    lane_stage: Int64s
    """[L] stage of each lane"""


class State(NamedTuple):
    """What decisions change. Fixed size; full means a named refusal."""

    requests: Int64s
    """[max_requests, REQUEST_COLUMNS]"""
    lanes: Int64s
    """[E, CLASSES, L, T, LANE_COLUMNS]"""
    lane_rows: Int64s
    """[E, L] rows waiting in a lane, over all classes"""
    engines: Int64s
    """[E, ENGINE_COLUMNS]"""
    batches: Int64s
    """[slots, BATCH_COLUMNS]"""
    members: Int64s
    """[slots, largest batch, MEMBER_COLUMNS]"""
    stages: Int64s
    """[S, STAGE_COLUMNS]"""
    breakers: Int64s
    """[S, E, BREAKER_COLUMNS]"""
    calls: Int64s
    """[S, E, largest window] what each remembered call was"""
    floors: Int64s
    """[E, CLASSES] credit of a waiting class towards its floor, ppm of a dispatch"""
    choice: Int64s
    """[CLASSES] scratch: the lane each class would dispatch now, -1: none"""
    learned_ns: Int64s
    """[S, E] mean time of a batch as seen; 0: none was"""
    scale_ppm: Int64s
    """[S, E] time of a batch as seen, in parts of what the table says"""
    live: Int64s
    """[S, B, E, LIVE_COLUMNS] the table at the speed seen now; BLOCKED_NS where the engine does not take the lane"""
    ends_ns: Int64s
    """[E] when the running batch of an engine with one slot is expected to end; 0: idle, or several slots"""
    backlog_ns: Int64s
    """[CLASSES, E] work that waits in a class and those above it, of an engine with one slot; 0: several slots"""
    quick_ns: Int64s
    """[S, B, E] live service of one row and the admission together: what `preference.fastest` reads of every engine"""
    admission: Int64s
    """[S, E] 0 while the engine is up and its breaker admits, else BLOCKED_NS"""
    tenant_flows: Int64s
    """[E, CLASSES, T + 1, FLOW_COLUMNS]"""
    stage_flows: Int64s
    """[E, CLASSES, S + 1, FLOW_COLUMNS]"""
    resident: Int64s
    """[E, S] when the stage's model was last used on the engine, -1: it is not loaded; engines with bounded memory"""
    placed: Int64s
    """[S, E, reasons] placements so far"""
    closed: Int64s
    """[S, E, CLOSINGS] batches so far, by why they were closed"""
    timers: Int64s
    """[2 * leaves] a tree of minima: leaf ``leaves + e`` says when engine e must be looked at, node 1 when any must"""
    counters: Int64s
    """[COUNTERS]"""
    dirty: Int64s
    """[E] engines to look at before the event ends"""
    effects: Int64s
    """[capacity, EFFECT_COLUMNS]; the first counters[C_EFFECTS] rows are this event's"""
