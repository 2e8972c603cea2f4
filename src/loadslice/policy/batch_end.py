"""What the end of a batch means: its permit comes back, breakers hear of it, failures are repeated."""

from loadslice.policy import columns as c
from loadslice.policy.breaker import record
from loadslice.policy.ends import finish, leave, mark_dirty
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.queues import unlink
from loadslice.policy.routing import FAILED, place_apart, try_again
from loadslice.spec.outcome import Reason

ENGINE_FAILED = int(Reason.ENGINE_FAILED)


@kernel
def is_running(state: State, slot: int, epoch: int) -> bool:
    """Whether a batch result is about the batch that runs now."""
    return bool(
        0 <= slot < state.batches.shape[0]
        and state.batches[slot, c.B_BUSY] == 1
        and state.batches[slot, c.B_EPOCH] == epoch
    )


@kernel
def release(now_ns: int, state: State, slot: int) -> None:
    """Give a batch's permit back."""
    batch = state.batches[slot]
    engine = batch[c.B_ENGINE]
    batch[c.B_BUSY] = 0
    batch[c.B_EXPIRY_NS] = c.FOREVER
    counts = state.engines[engine]
    counts[c.N_INFLIGHT] -= 1
    if counts[c.N_INFLIGHT] == 0:
        counts[c.N_ACTIVE_NS] += now_ns - counts[c.N_SINCE_NS]
    state.ends_ns[engine] = 0
    counts[c.N_BUSY_NS] += now_ns - batch[c.B_STARTED_NS]
    counts[c.N_DONE_NS] = now_ns
    mark_dirty(state, engine)


@rare
def record_members(now_ns: int, tables: Tables, state: State, slot: int, call: int) -> None:
    """Tell the breaker about every member that is still in a batch; move what waits if that opened it."""
    batch = state.batches[slot]
    stage = batch[c.B_STAGE]
    engine = batch[c.B_ENGINE]
    if tables.breakers[stage, c.K_WINDOW] == 0:
        return
    if now_ns - batch[c.B_STARTED_NS] > tables.breakers[stage, c.K_SLOW_NS]:
        call |= c.SLOW_CALL
    for index in range(batch[c.B_COUNT]):
        request = state.members[slot, index, c.M_REQUEST]
        if state.requests[request, c.R_EPOCH] == state.members[slot, index, c.M_EPOCH]:
            record(now_ns, tables, state, request, call)
    if state.breakers[stage, engine, c.X_STATE] == c.OPEN:
        evacuate(now_ns, tables, state, stage, engine)


@rare
def evacuate(now_ns: int, tables: Tables, state: State, stage: int, engine: int) -> None:
    """Place anew what waits for a stage on an engine that no longer serves it, highest class first."""
    first = tables.stages[stage, c.S_FIRST_LANE]
    for priority in range(c.CLASSES):
        for lane in range(first, first + tables.stages[stage, c.S_LANES]):
            for tenant in range(tables.tenants.shape[0]):
                request = state.lanes[lane, tenant, engine, priority, c.L_HEAD]
                while request >= 0:
                    after = state.requests[request, c.R_NEXT]
                    unlink(tables, state, request)
                    leave(state, request)
                    place_apart(now_ns, tables, state, request)
                    request = after


@rare
def fail_members(now_ns: int, tables: Tables, state: State, slot: int) -> None:
    """Try every member again that is still in a batch, or fail it."""
    for index in range(state.batches[slot, c.B_COUNT]):
        request = state.members[slot, index, c.M_REQUEST]
        if state.requests[request, c.R_EPOCH] == state.members[slot, index, c.M_EPOCH] and not try_again(
            now_ns, tables, state, request, 1
        ):
            finish(state, request, FAILED, ENGINE_FAILED, 0)
