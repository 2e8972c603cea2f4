"""What a run reads of its requests and writes about them: one row per request, one per attempt, and the logs."""

from typing import Annotated, NamedTuple

import numpy as np

from loadslice.policy.kernel import by_reference, entry, kernel, rare
from loadslice.policy.tables import Int64s
from loadslice.sim.service import Float64s

Q_PRIORITY, Q_DEADLINE_NS, Q_TOKENS, Q_SOURCE, Q_PRECISION, Q_WORK, Q_TENANT, Q_KEY, REQUEST_COLUMNS = range(9)
"""What a request asks; the deadline is relative to its arrival, FOREVER for none; tokens, source and key -1 when
unknown."""

(
    A_TAG,
    A_START_NS,
    A_OUTCOME,
    A_REASON,
    A_END_NS,
    A_HINT_NS,
    A_WRONG,
    A_OVERHEAD_NS,
    ATTEMPT_COLUMNS,
) = range(9)
"""What became of an attempt; start -1: it never reached the core; wrong 1: an engine answered it wrongly at some stage;
overhead: time outside the core, added to its latency."""

(
    T_ENGINE,
    T_REASON,
    T_ENQUEUED_NS,
    T_DISPATCHED_NS,
    T_DONE_NS,
    T_BATCH_ROWS,
    T_VERSION,
    TIMELINE_COLUMNS,
) = range(8)
QUEUE_EXACT = 1024
"""Queue lengths below it are counted one by one; of those above, each doubling has half as many cells."""
QUEUE_SEEN = QUEUE_EXACT + 10 * QUEUE_EXACT // 2 + 8
"""Cells: up to a million that wait; more are counted as that. A few more, so that rows do not begin whole pages apart:
equal queues of many engines would all want the same place in the cache."""
N_EVENTS, N_EFFECTS, N_CALLS, N_ENDED, N_FAULTS, N_COUNTS = range(6)


@by_reference
class Traffic(NamedTuple):
    """Requests in arrival order. N rows, the first C of them of requests that earlier parts left inside."""

    carried: Annotated[Int64s, "C"]
    """Their tags, rising"""
    first_tag: int
    """Tag of row C; the tags of later rows follow"""
    more: int
    """1: another part follows"""
    arrival_ns: Annotated[Int64s, "N"]
    """Not falling"""
    alike: Annotated[Int64s, REQUEST_COLUMNS]
    """What each request asks, but for the columns in which they differ"""
    place: Annotated[Int64s, REQUEST_COLUMNS]
    """Row of ``values`` that holds a column; -1: all are alike in it"""
    differing: Annotated[Int64s, "D"]
    """Column that each row of ``values`` holds"""
    values: Annotated[Int64s, "D", "M"]
    """What requests ask in D columns, for the M of the part"""
    first: int
    """Column of ``values`` that is row 0's; those of later rows follow"""
    items: Annotated[Int64s, "W", "S"]
    """Rows that a kind of work asks of a stage"""
    bucket: Annotated[Int64s, "W", "S"]

    def column(self, column: int) -> Int64s:
        """What each request asks in one respect, [N]."""
        rows = len(self.arrival_ns)
        if self.place[column] < 0:
            return np.full(rows, self.alike[column])
        own: Int64s = self.values[self.place[column], self.first : self.first + rows]
        return own

    @property
    def work(self) -> Int64s:
        """Row of ``items`` and ``bucket``, [N]."""
        return self.column(Q_WORK)

    def chosen(self, rows: Int64s | slice) -> "Traffic":
        """Some of the requests, with the times at which they arrive."""
        values = self.values[:, self.first : self.first + len(self.arrival_ns)][:, rows]
        return self._replace(arrival_ns=self.arrival_ns[rows], values=np.ascontiguousarray(values), first=0)


NO_TRAFFIC = Traffic(
    carried=np.zeros(0, np.int64),
    first_tag=0,
    more=0,
    arrival_ns=np.zeros(0, np.int64),
    alike=np.zeros(REQUEST_COLUMNS, np.int64),
    place=np.full(REQUEST_COLUMNS, -1, np.int64),
    differing=np.zeros(0, np.int64),
    values=np.zeros((0, 0), np.int64),
    first=0,
    items=np.zeros((0, 0), np.int64),
    bucket=np.zeros((0, 0), np.int64),
)


