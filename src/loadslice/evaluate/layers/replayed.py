"""The layer `replay`: recorded traffic at its own pace, open loop, predicted and measured.

Open loop: every request leaves when it is due whatever became of those before it, and its latency counts from then; a
server that stalls is charged for all that were due meanwhile.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from loadslice.evaluate import compare, loadgen, payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.predict import predict
from loadslice.spec.evaluation import Evaluation
from loadslice.workload import importing

REPLICAS = 8


def measure(subject: Subject, trace: Path, wanted: Evaluation, inputs: payloads.Inputs) -> dict[str, Any]:
    """Predict, then replay, the first stretch of the trace.

    Raises:
        InputError: The trace cannot be used.
    """
    recorded = importing.load(trace)
    stretch = payloads.checked_stretch(
        recorded.frame, inputs, str(trace), from_s=0.0, for_s=wanted.replay_s * wanted.speed, speed=wanted.speed,
        limit=None, max_s=wanted.replay_s + 1, latency=subject.table,
    )  # fmt: skip
    predicted, spread = _predicted(subject, stretch, wanted.seed)
    where = replaying.Target(subject.url)
    limits = loadgen.Limits(timeout_s=wanted.timeout_s)
    rows, run = replaying.replay(stretch, inputs, where, limits, dilate=subject.dilate)
    document = replaying.summarise(
        rows, run, trace=trace.name, url="", speed=wanted.speed, from_s=0.0, dilate=subject.dilate
    )
    done_ms = rows.filter(pl.col("outcome") == "completed")["latency_ms"].to_numpy().astype(np.float64)
    compared = compare.figures(predicted, spread, document, done_ms, wanted.seed)
    figures: dict[str, Any] = {
        "requests": document.requests,
        "outcomes": {name: count for name, count in document.outcomes.items() if count},
        "send_lag_ms_p99": document.send_lag_ms.p99,
        "basis": document.basis,
        "complete": document.complete,
        "warnings": document.warnings,
    }
    names = {"p50": "latency_ms_p50", "p95": "latency_ms_p95", "p99": "latency_ms_p99", "mean": "latency_ms_mean"}
    names |= {"throughput": "throughput_per_s", "error rate": "error_share"}
    for one in compared:
        name = names[one.figure]
        interval = one.measured_95
        figures |= {
            name: one.measured,
            f"{name}_95": None if interval is None else [interval.low, interval.high],
            f"{name}_predicted": one.predicted,
        }
    return figures


def _predicted(subject: Subject, stretch: pl.DataFrame, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    if subject.pipeline is None or subject.table is None:
        return {}, {}
    found = predict(stretch.drop("row"), subject.pipeline, subject.table, seed=seed, replicas=REPLICAS)
    return found.figures, dict(found.intervals)


def passed(figures: dict[str, Any], error_rate: float) -> bool:
    """It ran to the end with no more errors than are allowed."""
    return bool(figures["complete"]) and (figures["error_share"] or 0.0) <= error_rate
