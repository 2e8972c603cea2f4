"""When requests arrive: seconds of a trace as nanoseconds of a run, checked in the same pass."""

from typing import NamedTuple

import numpy as np

from loadslice.policy.kernel import by_reference, entry
from loadslice.policy.tables import Int64s
from loadslice.sim.service import Float64s

ARRIVAL_S_MAX = 1e9
"""Thirty years in either direction; later times leave too little room below FOREVER."""

_NS_PER_S = 1e9


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
