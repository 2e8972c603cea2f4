"""Guaranteed shares: of tenants inside a class, and of stages on an engine they share.

Start-time fair queueing (Goyal, Vin, Cheng 1996). Each flow has a virtual time: the engine time it was given, divided
by its share. Who has the least is served next. A flow that was idle starts at the virtual time of the one that was
served last, so that it has saved nothing up: what it leaves is lent to the others at once, and taken back at the next
dispatch. Two flows that both wait all the while differ, in time over share, by no more than one batch of each.

Rules of this file: virtual times only grow; a flow's count of waiting requests changes with the queue's.
"""

from loadslice.policy import columns as c
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import Int64s, State, Tables


@kernel
def enter_flow(flows: Int64s, flow: int) -> None:
    """One more request of a flow waits; the last row of ``flows`` is the virtual time of them all."""
    row = flows[flow]
    if row[c.Y_WAITING] == 0:
        row[c.Y_VIRTUAL_NS] = max(row[c.Y_VIRTUAL_NS], flows[flows.shape[0] - 1, c.Y_VIRTUAL_NS])
    row[c.Y_WAITING] += 1


@kernel
def charge_flow(flows: Int64s, flow: int, work_ns: int, share_ppm: int) -> None:
    """A flow is served."""
    row = flows[flow]
    common = flows[flows.shape[0] - 1]
    common[c.Y_VIRTUAL_NS] = max(common[c.Y_VIRTUAL_NS], row[c.Y_VIRTUAL_NS])
    row[c.Y_VIRTUAL_NS] += max(1, work_ns * c.PPM // share_ppm)
    row[c.Y_SERVED_NS] += work_ns


@kernel
def is_shared(tables: Tables, engine: int) -> bool:
    """Whether anybody has a guarantee on an engine."""
    return bool(tables.engines[engine, c.E_IS_SHARED] == 1)


@rare
def joined(tables: Tables, state: State, request: int, engine: int) -> None:
    """A request has joined an engine's queue."""
    row = state.requests[request]
    if tables.tenants.shape[0] > 1:
        enter_flow(state.tenant_flows[engine, row[c.R_CLASS]], row[c.R_TENANT])
    if tables.engines[engine, c.E_HAS_SHARES] == 1:
        enter_flow(state.stage_flows[engine, row[c.R_CLASS]], row[c.R_STAGE])


@rare
def left(tables: Tables, state: State, request: int, engine: int) -> None:
    """A request has left an engine's queue, served or not."""
    row = state.requests[request]
    if tables.tenants.shape[0] > 1:
        state.tenant_flows[engine, row[c.R_CLASS], row[c.R_TENANT], c.Y_WAITING] -= 1
    if tables.engines[engine, c.E_HAS_SHARES] == 1:
        state.stage_flows[engine, row[c.R_CLASS], row[c.R_STAGE], c.Y_WAITING] -= 1


@rare
def charge(tables: Tables, state: State, request: int, engine: int) -> None:
    """A request is dispatched: its tenant and its stage have had their part."""
    row = state.requests[request]
    if tables.tenants.shape[0] > 1:
        flows = state.tenant_flows[engine, row[c.R_CLASS]]
        charge_flow(flows, row[c.R_TENANT], row[c.R_WORK_NS], tables.tenants[row[c.R_TENANT]])
    if tables.engines[engine, c.E_HAS_SHARES] == 1:
        share_ppm = tables.pairs[row[c.R_STAGE], engine, c.P_SHARE_PPM]
        charge_flow(state.stage_flows[engine, row[c.R_CLASS]], row[c.R_STAGE], row[c.R_WORK_NS], share_ppm)


@kernel
def came_first(state: State, request: int, other: int) -> bool:
    """Whether a request arrived before another; the order of queueing tells those of one instant apart."""
    arrived = state.requests[request, c.R_ARRIVED_NS]
    other_arrived = state.requests[other, c.R_ARRIVED_NS]
    if arrived != other_arrived:
        return bool(arrived < other_arrived)
    return bool(state.requests[request, c.R_SEQUENCE] < state.requests[other, c.R_SEQUENCE])


@kernel
def goes_first(tables: Tables, state: State, engine: int, request: int, other: int) -> bool:
    """Whether a request of a class is served before another of the same class: by stage, by tenant, by arrival."""
    if is_shared(tables, engine):
        return has_less(tables, state, engine, request, other)
    return came_first(state, request, other)


@rare
def has_less(tables: Tables, state: State, engine: int, request: int, other: int) -> bool:
    """The same where there are guarantees: whose stage, then whose tenant, has had less; then by arrival."""
    row = state.requests[request]
    against = state.requests[other]
    priority = row[c.R_CLASS]
    if tables.engines[engine, c.E_HAS_SHARES] == 1 and row[c.R_STAGE] != against[c.R_STAGE]:
        mine = state.stage_flows[engine, priority, row[c.R_STAGE], c.Y_VIRTUAL_NS]
        theirs = state.stage_flows[engine, priority, against[c.R_STAGE], c.Y_VIRTUAL_NS]
        if mine != theirs:
            return bool(mine < theirs)
    if row[c.R_TENANT] != against[c.R_TENANT]:
        mine = state.tenant_flows[engine, priority, row[c.R_TENANT], c.Y_VIRTUAL_NS]
        theirs = state.tenant_flows[engine, priority, against[c.R_TENANT], c.Y_VIRTUAL_NS]
        if mine != theirs:
            return bool(mine < theirs)
    return came_first(state, request, other)


@kernel
def head_of(tables: Tables, state: State, engine: int, priority: int, lane: int) -> int:
    """The request of a class that is served first from a lane; -1: none waits."""
    if tables.tenants.shape[0] == 1:
        return int(state.lanes[lane, 0, engine, priority, c.L_HEAD])
    return first_tenant_head(tables, state, engine, priority, lane)


@rare
def first_tenant_head(tables: Tables, state: State, engine: int, priority: int, lane: int) -> int:
    """The same over the tenants' FIFOs."""
    head = state.lanes[lane, 0, engine, priority, c.L_HEAD] * 1
    for tenant in range(1, tables.tenants.shape[0]):
        candidate = state.lanes[lane, tenant, engine, priority, c.L_HEAD]
        if candidate >= 0 and (head < 0 or goes_first(tables, state, engine, candidate, head)):
            head = candidate
    return int(head)


@rare
def greediest(tables: Tables, state: State, engine: int, priority: int, tenant: int) -> int:
    """The tenant that holds most of a class's places in a full queue, by its share, if more than a newcomer would.

    Returns:
        A tenant whose places over share exceed those of ``tenant`` with one more; -1: there is none.
    """
    if tables.tenants.shape[0] == 1:
        return -1
    flows = state.tenant_flows[engine, priority]
    most = (flows[tenant, c.Y_WAITING] + 1) * c.PPM // tables.tenants[tenant]
    found = -1
    for other in range(tables.tenants.shape[0]):
        held = flows[other, c.Y_WAITING] * c.PPM // tables.tenants[other]
        if other != tenant and held > most:
            most = held
            found = other
    return found
