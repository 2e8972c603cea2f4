"""One plan of a study: measured, simulated, served and replayed."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np
import polars as pl
import psutil

from loadslice.app.output import keep, say
from loadslice.app.study_folder import Plan
from loadslice.app.study_journey import load_average
from loadslice.app.study_server import Served, ServerError, serving
from loadslice.backends.probe import usable_cores
from loadslice.evaluate import assemble, compare, loadgen, payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.predict import Prediction, once, predict
from loadslice.profiles.measure import measure
from loadslice.spec import journal as journals
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.journal import Journal
from loadslice.spec.latency import LatencyTable, Milliseconds
from loadslice.spec.replay import Replay
from loadslice.spec.report import CpuUse
from loadslice.spec.simulation import Simulation
from loadslice.spec.twin import label, twins

LONE_REQUESTS, LONE_GAP_S = 12, 0.25
"""Requests that find the server idle, to learn what processor time one costs outside its engines."""
REHEARSED_REQUESTS, REHEARSED_GAP_S = 40, 0.15
"""Requests of the trace's own beginning, and their mean distance, to learn what way and front take under traffic: a
server that has other requests in hand answers later than an idle one."""


@dataclass(slots=True)
class Studied:
    """What is known about one plan so far."""

    plan: Plan
    folder: Path
    """Where its files go."""
    table: LatencyTable | None = None
    dilate: float = 1.0
    """Seconds of the replay for one on the plan's emulated devices; 1 for a plan without."""
    prediction: Prediction | None = None
    whole: Simulation | None = None
    rows: pl.DataFrame | None = None
    replay: Replay | None = None
    journal: Journal | None = None
    cpu: CpuUse | None = None
    failed: str | None = None
    interrupted: bool = False

    @property
    def profile_path(self) -> Path:
        """Its latency table's file."""
        return self.folder / "latency.json"


def profile(studied: Studied, inputs: payloads.Inputs, seconds: float) -> tuple[LatencyTable, str]:
    """Time the plan's stages on its engines."""
    plan = studied.plan
    table = measure(
        plan.pipeline, plan.path.parent, list(inputs.samples.values()), seconds=seconds, source=plan.path, tell=_detail
    )
    studied.table = table
    keep(table, studied.folder, "latency.json")
    runs = sum(entry.n or 0 for entry in table.entries)
    return table, f"{len(table.entries)} times on {', '.join(plan.pipeline.engines)}, {runs} runs"


class Overhead(NamedTuple):
    """What a request costs beside waiting and service."""

    front: Milliseconds
    handover: Milliseconds
    cpu_ms: float


def rehearse(
    studied: Studied, inputs: payloads.Inputs, traffic: pl.DataFrame, quiet: Callable[[], None] = lambda: None
) -> tuple[Overhead, str]:
    """Serve the plan, send it lone requests and then a little traffic, and learn what they cost outside the core.

    Also shows early that plans can be served, and leaves the server's kernels compiled.

    Args:
        studied: The plan.
        inputs: What to send.
        traffic: As `rehearsal` gives it; nothing that is to be predicted later.
        quiet: Returns once nothing else of ours runs; called when the server is ready.

    Raises:
        ServerError: It cannot be served, or answered none of them.
    """
    folder = studied.folder / "check"
    lone = _lone(inputs)
    _clear(folder / "journal")
    with serving(studied.plan.path, folder, studied.profile_path) as served:
        quiet()
        before = _Clocks.read(served)
        lone_rows, run = _send(served, studied.plan, lone, inputs)
        after = _Clocks.read(served) if served.is_alive() else before
        rows = lone_rows
        if served.is_alive() and not run.interrupted:
            rows, run = _send(served, studied.plan, traffic, inputs)
    if run.interrupted:
        raise KeyboardInterrupt
    journal = journals.load(folder / "journal")
    requests = assemble.with_rows(journal.requests)
    alone, among = (_of_rows(requests, journal.stages, of) for of in (lone, traffic))
    extra_ms = compare.overhead_ms(requests, among, _latencies_ms(rows))
    if extra_ms.size == 0:
        reasons = ", ".join(sorted(set(rows["reason"].drop_nulls().to_list())))
        raise ServerError(f"the server completed none of {rows.height} requests: {reasons}")
    ways_ms = compare.handovers_ms(among)
    used_s = after.server_s + after.client_s - before.server_s - before.client_s
    # Engines of one thread compute for as long as they are busy, so that wall time is processor time here.
    in_engines_s = float((alone["copy_ns"] + alone["compute_ns"]).sum()) / 1e9
    cpu_ms = max(0.0, 1000 * (used_s - in_engines_s) / lone.height)
    found = f"median {np.median(extra_ms):.2f} ms in the front, {np.median(ways_ms):.2f} ms hand-over per stage"
    overhead = Overhead(_distribution(extra_ms), _distribution(ways_ms), round(cpu_ms, 3))
    return overhead, f"{extra_ms.size} requests: {found}, {cpu_ms:.1f} ms of processor time"


