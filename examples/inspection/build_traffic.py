"""Draws the example's traffic: `python examples/inspection/build_traffic.py`.

Not recorded anywhere: parts on a belt pass a gate of cameras. A part comes every 0.4 s on average, never closer than
0.25 s; each is photographed three to eight times within a few milliseconds; every two minutes the belt stands still for
fifteen seconds. The plate is drawn for each photograph, with faults being rarer than none.
"""

from pathlib import Path

import numpy as np
import polars as pl

from loadslice.workload.trace import Trace, write

HERE = Path(__file__).resolve().parent
MINUTES = 6
GAP_S, GAP_S_MIN = 0.4, 0.25
BELT_S, PAUSE_S = 120.0, 15.0
SHUTTER_S = 0.004
PLATES = 24


def traffic(seed: int = 0) -> pl.DataFrame:
    """Arrivals and the plate of each."""
    rng = np.random.default_rng(seed)
    arrivals, names, now_s = [], [], 0.0
    while now_s < 60 * MINUTES:
        shots = int(rng.integers(3, 9))
        arrivals += [now_s + shot * SHUTTER_S * float(rng.uniform(0.5, 1.5)) for shot in range(shots)]
        names += [f"plate-{min(PLATES - 1, int(rng.exponential(6))):02d}" for _ in range(shots)]
        now_s += GAP_S_MIN + float(rng.exponential(GAP_S - GAP_S_MIN))
        if now_s % (BELT_S + PAUSE_S) > BELT_S:
            now_s += PAUSE_S
    return pl.DataFrame({"arrival_s": arrivals, "input": names, "source": ["belt"] * len(names)}).sort("arrival_s")


if __name__ == "__main__":
    drawn = "drawn by build_traffic.py, seed 0; a belt of parts, not a recording"
    write(Trace(traffic(), {"format": "drawn", "source": drawn, "licence": "Apache-2.0"}), HERE / "traffic.parquet")
