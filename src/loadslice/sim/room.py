"""Memory that is asked of the system once: for part after part of a trace, and for run after run of one."""

import numpy as np

from loadslice.policy.tables import Int64s
from loadslice.sim.record import A_OVERHEAD_NS, ATTEMPT_COLUMNS, TIMELINE_COLUMNS


class Room:
    """Where parts of a trace are lowered to: a fresh page can cost as much as twenty simulated requests.

    Attributes:
        front: Rows that are left free in front of each part.
    """

    def __init__(self, front: int) -> None:
        """Ask for nothing yet."""
        self.front = front
        self._arrival_ns: Int64s = np.empty(0, np.int64)
        self._values: Int64s = np.empty(0, np.int64)

    def arrival_ns(self, rows: int) -> Int64s:
        """[front + rows] free cells."""
        if self.front + rows > len(self._arrival_ns):
            self._arrival_ns = np.empty(self.front + rows, np.int64)
        return self._arrival_ns[: self.front + rows]

    def values(self, columns: int, rows: int) -> Int64s:
        """[columns, front + rows] free cells."""
        cells = columns * (self.front + rows)
        if cells > len(self._values):
            self._values = np.empty(cells, np.int64)
        return self._values[:cells].reshape(columns, self.front + rows)


class RecordRoom:
    """Where runs that are summed up one after the other write their records: each over the one before.

    To fetch fresh memory for a run's record takes a tenth of the time of the run; a sixth with times at each stage.
    """

    def __init__(self) -> None:
        """Ask for nothing yet."""
        self._attempts: Int64s = np.zeros((0, ATTEMPT_COLUMNS), np.int64)
        self._ended: Int64s = np.empty(0, np.int64)
        self._timeline: Int64s = np.empty(0, np.int64)
        self._has_overhead = False

    def attempts(self, rows: int, *, overhead: bool) -> Int64s:
        """[rows, ATTEMPT_COLUMNS] that a run writes itself, but for the overhead, which is 0 or the caller's to write.

        Args:
            rows: Attempts, each of which reaches the core and ends.
            overhead: Whether the caller writes it.
        """
        if rows > len(self._attempts):
            self._attempts = np.zeros((rows, ATTEMPT_COLUMNS), np.int64)
        elif self._has_overhead and not overhead:
            self._attempts[:, A_OVERHEAD_NS] = 0
        self._has_overhead = overhead
        return self._attempts[:rows]

    def ended(self, rows: int) -> Int64s:
        """[rows] free cells."""
        if rows > len(self._ended):
            self._ended = np.empty(rows, np.int64)
        return self._ended[:rows]

    def timeline(self, rows: int, stages: int) -> Int64s:
        """[rows, stages, TIMELINE_COLUMNS] free cells."""
        cells = rows * stages * TIMELINE_COLUMNS
        if cells > len(self._timeline):
            self._timeline = np.empty(cells, np.int64)
        return self._timeline[:cells].reshape(rows, stages, TIMELINE_COLUMNS)
