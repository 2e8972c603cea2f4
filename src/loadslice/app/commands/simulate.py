"""`loadslice simulate`: the recorded traffic through a pipeline in virtual time."""

import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from loadslice.app.output import Finite, check_folder, emit, guests, json_option, keep, out_option, seed_option
from loadslice.spec import latency as latency_file
from loadslice.spec import pipeline as pipeline_file
from loadslice.spec.errors import InputError
from loadslice.spec.faults import load_clients, load_faults
from loadslice.spec.files import stamp, write_bytes
from loadslice.spec.simulation import Simulation

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    epilog="Example: loadslice simulate traffic.parquet --pipeline examples/ocr/pipeline.yaml --profile latency.json"
)
@click.argument("trace", type=_FILE)
@click.option("--pipeline", "pipeline_path", type=_FILE, required=True, help="Pipeline file.")
@click.option("--profile", "profile_path", type=_FILE, required=True, help="Latency table from `loadslice profile`.")
@click.option("--faults", "faults_path", type=_FILE, help="What goes wrong, and when.")
@click.option("--clients", "clients_path", type=_FILE, help="How clients wait, leave and come back.")
@click.option(
    "--replicas", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs; from 2 on, intervals."
)
@click.option("--speed", type=Finite(min=1e-6), default=1.0, show_default=True, help="Pace of the trace.")
@click.option("--journal", type=click.Path(path_type=Path, file_okay=False), help="Folder for the run's journal.")
@seed_option
@json_option
@out_option
def command(
    trace: Path,
    pipeline_path: Path,
    profile_path: Path,
    faults_path: Path | None,
    clients_path: Path | None,
    replicas: int,
    speed: float,
    journal: Path | None,
    seed: int,
    as_json: bool,
    out: Path | None,
) -> None:
    """How would this pipeline have served this trace?

    The policy core that serves live traffic decides here too, in virtual time, over the service times of a profile.
    """
    from loadslice.app.inputs import with_inputs
    from loadslice.sim import journal as sim_journal
    from loadslice.sim import replicas as sim_replicas
    from loadslice.sim import simulate
    from loadslice.workload import trace as trace_file

    if journal is not None and journal.is_dir() and any(journal.iterdir()):
        raise InputError(f"{journal}: is not empty. Choose another folder with --journal.")
    pipeline = pipeline_file.load(pipeline_path)
    latency = latency_file.load(profile_path)
    with guests():
        frame = with_inputs(trace_file.read(trace).frame, pipeline, pipeline_path.parent)
    prepared = simulate.prepare(
        simulate.at_speed(frame, speed),
        pipeline,
        latency,
        seed=seed,
        faults=load_faults(faults_path, pipeline) if faults_path else None,
        clients=load_clients(clients_path) if clients_path else None,
        pipeline_path=str(pipeline_path),
    )
    check_folder(out)
    check_folder(journal)
    started = time.perf_counter()
    simulate.warm()
    compile_s = time.perf_counter() - started
    wall, cpu = time.perf_counter(), time.process_time()
    finished = simulate.run(prepared, seed=seed, journal=journal is not None)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    intervals = sim_replicas.run(prepared, seed=seed, replicas=replicas)[1] if replicas > 1 else None
    inputs = {"trace": trace, "pipeline": pipeline_path, "profile": profile_path}
    inputs |= {name: path for name, path in (("faults", faults_path), ("clients", clients_path)) if path}
    stamped = stamp("simulation/1", inputs=inputs, seed=seed, tools=("numba", "numpy"))
    result = simulate.summarise(finished, wall_s=wall, cpu_s=cpu, compile_s=compile_s, stamp=stamped)
    result = msgspec.structs.replace(result, interval_95=intervals)
    if journal is not None:
        sim_journal.write(finished, journal, pipeline_path.read_text(encoding="utf-8"), stamped)
        write_bytes(journal / "latency.json", profile_path.read_bytes())
    keep(result, out, "simulation.json")
    emit(result, as_json=as_json, text=lambda: describe(result))


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
    energy = f"{result.energy_j:,.0f} J" if result.energy_j is not None else "unknown (an engine states no watts)"
    yield f"  energy       {energy}"
    for name, engine in result.engines.items():
        yield (
            f"  engine {name:<10} busy {engine.utilisation:6.1%}, {engine.batches:,} batches, "
            f"queue p99 {engine.queue_p99:.0f}, failover in {engine.failover_in:,}"
        )
    for name, stage in result.stages.items():
        if stage.queue_ms_p50 is not None:
            share = ", ".join(f"{engine} {part:.0%}" for engine, part in stage.engine_share.items())
            yield (
                f"  stage {name:<11} queue p50 {stage.queue_ms_p50:.1f} / p95 {stage.queue_ms_p95:.1f} ms, "
                f"service p50 {stage.service_ms_p50:.1f} / p95 {stage.service_ms_p95:.1f} ms, {share}"
            )
    for warning in result.warnings:
        yield f"  note: {warning}"
    if result.requests_per_cpu_s is not None:
        speed = f"{result.requests_per_cpu_s:,.0f} requests per CPU-second"
        yield f"  simulated at {speed} after {result.compile_s:.1f} s of loading kernels"
    yield f"  journal      {result.journal_sha256[:12]}"
