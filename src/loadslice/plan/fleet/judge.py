"""The simulation as judge of a fleet: P95, P99, errors and energy on the recorded traffic.

A fleet that fails already in the busiest stretch, taken by itself and from an empty start, by more requests than may go
wrong in the whole, is refused there: what came before could only have made its queues longer.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadslice.plan.fleet.candidate import Design, Policy, instances, pipeline_of, table_of
from loadslice.plan.fleet.demand import SPAN_S_MIN
from loadslice.plan.fleet.problem import Float64s, Int64s, Problem
from loadslice.sim import energy, figures, simulate
from loadslice.sim import record as r
from loadslice.sim.course import Prepared
from loadslice.sim.record import Traffic
from loadslice.sim.room import RecordRoom
from loadslice.spec.budget import Slo
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.simulation import LatencyMs

_NS_PER_S = 1e9
STRETCH_SHARE = 0.08
SAMPLE_SHARE, SAMPLE_PARTS = 0.05, 25
"""Of the traffic, and in how many stretches, evenly spaced, one after the other."""
STRETCH_REQUESTS_MIN = 20_000
"""Traffic of which the busiest stretch is shorter than this is simulated whole at once."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the simulation said of a fleet."""

    counts: Int64s
    boxes: Int64s
    policy: Policy
    holds: bool
    whole: bool
    """False: refused by its busiest stretch, whose figures these are."""
    latency_ms: LatencyMs
    error_rate: float
    throughput_per_s: float
    goodput_per_s: float
    energy_j: float | None
    """Engines and boxes."""
    utilisation: dict[str, float]
    requests: int
    """That were simulated to know it."""
    misses: float
    """How far the worst promise is missed: figure over limit, 1 at the limit."""


class _PerThread(threading.local):
    """What a thread has of its own: searches judge fleets side by side."""

    def __init__(self) -> None:
        self.room = RecordRoom()


_OWN = _PerThread()


