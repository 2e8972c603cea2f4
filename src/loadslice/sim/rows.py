"""Rows of requests, as the loop reads them, from the columns of a trace: one pass, into memory that is used again."""

from typing import Annotated, NamedTuple

import numpy as np

from loadslice.policy.kernel import by_reference, entry
from loadslice.policy.tables import Int64s
from loadslice.sim import record as r
from loadslice.sim.record import Record, Traffic
from loadslice.sim.service import Float64s

ARRIVAL_S_MAX = 1e9
"""Thirty years in either direction; later times leave too little room below FOREVER."""

_NS_PER_S = 1e9


@by_reference
class Asked(NamedTuple):
    """What the N requests of a part of a trace ask, column by column."""

    first_tag: int
    """Tag of the first; the tags of the others follow"""
    arrival_ns: Int64s
    """[N] not falling"""
    alike: Annotated[Int64s, r.REQUEST_COLUMNS]
    """[REQUEST_COLUMNS] what each request asks, but for"""
    differing: Int64s
    """[D] columns in which they differ"""
    values: Int64s
    """[D, N] their values"""
    items: Int64s
    """As of `Traffic`"""
    bucket: Int64s
    """As of `Traffic`"""


@by_reference
class Arrivals(NamedTuple):
    """When the N requests of a part of a trace arrive."""

    stated_s: Float64s
    """[N] as the trace says"""
    since_ns: Int64s
    """[N] since the run began"""


@entry(inlined=False)
def since_begin(first_ns: int, latest_ns: int, arrivals: Arrivals) -> int:
    """Fill ``since_ns``.

    Args:
        first_ns: When the run began.
        latest_ns: The last arrival before these; none may be earlier.
        arrivals: Changed.

    Returns:
        The first row whose time is none, or falls; N where there is none.
    """
    rows = arrivals.stated_s.shape[0]
    for row in range(rows):
        stated_s = arrivals.stated_s[row]
        if not abs(stated_s) < ARRIVAL_S_MAX:  # false for NaN too
            return int(row)
        at_ns = int(np.rint(stated_s * _NS_PER_S))
        if at_ns < latest_ns:
            return int(row)
        latest_ns = at_ns
        arrivals.since_ns[row] = at_ns - first_ns
    return int(rows)


@entry(inlined=False)
def lay_out(first: int, asked: Asked, traffic: Traffic) -> int:
    """Write rows from ``first`` on behind those that are carried over, to the end of ``traffic``; how many."""
    carried = traffic.carried.shape[0]
    for row in range(carried, traffic.arrival_ns.shape[0]):
        at = first + row - carried
        traffic.arrival_ns[row] = asked.arrival_ns[at]
        for column in range(r.REQUEST_COLUMNS):
            traffic.requests[row, column] = asked.alike[column]
        for place in range(asked.differing.shape[0]):
            traffic.requests[row, asked.differing[place]] = asked.values[place, at]
    return int(traffic.arrival_ns.shape[0] - carried)


@entry(inlined=False)
def find_inside(record: Record, inside: Int64s) -> int:
    """Fill ``inside`` with the rows of attempts that have not ended, rising; of the latest ones where it is short."""
    left = inside.shape[0]
    row = record.attempts.shape[0]
    # From the end on: all but a few stand there.
    while left > 0 and row > 0:
        row -= 1
        if record.attempts[row, r.A_OUTCOME] == 0:
            left -= 1
            inside[left] = row
    return left
