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
    engines: Annotated[Int64s, "E", c.ENGINE_SETTINGS]
    stages: Annotated[Int64s, "S", c.STAGE_SETTINGS]
    breakers: Annotated[Int64s, "S", c.BREAKER_SETTINGS]
    """Window 0: the stage has none"""
    pairs: Annotated[Int64s, "S", "E", c.PAIR_SETTINGS]
    preference: Annotated[Int64s, "S", "E"]
    """Engine indices in preference order, then -1"""
    rank: Annotated[Int64s, "S", "E"]
    """An engine's place in that order"""
    eligible: Annotated[Int64s, "S", "E", "B"]
    """1 where the engine takes the lane"""
    rules: Annotated[Int64s, "rules", c.RULE_SETTINGS]
    """In file order"""
    base_ns: Annotated[Int64s, "S", "E", "B"]
    """Expected service time of a batch, before rows are counted; 0: unknown"""
    row_ns: Annotated[Int64s, "S", "E", "B"]
    """Expected service time per row"""
    price: Annotated[Int64s, "S", "E", "B"]
    """Energy (nJ) or money (1e-12 of a unit) of one row in a full batch; read by ``cheapest``"""
    tenants: Annotated[Int64s, "T"]
    """Guaranteed share, ppm"""
    steps: Annotated[Int64s, "1 + steps"]
    """The canary's share by step, ppm; step 0 is none"""
    lane_stage: Annotated[Int64s, "L"]
    """Stage of each lane"""


@by_reference
class State(NamedTuple):
    """What decisions change. Fixed size; full means a named refusal."""

    requests: Annotated[Int64s, "max_requests", c.REQUEST_COLUMNS]
    lanes: Annotated[Int64s, "L", "T", "E", c.CLASSES, c.LANE_COLUMNS]
    lane_rows: Annotated[Int64s, "L", "E"]
    """Rows waiting in a lane, over all classes"""
    engines: Annotated[Int64s, "E", c.ENGINE_COLUMNS]
    batches: Annotated[Int64s, "slots", c.BATCH_COLUMNS]
    members: Annotated[Int64s, "slots", "largest batch", c.MEMBER_COLUMNS]
    stages: Annotated[Int64s, "S", c.STAGE_COLUMNS]
    breakers: Annotated[Int64s, "S", "E", c.BREAKER_COLUMNS]
    calls: Annotated[Int64s, "S", "E", "largest window"]
    """What each remembered call was"""
    floors: Annotated[Int64s, "E", c.CLASSES]
    """Credit of a waiting class towards its floor, ppm of a dispatch"""
    choice: Annotated[Int64s, c.CLASSES]
    """Scratch: the lane each class would dispatch now, -1: none"""
    learned_ns: Annotated[Int64s, "S", "E"]
    """Mean time of a batch as seen; 0: none was"""
    scale_ppm: Annotated[Int64s, "S", "E"]
    """Time of a batch as seen, in parts of what the table says"""
    best: Annotated[Int64s, "S", "E", c.BEST_COLUMNS]
    """The quickest that it was so far: what a slow spell may have hidden"""
    live: Annotated[Int64s, "S", "B", "E", c.LIVE_COLUMNS]
    """The table at the speed seen now; BLOCKED_NS where the engine does not take the lane"""
    ends_ns: Annotated[Int64s, "E"]
    """When the running batch of an engine with one slot is expected to end; 0: idle, or several slots"""
    backlog_ns: Annotated[Int64s, c.CLASSES, "E"]
    """Work that waits in a class and those above it: what a newcomer of the class does not overtake"""
    quick_ns: Annotated[Int64s, "S", "B", "E"]
    """Live service of one row and the admission together: what `preference.fastest` reads of every engine"""
    admission: Annotated[Int64s, "S", "E"]
    """0 while the engine is up and its breaker admits, else BLOCKED_NS"""
    tenant_flows: Annotated[Int64s, "E", c.CLASSES, "T + 1", c.FLOW_COLUMNS]
    stage_flows: Annotated[Int64s, "E", c.CLASSES, "S + 1", c.FLOW_COLUMNS]
    resident: Annotated[Int64s, "E", "S"]
    """When the stage's model was last used on the engine, -1: it is not loaded; engines with bounded memory"""
    placed: Annotated[Int64s, "S", "E", "reasons"]
    """Placements so far"""
    closed: Annotated[Int64s, "S", "E", c.CLOSINGS]
    """Batches so far, by why they were closed"""
    timers: Annotated[Int64s, "2 * leaves"]
    """A tree of minima: leaf ``leaves + e`` says when engine e must be looked at, node 1 when any must"""
    counters: Annotated[Int64s, c.COUNTERS]
    dirty: Annotated[Int64s, "E"]
    """Engines to look at before the event ends"""
    effects: Annotated[Int64s, "capacity", c.EFFECT_COLUMNS]
    """The first counters[C_EFFECTS] rows are this event's"""