class Judge:
    """Simulates fleets on one trace.

    Args:
        problem: Order of types and boxes.
        design: What fleets have in common.
        traffic: Lowered by a pipeline with the same stages.
        slo: What is promised.
        policies: Tried in this order until one keeps the promise.
        seed: Of every draw.
    """

    def __init__(
        self, problem: Problem, design: Design, traffic: Traffic, slo: Slo, policies: Sequence[Policy], seed: int
    ) -> None:
        """Find the busiest stretch."""
        self.problem, self.design, self.traffic, self.slo = problem, design, traffic, slo
        self.policies, self.seed = tuple(policies), seed
        self._stretch = _busiest(traffic)

    def __call__(self, counts: Int64s, boxes: Int64s) -> Verdict | None:
        """Judge a fleet; ``None``: a stage has no engine in it."""
        best: Verdict | None = None
        spent = 0
        for policy in self.policies:
            verdict = self.under(counts, boxes, policy)
            if verdict is None:
                return None
            spent += verdict.requests
            if best is None or verdict.holds or verdict.misses < best.misses:
                best = verdict
            if verdict.holds:
                break
        assert best is not None
        return _with_requests(best, spent)

    def under(self, counts: Int64s, boxes: Int64s, policy: Policy, *, screen: bool = True) -> Verdict | None:
        """Judge a fleet under one policy."""
        prepared = self.prepared(counts, boxes, policy)
        if prepared is None:
            return None
        spent = 0
        if screen and self._stretch is not None:
            part = prepared._replace(traffic=self._stretch)
            verdict = self.summed(self._run(part), counts, boxes, policy, whole=False)
            spent = verdict.requests
            if not verdict.holds:
                return verdict
        verdict = self.summed(self._run(prepared), counts, boxes, policy, whole=True)
        return _with_requests(verdict, spent + verdict.requests)

    def _run(self, prepared: Prepared) -> simulate.Run:
        """A run that is summed up before this thread begins another."""
        return simulate.run(prepared, seed=self.seed, stages=False, room=_OWN.room)

    def at_speed(self, speed: float) -> "Judge":
        """The same judge of the same requests, so many times as fast."""
        arrival_ns = np.round(self.traffic.arrival_ns / speed).astype(np.int64)
        traffic = self.traffic._replace(arrival_ns=arrival_ns)
        return Judge(self.problem, self.design, traffic, self.slo, self.policies, self.seed)

    def copied(self) -> "Judge":
        """The same judge with traffic of its own."""
        traffic = self.traffic
        own = traffic._replace(
            carried=traffic.carried.copy(),
            arrival_ns=traffic.arrival_ns.copy(),
            alike=traffic.alike.copy(),
            place=traffic.place.copy(),
            values=traffic.values.copy(),
            items=traffic.items.copy(),
            bucket=traffic.bucket.copy(),
        )
        return Judge(self.problem, self.design, own, self.slo, self.policies, self.seed)

    def with_latency(self, latency: LatencyTable) -> "Judge":
        """The same judge over other times."""
        design = replace(self.design, latency=latency)
        return Judge(self.problem, design, self.traffic, self.slo, self.policies, self.seed)

    def sample(self, share: float = SAMPLE_SHARE, least: int = STRETCH_REQUESTS_MIN) -> "Judge | None":
        """The same judge on a sample of the traffic; ``None``: the sample would be short.

        Evenly spaced stretches, so that busy and quiet hours are in it in proportion, one after the other without a
        pause.

        Args:
            share: Of the requests.
            least: Requests of a sample that is worth having.
        """
        parts = _sampled(self.traffic, share, least)
        return None if parts is None else Judge(self.problem, self.design, parts, self.slo, self.policies, self.seed)

    def prepared(self, counts: Int64s, boxes: Int64s, policy: Policy) -> Prepared | None:
        """A fleet, ready to be simulated."""
        pipeline = pipeline_of(self.design, counts, policy)
        if pipeline is None:
            return None
        return simulate.prepare_again(self.traffic, pipeline, table_of(self.design, counts, boxes, pipeline))

    def summed(
        self, finished: simulate.Run, counts: Int64s, boxes: Int64s, policy: Policy, *, whole: bool = True
    ) -> Verdict:
        """A run as a verdict."""
        record = finished.record
        outcomes = np.bincount(record.outcome, minlength=len(Outcome))
        degraded = int(np.count_nonzero(record.reason == Reason.DEGRADED))
        completed = int(outcomes[Outcome.COMPLETED]) - degraded
        attempts = len(record.outcome)
        times_ms = simulate.latency_ms(finished)
        span_s = max(int(record.attempts[:, r.A_END_NS].max()) / _NS_PER_S, SPAN_S_MIN)
        errors = attempts - completed
        misses = self._misses(times_ms, errors, whole=whole)
        used = figures.engine_figures(finished.pipeline, finished.state, record, span_s)
        joules = energy.total_j(finished.pipeline, finished.energy, record.batches_j, finished.state, span_s)
        if joules is not None:
            joules += float(boxes @ self.problem.box_watts) * span_s
        return Verdict(
            counts=counts,
            boxes=boxes,
            policy=policy,
            holds=misses <= 1.0,
            whole=whole,
            latency_ms=_percentiles(times_ms),
            error_rate=errors / attempts,
            throughput_per_s=completed / span_s,
            goodput_per_s=int(np.count_nonzero(simulate.in_time(finished))) / span_s,
            energy_j=joules,
            utilisation={
                kind: float(np.mean([used[name].utilisation for name in own]))
                for kind, own in instances(self.design, counts).items()
            },
            requests=attempts,
            misses=misses,
        )

    def _misses(self, times_ms: Float64s, errors: int, *, whole: bool) -> float:
        """Largest ratio of a figure to its limit; of a stretch, as if all other requests went well."""
        total = len(self.traffic.arrival_ns)
        worst = errors / max(self.slo.error_rate * total, 0.5) if errors > self.slo.error_rate * total else 0.0
        if len(times_ms) == 0:
            return np.inf
        for name, limit_ms in self.slo.latency_limits_ms.items():
            share = float(name.removeprefix("p")) / 100
            if whole:
                worst = max(worst, float(np.percentile(times_ms, 100 * share)) / limit_ms)
            else:
                late = int(np.count_nonzero(times_ms > limit_ms))
                worst = max(worst, late / max((1.0 - share) * total, 1.0))
        return worst


def _with_requests(verdict: Verdict, requests: int) -> Verdict:
    return replace(verdict, requests=requests)


def _percentiles(times_ms: Float64s) -> LatencyMs:
    if len(times_ms) == 0:
        return LatencyMs(p50=None, p95=None, p99=None, mean=None)
    p50, p95, p99 = np.percentile(times_ms, [50, 95, 99])
    return LatencyMs(p50=float(p50), p95=float(p95), p99=float(p99), mean=float(times_ms.mean()))


def _busiest(traffic: Traffic) -> Traffic | None:
    """The stretch in which requests are densest, by itself; ``None``: the traffic is short."""
    total = len(traffic.arrival_ns)
    length = int(total * STRETCH_SHARE)
    if length < STRETCH_REQUESTS_MIN:
        return None
    took_ns = traffic.arrival_ns[length:] - traffic.arrival_ns[:-length]
    start = int(np.argmin(took_ns))
    busiest = traffic.chosen(slice(start, start + length))
    return busiest._replace(arrival_ns=busiest.arrival_ns - busiest.arrival_ns[0])


def _sampled(traffic: Traffic, share: float, least: int) -> Traffic | None:
    """Evenly spaced stretches, joined."""
    total = len(traffic.arrival_ns)
    length = int(total * share / SAMPLE_PARTS)
    if length * SAMPLE_PARTS < least:
        return None
    starts = np.linspace(0, total - length, SAMPLE_PARTS).astype(np.int64)
    chosen = (starts[:, None] + np.arange(length)[None, :]).ravel()
    gaps_ns = np.diff(traffic.arrival_ns, prepend=traffic.arrival_ns[0])[chosen]
    return traffic.chosen(chosen)._replace(arrival_ns=np.cumsum(gaps_ns))
