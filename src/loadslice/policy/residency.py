"""Models on an engine whose memory does not hold them all: who is loaded, who goes, and what that costs.

The least recently used model that is not running goes first. Rules of this file: what is resident fits; a model that
runs stays; a batch of a model that is not there carries the time of loading it.
"""

from loadslice.policy import columns as c
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables


@kernel
def is_bounded(tables: Tables, engine: int) -> bool:
    """Whether an engine's memory must be looked at."""
    return bool(tables.engines[engine, c.E_MEMORY_BYTES] < c.FOREVER)


@kernel
def is_running_model(tables: Tables, state: State, engine: int, stage: int) -> bool:
    """Whether a batch of the stage runs on the engine."""
    first = tables.engines[engine, c.E_FIRST_SLOT]
    for slot in range(first, first + tables.engines[engine, c.E_MAX_INFLIGHT]):
        if state.batches[slot, c.B_BUSY] == 1 and state.batches[slot, c.B_STAGE] == stage:
            return True
    return False


@rare
def room_bytes(tables: Tables, state: State, engine: int, droppable: int) -> int:
    """Free memory of an engine; with ``droppable`` 1, what models that do not run would give back counts too."""
    room = tables.engines[engine, c.E_MEMORY_BYTES] * 1
    for stage in range(tables.stages.shape[0]):
        if state.resident[engine, stage] >= 0 and (droppable == 0 or is_running_model(tables, state, engine, stage)):
            room -= tables.pairs[stage, engine, c.P_MEMORY_BYTES]
    return int(room)


@rare
def can_hold(tables: Tables, state: State, engine: int, stage: int) -> bool:
    """Whether a stage could start on an engine of bounded memory: its model is there, or there is room for it."""
    return bool(
        state.resident[engine, stage] >= 0
        or tables.pairs[stage, engine, c.P_MEMORY_BYTES] <= room_bytes(tables, state, engine, 1)
    )


@kernel
def load_ns(tables: Tables, state: State, engine: int, stage: int) -> int:
    """What must be waited for before the stage can run: 0 where its model is there."""
    if not is_bounded(tables, engine) or state.resident[engine, stage] >= 0:
        return 0
    return int(tables.pairs[stage, engine, c.P_LOAD_NS])


@rare
def make_resident(now_ns: int, tables: Tables, state: State, engine: int, stage: int) -> int:
    """Use a stage's model on an engine of bounded memory that can hold it, dropping others as needed.

    Returns:
        Time that loading it takes, 0 when it was there.
    """
    took_ns = load_ns(tables, state, engine, stage)
    if state.resident[engine, stage] < 0:
        while room_bytes(tables, state, engine, 0) < tables.pairs[stage, engine, c.P_MEMORY_BYTES]:
            state.resident[engine, least_recent(tables, state, engine)] = -1
        state.engines[engine, c.N_LOADS] += 1
    state.resident[engine, stage] = now_ns
    return took_ns


@kernel
def least_recent(tables: Tables, state: State, engine: int) -> int:
    """The model on an engine that was used longest ago and does not run."""
    found = -1
    for stage in range(tables.stages.shape[0]):
        used_ns = state.resident[engine, stage]
        if used_ns < 0 or is_running_model(tables, state, engine, stage):
            continue
        if found < 0 or used_ns < state.resident[engine, found]:
            found = stage
    assert found >= 0
    return found
