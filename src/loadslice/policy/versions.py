"""Two versions side by side: who gets the new one, and how its share moves.

A request with a key always gets the same version while the share only grows: its key's hash lies below the share or
not. Requests without one are split by error diffusion: after n of them, |canary - share * n| < 1. The share moves only
along the configured steps, one up at a passed analysis, to nothing at a failed one; an analysis that could not be made
(a metric missing, not a number, stale, or too few requests) moves nothing.
"""

from loadslice.policy import columns as c
from loadslice.policy.ends import leave, mark_dirty
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.queues import unlink
from loadslice.policy.routing import place_apart

NO_KEY = -1


@kernel
def hash_ppm(key: int) -> int:
    """A key's place between 0 and PPM: a 32-bit finaliser (two rounds of xor-shift and odd multiplication)."""
    mixed = key & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x045D9F3B) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 16)) * c.PPM) >> 32


@rare
def version_for(tables: Tables, state: State, key: int) -> int:
    """The version of a newcomer."""
    counters = state.counters
    share_ppm = tables.steps[counters[c.C_STEP]]
    if share_ppm == 0:
        return c.STABLE
    if key >= 0:
        return c.CANARY if hash_ppm(key) < share_ppm else c.STABLE
    counters[c.C_SPLIT_SEEN] += 1
    counters[c.C_SPLIT_CREDIT_PPM] += share_ppm
    if counters[c.C_SPLIT_CREDIT_PPM] < c.PPM:
        return c.STABLE
    counters[c.C_SPLIT_CREDIT_PPM] -= c.PPM
    counters[c.C_SPLIT_SENT] += 1
    return c.CANARY


@kernel
def lane_for(tables: Tables, stage: int, bucket: int, version: int) -> int:
    """Lane, inside a stage, of a shape bucket in a version; a stage without a canary has one for both."""
    settings = tables.stages[stage]
    if version == c.CANARY and settings[c.S_LANES] > settings[c.S_BUCKETS]:
        return int(bucket + settings[c.S_BUCKETS])
    return int(bucket)


@kernel
def set_step(state: State, step: int) -> None:
    """Another share, and a count that begins with it."""
    state.counters[c.C_STEP] = step
    state.counters[c.C_SPLIT_SEEN] = state.counters[c.C_SPLIT_SENT] = state.counters[c.C_SPLIT_CREDIT_PPM] = 0


@rare
def turn_back(now_ns: int, tables: Tables, state: State) -> None:
    """Give the stable version to every canary request of which nothing has been done yet.

    One that has passed a stage ends in the version it began with: what the new version made, the old may not read. The
    canary's capacity may go once C_CANARY_INSIDE is 0.
    """
    first = tables.stages[0, c.S_FIRST_LANE]
    buckets = tables.stages[0, c.S_BUCKETS]
    for engine in range(state.engines.shape[0]):
        for priority in range(c.CLASSES):
            for lane in range(first, first + tables.stages[0, c.S_LANES]):
                for tenant in range(tables.tenants.shape[0]):
                    request = state.lanes[lane, tenant, engine, priority, c.L_HEAD]
                    while request >= 0:
                        row = state.requests[request]
                        after = row[c.R_NEXT]
                        if row[c.R_VERSION] == c.CANARY:
                            mark_dirty(state, engine)  # whoever waited behind it may start now
                            unlink(tables, state, request)
                            leave(state, request)
                            row[c.R_VERSION] = c.STABLE
                            state.counters[c.C_CANARY_INSIDE] -= 1
                            if row[c.R_BUCKET] >= buckets:
                                row[c.R_BUCKET] -= buckets
                            place_apart(now_ns, tables, state, request)
                        request = after
