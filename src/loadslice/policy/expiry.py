"""What time does by itself: waiting and running requests whose time is up."""

from loadslice.policy import columns as c
from loadslice.policy.breaker import record
from loadslice.policy.deadlines import DEADLINE, EXPIRED
from loadslice.policy.ends import finish
from loadslice.policy.kernel import rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.queues import unlink
from loadslice.policy.routing import try_again
from loadslice.spec.outcome import Reason

STAGE_TIMEOUT = int(Reason.STAGE_TIMEOUT)


@rare
def expire(now_ns: int, tables: Tables, state: State, request: int) -> None:
    """End a request whose time is up, or try it elsewhere when it was its stage's time and not its own."""
    row = state.requests[request]
    if row[c.R_DEADLINE_NS] <= now_ns:
        finish(state, request, EXPIRED, DEADLINE, 0)
    elif not try_again(now_ns, tables, state, request, 0):
        finish(state, request, EXPIRED, STAGE_TIMEOUT, 0)


@rare
def stands_still(now_ns: int, tables: Tables, state: State, engine: int) -> bool:
    """Whether every slot of an engine has been at its batch for longer than the batch's stage allows."""
    first = tables.engines[engine, c.E_FIRST_SLOT]
    for slot in range(first, first + tables.engines[engine, c.E_MAX_INFLIGHT]):
        batch = state.batches[slot]
        allowed_ns = tables.stages[batch[c.B_STAGE], c.S_TIMEOUT_NS]
        if batch[c.B_BUSY] == 0 or now_ns - batch[c.B_STARTED_NS] < allowed_ns:
            return False
    return True


@rare
def sweep_queue(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Expire what is due in an engine's queue and find the next expiry.

    A wait that is too long is not the engine's fault, unless the engine stands still: then each is a failed call, or a
    hung engine with few slots would never show its breaker enough of them.
    """
    following = c.FOREVER
    standing = stands_still(now_ns, tables, state, engine)
    for priority in range(c.CLASSES):
        for lane in range(state.lanes.shape[0]):
            for tenant in range(tables.tenants.shape[0]):
                request = state.lanes[lane, tenant, engine, priority, c.L_HEAD]
                while request >= 0:
                    row = state.requests[request]
                    after = row[c.R_NEXT]
                    if row[c.R_EXPIRY_NS] <= now_ns:
                        unlink(tables, state, request)
                        if standing:
                            record(now_ns, tables, state, request, c.FAILED_CALL)
                        expire(now_ns, tables, state, request)
                    else:
                        following = min(following, row[c.R_EXPIRY_NS])
                    request = after
    state.engines[engine, c.N_QUEUE_EXPIRY_NS] = following


@rare
def sweep_batches(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Expire running members that are due; the batch itself runs on and holds its permit."""
    first = tables.engines[engine, c.E_FIRST_SLOT]
    for slot in range(first, first + tables.engines[engine, c.E_MAX_INFLIGHT]):
        batch = state.batches[slot]
        if batch[c.B_BUSY] == 0 or batch[c.B_EXPIRY_NS] > now_ns:
            continue
        following = c.FOREVER
        for index in range(batch[c.B_COUNT]):
            request = state.members[slot, index, c.M_REQUEST]
            row = state.requests[request]
            if row[c.R_EPOCH] != state.members[slot, index, c.M_EPOCH]:
                continue
            if row[c.R_EXPIRY_NS] <= now_ns:
                # The call was under way and took too long: the breaker hears of it now, not when it ends. A deadline
                # that left less than the batch was expected to take says nothing about the engine.
                if row[c.R_DEADLINE_NS] > now_ns or now_ns - batch[c.B_STARTED_NS] > 2 * batch[c.B_EXPECTED_NS]:
                    record(now_ns, tables, state, request, c.FAILED_CALL)
                expire(now_ns, tables, state, request)
            else:
                following = min(following, row[c.R_EXPIRY_NS])
        batch[c.B_EXPIRY_NS] = following
