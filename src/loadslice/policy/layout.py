"""The arrays that decisions are taken on: `Tables`, which a run never changes, and `State`, which decisions change.

S stages, E engines, L lanes, T tenants (0: whoever has no guarantee). B lanes of one stage: its buckets, the last of
them "fits none", once per version.
"""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.policy import columns as c
from loadslice.policy.kernel import by_reference

Int64s = NDArray[np.int64]


@by_reference
class Tables(NamedTuple):
    """What a run never changes."""

    run: Annotated[Int64s, c.RUN_SETTINGS]
    """[RUN_SETTINGS]"""
    engines: Annotated[Int64s, c.ENGINE_SETTINGS]
    """[E, ENGINE_SETTINGS]"""
    stages: Annotated[Int64s, c.STAGE_SETTINGS]
    """[S, STAGE_SETTINGS]"""
    breakers: Annotated[Int64s, c.BREAKER_SETTINGS]
    """[S, BREAKER_SETTINGS] window 0: the stage has none"""
    pairs: Annotated[Int64s, c.PAIR_SETTINGS]
    """[S, E, PAIR_SETTINGS]"""
    preference: Int64s
    """[S, E] engine indices in preference order, then -1"""
    rank: Int64s
    """[S, E] an engine's place in that order"""
    eligible: Int64s
    """[S, E, B] 1 where the engine takes the lane"""
    rules: Annotated[Int64s, c.RULE_SETTINGS]
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


@by_reference
class State(NamedTuple):
    """What decisions change. Fixed size; full means a named refusal."""

    requests: Annotated[Int64s, c.REQUEST_COLUMNS]
    """[max_requests, REQUEST_COLUMNS]"""
    lanes: Annotated[Int64s, c.LANE_COLUMNS]
    """[E, CLASSES, L, T, LANE_COLUMNS]"""
    lane_rows: Int64s
    """[E, L] rows waiting in a lane, over all classes"""
    engines: Annotated[Int64s, c.ENGINE_COLUMNS]
    """[E, ENGINE_COLUMNS]"""
    batches: Annotated[Int64s, c.BATCH_COLUMNS]
    """[slots, BATCH_COLUMNS]"""
    members: Annotated[Int64s, c.MEMBER_COLUMNS]
    """[slots, largest batch, MEMBER_COLUMNS]"""
    stages: Annotated[Int64s, c.STAGE_COLUMNS]
    """[S, STAGE_COLUMNS]"""
    breakers: Annotated[Int64s, c.BREAKER_COLUMNS]
    """[S, E, BREAKER_COLUMNS]"""
    calls: Int64s
    """[S, E, largest window] what each remembered call was"""
    floors: Annotated[Int64s, c.CLASSES]
    """[E, CLASSES] credit of a waiting class towards its floor, ppm of a dispatch"""
    choice: Annotated[Int64s, c.CLASSES]
    """[CLASSES] scratch: the lane each class would dispatch now, -1: none"""
    learned_ns: Int64s
    """[S, E] mean time of a batch as seen; 0: none was"""
    scale_ppm: Int64s
    """[S, E] time of a batch as seen, in parts of what the table says"""
    best: Annotated[Int64s, c.BEST_COLUMNS]
    """[S, E, BEST_COLUMNS] the quickest that it was so far: what a slow spell may have hidden"""
    live: Annotated[Int64s, c.LIVE_COLUMNS]
    """[S, B, E, LIVE_COLUMNS] the table at the speed seen now; BLOCKED_NS where the engine does not take the lane"""
    ends_ns: Int64s
    """[E] when the running batch of an engine with one slot is expected to end; 0: idle, or several slots"""
    backlog_ns: Int64s
    """[CLASSES, E] work that waits in a class and those above it: what a newcomer of the class does not overtake"""
    quick_ns: Int64s
    """[S, B, E] live service of one row and the admission together: what `preference.fastest` reads of every engine"""
    admission: Int64s
    """[S, E] 0 while the engine is up and its breaker admits, else BLOCKED_NS"""
    tenant_flows: Annotated[Int64s, c.FLOW_COLUMNS]
    """[E, CLASSES, T + 1, FLOW_COLUMNS]"""
    stage_flows: Annotated[Int64s, c.FLOW_COLUMNS]
    """[E, CLASSES, S + 1, FLOW_COLUMNS]"""
    resident: Int64s
    """[E, S] when the stage's model was last used on the engine, -1: it is not loaded; engines with bounded memory"""
    placed: Int64s
    """[S, E, reasons] placements so far"""
    closed: Annotated[Int64s, c.CLOSINGS]
    """[S, E, CLOSINGS] batches so far, by why they were closed"""
    timers: Int64s
    """[2 * leaves] a tree of minima: leaf ``leaves + e`` says when engine e must be looked at, node 1 when any must"""
    counters: Annotated[Int64s, c.COUNTERS]
    """[COUNTERS]"""
    dirty: Int64s
    """[E] engines to look at before the event ends"""
    effects: Annotated[Int64s, c.EFFECT_COLUMNS]
    """[capacity, EFFECT_COLUMNS]; the first counters[C_EFFECTS] rows are this event's"""
