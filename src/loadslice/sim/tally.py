"""Adds a run up while it goes on: outcomes, latencies and the digest, over any number of parts alike."""

import hashlib

import numpy as np

from loadslice.policy.tables import Int64s
from loadslice.sim import addition as a
from loadslice.sim import record as r
from loadslice.sim.record import Record, Traffic
from loadslice.spec.simulation import LatencyMs

EXACT_MAX = 8_000_000
"""Latencies kept one by one (64 MB); of more completed attempts, percentiles come from a histogram."""

ERROR_MAX = 1 / 4096
"""Furthest that a percentile from the histogram is from the true one, as a share of it: 0.025 %."""

_NS_PER_MS = 1_000_000


class Tally:
    """What is known of the attempts that have ended.

    Attributes:
        attempts: That reached the core.
    """

    def __init__(self, timeout_ns: int = 0) -> None:
        """Start with nothing.

        Args:
            timeout_ns: How long clients wait; 0: for ever.
        """
        self.attempts = 0
        self._sums = a.no_sums()
        self._timeout_ns = timeout_ns
        self._sha = hashlib.sha256()
        self._exact: list[Int64s] | None = []
        self._cells = np.zeros(0, np.int64)

    def add(self, traffic: Traffic, record: Record) -> None:
        """Add the attempts that have ended in a part of a trace, in the order in which they ended."""
        ended = int(record.counts[r.N_ENDED])
        self.attempts += ended
        for first in range(0, ended, a.BLOCK):
            count = min(a.BLOCK, ended - first)
            answered = a.add_up(first, count, self._timeout_ns, traffic, record, self._sums)
            words = self._sums.said[: self._sums.totals[a.S_WORDS]]
            self._sha.update(np.ascontiguousarray(words, dtype="<i8").data)
            self._keep(self._sums.taken_ns[:answered])

    def _keep(self, taken_ns: Int64s) -> None:
        if self._exact is not None:
            self._exact.append(taken_ns.copy())
            if self._completed <= EXACT_MAX:
                return
            taken_ns = np.concatenate(self._exact)
            self._exact = None
            self._cells = np.zeros(a.CELLS, np.int64)
        a.count_cells(taken_ns, self._cells)

    @property
    def outcomes(self) -> Int64s:
        """Attempts by `Outcome`, [7]."""
        return self._sums.outcomes

    @property
    def reasons(self) -> Int64s:
        """Attempts by `Reason`, [reasons]."""
        return self._sums.reasons

    @property
    def in_time(self) -> int:
        """Attempts answered well before their deadline, and while their client was still there."""
        return int(self._sums.totals[a.S_IN_TIME])

    @property
    def wrong(self) -> int:
        """Completed attempts that a faulty engine answered wrongly."""
        return int(self._sums.totals[a.S_WRONG])

    @property
    def end_ns(self) -> int:
        """When the last one ended."""
        return int(self._sums.totals[a.S_END_NS])

    @property
    def _completed(self) -> int:
        return int(self._sums.totals[a.S_COMPLETED])

    @property
    def digest(self) -> str:
        """Hash of how and when every attempt ended: same inputs and seed, same hash, in any process and any parts."""
        return self._sha.hexdigest()

    @property
    def is_exact(self) -> bool:
        """Whether percentiles are of the latencies themselves; otherwise they are within 0.025 %."""
        return self._exact is not None

    def latency_ms(self) -> LatencyMs:
        """P50, P95, P99 and mean of completed requests, from their first attempt on; null when there are none."""
        if self._completed == 0:
            return LatencyMs(p50=None, p95=None, p99=None, mean=None)
        if self._exact is not None:
            found_ns = np.percentile(np.concatenate(self._exact), [50, 95, 99]).tolist()
        else:
            found_ns = [self._from_cells(share) for share in (0.5, 0.95, 0.99)]
        p50, p95, p99 = (ns / _NS_PER_MS for ns in found_ns)
        mean = int(self._sums.totals[a.S_TAKEN_NS]) / self._completed / _NS_PER_MS
        return LatencyMs(p50=p50, p95=p95, p99=p99, mean=mean)

    def _from_cells(self, share: float) -> float:
        """Middle of the cell that holds a quantile, ns."""
        cell = int(np.searchsorted(np.cumsum(self._cells), share * (self._completed - 1), side="right"))
        low, high = a.lower_end_ns(cell), a.lower_end_ns(cell + 1)
        return low if high - low <= 1.0 else (low + high) / 2


def warm() -> None:
    """Load or compile what only runs longer than EXACT_MAX need."""
    a.count_cells(np.ones(1, np.int64), np.zeros(a.CELLS, np.int64))


def taken_ns(attempts: Int64s) -> Int64s:
    """Time from the start of each attempt to its end, what is spent outside the core included."""
    taken: Int64s = attempts[:, r.A_END_NS] - attempts[:, r.A_START_NS] + attempts[:, r.A_OVERHEAD_NS]
    return taken


def since_first_ns(attempts: Int64s, requests: int) -> Int64s:
    """Time from the start of each attempt's request to the attempt's end, [attempts].

    Args:
        attempts: [requests * attempts each, ATTEMPT_COLUMNS] as a run in one part leaves them.
        requests: Of the trace.
    """
    first_ns = np.tile(attempts[:requests, r.A_START_NS], len(attempts) // max(1, requests))
    taken: Int64s = taken_ns(attempts) + attempts[:, r.A_START_NS] - first_ns
    return taken
