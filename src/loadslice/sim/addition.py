"""Adds attempts that have ended to the sums of a run: one pass over each, in the order in which they ended."""

import math
from typing import Annotated, NamedTuple

import numpy as np

from loadslice.policy.kernel import by_reference, entry, kernel
from loadslice.policy.tables import Int64s
from loadslice.sim import record as r
from loadslice.sim.record import Record, Traffic
from loadslice.spec.outcome import OUTCOMES, REASONS, Outcome, Reason

COMPLETED, DEGRADED = int(Outcome.COMPLETED), int(Reason.DEGRADED)

BLOCK = 8192
"""Attempts added at once: what is written of them fits the cache until it is hashed."""

SHORT_WORDS, LONG_WORDS = 2, 4
"""64-bit words that say how and when an attempt ended, where they are enough, and where they are not (`say`)."""

KEPT_BITS = 11
"""Leading bits of a latency's mantissa: cells 1/2048 of their lower end wide, so that the middle of a cell is
within 1/4096 of all that is in it. A latency below 2048 ns has a cell of its own."""
CELLS = 62 << KEPT_BITS

S_IN_TIME, S_WRONG, S_COMPLETED, S_TAKEN_NS, S_END_NS, S_WORDS, SUM_COLUMNS = range(7)
"""Attempts answered before their deadline; those answered wrongly; answered; latencies of their requests together; the
last end; words of the block."""


@by_reference
class Sums(NamedTuple):
    """What a run adds up to so far, and one block of it."""

    outcomes: Int64s
    """[7] attempts by `Outcome`"""
    reasons: Int64s
    """[reasons] attempts by `Reason`"""
    totals: Annotated[Int64s, SUM_COLUMNS]
    """[SUM_COLUMNS]"""
    said: Int64s
    """[BLOCK * LONG_WORDS] how and when each attempt of the block ended, ``totals[S_WORDS]`` words"""
    taken_ns: Int64s
    """[BLOCK] latencies of the requests of the block that were answered, from their first attempt on"""


def no_sums() -> Sums:
    """Nothing was added yet."""
    return Sums(
        outcomes=np.zeros(len(OUTCOMES) + 1, np.int64),
        reasons=np.zeros(len(REASONS), np.int64),
        totals=np.zeros(SUM_COLUMNS, np.int64),
        said=np.zeros(BLOCK * LONG_WORDS, np.int64),
        taken_ns=np.zeros(BLOCK, np.int64),
    )


@kernel
def say(attempt: Int64s, latest_ns: int, sums: Sums, at: int) -> int:
    """Put into words how and when an attempt ended, so that its columns could be read back from them.

    First word: tag, reason (7 bits), outcome (3), and in the last bit whether four words follow each other instead of
    two. Second of two: time since the attempt before ended (31 bits), and since this one began (32). Second to last of
    four: end, start, and hint. Hashed as they stand, six columns took a quarter of the time of a simulated request.

    Args:
        attempt: Has ended.
        latest_ns: When the attempt before it did.
        sums: Its ``said`` is written to.
        at: Words that stand there.

    Returns:
        Words that stand there now.
    """
    start_ns = attempt[r.A_START_NS]
    end_ns = attempt[r.A_END_NS]
    since_ns = end_ns - latest_ns
    what = ((attempt[r.A_TAG] << 7 | attempt[r.A_REASON]) << 3 | attempt[r.A_OUTCOME]) << 1
    if attempt[r.A_HINT_NS] == 0 and since_ns >> 31 == 0 and (end_ns - start_ns) >> 32 == 0:
        sums.said[at] = what
        sums.said[at + 1] = since_ns << 32 | (end_ns - start_ns)
        return at + SHORT_WORDS
    sums.said[at] = what | 1
    sums.said[at + 1] = end_ns
    sums.said[at + 2] = start_ns
    sums.said[at + 3] = attempt[r.A_HINT_NS]
    return at + LONG_WORDS


@entry(inlined=False)
def add_up(first: int, count: int, timeout_ns: int, traffic: Traffic, record: Record, sums: Sums) -> int:
    """Add a block of attempts.

    Args:
        first: Place of the first of them among those that have ended.
        count: At most BLOCK.
        timeout_ns: How long clients wait; 0: for ever.
        traffic: What they asked.
        record: What became of them.
        sums: Changed.

    Returns:
        How many were answered, and not by a degraded reply, which costs no time and says little: it is counted, and
        part of no latency and no goodput.
    """
    requests = traffic.arrival_ns.shape[0]
    totals = sums.totals
    # What every attempt adds to is a number here, and goes back at the end: in memory, each would wait for the last.
    latest_ns = totals[S_END_NS]
    words, answered, in_time, wrong, together_ns = 0, 0, 0, 0, 0
    for place in range(count):
        row = record.ended[first + place]
        attempt = record.attempts[row]
        words = say(attempt, latest_ns, sums, words)
        latest_ns = attempt[r.A_END_NS]
        sums.outcomes[attempt[r.A_OUTCOME]] += 1
        sums.reasons[attempt[r.A_REASON]] += 1
        if attempt[r.A_OUTCOME] != COMPLETED or attempt[r.A_REASON] == DEGRADED:
            continue
        taken_ns = attempt[r.A_END_NS] - attempt[r.A_START_NS] + attempt[r.A_OVERHEAD_NS]
        # Attempts that follow a request's first stand a whole trace further down each.
        first_row = row if row < requests else row % requests
        patience_ns = r.asked(traffic, first_row, r.Q_DEADLINE_NS)
        if timeout_ns > 0:
            patience_ns = min(patience_ns, timeout_ns)
        in_time += 1 if taken_ns <= patience_ns else 0
        wrong += attempt[r.A_WRONG]
        # Each attempt has patience of its own; the request has taken all the time since its first.
        taken_ns += attempt[r.A_START_NS] - record.attempts[first_row, r.A_START_NS]
        together_ns += taken_ns
        sums.taken_ns[answered] = taken_ns
        answered += 1
    totals[S_END_NS] = latest_ns
    totals[S_WORDS] = words
    totals[S_IN_TIME] += in_time
    totals[S_WRONG] += wrong
    totals[S_COMPLETED] += answered
    totals[S_TAKEN_NS] += together_ns
    return answered


@kernel
def cell_of(taken_ns: int) -> int:
    """The histogram's cell of a time: exponent and leading bits of the mantissa, which are its logarithm cut off."""
    bits = np.float64(max(taken_ns, 1)).view(np.int64)
    return int(bits >> (52 - KEPT_BITS)) - (1023 << KEPT_BITS)


@entry(inlined=False)
def count_cells(taken_ns: Int64s, cells: Int64s) -> int:
    """Count each time in its cell; the times, as they came."""
    for place in range(taken_ns.shape[0]):
        cells[cell_of(taken_ns[place])] += 1
    return int(taken_ns.shape[0])


def lower_end_ns(cell: int) -> float:
    """Where a cell begins."""
    exponent, bits = divmod(cell, 1 << KEPT_BITS)
    return math.ldexp(1.0 + bits / (1 << KEPT_BITS), exponent)
