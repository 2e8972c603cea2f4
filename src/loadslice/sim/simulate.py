"""How would this pipeline have served this trace? The policy core in virtual time over measured or modelled times."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.policy.tables import Int64s, State, Tables, lower, rule_sources
from loadslice.sim import cost, energy, figures, loop
from loadslice.sim import record as r
from loadslice.sim import tally as sums
from loadslice.sim.clients import Behaviour, lower_clients
from loadslice.sim.course import Course, Prepared
from loadslice.sim.faults import lower_faults
from loadslice.sim.pieces import Pieces, and_whether_more
from loadslice.sim.record import NO_TRAFFIC, Record, Traffic
from loadslice.sim.room import RecordRoom
from loadslice.sim.service import Float64s, lower_service
from loadslice.sim.tally import Tally
from loadslice.sim.traffic import Intake
from loadslice.spec import simulation as spec
from loadslice.spec.faults import Clients, Fault
from loadslice.spec.files import Stamp
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import OUTCOMES, Outcome, Reason
from loadslice.spec.pipeline import Engine, Pipeline, Stage

TIMELINE_CELLS_MAX = 4_000_000
"""Per-stage times are kept for runs up to this many request-stages (about 200 MB); longer runs report totals only."""

_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000


class Run(NamedTuple):
    """A finished simulation before it is summed up."""

    pipeline: Pipeline
    tables: Tables
    energy: energy.Energy
    state: State
    traffic: Traffic
    """Of the last part, where the trace came in several"""
    record: Record
    """Attempts of the last part; logs of the whole"""
    behaviour: Behaviour
    requests: int
    tally: Tally | None
    """Sums over all parts; ``None``: there is one part, and `tallied` adds it up when it is asked for"""
    warnings: list[str]
    seed: int
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
    intake = Intake(pipeline, latency, seed=seed)
    traffic = intake.lower(trace)
    mean_per_s = rate_per_s(len(traffic.arrival_ns), int(traffic.arrival_ns[-1]) / _NS_PER_S)
    prepared = _prepare(pipeline, latency, mean_per_s, faults, clients, pipeline_path)
    return prepared._replace(traffic=traffic, warnings=prepared.warnings + intake.warnings)


def prepare_again(traffic: Traffic, pipeline: Pipeline, latency: LatencyTable) -> Prepared:
    """The same for traffic that was lowered before: by a pipeline with these stages, shapes, deadlines and tenants.

    Raises:
        InputError: A stage without times.
    """
    mean_per_s = rate_per_s(len(traffic.arrival_ns), int(traffic.arrival_ns[-1]) / _NS_PER_S)
    return _prepare(pipeline, latency, mean_per_s, None, None, "PIPELINE")._replace(traffic=traffic)


def rate_per_s(requests: int, span_s: float) -> float:
    """Mean rate; of requests that all come at one instant, as if they came within a millisecond."""
    return (requests - 1) / max(span_s, 0.001)


def _prepare(
    pipeline: Pipeline,
    latency: LatencyTable,
    rate_per_s: float,
    faults: list[Fault] | None,
    clients: Clients | None,
    pipeline_path: str,
) -> Prepared:
    """All but the traffic."""
    service, warnings = lower_service(pipeline, latency, rate_per_s=rate_per_s, pipeline_path=pipeline_path)
    lowered = energy.lower_energy(pipeline, latency)
    told = (energy.missing(pipeline, lowered), cost.missing(pipeline), latency.disturbed)
    warnings += [line for line in told if line]
    return Prepared(
        pipeline,
        lower(pipeline, latency, rule_sources(pipeline)),
        service,
        lowered,
        NO_TRAFFIC,
        latency.overhead_ms,
        latency.arrival_ms,
        lower_faults(faults or [], pipeline),
        lower_clients(clients),
        warnings,
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
    trace = pl.DataFrame({"arrival_s": [0.0, 0.1]})
    tallied(run(prepare(trace, pipeline, latency), journal=True))
    run_parts(trace.iter_slices(1), pipeline, latency, rate_per_s=1.0)
    sums.warm()


def run(
    prepared: Prepared,
    *,
    seed: int = 0,
    journal: bool = False,
    stages: bool = True,
    room: RecordRoom | None = None,
) -> Run:
    """Run once.

    Args:
        prepared: From `prepare`.
        seed: Start of every draw.
        journal: Keep per-stage times and the event log whatever they cost.
        stages: Keep per-stage times as far as TIMELINE_CELLS_MAX allows; a search that only adds runs up does not ask.
        room: For the record, which the next run in that room writes over; ``None``: the run keeps its own.

    Returns:
        The run; exactly one outcome per request.
    """
    requests, stage_count = len(prepared.traffic.arrival_ns), len(prepared.tables.stages)
    attempts = requests * prepared.behaviour.attempts
    timed = journal or (stages and attempts * stage_count <= TIMELINE_CELLS_MAX)
    log_rows = attempts * (3 * stage_count + 4) + 1_024 if journal else 0
    while True:
        course = Course(prepared, seed, log_rows)
        record = course.record(attempts, timed=timed, room=room)
        if course.advance(prepared.traffic, record) != loop.OVERFULL:
            break
        log_rows *= 2
    # Of clients that may come back, most attempts are never made; any other run makes all of them.
    made = requests if attempts == requests else int(np.count_nonzero(record.start_ns >= 0))
    assert record.counts[r.N_ENDED] == made, "exactly one outcome per attempt"
    return _finished(course, prepared.traffic, record, requests, None, prepared.warnings)


def run_parts(
    parts: Iterable[pl.DataFrame],
    pipeline: Pipeline,
    latency: LatencyTable,
    *,
    rate_per_s: float,
    seed: int = 0,
    faults: list[Fault] | None = None,
    pipeline_path: str = "PIPELINE",
) -> Run:
    """Run a trace that comes in parts, none of which is kept: memory is that of two parts, whatever the length.

    The same run, with the same hash, as if the trace had come whole. Clients that come back want it whole, and so do
    journals.

    Args:
        parts: The trace, in order; at least one, none empty.
        pipeline: As for `prepare`.
        latency: As for `prepare`.
        rate_per_s: Mean rate of the whole.
        seed: Start of every draw, of inputs too.
        faults: As for `prepare`.
        pipeline_path: As for `prepare`.

    Raises:
        InputError: As `prepare`; a part that does not fit is found when its turn comes.
    """
    prepared = _prepare(pipeline, latency, rate_per_s, faults, None, pipeline_path)
    intake, course, tally = Intake(pipeline, latency, seed=seed), Course(prepared, seed, 0), Tally()
    pieces = Pieces(course)
    requests = 0
    for part, more in and_whether_more(parts):
        requests += part.height
        for _ in pieces.of_part(intake.lower(part, pieces.room), more=more):
            tally.add(pieces.traffic, pieces.record)
    if requests == 0:
        intake.lower(pl.DataFrame({"arrival_s": []}))
    assert tally.attempts == requests, "exactly one outcome per request"
    return _finished(course, pieces.traffic, pieces.record, requests, tally, prepared.warnings + intake.warnings)


def _finished(
    course: Course, traffic: Traffic, record: Record, requests: int, tally: Tally | None, warnings: list[str]
) -> Run:
    prepared = course.prepared
    return Run(
        prepared.pipeline,
        prepared.tables,
        prepared.energy,
        course.state,
        traffic,
        record,
        prepared.behaviour,
        requests,
        tally,
        warnings,
        course.seed,
        prepared.basis,
    )


def tallied(finished: Run) -> Tally:
    """A run added up."""
    if finished.tally is not None:
        return finished.tally
    tally = Tally(finished.behaviour.timeout_ns)
    tally.add(finished.traffic, finished.record)
    return tally


def latency_ms(finished: Run) -> Float64s:
    """Latency of each request that was answered and not degraded, from its first attempt on, ms, in arrival order."""
    taken_ns = sums.since_first_ns(finished.record.attempts, len(finished.traffic.arrival_ns))
    times: Float64s = taken_ns[answered(finished)] / _NS_PER_MS
    return times


def answered(finished: Run) -> NDArray[np.bool_]:
    """Attempts that were completed, and not by a degraded reply."""
    record = finished.record
    done: NDArray[np.bool_] = (record.outcome == Outcome.COMPLETED) & (record.reason != Reason.DEGRADED)
    return done


def taken_ns(finished: Run) -> Int64s:
    """Time from the start of each attempt to its end, what is spent outside the core included."""
    return sums.taken_ns(finished.record.attempts)


def in_time(finished: Run) -> NDArray[np.bool_]:
    """Attempts that were answered well before their deadline, and while their client was still there."""
    deadline_ns = np.tile(finished.traffic.column(r.Q_DEADLINE_NS), finished.behaviour.attempts)
    if finished.behaviour.timeout_ns:
        deadline_ns = np.minimum(deadline_ns, finished.behaviour.timeout_ns)
    return answered(finished) & (taken_ns(finished) <= deadline_ns)


def at_speed(trace: pl.DataFrame, speed: float) -> pl.DataFrame:
    """The same requests, ``speed`` times as fast."""
    return trace.with_columns(pl.col("arrival_s") / speed)


def summarise(
    finished: Run, *, wall_s: float = 0.0, cpu_s: float = 0.0, compile_s: float = 0.0, stamp: Stamp | None = None
) -> spec.Simulation:
    """Sum a run up.

    Args:
        finished: From `run` or `run_parts`.
        wall_s: Wall time the run took, measured by the caller (this room reads no clock); 0: not measured.
        cpu_s: Its processor time.
        compile_s: Time that loading or compiling kernels took before.
        stamp: Where the inputs came from.
    """
    pipeline, state, record, tally = finished.pipeline, finished.state, finished.record, tallied(finished)
    span_s = max(tally.end_ns, 1) / _NS_PER_S
    degraded = int(tally.reasons[Reason.DEGRADED])
    completed = int(tally.outcomes[Outcome.COMPLETED]) - degraded
    share = f"{degraded:,} of {tally.attempts:,} attempts got a degraded reply: counted in no latency and in no rate."
    return spec.Simulation(
        requests=finished.requests,
        attempts=tally.attempts,
        wrong_answers=tally.wrong,
        outcomes=dict(zip(OUTCOMES, map(int, tally.outcomes[1:]), strict=True)),
        decisions=figures.decisions(state, tally.reasons),
        latency_ms=tally.latency_ms(),
        latency_error=0.0 if tally.is_exact else sums.ERROR_MAX,
        throughput_per_s=completed / span_s,
        goodput_per_s=tally.in_time / span_s,
        energy_j=energy.total_j(pipeline, finished.energy, record.batches_j, state, span_s),
        cost=cost.cost_of(pipeline, span_s, completed),
        engines=figures.engine_figures(pipeline, state, record, span_s),
        stages=figures.stage_figures(pipeline, record),
        requests_per_wall_s=finished.requests / wall_s if wall_s > 0 else None,
        requests_per_cpu_s=finished.requests / cpu_s if cpu_s > 0 else None,
        compile_s=compile_s,
        journal_sha256=tally.digest,
        basis=finished.basis,
        seed=finished.seed,
        span_s=span_s,
        warnings=[*finished.warnings, *([share] if degraded else [])],
        stamp=stamp,
    )


def digest(finished: Run) -> str:
    """Hash of how and when every attempt ended: same inputs and seed, same hash, in any process."""
    return tallied(finished).digest
