"""A trace that comes in parts, in pieces of the size that is simulated best.

What is written of a piece's requests stays in the cache until it is added up, and the next piece is written over it: a
day of requests touches the memory of one part, and asks the system for none.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from loadslice.policy.tables import Int64s
from loadslice.sim import record as r
from loadslice.sim.course import Course
from loadslice.sim.record import NO_TRAFFIC, Traffic
from loadslice.sim.room import Room

T = TypeVar("T")

PIECE_ROWS = 1 << 16
"""Requests simulated at once, 6 MB of them. Between pieces the calls into the loop cost a quarter of a millisecond, for
the loop has taken the cache."""
ROWS_PER_CARRIED = 4
"""Of requests that a piece has left inside, each is copied to the next: at most one for so many that are new."""


class _Left(NamedTuple):
    """What is known of requests that a piece has left inside, apart from where the next one is written."""

    attempts: Int64s
    """[C, ATTEMPT_COLUMNS]"""
    arrival_ns: Int64s
    """[C]"""
    place: Int64s
    """As of `Traffic`"""
    values: Int64s
    """[columns that differ, C]"""


class Pieces:
    """Simulates one piece after the other.

    Attributes:
        room: What each part is to be lowered into.
        traffic: Of the piece that was simulated last.
        record: Of that piece.
    """

    def __init__(self, course: Course) -> None:
        """Begin with nothing."""
        self.room = Room(course.places)
        self.traffic = NO_TRAFFIC
        self.record = course.record(0, timed=False)
        self._course = course
        self._attempts: Int64s = np.zeros((0, r.ATTEMPT_COLUMNS), np.int64)
        self._ended: Int64s = np.zeros(0, np.int64)
        self._left = self._still_inside()

    def of_part(self, part: Traffic, *, more: bool) -> Iterator[None]:
        """Simulate a part; stops after each piece, for whoever adds up.

        Args:
            part: Lowered into ``room``.
            more: Whether another part follows.
        """
        begin, end = self.room.front, len(part.arrival_ns)
        while begin < end:
            stop = min(begin + max(PIECE_ROWS, ROWS_PER_CARRIED * len(self._left.attempts)), end)
            self._follow(part, begin, stop, more=int(more or stop < end))
            self._course.advance(self.traffic, self.record)
            self._left = self._still_inside()
            begin = stop
            yield

    def _still_inside(self) -> _Left:
        inside = np.empty(self._course.inside, np.int64)
        missed = r.find_inside(self.record, inside)
        assert missed == 0, "every request that is inside has a row"
        traffic = self.traffic
        values = traffic.values[:, traffic.first + inside]
        return _Left(self.record.attempts[inside], traffic.arrival_ns[inside], traffic.place, values)

    def _follow(self, part: Traffic, begin: int, stop: int, *, more: int) -> None:
        """Make the next piece ready: requests that are still inside, and the next of the part.

        Args:
            part: What is inside is written over the last of those in front of ``begin``, which have been simulated.
            begin: The piece's first.
            stop: The first that it leaves out.
            more: 1: another piece follows.
        """
        left = self._left
        carried = len(left.attempts)
        front = begin - carried
        if carried:
            assert (left.place == part.place).all(), "parts have the same columns"
            part.arrival_ns[front:begin], part.values[:, front:begin] = left.arrival_ns, left.values
        self.traffic = part._replace(
            carried=left.attempts[:, r.A_TAG].copy(),
            first_tag=part.first_tag + begin - self.room.front,
            more=more,
            arrival_ns=part.arrival_ns[front:stop],
            first=front,
        )
        rows = stop - front
        if rows > len(self._ended):
            self._attempts = np.zeros((rows, r.ATTEMPT_COLUMNS), np.int64)
            self._ended = np.empty(rows, np.int64)
        self.record = self.record._replace(attempts=self._attempts[:rows], ended=self._ended[:rows])
        self.record.attempts[:carried] = left.attempts
        self._course.begin(self.record, carried)


def and_whether_more(parts: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each part, and whether another one follows."""
    ahead = iter(parts)
    part = next(ahead, None)
    while part is not None:
        following = next(ahead, None)
        yield part, following is not None
        part = following