def rehearsal(frame: pl.DataFrame, gap_s: float = REHEARSED_GAP_S) -> pl.DataFrame:
    """The beginning of a trace, at a pace that puts its requests ``gap_s`` apart on average.

    Args:
        frame: The whole trace, inputs named.
        gap_s: Seconds, above 0.
    """
    first = frame.head(REHEARSED_REQUESTS)
    times_s = first["arrival_s"].to_numpy() - first["arrival_s"].to_numpy()[0]
    mean_s = float(times_s[-1]) / max(1, len(times_s) - 1)
    scale = gap_s / mean_s if mean_s > 0 else 1.0
    return first.with_columns(arrival_s=pl.Series(times_s * scale), row=pl.int_range(pl.len()) + LONE_REQUESTS)


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


def _latencies_ms(rows: pl.DataFrame) -> dict[int, float]:
    done = rows.filter(pl.col("outcome") == "completed")
    return dict(zip(done["row"].to_list(), done["latency_ms"].to_list(), strict=True))


def pooled(overheads: Sequence[Overhead]) -> Overhead:
    """What several rehearsals found, as one."""
    front, handover = (
        _distribution(np.concatenate([np.array(times.samples, np.float64) for times in found]))
        for found in ([one.front for one in overheads], [one.handover for one in overheads])
    )
    return Overhead(front, handover, float(np.mean([one.cpu_ms for one in overheads])))


def _distribution(times_ms: compare.Float64s) -> Milliseconds:
    """At most 64 quantiles of measured times; none below 0, though clocks of two processes differ by microseconds."""
    values = np.quantile(np.maximum(times_ms, 0.0), np.linspace(0, 1, min(64, times_ms.size)))
    return Milliseconds(samples=[round(float(value), 4) for value in values])


def forecast(studied: Studied, stretch: pl.DataFrame, whole: pl.DataFrame, seed: int) -> tuple[Prediction, str]:
    """Simulate the stretch, and the whole trace at the same pace."""
    assert studied.table is not None
    plan = studied.plan
    made = stamp(
        "simulation/1",
        inputs={"pipeline": plan.path, "profile": studied.profile_path},
        seed=seed,
        tools=("numba", "numpy"),
    )
    text = plan.path.read_text(encoding="utf-8")
    started = time.perf_counter()
    prediction = predict(
        stretch, plan.pipeline, studied.table, seed=seed, made=made, journal=(studied.folder / "simulated", text)
    )
    studied.prediction = prediction
    wall_s = time.perf_counter() - started
    studied.whole = once(whole, plan.pipeline, studied.table, seed=seed)
    keep(prediction.simulation, studied.folder, "simulation.json")
    figures = prediction.figures
    found = f"P50 {figures['p50']:.0f} ms, P95 {figures['p95']:.0f} ms" if "p50" in figures else "nothing completed"
    return prediction, f"{found}, predicted ({wall_s:.1f} s for {stretch.height} requests, 20 seeds)"