@by_reference
class Record(NamedTuple):
    """What a run leaves behind. A attempts: as many as requests unless clients come back."""

    attempts: Annotated[Int64s, "A", ATTEMPT_COLUMNS]
    ended: Annotated[Int64s, "A"]
    """Rows of attempts in the order in which they ended, ``counts[N_ENDED]`` of them"""
    timeline: Annotated[Int64s, "A or 0", "S", TIMELINE_COLUMNS]
    queue_seen: Annotated[Int64s, "E", QUEUE_SEEN]
    """Placements by how many waited, themselves included, once what could start had started"""
    batches_j: Annotated[Float64s, "E"]
    """Energy of batches whose energy was measured, joules"""
    events: Int64s
    """[capacity or 0, EVENT_COLUMNS]"""
    effects: Int64s
    """[capacity or 0, EFFECT_COLUMNS]"""
    counts: Annotated[Int64s, N_COUNTS]
    """Event rows, effect rows, core calls, ends, faults that have befallen"""

    @property
    def start_ns(self) -> Int64s:
        """When each attempt reached the core, [A]."""
        return self.attempts[:, A_START_NS]

    @property
    def outcome(self) -> Int64s:
        """How each attempt ended, [A]."""
        return self.attempts[:, A_OUTCOME]

    @property
    def reason(self) -> Int64s:
        """Why each attempt ended, [A]."""
        return self.attempts[:, A_REASON]

    @property
    def end_ns(self) -> Int64s:
        """When each attempt ended, [A]."""
        return self.attempts[:, A_END_NS]

    @property
    def hint_ns(self) -> Int64s:
        """Retry-After of each attempt's refusal, [A]."""
        return self.attempts[:, A_HINT_NS]


@kernel
def row_of(traffic: Traffic, tag: int) -> int:
    """Row of an attempt: by its distance from the first tag, or among those carried over from earlier parts."""
    carried = traffic.carried
    if tag >= traffic.first_tag:
        return int(tag - traffic.first_tag + carried.shape[0])
    low = 0
    high = carried.shape[0] - 1
    while low < high:
        middle = (low + high) >> 1
        if carried[middle] < tag:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def asked(traffic: Traffic, row: int, column: int) -> int:
    """What a request asks in one respect."""
    place = traffic.place[column]
    return int(traffic.alike[column] if place < 0 else traffic.values[place, traffic.first + row])


@entry(inlined=False)
def find_inside(record: Record, inside: Int64s) -> int:
    """Fill ``inside`` with the rows of attempts that have not ended, rising; of the latest ones where it is short."""
    left = inside.shape[0]
    row = record.attempts.shape[0]
    # From the end on: all but a few stand there.
    while left > 0 and row > 0:
        row -= 1
        if record.attempts[row, A_OUTCOME] == 0:
            left -= 1
            inside[left] = row
    return int(left)


@entry(inlined=False)
def cell_of_queue(waiting: int) -> int:
    """The cell of a queue length of at least QUEUE_EXACT."""
    shift = 1
    while waiting >> shift >= QUEUE_EXACT:
        shift += 1
    half = QUEUE_EXACT // 2
    return int(min(QUEUE_EXACT + (shift - 1) * half + (waiting >> shift) - half, QUEUE_SEEN - 1))


def queue_of_cell(cell: int) -> int:
    """The shortest queue that is counted in a cell: within 1/512 of all that are."""
    if cell < QUEUE_EXACT:
        return cell
    half = QUEUE_EXACT // 2
    doublings, place = divmod(cell - QUEUE_EXACT, half)
    return (half + place) << (doublings + 1)


@kernel
def log_event(record: Record, row: tuple[int, ...]) -> None:
    """Append one call to the event log, where one is kept."""
    if record.events.shape[0] > 0:
        write_event(record, row)


@rare
def write_event(record: Record, row: tuple[int, ...]) -> None:
    """Append one call to the event log."""
    at = record.counts[N_EVENTS]
    for column in range(len(row)):
        record.events[at, column] = row[column]
    record.counts[N_EVENTS] = at + 1
