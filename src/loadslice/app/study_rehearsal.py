"""A plan rehearsed before it is predicted: a little traffic through its server, to learn what a profile cannot know."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import polars as pl

from loadslice.app.ending import interruption
from loadslice.app.study_plan import Clocks, Studied, clear_journal, send
from loadslice.app.study_server import ServerError, serving
from loadslice.evaluate import assemble, compare, pace, payloads
from loadslice.evaluate.differing import drift
from loadslice.evaluate.missed import missed
from loadslice.evaluate.rehearsed import Rehearsed, as_rehearsed
from loadslice.profiles.drift import Timing, within
from loadslice.profiles.jobs import Key
from loadslice.sim.crowding import shared_threads
from loadslice.spec import journal as journals
from loadslice.spec.latency import Drift, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import twins

LONE_REQUESTS, LONE_GAP_S = 12, 0.2
"""Requests that find the server idle, to learn what processor time one costs outside its engines."""
WARM_REQUESTS = 2
"""The first of the traffic, whose times count for nothing."""
REHEARSED_S = 8.0
"""Length of a rehearsal as served: sixty requests of the OCR example, and four blocks of seconds to see drift in."""
MILD_REQUESTS, MILD_GAP_S = 40, 0.15
"""The same where a pace means nothing, because a plan's devices are emulated: requests, and their mean distance."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What one run of a rehearsal saw."""

    front: Milliseconds
    """Time of a request beside waiting and service."""
    handover: Milliseconds
    """The way to a worker and back."""
    cpu_ms: float
    """Processor time of a request beside its engines, the load generator's among it."""
    stages: pl.DataFrame
    """The journal's, of the traffic, requests that warmed it up left out."""
    rate_per_s: float
    arrival: Milliseconds
    """How much later than the quickest each request reached the core."""
    sent: pl.DataFrame
    """The traffic, inputs named."""
    latencies_ms: compare.Float64s
    """Of its requests that were completed, those that warmed it up left out."""


def rehearse(
    studied: Studied, inputs: payloads.Inputs, traffic: pl.DataFrame, cpu_ms: float | None = None
) -> tuple[Rehearsal, str]:
    """Serve the plan and send it a little traffic, to learn what its work takes where it will be predicted.

    Also shows early that the plan can be served.

    Args:
        studied: The plan.
        inputs: What to send.
        traffic: As `at_pace` or `mild` gives it; nothing that is to be predicted later.
        cpu_ms: Processor time of a request beside its engines, from the rehearsal of another plan, whose front is the
            same; ``None``: lone requests find it out, before the traffic.

    Raises:
        ServerError: It cannot be served, or answered none of them.
    """
    folder = studied.folder / "check"
    clear_journal(folder / "journal")
    lone = _lone(inputs) if cpu_ms is None else traffic.clear()
    used_s = 0.0
    with serving(studied.plan.path, folder, studied.profile_path) as served:
        if lone.height:
            before = Clocks.read(served)
            rows, run = send(served, studied.plan, lone, inputs)
            after = Clocks.read(served) if served.is_alive() else before
            used_s = after.server_s + after.client_s - before.server_s - before.client_s
        if not lone.height or (served.is_alive() and not run.interrupted):
            rows, run = send(served, studied.plan, traffic, inputs)
    if run.interrupted_by is not None:
        raise interruption(run.interrupted_by)
    journal = journals.load(folder / "journal")
    requests = assemble.with_rows(journal.requests)
    if cpu_ms is None:
        alone = _of_rows(requests, journal.stages, lone)
        cpu_ms = max(0.0, 1000 * (used_s - in_engines_s(alone, studied.plan.pipeline)) / lone.height)
    rehearsal = of_run(requests, journal.stages, rows, traffic, round(cpu_ms, 3))
    front_ms, way_ms = (np.median(times.samples or [0.0]) for times in (rehearsal.front, rehearsal.handover))
    found = f"median {front_ms:.2f} ms in the front, {way_ms:.2f} ms hand-over per stage"
    return rehearsal, f"{len(rehearsal.latencies_ms)} requests: {found}, {cpu_ms:.1f} ms of processor time"


