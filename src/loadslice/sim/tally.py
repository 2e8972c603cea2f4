"""Adds a run up while it goes on: outcomes, latencies and the digest, over any number of parts alike."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from loadslice.policy.tables import Int64s
from loadslice.sim import record as r
from loadslice.sim.record import Record, Traffic
from loadslice.sim.service import Float64s
from loadslice.spec.outcome import OUTCOMES, REASONS, Outcome, Reason
from loadslice.spec.simulation import LatencyMs

EXACT_MAX = 8_000_000
"""Latencies kept one by one (64 MB); of more completed attempts, percentiles come from a histogram."""

ERROR_MAX = 1 / 4096
"""Furthest that a percentile from the histogram is from the true one, as a share of it: 0.025 %."""

_BLOCK = 1 << 16
"""Attempts added at once; these fit the cache, all of a long run in one go take four times as long."""
_NS_PER_MS = 1_000_000
_MANTISSA_BITS = 52
_KEPT_BITS = 11
"""Leading bits of a latency's mantissa: cells 1/2048 of their lower end wide, so that the middle of a cell is
within 1/4096 of all that is in it. A latency below 2048 ns has a cell of its own."""
_SHIFT = _MANTISSA_BITS - _KEPT_BITS
_FIRST_CELL = int(np.float64(1.0).view(np.int64)) >> _SHIFT
_CELLS = (int(np.float64(2.0**62).view(np.int64)) >> _SHIFT) - _FIRST_CELL + 1


class Tally:
    """What is known of the attempts that have ended.

    Attributes:
        attempts: That reached the core.
        outcomes: [7] by `Outcome`.
        reasons: [reasons] by `Reason`.
        in_time: Attempts answered well before their deadline, and while their client was still there.
        wrong: Completed attempts that a faulty engine answered wrongly.
        end_ns: When the last one ended.
    """

    def __init__(self, timeout_ns: int = 0) -> None:
        """Start with nothing.

        Args:
            timeout_ns: How long clients wait; 0: for ever.
        """
        self.attempts = 0
        self.outcomes = np.zeros(len(OUTCOMES) + 1, np.int64)
        self.reasons = np.zeros(len(REASONS), np.int64)
        self.in_time = 0
        self.wrong = 0
        self.end_ns = 0
        self._timeout_ns = timeout_ns
        self._sha = hashlib.sha256()
        self._exact: list[Int64s] | None = []
        self._cells = np.zeros(0, np.int64)
        self._completed = 0
        self._sum_ns = 0

    def add(self, traffic: Traffic, record: Record) -> None:
        """Add the attempts that have ended in a part of a trace."""
        rows = record.ended[: record.counts[r.N_ENDED]]
        deadline_ns = traffic.requests[:, r.Q_DEADLINE_NS]
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            # Attempts that follow a request's first stand a whole trace further down each.
            self._add(record.attempts[block], deadline_ns[block % len(deadline_ns)])

    def _add(self, ended: Int64s, deadline_ns: Int64s) -> None:
        """Add attempts in the order in which they ended, and their deadlines relative to their start."""
        self.attempts += len(ended)
        self.outcomes += np.bincount(ended[:, r.A_OUTCOME], minlength=len(self.outcomes))
        self.reasons += np.bincount(ended[:, r.A_REASON], minlength=len(self.reasons))
        self.end_ns = max(self.end_ns, int(ended[-1, r.A_END_NS]))
        self._sha.update(np.ascontiguousarray(ended[:, : r.A_HINT_NS + 1], dtype="<i8").data)
        # A degraded reply costs no time and says little: it is counted, and part of no latency and no goodput.
        done = (ended[:, r.A_OUTCOME] == Outcome.COMPLETED) & (ended[:, r.A_REASON] != Reason.DEGRADED)
        if not done.all():
            ended, deadline_ns = ended[done], deadline_ns[done]
        self.wrong += int(np.count_nonzero(ended[:, r.A_WRONG]))
        taken = taken_ns(ended)
        patience_ns = np.minimum(deadline_ns, self._timeout_ns) if self._timeout_ns else deadline_ns
        self.in_time += int(np.count_nonzero(taken <= patience_ns))
        self._completed += len(taken)
        self._sum_ns += int(taken.sum())
        self._keep(taken)

    def _keep(self, taken: Int64s) -> None:
        if self._exact is not None:
            self._exact.append(taken)
            if self._completed <= EXACT_MAX:
                return
            taken = np.concatenate(self._exact)
            self._exact = None
            self._cells = np.zeros(_CELLS, np.int64)
        self._cells += np.bincount(_cell(taken), minlength=_CELLS)

    @property
    def digest(self) -> str:
        """Hash of how and when every attempt ended: same inputs and seed, same hash, in any process and any parts."""
        return self._sha.hexdigest()

    @property
    def is_exact(self) -> bool:
        """Whether percentiles are of the latencies themselves; otherwise they are within 0.025 %."""
        return self._exact is not None

    def latency_ms(self) -> LatencyMs:
        """P50, P95, P99 and mean of completed attempts; null when there are none."""
        if self._completed == 0:
            return LatencyMs(p50=None, p95=None, p99=None, mean=None)
        if self._exact is not None:
            p50, p95, p99 = np.percentile(np.concatenate(self._exact), [50, 95, 99]) / _NS_PER_MS
        else:
            p50, p95, p99 = self._from_cells(np.array([0.5, 0.95, 0.99])) / _NS_PER_MS
        mean = self._sum_ns / self._completed / _NS_PER_MS
        return LatencyMs(p50=float(p50), p95=float(p95), p99=float(p99), mean=mean)

    def _from_cells(self, shares: Float64s) -> Float64s:
        """Middles of the cells that hold these quantiles, ns."""
        cells = np.searchsorted(np.cumsum(self._cells), shares * (self._completed - 1), side="right")
        low = ((cells + _FIRST_CELL) << _SHIFT).view(np.float64)
        high = ((cells + 1 + _FIRST_CELL) << _SHIFT).view(np.float64)
        middle: Float64s = np.where(high - low <= 1.0, low, (low + high) / 2)
        return middle


def taken_ns(attempts: Int64s) -> Int64s:
    """Time from the start of each attempt to its end, what is spent outside the core included."""
    taken: Int64s = attempts[:, r.A_END_NS] - attempts[:, r.A_START_NS] + attempts[:, r.A_OVERHEAD_NS]
    return taken


def _cell(times_ns: Int64s) -> NDArray[np.int64]:
    """The histogram's cell of each time: exponent and leading mantissa bits of a double are its logarithm, cut off."""
    bits = np.maximum(times_ns, 1).astype(np.float64).view(np.int64)
    return (bits >> _SHIFT) - _FIRST_CELL
