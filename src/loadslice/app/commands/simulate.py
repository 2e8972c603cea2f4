"""`loadslice simulate`: the recorded traffic through a pipeline in virtual time."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec
import psutil

from loadslice.app.output import (
    Finite,
    check_folder,
    emit,
    guests,
    json_option,
    keep,
    out_option,
    refuse_given,
    seed_option,
)
from loadslice.spec import latency as latency_file
from loadslice.spec import parquet
from loadslice.spec import pipeline as pipeline_file
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Clients, Fault, load_clients, load_faults
from loadslice.spec.files import Stamp, stamp, write_bytes
from loadslice.spec.language import ROUTER_POLICIES, is_language_file
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.pipeline_hints import silent
from loadslice.spec.simulation import Simulation

if TYPE_CHECKING:
    import polars as pl

    from loadslice.sim.simulate import Run

WHOLE_ROWS_MAX = 4_000_000
"""Longer traces are simulated part by part, where nothing wants them whole."""

P99_REQUESTS_MIN = 100
"""Of fewer, not one is slower than the 99th percentile."""

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    epilog="Example: loadslice simulate traffic.parquet --pipeline examples/ocr/pipeline.yaml --profile latency.json"
)
@click.argument("trace", type=_FILE)
@click.option("--pipeline", "pipeline_path", type=_FILE, required=True, help="Pipeline file.")
@click.option("--profile", "profile_path", type=_FILE, help="What `loadslice profile` wrote; a pipeline needs it.")
@click.option("--faults", "faults_path", type=_FILE, help="What goes wrong, and when.")
@click.option("--clients", "clients_path", type=_FILE, help="How clients wait, leave and come back.")
@click.option(
    "--replicas", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs; from 2 on, intervals."
)
@click.option("--speed", type=Finite(min=1e-6), default=1.0, show_default=True, help="Pace of the trace.")
@click.option("--journal", type=click.Path(path_type=Path, file_okay=False), help="Folder for the run's journal.")
@click.option(
    "--policy",
    "policies",
    type=click.Choice([*ROUTER_POLICIES, "all"]),
    multiple=True,
    help="For a language file: router policy to simulate, side by side; repeats. Default: the file's own.",
)
@click.option(
    "--scale-tokens",
    type=Finite(min=1e-6, max=1e6),
    default=1.0,
    show_default=True,
    help="For a language file: how many tokens stand for one of the trace.",
)
@click.option(
    "--prefix-tokens",
    type=click.IntRange(0, 10**9),
    default=None,
    help="For a language file: prompt tokens that each engine's prefix cache holds, instead of what the file says.",
)
@seed_option
@json_option
@out_option
def command(
    trace: Path,
    pipeline_path: Path,
    profile_path: Path | None,
    faults_path: Path | None,
    clients_path: Path | None,
    replicas: int,
    speed: float,
    journal: Path | None,
    policies: tuple[str, ...],
    scale_tokens: float,
    prefix_tokens: int | None,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """How would this pipeline, or this language model, have served this trace?

    The policy core that serves live traffic decides here too, in virtual time, over the service times of a profile.
    """
    if is_language_file(pipeline_path):
        from loadslice.app import language_simulate

        others = {"--clients": clients_path, "--journal": journal}
        refuse_given(others, f"goes with a pipeline; {pipeline_path} is a language file.")
        chosen = [policy for policy in ROUTER_POLICIES if policy in policies or "all" in policies]
        asked_for = (trace, pipeline_path, profile_path, faults_path, chosen, replicas, seed, speed)
        language_simulate.simulate_language(
            language_simulate.Asked(*asked_for, scale_tokens, prefix_tokens, as_json, out)
        )
        return
    if policies or scale_tokens != 1.0 or prefix_tokens is not None:
        raise InputError(
            f"--policy, --scale-tokens and --prefix-tokens go with a language file; {pipeline_path} is none."
        )
    if profile_path is None:
        raise InputError("--profile: missing. Run `loadslice profile` on the pipeline to measure one.")
    if journal is not None and journal.is_dir() and any(journal.iterdir()):
        raise InputError(f"{journal}: is not empty. Choose another folder with --journal.")
    if trace.suffix != ".jsonl":
        parquet.get_ready()  # it starts while the simulator is loaded
    pipeline = pipeline_file.load(pipeline_path)
    asked = _Asked(
        trace=trace,
        pipeline=pipeline,
        pipeline_path=pipeline_path,
        latency=latency_file.load(profile_path),
        faults=load_faults(faults_path, pipeline) if faults_path else None,
        clients=load_clients(clients_path) if clients_path else None,
        replicas=replicas,
        speed=speed,
        journal=journal is not None,
        seed=seed,
    )
    check_folder(out)
    check_folder(journal)
    simulated = _in_parts(asked) or _whole(asked)
    inputs = {
        "trace": trace,
        "pipeline": pipeline_path,
        "profile": profile_path,
        "faults": faults_path,
        "clients": clients_path,
    }
    result = _summarise(simulated, stamp("simulation/1", inputs=inputs, seed=seed, tools=("numba", "numpy")))
    if journal is not None:
        from loadslice.sim import journal as sim_journal

        text = pipeline_path.read_text(encoding="utf-8")
        sim_journal.write(simulated.run, journal, text, result.stamp, simulated.rows)
        write_bytes(journal / "latency.json", profile_path.read_bytes())
    keep(result, out, "simulation.json")
    emit(result, as_json=as_json, text=lambda: describe(result))


class _Asked(NamedTuple):
    """What is to be simulated."""

    trace: Path
    pipeline: Pipeline
    pipeline_path: Path
    latency: LatencyTable
    faults: list[Fault] | None
    clients: Clients | None
    replicas: int
    speed: float
    journal: bool
    seed: int


class _Simulated(NamedTuple):
    """A run and what it took."""

    run: "Run"
    intervals: dict[str, tuple[float, float]] | None
    compile_s: float
    wall_s: float
    cpu_s: float
    rows: "pl.DataFrame | None" = None
    """What was simulated, where it was in memory as a whole."""


def _warm() -> float:
    """Load or compile the kernels; seconds it took."""
    from loadslice.sim import simulate

    started = time.perf_counter()
    simulate.warm()
    return time.perf_counter() - started


def _whole(asked: _Asked) -> _Simulated:
    """Simulate a trace that is in memory as a whole; only the run itself is timed."""
    from loadslice.sim import replicas as sim_replicas
    from loadslice.sim import simulate
    from loadslice.workload import trace as trace_file

    rows = _rows(trace_file.read(asked.trace).frame, asked)
    prepared = simulate.prepare(
        rows,
        asked.pipeline,
        asked.latency,
        seed=asked.seed,
        faults=asked.faults,
        clients=asked.clients,
        pipeline_path=str(asked.pipeline_path),
    )
    compile_s = _warm()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    finished = simulate.run(prepared, seed=asked.seed, journal=asked.journal)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    intervals = None
    if asked.replicas > 1:
        intervals = sim_replicas.run(prepared, seed=asked.seed, replicas=asked.replicas, latency=asked.latency)[1]
    return _Simulated(finished, intervals, compile_s, wall_s, cpu_s, rows)


def _in_parts(asked: _Asked) -> _Simulated | None:
    """Simulate a long trace part by part, reading it and adding up timed too; ``None``: it is short, or not Parquet.

    Raises:
        InputError: Something wants the whole trace at once and memory does not hold it.
    """
    from loadslice.sim import memory, simulate
    from loadslice.workload.parts import in_parts

    if asked.trace.suffix == ".jsonl":
        return None
    parts = in_parts(asked.trace)
    if parts.rows <= WHOLE_ROWS_MAX:
        return None
    wanting = {"--journal": asked.journal, "--clients": asked.clients, "--replicas": asked.replicas > 1}
    if any(wanting.values()):
        memory.check_fits(
            parts.rows,
            available_bytes(),
            " and ".join(option for option, wants in wanting.items() if wants),
            stages=len(asked.pipeline.stages),
            attempts=asked.clients.attempts if asked.clients else 1,
            journal=asked.journal,
        )
        return None
    compile_s = _warm()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    finished = simulate.run_parts(
        (_rows(frame, asked) for frame in parts.frames()),
        asked.pipeline,
        asked.latency,
        rate_per_s=simulate.rate_per_s(parts.rows, parts.span_s / asked.speed),
        seed=asked.seed,
        faults=asked.faults,
        pipeline_path=str(asked.pipeline_path),
    )
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return _Simulated(finished, None, compile_s, wall_s, cpu_s)


def available_bytes() -> int:
    """Memory that is free on this machine."""
    return int(psutil.virtual_memory().available)


def _rows(frame: "pl.DataFrame", asked: _Asked) -> "pl.DataFrame":
    """Rows of the trace as they are simulated: with their inputs, at the pace that was asked for."""
    from loadslice.app.inputs import with_inputs
    from loadslice.sim import simulate

    with guests():
        return simulate.at_speed(with_inputs(frame, asked.pipeline, asked.pipeline_path.parent), asked.speed)


def _summarise(simulated: _Simulated, stamped: Stamp) -> Simulation:
    from loadslice.sim import simulate

    result = simulate.summarise(
        simulated.run,
        wall_s=simulated.wall_s,
        cpu_s=simulated.cpu_s,
        compile_s=simulated.compile_s,
        stamp=stamped,
    )
    warnings = [*silent(simulated.run.pipeline), *result.warnings]
    completed = result.outcomes["completed"]
    if 0 < completed < P99_REQUESTS_MIN:
        warnings.append(f"p99 of {completed} completed requests is little more than the slowest of them.")
    return msgspec.structs.replace(result, interval_95=simulated.intervals, warnings=warnings)


def describe(result: Simulation) -> Iterator[str]:
    """A simulation for a person."""
    times = result.latency_ms
    yield f"{result.requests:,} requests over {result.span_s:,.1f} s ({result.basis}, seed {result.seed})"
    ended = ", ".join(f"{name} {count:,}" for name, count in result.outcomes.items() if count)
    yield f"  outcomes     {ended}"
    if times.p50 is not None and times.p95 is not None and times.p99 is not None and times.mean is not None:
        yield f"  latency      p50 {times.p50:.1f} ms, p95 {times.p95:.1f}, p99 {times.p99:.1f}, mean {times.mean:.1f}"
    if result.interval_95 is not None:
        p50, p95 = result.interval_95.get("latency_ms.p50"), result.interval_95.get("latency_ms.p95")
        if p50 and p95:
            yield f"  95 % of runs p50 {p50[0]:.1f} to {p50[1]:.1f} ms, p95 {p95[0]:.1f} to {p95[1]:.1f} ms"
    yield f"  throughput   {result.throughput_per_s:.2f}/s, goodput {result.goodput_per_s:.2f}/s"
    yield f"  energy       {'unknown' if result.energy_j is None else f'{result.energy_j:,.0f} J'}"
    yield f"  cost         {_money(result)}"
    for name, engine in result.engines.items():
        yield (
            f"  engine {name:<10} busy {engine.utilisation:6.1%}, {engine.batches:,} batches, "
            f"queue p99 {engine.queue_p99:.0f}, failover in {engine.failover_in:,}, "
            f"breaker transitions {engine.breaker_transitions:,}"
        )
    for name, stage in result.stages.items():
        if stage.queue_ms_p50 is not None:
            share = ", ".join(f"{engine} {part:.0%}" for engine, part in stage.engine_share.items())
            yield (
                f"  stage {name:<11} queue p50 {stage.queue_ms_p50:.1f} / p95 {stage.queue_ms_p95:.1f} ms, "
                f"service p50 {stage.service_ms_p50:.1f} / p95 {stage.service_ms_p95:.1f} ms, {share}"
            )
    taken = ", ".join(f"{name} {count:,}" for name, count in result.decisions.items() if count)
    if taken:
        yield f"  decisions    {taken}"
    for warning in result.warnings:
        yield f"  note: {warning}"
    if result.requests_per_cpu_s is not None:
        speed = f"{result.requests_per_cpu_s:,.0f} requests per CPU-second"
        yield f"  simulated at {speed} after {result.compile_s:.1f} s of loading kernels"
    yield f"  journal      {result.journal_sha256[:12]}"


def _money(result: Simulation) -> str:
    if result.cost is None:
        return "unknown"
    each = "" if result.cost.per_1000 is None else f", {result.cost.per_1000:,.4g} per 1,000 completed"
    return f"{result.cost.total:,.4g} {result.cost.currency}{each}"
