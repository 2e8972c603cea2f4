"""Breakers: when an engine is left alone at a stage, and how it comes back.

One breaker per (stage, engine), over the last ``window`` calls. A call is one request served there.

    closed -> open        failures or slow calls reach their rate over at least min_calls, and another engine is well
    open -> half-open     its time is over (a timer); each opening soon after the last doubles the time, up to a bound
    half-open -> closed   ``permits`` probes have ended and fewer than the rate were bad
    half-open -> open     they were not, or half_open_ms after the first probe none has ended, and none still runs that
                          may take so long

Rules of this file: every change of state starts a new epoch; a call belongs to the epoch it was placed in, and says
nothing to another. A probe's permit comes back however the probe ends: recorded, or given back unrecorded when the
request was cancelled, expired in a queue, displaced or moved. Half-open without traffic waits, it harms nobody; with
traffic it ends. The last engine that is well at a stage is never opened, and its window starts anew.
"""

from loadslice.policy import columns as c
from loadslice.policy.ends import mark_dirty, set_admission
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import Int64s, State, Tables


@kernel
def enter(now_ns: int, tables: Tables, state: State, request: int, stage: int, engine: int) -> None:
    """A request goes to an engine that admits it at its stage: note the epoch, and take a permit while half-open."""
    row = state.requests[request]
    breaker = state.breakers[stage, engine]
    row[c.R_BREAKER_EPOCH] = breaker[c.X_EPOCH]
    if breaker[c.X_STATE] == c.HALF_OPEN:
        take_permit(now_ns, tables, state, request, engine)


