"""How would this pipeline have served this trace? The policy core in virtual time over measured or modelled times."""

import hashlib
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import Int64s, State, Tables, fresh, lower, rule_sources
from loadslice.sim import loop
from loadslice.sim.clients import Behaviour, empty_diary, lower_clients
from loadslice.sim.clockwork import idle_clockwork
from loadslice.sim.faults import lower_faults
from loadslice.sim.loop import Record, Traffic
from loadslice.sim.service import GRID, Float64s, Service, lower_service, quantile_function
from loadslice.sim.traffic import lower_traffic
from loadslice.spec import simulation as spec
from loadslice.spec.faults import Clients, Fault
from loadslice.spec.files import Stamp
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import OUTCOMES, Outcome
from loadslice.spec.pipeline import Engine, Pipeline, Stage

TIMELINE_CELLS_MAX = 4_000_000
"""Per-stage times are kept for runs up to this many request-stages (about 200 MB); longer runs report totals only."""

_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000


class Run(NamedTuple):
    """A finished simulation before it is summed up."""

    pipeline: Pipeline
    tables: Tables
    state: State
    traffic: Traffic
    record: Record
    behaviour: Behaviour
    overhead_ns: Int64s
    """[A] time a request spends outside the core, added to its latency"""
    warnings: list[str]
    seed: int
    basis: spec.Basis


class Prepared(NamedTuple):
    """Everything lowered once; several seeds or speeds may be run from it."""

    pipeline: Pipeline
    tables: Tables
    service: Service
    traffic: Traffic
    overhead: Milliseconds | None
    faults: Int64s
    behaviour: Behaviour
    warnings: list[str]
    basis: spec.Basis


def prepare(
    trace: pl.DataFrame,
    pipeline: Pipeline,
    latency: LatencyTable,
    *,
    seed: int = 0,
    faults: list[Fault] | None = None,
    clients: Clients | None = None,
    pipeline_path: str = "PIPELINE",
) -> Prepared:
    """Lower pipeline, profile and trace; and what goes wrong and who comes back, if anything and anybody.

    ``pipeline_path`` is named in the command that would measure what the profile lacks.

    Raises:
        InputError: A stage without times, or a trace that does not fit; one line, with the next command.
    """
    traffic, traffic_warnings = lower_traffic(trace, pipeline, latency, seed=seed)
    span_s = max(int(traffic.arrival_ns[-1]), 1) / _NS_PER_S
    rate_per_s = (len(traffic.arrival_ns) - 1) / span_s
    service, service_warnings = lower_service(pipeline, latency, rate_per_s=rate_per_s, pipeline_path=pipeline_path)
    return Prepared(
        pipeline,
        lower(pipeline, latency, rule_sources(pipeline)),
        service,
        traffic,
        latency.overhead_ms,
        lower_faults(faults or [], pipeline),
        lower_clients(clients),
        service_warnings + traffic_warnings,
        _basis(pipeline, latency),
    )


def _basis(pipeline: Pipeline, latency: LatencyTable) -> spec.Basis:
    """The weakest kind of knowledge among the times that are used."""
    used = {(stage.variant_id, name) for stage in pipeline.stages for name in stage.engine_names}
    kinds = {entry.basis for entry in latency.entries if (entry.variant, entry.engine) in used}
    if "emulated" in kinds:
        return "simulated on emulated times"
    return "simulated on modelled times" if "modelled" in kinds else "simulated on measured times"


def warm() -> None:
    """Load or compile the kernels, so that no figure contains it."""
    pipeline = Pipeline(
        version=1,
        pipeline="warm",
        engines={"e": Engine(backend="twin")},
        stages=[Stage(name="s", variant="v", engine="e")],
        max_requests=2,
    )
    times = Milliseconds(mean=1.0, family="constant")
    latency = LatencyTable(
        entries=[Entry(variant="v", engine="e", batch=1, latency_ms=times, basis="modelled")],
    )
    run(prepare(pl.DataFrame({"arrival_s": [0.0, 0.1]}), pipeline, latency), journal=True)


