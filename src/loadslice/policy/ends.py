"""How a request leaves: one outcome, said once, and its row free again."""

from loadslice.policy import columns as c
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.spec.outcome import Outcome, Reason

COMPLETED, DEGRADED = int(Outcome.COMPLETED), int(Reason.DEGRADED)


@kernel
def say(state: State, kind: int, tag: int, a: int, b: int, detail: int, d: int) -> None:
    """Append one effect to this event's list."""
    count = state.counters[c.C_EFFECTS]
    effect = state.effects[count]
    effect[c.F_KIND] = kind
    effect[c.F_TAG] = tag
    effect[c.F_A] = a
    effect[c.F_B] = b
    effect[c.F_C] = detail
    effect[c.F_D] = d
    state.counters[c.C_EFFECTS] = count + 1


@kernel
def set_quick(state: State, stage: int, engine: int, lane: int) -> None:
    """Keep what `preference.fastest` reads in step with the live line and the admission."""
    speed = state.live[stage, lane, engine]
    state.quick_ns[stage, lane, engine] = speed[c.V_BASE_NS] + speed[c.V_ROW_NS] + state.admission[stage, engine]


@rare
def set_admission(state: State, stage: int, engine: int) -> None:
    """Note whether an engine may be given more at a stage: it is up, and its breaker is closed or has a permit left."""
    breaker = state.breakers[stage, engine]
    admits = breaker[c.X_STATE] == c.CLOSED or (
        breaker[c.X_STATE] == c.HALF_OPEN and breaker[c.X_PROBES] + breaker[c.X_PROBED] < breaker[c.X_PERMITS]
    )
    state.admission[stage, engine] = 0 if admits and state.engines[engine, c.N_UP] == 1 else c.BLOCKED_NS
    for lane in range(state.live.shape[1]):
        set_quick(state, stage, engine, lane)


@kernel
def leave(state: State, request: int) -> None:
    """A request leaves its engine without a verdict: its permit, if it holds one, comes back."""
    if state.requests[request, c.R_PROBE] == 1:
        return_permit(state, request)


@rare
def return_permit(state: State, request: int) -> None:
    """Give back the permit of a probe that ends unrecorded, unless its breaker has moved on."""
    row = state.requests[request]
    breaker = state.breakers[row[c.R_STAGE], row[c.R_ENGINE]]
    if breaker[c.X_EPOCH] == row[c.R_BREAKER_EPOCH]:
        breaker[c.X_PROBES] -= 1
        set_admission(state, row[c.R_STAGE], row[c.R_ENGINE])
    row[c.R_PROBE] = 0


@kernel
def finish(state: State, request: int, outcome: int, reason: int, hint_ns: int) -> None:
    """End a request that stands in no queue any more.

    A permit it holds comes back. Its epoch moves on, so that whatever still arrives for it (a late result, a second
    cancel) is refused.
    """
    leave(state, request)
    row = state.requests[request]
    say(state, c.OUTCOME, row[c.R_TAG], outcome, reason, hint_ns, row[c.R_STAGE])
    row[c.R_STATUS] = c.FREE
    row[c.R_EPOCH] += 1
    row[c.R_PREVIOUS] = -1
    row[c.R_NEXT] = state.counters[c.C_FREE_HEAD]
    state.counters[c.C_FREE_HEAD] = request
    state.counters[c.C_IN_SYSTEM] -= 1
    state.counters[c.C_CANARY_INSIDE] -= row[c.R_VERSION]
    state.counters[c.C_OUTCOMES + outcome] += 1


@rare
def refuse(tables: Tables, state: State, request: int, outcome: int, reason: int, hint_ns: int) -> None:
    """Refuse a request at its stage; where the stage has a degraded reply, that is the answer instead."""
    if tables.stages[state.requests[request, c.R_STAGE], c.S_DEGRADED] == 1:
        state.counters[c.C_DEGRADED] += 1
        finish(state, request, COMPLETED, DEGRADED, 0)
    else:
        finish(state, request, outcome, reason, hint_ns)


@kernel
def mark_dirty(state: State, engine: int) -> None:
    """Have an engine looked at before the event ends."""
    if state.engines[engine, c.N_DIRTY] == 0:
        state.engines[engine, c.N_DIRTY] = 1
        state.dirty[state.counters[c.C_DIRTY]] = engine
        state.counters[c.C_DIRTY] += 1
