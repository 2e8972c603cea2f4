"""Memory that part after part of a trace is lowered into."""

import numpy as np

from loadslice.policy.tables import Int64s


class Room:
    """Cells that are asked of the system once: a fresh page can cost as much as twenty simulated requests.

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
