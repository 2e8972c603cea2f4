"""One plan of a study: measured, simulated, served and replayed."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import polars as pl
import psutil

from loadslice.app.ending import interruption
from loadslice.app.output import keep, say
from loadslice.app.study_folder import Plan
from loadslice.app.study_journey import load_average
from loadslice.app.study_server import Served, ServerError, serving
from loadslice.backends.probe import usable_cores
from loadslice.evaluate import loadgen, payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.predict import Prediction, once, predict
from loadslice.profiles.measure import measure
from loadslice.sim import simulate
from loadslice.spec import journal as journals
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.journal import Journal
from loadslice.spec.latency import LatencyTable
from loadslice.spec.replay import Replay
from loadslice.spec.report import CpuUse
from loadslice.spec.simulation import Simulation
from loadslice.spec.twin import label, twins


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
    recorded: Simulation | None = None
    """The whole trace at its own pace, where another is played."""
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


def forecast(
    studied: Studied, stretch: pl.DataFrame, whole: pl.DataFrame, speed: float, seed: int
) -> tuple[Prediction, str]:
    """Simulate the stretch at the pace it is played at, and the whole trace at that and at its own."""
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
    studied.whole = once(simulate.at_speed(whole, speed), plan.pipeline, studied.table, seed=seed)
    if speed != 1.0:
        studied.recorded = once(whole, plan.pipeline, studied.table, seed=seed)
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
    clear_journal(studied.folder / "journal")
    with serving(studied.plan.path, studied.folder, studied.profile_path, dilate=studied.dilate) as served:
        load_before = load_average()
        before = Clocks.read(served)
        rows, run = send(served, studied.plan, stretch, inputs, studied.dilate)
        alive = served.is_alive()
        after = Clocks.read(served) if alive else None
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
    if run.interrupted_by is not None:
        raise interruption(run.interrupted_by)
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
class Clocks:
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


def send(
    served: Served, plan: Plan, stretch: pl.DataFrame, inputs: payloads.Inputs, dilate: float = 1.0
) -> tuple[pl.DataFrame, loadgen.Run]:
    """Send a stretch to a server, open loop; as `replaying.replay`."""
    where = replaying.target(served.url, allow_remote=False)
    where = replaying.endpoint(where, plan.pipeline.pipeline, tensors=inputs.are_tensors)
    return replaying.replay(stretch, inputs, where, loadgen.Limits(), dilate=dilate)


def _cpu_use(replay: Replay, before: Clocks, after: Clocks, load_before: float | None) -> CpuUse:
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


def clear_journal(journal: Path) -> None:
    """Remove the journal of an earlier study, and nothing that is not one.

    Raises:
        InputError: The folder is there and holds no journal.
    """
    if journal.is_dir():
        if not any((journal / name).exists() for name in ("journal.json", "requests.parquet", "parts")):
            raise InputError(f"{journal}: exists and is not a journal. Choose another place with --out.")
        shutil.rmtree(journal)


def _detail(text: str) -> None:
    say(f"          {text}")
