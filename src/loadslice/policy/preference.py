"""Which engine a request would rather have, among those that may serve it now."""

from loadslice.policy import columns as c
from loadslice.policy.deadlines import expected_wait_ns
from loadslice.policy.kernel import first_least, kernel, rare
from loadslice.policy.layout import State, Tables
from loadslice.policy.live import service_ns
from loadslice.policy.residency import load_ns
from loadslice.spec.outcome import Reason

PREFERRED, RULE = int(Reason.PREFERRED), int(Reason.RULE)
FASTEST, CHEAPEST = int(Reason.FASTEST), int(Reason.CHEAPEST)


@kernel
def accepts(tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether an engine, were it up, may serve the request at its stage."""
    row = state.requests[request]
    stage = row[c.R_STAGE]
    pair = tables.pairs[stage, engine]
    return bool(
        tables.eligible[stage, engine, row[c.R_BUCKET]] == 1
        and row[c.R_ITEMS] <= pair[c.P_MAX_ITEMS]
        and row[c.R_PRECISION] <= pair[c.P_PRECISION]
    )


@kernel
def available(tables: Tables, state: State, request: int, engine: int) -> bool:
    """Whether an engine may serve the request now."""
    return bool(
        state.admission[state.requests[request, c.R_STAGE], engine] == 0 and accepts(tables, state, request, engine)
    )


@rare
def rule_target(tables: Tables, state: State, request: int) -> int:
    """Engine named by the first rule of the request's stage that holds; -1 when none does."""
    row = state.requests[request]
    lane = row[c.R_BUCKET]
    buckets = tables.stages[row[c.R_STAGE], c.S_BUCKETS]
    bucket = lane - buckets if lane >= buckets else lane
    for index in range(tables.rules.shape[0]):
        rule = tables.rules[index]
        if (
            rule[c.U_STAGE] == row[c.R_STAGE]
            and rule[c.U_ITEMS_MIN] <= row[c.R_ITEMS] <= rule[c.U_ITEMS_MAX]
            and rule[c.U_TOKENS_MIN] <= row[c.R_TOKENS] <= rule[c.U_TOKENS_MAX]
            and (rule[c.U_CLASSES] >> row[c.R_CLASS]) & 1 == 1
            and (rule[c.U_SOURCE] == c.ANY or rule[c.U_SOURCE] == row[c.R_SOURCE])
            and (rule[c.U_BUCKET] == c.ANY or rule[c.U_BUCKET] == bucket)
        ):
            return int(rule[c.U_TO])
    return -1


@kernel
def first_in_order(tables: Tables, state: State, request: int) -> int:
    """The first engine of the file's order that may serve the request now; -1: none may."""
    stage = state.requests[request, c.R_STAGE]
    for order in range(tables.preference.shape[1]):
        engine = tables.preference[stage, order]
        if engine < 0:
            break
        if available(tables, state, request, engine):
            return int(engine)
    return -1


@kernel
def fastest(now_ns: int, tables: Tables, state: State, request: int, stage: int) -> int:
    """The engine where a request is expected to end its stage first; equal ones in the order of the file; -1: none may.

    Every engine is looked at for every request, so the look is three numbers in rows. Of a newcomer with one row and no
    wish for precision, at a stage whose engines are plain, they say all there is to say.
    """
    row = state.requests[request]
    is_plain = stage == 0 and row[c.R_ITEMS] == 1 and row[c.R_PRECISION] == 0
    if not is_plain or tables.stages[stage, c.S_EXACT] == 0:
        return fastest_of_all(now_ns, tables, state, request)
    quick_ns = state.quick_ns[stage, row[c.R_BUCKET]]
    least = first_least(now_ns, state.ends_ns, state.backlog_ns[row[c.R_CLASS]], quick_ns)
    return least if quick_ns[least] < c.BLOCKED_NS else -1


@rare
def fastest_of_all(now_ns: int, tables: Tables, state: State, request: int) -> int:
    """The same for any request: the expectation itself of every engine that could beat the best so far."""
    row = state.requests[request]
    stage = row[c.R_STAGE]
    backlog_ns = state.backlog_ns[row[c.R_CLASS]]
    quick_ns = state.quick_ns[stage, row[c.R_BUCKET]]
    best = -1
    best_ns = c.BLOCKED_NS - 1  # even a tie with it must not beat what is blocked
    for engine in range(quick_ns.shape[0]):
        least_ns = max(state.ends_ns[engine] - now_ns, 0) + quick_ns[engine]
        # Of several slots, or for one that has begun, not all of the backlog is waited for.
        if stage == 0 and tables.engines[engine, c.E_MAX_INFLIGHT] == 1:
            least_ns += backlog_ns[engine]
        if least_ns > best_ns:
            continue
        expected_ns = completion_ns(now_ns, tables, state, request, engine)
        sooner = expected_ns < best_ns or (
            expected_ns == best_ns and best >= 0 and tables.rank[stage, engine] < tables.rank[stage, best]
        )
        if sooner and accepts(tables, state, request, engine):
            best = engine
            best_ns = expected_ns
    return int(best)


@kernel
def completion_ns(now_ns: int, tables: Tables, state: State, request: int, engine: int) -> int:
    """How long from now until a request is expected to end at its stage, were it placed on an engine that takes it."""
    row = state.requests[request]
    stage = row[c.R_STAGE]
    return int(
        expected_wait_ns(now_ns, tables, state, request, engine)
        + load_ns(tables, state, engine, stage)
        + service_ns(tables, state, stage, engine, row[c.R_BUCKET], row[c.R_ITEMS])
    )


@rare
def cheapest(now_ns: int, tables: Tables, state: State, request: int, ahead: int) -> int:
    """The engine that asks least for a request among those expected to meet its deadline; equal ones by completion.

    Args:
        now_ns: Time since the run began.
        tables: What never changes.
        state: Read.
        request: Stands at a stage and in no queue.
        ahead: Expected time at later stages.

    Returns:
        An engine; the fastest where none is expected to meet the deadline; -1: none may serve it.
    """
    row = state.requests[request]
    stage = row[c.R_STAGE]
    lane = row[c.R_BUCKET]
    best = -1
    best_price = c.FOREVER
    best_ns = c.FOREVER
    for order in range(tables.preference.shape[1]):
        engine = tables.preference[stage, order]
        if engine < 0:
            break
        if not available(tables, state, request, engine):
            continue
        ends_ns = completion_ns(now_ns, tables, state, request, engine)
        if row[c.R_DEADLINE_NS] < c.FOREVER and now_ns + ends_ns + ahead > row[c.R_DEADLINE_NS]:
            continue
        price = tables.price[stage, engine, lane]
        if price < best_price or (price == best_price and ends_ns < best_ns):
            best = engine
            best_price = price
            best_ns = ends_ns
    return int(best) if best >= 0 else fastest(now_ns, tables, state, request, stage)
