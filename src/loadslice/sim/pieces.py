"""A trace that comes in parts, in pieces of the size that is simulated best.

What is read and written of a piece's requests stays in the cache until it is added up, and the next piece is written
over it: a day of requests touches the memory of one piece.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from loadslice.policy.tables import Int64s
from loadslice.sim import record as r
from loadslice.sim.course import Course
from loadslice.sim.record import NO_TRAFFIC, Traffic
from loadslice.sim.rows import Asked, find_inside, lay_out

T = TypeVar("T")

PIECE_ROWS = 1 << 15
"""Requests simulated at once: 2.4 MB of them. Half as many cost more in calls than they gain."""
ROWS_PER_CARRIED = 4
"""Of requests that a piece has left inside, each is copied to the next: at most one for so many that are new."""


class Pieces:
    """Simulates one piece after the other.

    Attributes:
        traffic: Of the piece that was simulated last.
        record: Of that piece.
    """

    def __init__(self, course: Course) -> None:
        """Begin with nothing."""
        self.traffic = NO_TRAFFIC
        self.record = course.record(0, timed=False)
        self._course = course
        self._arrival_ns: Int64s = np.zeros(0, np.int64)
        self._requests = self._attempts = np.zeros((0, 0), np.int64)
        self._ended: Int64s = np.zeros(0, np.int64)

    def of_part(self, asked: Asked, *, more: bool) -> Iterator[None]:
        """Simulate a part; stops after each piece, for whoever adds up.

        Args:
            asked: The part.
            more: Whether another part follows.
        """
        rows, first = len(asked.arrival_ns), 0
        while first < rows:
            inside = np.empty(self._course.inside, np.int64)
            missed = find_inside(self.record, inside)
            assert missed == 0, "every request that is inside has a row"
            taken = min(max(PIECE_ROWS, ROWS_PER_CARRIED * len(inside)), rows - first)
            self._follow(inside, asked, first, taken, more=int(more or first + taken < rows))
            self._course.advance(self.traffic, self.record)
            first += taken
            yield

    def _follow(self, inside: Int64s, asked: Asked, first: int, taken: int, *, more: int) -> None:
        """Make the next piece ready: requests that are still inside, then the next of the part.

        Args:
            inside: Rows of the last piece.
            asked: The part.
            first: Place of the piece's first in it.
            taken: How many.
            more: 1: another piece follows.
        """
        carried, rows = len(inside), len(inside) + taken
        # Copies: they stand where the next piece is written.
        attempts, arrival_ns = self.record.attempts[inside], self.traffic.arrival_ns[inside]
        requests = self.traffic.requests[inside]
        if rows > len(self._ended):
            self._arrival_ns, self._ended = np.empty(rows, np.int64), np.empty(rows, np.int64)
            self._requests = np.empty((rows, r.REQUEST_COLUMNS), np.int64)
            self._attempts = np.zeros((rows, r.ATTEMPT_COLUMNS), np.int64)
        self.traffic = Traffic(
            carried=attempts[:, r.A_TAG].copy(),
            first_tag=asked.first_tag + first,
            more=more,
            arrival_ns=self._arrival_ns[:rows],
            requests=self._requests[:rows],
            items=asked.items,
            bucket=asked.bucket,
        )
        self.record = self.record._replace(attempts=self._attempts[:rows], ended=self._ended[:rows])
        self.traffic.arrival_ns[:carried], self.traffic.requests[:carried] = arrival_ns, requests
        self.record.attempts[:carried] = attempts
        self._course.begin(self.record, carried)
        lay_out(first, asked, self.traffic)


def and_whether_more(parts: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each part, and whether another one follows."""
    ahead = iter(parts)
    part = next(ahead, None)
    while part is not None:
        following = next(ahead, None)
        yield part, following is not None
        part = following