def run_live(
    studied: Studied, stretch: pl.DataFrame, inputs: payloads.Inputs, trace: Path, speed: float, from_s: float
) -> tuple[Replay, str]:
    """Serve the plan in a process of its own and replay the stretch at it.

    Raises:
        ServerError: It cannot be served, or it went away.
    """
    _clear(studied.folder / "journal")
    with serving(studied.plan.path, studied.folder, studied.profile_path, dilate=studied.dilate) as served:
        load_before = load_average()
        before = _Clocks.read(served)
        rows, run = _send(served, studied.plan, stretch, inputs, studied.dilate)
        alive = served.is_alive()
        after = _Clocks.read(served) if alive else None
    sources = {"trace": trace, "pipeline": studied.plan.path, "profile": studied.profile_path}
    replay = replaying.summarise(
        rows,
        run,
        trace=str(trace),
        url=served.url,
        speed=speed,
        from_s=from_s,
        dilate=studied.dilate,
        made=stamp("replay/1", inputs=sources, tools=("aiohttp",)),
    )
    studied.rows, studied.replay, studied.interrupted = rows, replay, run.interrupted
    replaying.write_rows(rows, studied.folder / "replay.parquet")
    keep(replay, studied.folder, "replay.json")
    if run.interrupted:
        raise KeyboardInterrupt
    if after is not None and not twins(studied.plan.pipeline):
        # With twins this processor does a device's work too; what it used says nothing about the plan.
        studied.cpu = _cpu_use(replay, before, after, load_before)
    if run.gone or not alive:
        raise ServerError("the server went away during the replay; what it answered before is kept")
    studied.journal = journals.load(studied.folder / "journal")
    times = replay.latency_ms
    ended = ", ".join(f"{count} {name}" for name, count in replay.outcomes.items() if count)
    how = label(replay.dilate) if replay.basis == "emulated" else "measured"
    found = f"P50 {times.p50:.0f} ms, P95 {times.p95:.0f} ms {how}" if times.p50 is not None else "nothing completed"
    return replay, f"{found}; {ended}"


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Processor time used so far, by whom."""

    wall_s: float
    server_s: float
    client_s: float
    machine_s: float
    """Of all programs; more than ours can use where we may not run on every core."""
    memory_bytes: int

    @classmethod
    def read(cls, served: Served) -> Self:
        """Now."""
        times = psutil.cpu_times()
        busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        return cls(time.monotonic(), served.cpu_s(), time.process_time(), busy_s, served.memory_bytes())


def _send(
    served: Served, plan: Plan, stretch: pl.DataFrame, inputs: payloads.Inputs, dilate: float = 1.0
) -> tuple[pl.DataFrame, loadgen.Run]:
    where = replaying.target(served.url, allow_remote=False)
    where = replaying.endpoint(where, plan.pipeline.pipeline, tensors=inputs.are_tensors)
    return replaying.replay(stretch, inputs, where, loadgen.Limits(), dilate=dilate)


def _cpu_use(replay: Replay, before: _Clocks, after: _Clocks, load_before: float | None) -> CpuUse:
    cores = usable_cores()
    completed = replay.outcomes["completed"]
    server_s, client_s = after.server_s - before.server_s, after.client_s - before.client_s
    others_s = max(0.0, after.machine_s - before.machine_s - server_s - client_s)
    available_s = (after.wall_s - before.wall_s) * cores
    return CpuUse(
        server_cpu_s=server_s,
        utilisation=server_s / available_s,
        cpu_ms_per_request=1000 * server_s / completed if completed else None,
        others_utilisation=min(1.0, others_s / available_s),
        client_cpu_s=client_s,
        cores=cores,
        load_before_1m=load_before,
        memory_bytes_peak=after.memory_bytes,
    )


def _clear(journal: Path) -> None:
    """Remove the journal of an earlier study, and nothing that is not one."""
    if journal.is_dir():
        if not any((journal / name).exists() for name in ("journal.json", "requests.parquet", "parts")):
            raise InputError(f"{journal}: exists and is not a journal. Choose another place with --out.")
        shutil.rmtree(journal)


def _detail(text: str) -> None:
    say(f"          {text}")


def with_overhead(table: LatencyTable, overhead: Overhead, dilate: float = 1.0) -> LatencyTable:
    """The same table with time outside the core filled in; on a dilated clock the front looks faster by as much."""
    return msgspec.structs.replace(
        table,
        overhead_ms=_faster(overhead.front, dilate),
        handover_ms=_faster(overhead.handover, dilate),
        overhead_cpu_ms=overhead.cpu_ms / dilate,
    )


def _faster(times: Milliseconds, dilate: float) -> Milliseconds:
    if dilate == 1:
        return times
    return Milliseconds(samples=[round(one / dilate, 6) for one in times.samples or []])
