"""What a simulation says; keys as in the contract."""

from typing import Literal

import msgspec

from loadslice.spec.files import Stamp

Basis = Literal["simulated on measured times", "simulated on modelled times", "simulated on emulated times"]


class LatencyMs(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of completed requests from the start of their first attempt, milliseconds; null: none completed."""

    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine did."""

    utilisation: float
    """Busy slot time over slot time, 0 to 1."""
    queue_p99: float
    """99th percentile, over placements, of how many waited once what could start had; above 1024 within 0.2 %."""
    batches: int
    dispatched: int
    """Requests in those batches."""
    placed: int
    """Requests that were queued here, those that waited for nothing included."""
    failover_in: int
    breaker_transitions: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Money for all engines over the run, by the hour, busy or not."""

    total: float
    per_1000: float | None
    """For 1000 completed requests; ``None``: none was completed."""
    currency: str


class StageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Time at one stage, milliseconds, over requests that passed it."""

    queue_ms_p50: float | None
    queue_ms_p95: float | None
    service_ms_p50: float | None
    service_ms_p95: float | None
    engine_share: dict[str, float]


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `loadslice simulate`."""

    requests: int
    attempts: int
    """As many as requests, unless clients come back."""
    outcomes: dict[str, int]
    """Of attempts; they add up."""
    wrong_answers: int = 0
    """Completed attempts that a faulty engine answered wrongly."""
    decisions: dict[str, int] = {}
    """How often the core took each kind of decision; ``ended_REASON``: attempts that ended for that reason."""
    latency_ms: LatencyMs
    latency_error: float = 0.0
    """Furthest that percentiles are from the true ones, as a share; 0 where all latencies were kept."""
    throughput_per_s: float
    goodput_per_s: float
    """Completed within their deadline and their client's patience, per second."""
    energy_j: float | None
    """``None``: unknown, a warning says why."""
    cost: Cost | None
    """``None``: unknown, a warning says why."""
    engines: dict[str, EngineFigures]
    stages: dict[str, StageFigures]
    requests_per_wall_s: float | None
    """``None``: not timed."""
    requests_per_cpu_s: float | None
    compile_s: float
    """Time spent loading or compiling kernels, not in the figures above."""
    journal_sha256: str
    basis: Basis
    seed: int
    span_s: float
    interval_95: dict[str, tuple[float, float]] | None = None
    """Figure -> bounds that hold one more run 19 times of 20; only with replicas."""
    warnings: list[str] = []
    stamp: Stamp | None = None