def run(prepared: Prepared, *, seed: int = 0, journal: bool = False) -> Run:
    """Run once.

    Args:
        prepared: From `prepare`.
        seed: Start of every draw.
        journal: Keep per-stage times and the event log whatever they cost.

    Returns:
        The run; exactly one outcome per request.
    """
    tables, traffic = prepared.tables, prepared.traffic
    behaviour = prepared.behaviour
    requests, stages = len(traffic.arrival_ns) * behaviour.attempts, len(tables.stages)
    timed = journal or requests * stages <= TIMELINE_CELLS_MAX
    log_rows = requests * (3 * stages + 4) + 1_024 if journal else 0
    while True:
        state = fresh(tables, prepared.pipeline.max_requests)
        record = Record(
            start_ns=np.full(requests, -1, np.int64),
            outcome=np.zeros(requests, np.int64),
            reason=np.zeros(requests, np.int64),
            end_ns=np.zeros(requests, np.int64),
            hint_ns=np.zeros(requests, np.int64),
            wrong=np.zeros(requests, np.int64),
            timeline=np.full((requests if timed else 0, stages, loop.TIMELINE_COLUMNS), -1, np.int64),
            queue_seen=np.zeros((len(tables.engines), loop.QUEUE_SEEN), np.int64),
            events=np.zeros((log_rows, events.EVENT_COLUMNS), np.int64),
            effects=np.zeros((log_rows + len(state.effects) if log_rows else 0, c.EFFECT_COLUMNS), np.int64),
            counts=np.zeros(3, np.int64),
        )
        diary, clockwork = empty_diary(len(traffic.arrival_ns), behaviour), idle_clockwork(state)
        service, faults = prepared.service, prepared.faults
        if (
            loop.run(seed, tables, state, service, traffic, faults, behaviour, diary, clockwork, record)
            != loop.OVERFULL
        ):
            break
        log_rows *= 2
    assert ((record.outcome != Outcome.NONE) == (record.start_ns >= 0)).all(), "exactly one outcome per attempt"
    return Run(
        prepared.pipeline,
        tables,
        state,
        traffic,
        record,
        behaviour,
        _overhead_ns(prepared.overhead, requests, seed),
        prepared.warnings,
        seed,
        prepared.basis,
    )


def _overhead_ns(times: Milliseconds | None, requests: int, seed: int) -> Int64s:
    if times is None:
        return np.zeros(requests, np.int64)
    drawn = np.random.default_rng(seed + 1).random(requests)
    return np.interp(drawn, np.linspace(0.0, 1.0, GRID), quantile_function(times)).astype(np.int64)


def latency_ms(finished: Run) -> Float64s:
    """Latency of each completed attempt, milliseconds, in arrival order."""
    done = finished.record.outcome == Outcome.COMPLETED
    times: Float64s = taken_ns(finished)[done] / _NS_PER_MS
    return times


def taken_ns(finished: Run) -> Int64s:
    """Time from the start of each attempt to its end, what is spent outside the core included."""
    return finished.record.end_ns - finished.record.start_ns + finished.overhead_ns


def in_time(finished: Run) -> NDArray[np.bool_]:
    """Attempts that were answered well before their deadline, and while their client was still there."""
    deadline_ns = np.tile(finished.traffic.deadline_ns, finished.behaviour.attempts)
    if finished.behaviour.timeout_ns:
        deadline_ns = np.minimum(deadline_ns, finished.behaviour.timeout_ns)
    done: NDArray[np.bool_] = finished.record.outcome == Outcome.COMPLETED
    return done & (taken_ns(finished) <= deadline_ns)


def at_speed(trace: pl.DataFrame, speed: float) -> pl.DataFrame:
    """The same requests, ``speed`` times as fast."""
    return trace.with_columns(pl.col("arrival_s") / speed)


def summarise(
    finished: Run, *, wall_s: float = 0.0, cpu_s: float = 0.0, compile_s: float = 0.0, stamp: Stamp | None = None
) -> spec.Simulation:
    """Sum a run up.

    Args:
        finished: From `run`.
        wall_s: Wall time the run took, measured by the caller (this room reads no clock); 0: not measured.
        cpu_s: Its processor time.
        compile_s: Time that loading or compiling kernels took before.
        stamp: Where the inputs came from.
    """
    record, traffic = finished.record, finished.traffic
    requests = len(traffic.arrival_ns)
    counts = np.bincount(record.outcome, minlength=len(OUTCOMES) + 1)[1:]
    times = latency_ms(finished)
    span_s = max(int(record.end_ns.max()), 1) / _NS_PER_S
    done = record.outcome == Outcome.COMPLETED
    return spec.Simulation(
        requests=requests,
        attempts=int((record.start_ns >= 0).sum()),
        wrong_answers=int((done & (record.wrong == 1)).sum()),
        outcomes=dict(zip(OUTCOMES, map(int, counts), strict=True)),
        latency_ms=percentiles(times),
        throughput_per_s=int(done.sum()) / span_s,
        goodput_per_s=int(in_time(finished).sum()) / span_s,
        energy_j=_energy_j(finished, span_s),
        cost=None,
        engines=_engine_figures(finished, span_s),
        stages=_stage_figures(finished),
        requests_per_wall_s=requests / wall_s if wall_s > 0 else None,
        requests_per_cpu_s=requests / cpu_s if cpu_s > 0 else None,
        compile_s=compile_s,
        journal_sha256=digest(finished),
        basis=finished.basis,
        seed=finished.seed,
        span_s=span_s,
        warnings=finished.warnings,
        stamp=stamp,
    )