def of_run(
    requests: pl.DataFrame, stages: pl.DataFrame, rows: pl.DataFrame, sent: pl.DataFrame, cpu_ms: float
) -> Rehearsal:
    """What a run says of the traffic that it served.

    Args:
        requests: The journal's, with the client's row in ``row``.
        stages: The journal's.
        rows: The client's.
        sent: The traffic, inputs named; its first requests warm the server up.
        cpu_ms: Processor time of a request beside its engines.

    Raises:
        ServerError: None was completed.
    """
    warm = sent.slice(_skipped(sent))
    among = _of_rows(requests, stages, warm)
    latencies_ms = _latencies_ms(rows.filter(pl.col("row").is_in(warm["row"].implode())))
    extra_ms = compare.overhead_ms(requests, among, latencies_ms)
    if extra_ms.size == 0:
        reasons = ", ".join(sorted(set(rows["reason"].drop_nulls().to_list())))
        raise ServerError(f"the server completed none of {rows.height} requests: {reasons}")
    return Rehearsal(
        front=_distribution(extra_ms),
        handover=_distribution(compare.handovers_ms(among)),
        cpu_ms=cpu_ms,
        stages=among,
        rate_per_s=among["tag"].n_unique() / _span_s(among),
        arrival=_distribution(compare.arrivals_ms(requests, warm)),
        sent=sent,
        latencies_ms=np.array(list(latencies_ms.values())),
    )


def in_engines_s(stages: pl.DataFrame, pipeline: Pipeline) -> float:
    """Processor time that the simulator counts to engines: all of a slot's threads for as long as it is busy.

    Threads of a slot may rest while others work. What is beside engines then counts for less than it was, by as much as
    the simulator has engines take more: the sum is what was measured.

    Args:
        stages: Of lone requests, each of which was a batch by itself.
        pipeline: As it was served.
    """
    threads = {name: shared_threads(pipeline, name) for name in pipeline.engines}
    busy_ns = stages.select("engine", busy_ns=pl.col("copy_ns") + pl.col("compute_ns")).drop_nulls()
    return float(sum(threads[engine] * ns for engine, ns in busy_ns.iter_rows())) / 1e9


def at_pace(frame: pl.DataFrame, speed: float) -> pl.DataFrame:
    """An ordinary stretch of a trace's first half, as fast as its second is to be predicted.

    Args:
        frame: The whole trace, inputs named.
        speed: Pace against the recording.
    """
    from_s, for_s = pace.rehearsal_window(frame, real_s=REHEARSED_S, speed=speed)
    return _rows(frame.filter(pl.col("arrival_s").is_between(from_s, from_s + for_s)), 1 / speed)


def mild(frame: pl.DataFrame, gap_s: float = MILD_GAP_S) -> pl.DataFrame:
    """The beginning of a trace, at a pace that puts its requests ``gap_s`` apart on average.

    Args:
        frame: The whole trace, inputs named.
        gap_s: Seconds, above 0.
    """
    first = frame.head(MILD_REQUESTS)
    times_s = first["arrival_s"].to_numpy()
    mean_s = float(times_s[-1] - times_s[0]) / max(1, len(times_s) - 1)
    return _rows(first, gap_s / mean_s if mean_s > 0 else 1.0)


def _rows(first: pl.DataFrame, scale: float) -> pl.DataFrame:
    """Arrivals from 0, and rows after those of lone requests."""
    began_s = first["arrival_s"].to_numpy()[0]
    return first.with_columns(
        arrival_s=(pl.col("arrival_s") - began_s) * scale, row=pl.int_range(pl.len()) + LONE_REQUESTS
    )


def learn(
    table: LatencyTable, pipeline: Pipeline, rehearsals: Sequence[Rehearsal], earlier: Sequence[Rehearsed] = ()
) -> Rehearsed:
    """A profile as rehearsals of its plan found it, drift included.

    Args:
        table: The profile.
        pipeline: As it was served.
        rehearsals: At least one.
        earlier: Of other plans on this machine, for how far its runs differ.
    """
    table = with_overhead(table, rehearsals)
    if twins(pipeline):
        # What an emulated device takes, a sheet says; what is beside it on this processor is not a device's company.
        return Rehearsed(table, {}, {}, [], [])
    found = as_rehearsed(
        table,
        pipeline,
        [one.stages for one in rehearsals],
        float(np.mean([one.rate_per_s for one in rehearsals])),
    )
    periods = slow_periods(found) or table.drift
    found = _with_drift(found, drift([*earlier, found], periods))
    off = [missed(one.sent, one.latencies_ms, pipeline, found.table, skip=_skipped(one.sent)) for one in rehearsals]
    found = found._replace(missed=[one for one in off if one is not None])
    return _with_drift(found, drift([*earlier, found], periods))


