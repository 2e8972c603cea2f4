"""An attempt arrives: what its request asks is read, its rows begin, and the core is told."""

from loadslice.policy import columns as c
from loadslice.policy import desk, events
from loadslice.policy.kernel import called, kernel, rare
from loadslice.policy.tables import Int64s, State, Tables
from loadslice.sim import clients
from loadslice.sim.clients import Behaviour, Diary
from loadslice.sim.clockwork import Clockwork
from loadslice.sim.record import (
    A_OUTCOME,
    A_START_NS,
    A_TAG,
    A_WRONG,
    Q_DEADLINE_NS,
    Q_KEY,
    Q_PRECISION,
    Q_PRIORITY,
    Q_SOURCE,
    Q_TENANT,
    Q_TOKENS,
    Q_WORK,
    REQUEST_COLUMNS,
    TIMELINE_COLUMNS,
    Record,
    Traffic,
    log_event,
)


@kernel
def begin_passage(line: Int64s) -> None:
    """Nothing has happened at a stage yet. The first stage's is written by itself: a loop becomes a call of memset."""
    for column in range(TIMELINE_COLUMNS):
        line[column] = -1


@kernel
def begin_attempt(now_ns: int, record: Record, row: int, tag: int) -> None:
    """Begin the rows of an attempt that reaches the core."""
    record.attempts[row, A_TAG] = tag
    record.attempts[row, A_START_NS] = now_ns
    record.attempts[row, A_OUTCOME] = 0
    record.attempts[row, A_WRONG] = 0
    if record.timeline.shape[0] > 0:
        begin_passage(record.timeline[row, 0])
        for stage in range(1, record.timeline.shape[1]):
            begin_passage(record.timeline[row, stage])


@kernel
def ask_alike(traffic: Traffic, asks: Int64s) -> None:
    """Write down what all requests of a part ask alike."""
    for column in range(REQUEST_COLUMNS):
        asks[column] = traffic.alike[column]


@kernel
def ask(traffic: Traffic, request: int, asks: Int64s) -> None:
    """Write down what one of them asks beside that: mostly a class, and nothing else."""
    if traffic.differing.shape[0] > 0:
        asks[traffic.differing[0]] = traffic.values[0, traffic.first + request]
    if traffic.differing.shape[0] > 1:
        ask_more(traffic, request, asks)


@called
def ask_more(traffic: Traffic, request: int, asks: Int64s) -> None:
    """The same for all but the first column that differs. Inlined, a loop is unrolled for many, and few come."""
    for place in range(1, traffic.differing.shape[0]):
        asks[traffic.differing[place]] = traffic.values[place, traffic.first + request]


@kernel
def attempt(
    now_ns: int,
    seed: int,
    row: int,
    tag: int,
    tables: Tables,
    state: State,
    traffic: Traffic,
    behaviour: Behaviour,
    diary: Diary,
    clockwork: Clockwork,
    record: Record,
) -> None:
    """An attempt of a request arrives."""
    rows = traffic.arrival_ns.shape[0]
    request = row if row < rows else row % rows
    number = 1 if row < rows else row // rows + 1
    asks = clockwork.asks
    ask(traffic, request, asks)
    relative_ns = asks[Q_DEADLINE_NS]
    if behaviour.timeout_ns > 0:
        clients.start_waiting(now_ns, seed, behaviour, diary, tag)
        if behaviour.states_deadline == 1:
            relative_ns = min(relative_ns, behaviour.timeout_ns)
        if behaviour.states_attempt == 0:
            number = 1
    deadline_ns = now_ns + relative_ns if relative_ns < c.FOREVER else c.FOREVER
    items = traffic.items[asks[Q_WORK], 0]
    bucket = traffic.bucket[asks[Q_WORK], 0]
    tokens = asks[Q_TOKENS]
    source = asks[Q_SOURCE]
    priority = asks[Q_PRIORITY]
    level = asks[Q_PRECISION]
    owner = asks[Q_TENANT]
    key = asks[Q_KEY]
    begin_attempt(now_ns, record, row, tag)
    log_event(
        record,
        (events.ARRIVAL, now_ns, tag, priority, deadline_ns, items, bucket, tokens, source, level, number, owner, key),
    )
    desk.on_arrival(
        now_ns, tables, state, tag, priority, deadline_ns, items, bucket, tokens, source, level, number, owner, key
    )


@rare
def attempt_apart(
    now_ns: int,
    seed: int,
    tag: int,
    tables: Tables,
    state: State,
    traffic: Traffic,
    behaviour: Behaviour,
    diary: Diary,
    clockwork: Clockwork,
    record: Record,
) -> None:
    """The same, where it is not worth inlining, for a trace in one part: there tags are rows."""
    attempt(now_ns, seed, tag, tag, tables, state, traffic, behaviour, diary, clockwork, record)