@rare
def take_permit(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> None:
    """A request goes to a half-open engine as a probe; the first one starts the time that half-open may last."""
    row = state.requests[request]
    stage = row[c.R_STAGE]
    breaker = state.breakers[stage, engine]
    row[c.R_PROBE] = 1
    if breaker[c.X_UNTIL_NS] == c.FOREVER:
        breaker[c.X_UNTIL_NS] = now_ns + tables.breakers[stage, c.K_HALF_OPEN_NS]
        set_timer(state, engine)
    breaker[c.X_PROBES] += 1
    set_admission(state, stage, engine)


@kernel
def record(now_ns: int, tables: Tables, state: State, request: int, call: int) -> None:
    """A call has ended.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Changed.
        request: Whose call it was; still at its stage and engine.
        call: WELL, FAILED_CALL, SLOW_CALL or both.
    """
    row = state.requests[request]
    stage = row[c.R_STAGE]
    engine = row[c.R_ENGINE]
    breaker = state.breakers[stage, engine]
    settings = tables.breakers[stage]
    if settings[c.K_WINDOW] == 0 or breaker[c.X_EPOCH] != row[c.R_BREAKER_EPOCH]:
        row[c.R_PROBE] = 0
        return
    if breaker[c.X_STATE] == c.HALF_OPEN:
        if row[c.R_PROBE] == 1:
            record_probe(now_ns, tables, state, request, call)
        return
    remember(state, stage, engine, settings[c.K_WINDOW], call)
    calls = breaker[c.X_CALLS]
    if calls >= settings[c.K_MIN_CALLS] and (
        breaker[c.X_FAILURES] * c.PPM >= settings[c.K_FAILURE_PPM] * calls
        or (breaker[c.X_SLOW] > 0 and breaker[c.X_SLOW] * c.PPM >= settings[c.K_SLOW_PPM] * calls)
    ):
        overstep(now_ns, tables, state, stage, engine)


@kernel
def is_quiet(now_ns: int, tables: Tables, state: State, slot: int) -> bool:
    """Whether a batch that has ended well tells its breaker nothing but the number of calls.

    It was not slow, and the breaker is closed and remembers well calls alone.
    """
    batch = state.batches[slot]
    breaker = state.breakers[batch[c.B_STAGE], batch[c.B_ENGINE]]
    return bool(
        breaker[c.X_STATE] == c.CLOSED
        and breaker[c.X_FAILURES] == 0
        and breaker[c.X_SLOW] == 0
        and now_ns - batch[c.B_STARTED_NS] <= tables.breakers[batch[c.B_STAGE], c.K_SLOW_NS]
    )


@kernel
def remember_well(tables: Tables, state: State, stage: int, engine: int, calls: int) -> None:
    """So many calls have ended well at a quiet breaker: `record` for each, at once."""
    breaker = state.breakers[stage, engine]
    window = tables.breakers[stage, c.K_WINDOW]
    breaker[c.X_CALLS] = min(window, breaker[c.X_CALLS] + calls)
    # What was never written, and what was forgotten, is a well call too: there is nothing to write.
    breaker[c.X_POSITION] = breaker[c.X_CALLS] if breaker[c.X_CALLS] < window else 0


@rare
def record_probe(now_ns: int, tables: Tables, state: State, request: int, call: int) -> None:
    """A probe has ended: its permit comes back, and the last of them decides."""
    row = state.requests[request]
    breaker = state.breakers[row[c.R_STAGE], row[c.R_ENGINE]]
    row[c.R_PROBE] = 0
    breaker[c.X_PROBES] -= 1
    breaker[c.X_PROBED] += 1
    breaker[c.X_PROBES_BAD] += 1 if call != c.WELL else 0
    if breaker[c.X_PROBED] >= tables.breakers[row[c.R_STAGE], c.K_PERMITS]:
        decide_probes(now_ns, tables, state, row[c.R_STAGE], row[c.R_ENGINE])


@rare
def overstep(now_ns: int, tables: Tables, state: State, stage: int, engine: int) -> None:
    """A rate has been reached: open, unless nobody else is well; then start counting anew."""
    if another_is_well(tables, state, stage, engine):
        trip(now_ns, tables, state, stage, engine)
    else:
        state.breakers[stage, engine, c.X_WITHHELD] += 1
        forget(state, stage, engine)


@kernel
def remember(state: State, stage: int, engine: int, window: int, call: int) -> None:
    """Put a call into the window in place of the oldest."""
    breaker = state.breakers[stage, engine]
    position = breaker[c.X_POSITION]
    if breaker[c.X_CALLS] == window:
        oldest = state.calls[stage, engine, position]
        breaker[c.X_FAILURES] -= oldest & c.FAILED_CALL
        breaker[c.X_SLOW] -= (oldest & c.SLOW_CALL) >> 1
    else:
        breaker[c.X_CALLS] += 1
    state.calls[stage, engine, position] = call
    breaker[c.X_FAILURES] += call & c.FAILED_CALL
    breaker[c.X_SLOW] += (call & c.SLOW_CALL) >> 1
    breaker[c.X_POSITION] = position + 1 if position + 1 < window else 0


@rare
def forget(state: State, stage: int, engine: int) -> None:
    """Start the window anew."""
    breaker = state.breakers[stage, engine]
    breaker[c.X_CALLS] = breaker[c.X_FAILURES] = breaker[c.X_SLOW] = breaker[c.X_POSITION] = 0
    for position in range(state.calls.shape[2]):
        state.calls[stage, engine, position] = c.WELL


@rare
def another_is_well(tables: Tables, state: State, stage: int, engine: int) -> bool:
    """Whether another engine, up and closed, takes every shape this one takes, at no less precision and rows."""
    mine = tables.pairs[stage, engine]
    for bucket in range(tables.eligible.shape[2]):
        if tables.eligible[stage, engine, bucket] == 0:
            continue
        found = False
        for order in range(tables.preference.shape[1]):
            other = tables.preference[stage, order]
            if other < 0:
                break
            if (
                other != engine
                and tables.eligible[stage, other, bucket] == 1
                and tables.pairs[stage, other, c.P_PRECISION] >= mine[c.P_PRECISION]
                and tables.pairs[stage, other, c.P_MAX_ITEMS] >= mine[c.P_MAX_ITEMS]
                and state.engines[other, c.N_UP] == 1
                and state.breakers[stage, other, c.X_STATE] == c.CLOSED
            ):
                found = True
        if not found:
            return False
    return True


@rare
def change(now_ns: int, state: State, stage: int, engine: int, to: int, until_ns: int) -> None:
    """Enter a state: a new epoch, an empty window, no probes."""
    breaker = state.breakers[stage, engine]
    breaker[c.X_STATE] = to
    breaker[c.X_EPOCH] += 1
    breaker[c.X_UNTIL_NS] = until_ns
    breaker[c.X_CHANGED_NS] = now_ns
    breaker[c.X_PROBES] = breaker[c.X_PROBED] = breaker[c.X_PROBES_BAD] = 0
    breaker[c.X_TRANSITIONS] += 1
    forget(state, stage, engine)
    set_admission(state, stage, engine)
    set_timer(state, engine)
    mark_dirty(state, engine)


@rare
def trip(now_ns: int, tables: Tables, state: State, stage: int, engine: int) -> None:
    """Open a closed breaker; soon after the last time it stays open for longer."""
    breaker = state.breakers[stage, engine]
    settings = tables.breakers[stage]
    if now_ns - breaker[c.X_CHANGED_NS] > 2 * open_ns(settings, breaker[c.X_LEVEL]):
        breaker[c.X_LEVEL] = 0
    change(now_ns, state, stage, engine, c.OPEN, now_ns + open_ns(settings, breaker[c.X_LEVEL]))
    breaker[c.X_LEVEL] += 1


@kernel
def open_ns(settings: Int64s, level: int) -> int:
    """How long a breaker stays open the ``level``-th time in a row: doubled each time, bounded."""
    return int(min(settings[c.K_OPEN_NS] << min(level, 20), settings[c.K_OPEN_NS_MAX]))


@rare
def decide_probes(now_ns: int, tables: Tables, state: State, stage: int, engine: int) -> None:
    """End half-open by what its probes showed; none that ended shows nothing good."""
    breaker = state.breakers[stage, engine]
    settings = tables.breakers[stage]
    probed = breaker[c.X_PROBED]
    if probed > 0 and breaker[c.X_PROBES_BAD] * c.PPM < settings[c.K_FAILURE_PPM] * probed:
        change(now_ns, state, stage, engine, c.CLOSED, c.FOREVER)
    else:
        change(now_ns, state, stage, engine, c.OPEN, now_ns + open_ns(settings, breaker[c.X_LEVEL]))
        breaker[c.X_LEVEL] += 1


@rare
def probes_end_ns(tables: Tables, state: State, stage: int, engine: int) -> int:
    """When the last probe that runs should have ended: after twice what is expected of its batch; 0: none runs.

    An engine whose batches take longer than half_open_ms would else be opened again before its first probe could end,
    however well it is.
    """
    breaker = state.breakers[stage, engine]
    latest = 0
    first = tables.engines[engine, c.E_FIRST_SLOT]
    for slot in range(first, first + tables.engines[engine, c.E_MAX_INFLIGHT]):
        batch = state.batches[slot]
        # What has started since it is half-open was let through as a probe.
        is_probe = batch[c.B_STAGE] == stage and batch[c.B_STARTED_NS] >= breaker[c.X_CHANGED_NS]
        if batch[c.B_BUSY] == 1 and is_probe and breaker[c.X_PROBES] > 0:
            latest = max(latest, batch[c.B_STARTED_NS] + 2 * batch[c.B_EXPECTED_NS])
    return int(latest)


@rare
def on_time(now_ns: int, tables: Tables, state: State, engine: int) -> None:
    """Move every breaker of an engine whose time has come."""
    for stage in range(state.breakers.shape[0]):
        breaker = state.breakers[stage, engine]
        if breaker[c.X_UNTIL_NS] > now_ns:
            continue
        if breaker[c.X_STATE] == c.OPEN:
            change(now_ns, state, stage, engine, c.HALF_OPEN, c.FOREVER)
        elif breaker[c.X_STATE] == c.HALF_OPEN:
            ends_ns = probes_end_ns(tables, state, stage, engine)
            if breaker[c.X_PROBED] == 0 and ends_ns > now_ns:
                breaker[c.X_UNTIL_NS] = ends_ns
                set_timer(state, engine)
            else:
                decide_probes(now_ns, tables, state, stage, engine)


@kernel
def set_timer(state: State, engine: int) -> None:
    """When the next breaker of an engine must be looked at."""
    at = c.FOREVER
    for stage in range(state.breakers.shape[0]):
        at = min(at, state.breakers[stage, engine, c.X_UNTIL_NS])
    state.engines[engine, c.N_BREAKER_NS] = at