def _with_drift(found: Rehearsed, known: Drift | None) -> Rehearsed:
    return found._replace(table=msgspec.structs.replace(found.table, drift=known))


def slow_periods(found: Rehearsed) -> Drift | None:
    """How alike neighbouring passages of a rehearsal were, and for how long."""
    timings = [
        Timing(Key(one.stage, one.engine, 1, None), round(one.middle_s * 1e9), round(one.over_level * 1e6))
        for one in found.passages
    ]
    return within(sorted(timings, key=lambda timing: timing.start_ns))


def said(found: Rehearsed, pipeline: Pipeline) -> str:
    """In a few words, how far the server is from the profile."""
    if not found.ratios:
        return "times as profiled"
    models = {stage.name for stage in pipeline.stages if stage.python is None}
    ratios = [ratio for (stage, _), ratio in found.ratios.items() if stage in models] or list(found.ratios.values())
    company = ", ".join(f"{name} {value:.2f}" for name, value in found.contentions.items())
    drift = found.table.drift
    misses = ""
    if drift is not None and drift.misses is not None:
        misses = f"; rehearsals lay {drift.misses:.1f} deviations from their own prediction"
    return f"models take {min(ratios):.2f} to {max(ratios):.2f} x their profile; contention {company}{misses}"


def _skipped(traffic: pl.DataFrame) -> int:
    """How many of its first requests count for nothing."""
    return WARM_REQUESTS if traffic.height > WARM_REQUESTS else 0


def _lone(inputs: payloads.Inputs) -> pl.DataFrame:
    names = list(inputs.samples)
    return pl.DataFrame(
        {
            "row": range(LONE_REQUESTS),
            "arrival_s": [LONE_GAP_S * number for number in range(LONE_REQUESTS)],
            "input": [names[number * len(names) // LONE_REQUESTS] for number in range(LONE_REQUESTS)],
        }
    )


def _of_rows(requests: pl.DataFrame, stages: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Stages of a live journal that belong to rows that were sent."""
    return stages.join(requests.filter(pl.col("row").is_in(sent["row"].implode())), on="tag", how="semi")


def _span_s(stages: pl.DataFrame) -> float:
    """From the first placement to the last end; requests that come all at once are not served all at once."""
    begin_ns, end_ns = stages["enqueued_ns"].to_numpy().min(), stages["done_ns"].drop_nulls().to_numpy().max()
    return max(float(end_ns - begin_ns) / 1e9, 0.001)


def _latencies_ms(rows: pl.DataFrame) -> dict[int, float]:
    done = rows.filter(pl.col("outcome") == "completed")
    return dict(zip(done["row"].to_list(), done["latency_ms"].to_list(), strict=True))


def with_overhead(table: LatencyTable, rehearsals: Sequence[Rehearsal]) -> LatencyTable:
    """The same table with time outside the core filled in."""
    front, handover, arrival = (
        _distribution(np.concatenate([np.array(times.samples, np.float64) for times in found]))
        for found in zip(*((one.front, one.handover, one.arrival) for one in rehearsals), strict=True)
    )
    cpu_ms = float(np.mean([one.cpu_ms for one in rehearsals]))
    return msgspec.structs.replace(
        table, overhead_ms=front, handover_ms=handover, arrival_ms=arrival, overhead_cpu_ms=cpu_ms
    )


def dilated(table: LatencyTable, dilate: float) -> LatencyTable:
    """The same table on a dilated clock, on which front and hand-over look faster by as much."""
    if dilate == 1:
        return table
    return msgspec.structs.replace(
        table,
        overhead_ms=_faster(table.overhead_ms, dilate),
        handover_ms=_faster(table.handover_ms, dilate),
        arrival_ms=_faster(table.arrival_ms, dilate),
        overhead_cpu_ms=None if table.overhead_cpu_ms is None else table.overhead_cpu_ms / dilate,
    )


def _faster(times: Milliseconds | None, dilate: float) -> Milliseconds | None:
    if times is None:
        return None
    return Milliseconds(samples=[round(one / dilate, 6) for one in times.samples or []])


def _distribution(times_ms: compare.Float64s) -> Milliseconds:
    """At most 64 quantiles of measured times; none below 0, though clocks of two processes differ by microseconds."""
    values = np.quantile(np.maximum(times_ms, 0.0), np.linspace(0, 1, min(64, times_ms.size)))
    return Milliseconds(samples=[round(float(value), 4) for value in values])
