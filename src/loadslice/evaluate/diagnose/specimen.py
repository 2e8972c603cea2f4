"""Runs in virtual time, with faults, kept as journals: what rules of diagnosis are tried on."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.sim import journal as sim_journal
from loadslice.sim import simulate
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Queue, Retry, Stage, check

Floats = npt.NDArray[np.float64]

SERVICE_MS = 100.0
SLOTS = 4
CAPACITY_PER_S = SLOTS * 1000 / SERVICE_MS


def poisson(rate_per_s: float, span_s: float, seed: int = 1) -> Floats:
    """Arrival times without memory, seconds."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, int(1.3 * rate_per_s * span_s) + 20))
    early: Floats = times[times < span_s]
    return early


def times(*entries: tuple[str, str, int, float]) -> LatencyTable:
    """Variant, engine, rows and milliseconds."""
    return LatencyTable(
        entries=[
            Entry(
                variant=variant,
                engine=engine,
                batch=rows,
                latency_ms=Milliseconds(mean=ms, family="constant"),
                basis="modelled",
            )
            for variant, engine, rows, ms in entries
        ]
    )


def one_engine(retry: Retry | None = None, **engine: Any) -> Pipeline:
    """One stage on one engine of four slots, with a queue that takes anything."""
    device = Engine(backend="twin", max_inflight=SLOTS, queue=Queue(limit=10_000), **engine)
    return check(
        Pipeline(
            version=1, pipeline="one", engines={"a": device}, stages=[Stage(name="work", variant="v", engine="a")],
            max_requests=20_000, retry=retry or Retry(),
        ),
        "specimen",
    )  # fmt: skip


ONE = times(("v", "a", 1, SERVICE_MS))


def journal(folder: Path, pipeline: Pipeline, table: LatencyTable, arrivals_s: Floats, **more: Any) -> Path:
    """Simulate and keep the journal.

    Args:
        folder: Made.
        pipeline: Of twins with variants.
        table: Their times.
        arrivals_s: In order.
        more: Faults and clients, as `simulate.prepare` takes them.
    """
    prepared = simulate.prepare(pl.DataFrame({"arrival_s": arrivals_s}), pipeline, table, seed=1, **more)
    finished = simulate.run(prepared, seed=1, journal=True)
    folder.mkdir(parents=True)
    sim_journal.write(finished, folder, msgspec.yaml.encode(pipeline).decode())
    (folder / "latency.json").write_bytes(msgspec.json.encode(table))
    return folder
