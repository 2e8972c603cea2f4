"""How long the portrait of a ten-million-row trace takes, reading included."""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from loadslice.spec.files import stamp
from loadslice.workload import importing
from loadslice.workload import portrait as portraits
from loadslice.workload import trace as traces

ROWS = 10_000_000
DAYS = 7.0


def synthetic(rows: int, seed: int = 0) -> traces.Trace:
    """A week of tidal traffic with sizes, latency, status, classes and two stages."""
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(0.5, 2.0, rows)
    progress = np.cumsum(gaps) / gaps.sum()
    # Bending time by a sine makes the rate swing once a day.
    bent = progress + 0.6 / (2 * np.pi * DAYS) * np.sin(2 * np.pi * DAYS * progress)
    latency_ms = rng.lognormal(4.0, 0.5, rows)
    frame = pl.DataFrame(
        {
            "arrival_s": bent * DAYS * 86_400.0,
            "items": rng.poisson(3.0, rows).astype(np.int32) + 1,
            "tokens_in": rng.lognormal(6.0, 1.0, rows).astype(np.int32),
            "tokens_out": rng.lognormal(4.0, 1.0, rows).astype(np.int32),
            "latency_ms": latency_ms,
            "status": np.where(rng.random(rows) < 0.002, 503, 200).astype(np.int16),
            "stage_ms.decode": 0.2 * latency_ms,
            "stage_ms.model": 0.7 * latency_ms,
        }
    )
    return traces.Trace(frame, {"format": "synthetic", "start_utc": "2024-03-04T00:00:00+00:00"})


def run(rows: int = ROWS) -> dict[str, float | int | str]:
    """Write a trace, read it back and describe it.

    Returns:
        Seconds of each step, the size of the file and the peak memory of this process.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        traces.write(synthetic(rows), path)
        begin = time.perf_counter()
        loaded = importing.load(path)
        read = time.perf_counter()
        portrait = portraits.portray(loaded, path.name, stamp(portraits.SCHEMA, inputs={"trace": path}))
        end = time.perf_counter()
        return {
            "rows": portrait.requests,
            "file_bytes": path.stat().st_size,
            "read_s": read - begin,
            "portray_s": end - read,
            "total_s": end - begin,
            "class": portrait.arrival.class_,
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:>16} {value}")
