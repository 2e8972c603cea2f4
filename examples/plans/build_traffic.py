"""Draws the traffic of every case: `python examples/plans/build_traffic.py [FOLDER ...]`.

Not recorded anywhere. A case states its traffic in `traffic.yaml`: requests per second for each hour of a day, and what
kinds of requests there are. Each hour is drawn for a few seconds only, so that a day's tide is in a small file: rates
and gaps are those of the hour, the file is shorter than the day.
"""

import sys
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from loadslice.spec.files import decode_yaml
from loadslice.workload.trace import Trace, write

HERE = Path(__file__).resolve().parent


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests that ask alike."""

    share: float
    items: int
    source: str | None = None
    deadline_ms: float | None = None


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A case's traffic."""

    seed: int
    seconds_per_hour: float
    """How long each hour is drawn for."""
    rate_per_s: list[float]
    """Requests per second, by hour; Poisson arrivals."""
    kinds: list[Kind]


def draw(traffic: Traffic, *, scale: float = 1.0) -> pl.DataFrame:
    """Arrivals with their sizes.

    Args:
        traffic: As the case states it.
        scale: Factor on all rates.
    """
    rng = np.random.default_rng(traffic.seed)
    arrivals: list[np.ndarray] = []
    for hour, rate in enumerate(traffic.rate_per_s):
        count = rng.poisson(rate * scale * traffic.seconds_per_hour)
        arrivals.append(np.sort(rng.uniform(0.0, traffic.seconds_per_hour, count)) + hour * traffic.seconds_per_hour)
    arrival_s = np.concatenate(arrivals).round(5)
    chosen = rng.choice(len(traffic.kinds), len(arrival_s), p=[kind.share for kind in traffic.kinds])
    columns: dict[str, object] = {
        "arrival_s": arrival_s,
        "items": np.array([kind.items for kind in traffic.kinds], np.int64)[chosen],
    }
    if any(kind.source for kind in traffic.kinds):
        columns["source"] = [traffic.kinds[index].source for index in chosen]
    if any(kind.deadline_ms for kind in traffic.kinds):
        columns["deadline_ms"] = pl.Series([traffic.kinds[index].deadline_ms for index in chosen], dtype=pl.Float64)
    return pl.DataFrame(columns)


def build(folder: Path) -> Path:
    """Write a case's `traffic.parquet`."""
    path = folder / "traffic.parquet"
    drawn = f"drawn by examples/plans/build_traffic.py from {folder.name}/traffic.yaml; not a recording"
    frame = draw(decode_yaml(folder / "traffic.yaml", Traffic))
    write(Trace(frame, {"format": "drawn", "source": drawn, "licence": "Apache-2.0"}), path)
    return path


if __name__ == "__main__":
    for case in [Path(name) for name in sys.argv[1:]] or sorted(path.parent for path in HERE.glob("*/traffic.yaml")):
        print(build(case))