def digest(finished: Run) -> str:
    """Hash of how and when every request ended: same inputs and seed, same hash, in any process."""
    record = finished.record
    sha = hashlib.sha256()
    for column in (record.start_ns, record.outcome, record.reason, record.end_ns, record.hint_ns):
        sha.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return sha.hexdigest()


def percentiles(times_ms: Float64s) -> spec.LatencyMs:
    """P50, P95, P99 and mean; null when there is nothing to measure."""
    if len(times_ms) == 0:
        return spec.LatencyMs(p50=None, p95=None, p99=None, mean=None)
    p50, p95, p99 = (float(value) for value in np.percentile(times_ms, [50, 95, 99]))
    return spec.LatencyMs(p50=p50, p95=p95, p99=p99, mean=float(times_ms.mean()))


def _energy_j(finished: Run, span_s: float) -> float | None:
    """Active power while a slot is busy, idle power for the rest; unknown as soon as one engine's is."""
    total = 0.0
    for e, engine in enumerate(finished.pipeline.engines.values()):
        if engine.active_w is None or engine.idle_w is None:
            return None
        busy_s = float(finished.state.engines[e, c.N_BUSY_NS]) / _NS_PER_S / engine.max_inflight
        total += engine.active_w * busy_s + engine.idle_w * max(0.0, span_s - busy_s)
    return total


def _engine_figures(finished: Run, span_s: float) -> dict[str, spec.EngineFigures]:
    figures = {}
    for e, (name, engine) in enumerate(finished.pipeline.engines.items()):
        counts = finished.state.engines[e]
        seen = finished.record.queue_seen[e]
        figures[name] = spec.EngineFigures(
            utilisation=float(counts[c.N_BUSY_NS]) / _NS_PER_S / (span_s * engine.max_inflight),
            queue_p99=float(np.searchsorted(np.cumsum(seen), 0.99 * seen.sum())) if seen.sum() else 0.0,
            batches=int(counts[c.N_BATCHES]),
            failover_in=int(counts[c.N_FAILOVER_IN]),
            breaker_transitions=int(finished.state.breakers[:, e, c.X_TRANSITIONS].sum()),
        )
    return figures


def _stage_figures(finished: Run) -> dict[str, spec.StageFigures]:
    timeline = finished.record.timeline
    if len(timeline) == 0:
        return {}
    figures = {}
    names = list(finished.pipeline.engines)
    for s, stage in enumerate(finished.pipeline.stages):
        lines = timeline[timeline[:, s, loop.T_DONE_NS] >= 0, s]
        if len(lines) == 0:
            figures[stage.name] = spec.StageFigures(
                queue_ms_p50=None, queue_ms_p95=None, service_ms_p50=None, service_ms_p95=None, engine_share={}
            )
            continue
        queue = np.percentile((lines[:, loop.T_DISPATCHED_NS] - lines[:, loop.T_ENQUEUED_NS]) / _NS_PER_MS, [50, 95])
        service = np.percentile((lines[:, loop.T_DONE_NS] - lines[:, loop.T_DISPATCHED_NS]) / _NS_PER_MS, [50, 95])
        engines, shares = np.unique(lines[:, loop.T_ENGINE], return_counts=True)
        figures[stage.name] = spec.StageFigures(
            queue_ms_p50=float(queue[0]),
            queue_ms_p95=float(queue[1]),
            service_ms_p50=float(service[0]),
            service_ms_p95=float(service[1]),
            engine_share={names[e]: float(count / len(lines)) for e, count in zip(engines, shares, strict=True)},
        )
    return figures
