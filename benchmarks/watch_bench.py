"""False alarms and delays of `loadslice watch` on real answers.

Procedure: the 32 images of examples/ocr are answered once by the example's server, and the signals read from its
answers. The recorded trace says which image each of its 2,000 requests sends. Requests are drawn from it in blocks of
200 that follow each other as they did in the recording (a block bootstrap, which keeps what comes in clumps), 100,000
for a run; the baseline is made from 3,000 others drawn alike. A run counts every alert that begins. Delays: after 5,000
such requests the confidence of each answer is lowered, or answers that say little become more frequent.
"""

import json
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from loadslice.app.inputs import with_inputs
from loadslice.app.study_server import serving
from loadslice.evaluate import payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.watch.drift import DriftWatch
from loadslice.evaluate.watch.reference import make
from loadslice.spec import pipeline as pipelines
from loadslice.spec.signals import read
from loadslice.spec.watch import Sample, Signal, WatchPlan

OCR = Path(__file__).resolve().parents[1] / "examples/ocr"
SIGNALS = [
    Signal(name="confidence", output="confidence", take="mean", abstains_below=0.5),
    Signal(name="least", output="confidence", take="min"),
    Signal(name="lines", output="confidence", take="rows"),
    Signal(name="characters", output="text", take="characters"),
]
BLOCK = 200
BASELINE = 3000
REQUESTS = 100_000
SEEDS = 5
LATE = 20_000
"""A drift that is not seen within so many answers is not seen."""

Rows = list[list[float | None]]


def recorded() -> tuple[Rows, list[str]]:
    """Signals of each request of the trace, from real answers; and the inputs' names."""
    path = OCR / "pipeline.yaml"
    pipeline = pipelines.load(path)
    inputs = payloads.from_function(str(pipeline.inputs), OCR)
    values: dict[str, list[float | None]] = {}
    with tempfile.TemporaryDirectory() as name, serving(path, Path(name), None, journal=False) as served:
        where = replaying.endpoint(replaying.target(served.url, allow_remote=False), pipeline.pipeline, tensors=False)
        for sample in inputs.samples.values():
            request = urllib.request.Request(where.url, data=sample.body, headers={"Content-Type": sample.content_type})
            with urllib.request.urlopen(request, timeout=60) as reply:
                answer = json.loads(reply.read())
            outputs = {
                one["name"]: np.array(one["data"], object if one["datatype"] == "BYTES" else np.float64).reshape(
                    one["shape"]
                )
                for one in answer["outputs"]
            }
            values[sample.name] = read(SIGNALS, outputs)
    trace = with_inputs(pl.read_parquet(OCR / "traffic.parquet"), pipeline, OCR)
    names = trace["input"].to_list()
    return [values[one] for one in names], names


def drawn(rows: Rows, count: int, draws: np.random.Generator) -> list[Sample]:
    """Requests in blocks as they were recorded."""
    found: Rows = []
    while len(found) < count:
        begin = int(draws.integers(0, len(rows) - BLOCK))
        found += rows[begin : begin + BLOCK]
    return [Sample(number + 1, float(number), None, values) for number, values in enumerate(found[:count])]


def lowered(sample: Sample, by: float) -> Sample:
    """The same answer with less confidence."""
    confidence, least, *rest = sample.values
    return msgspec.structs.replace(
        sample,
        values=[None if confidence is None else confidence - by, None if least is None else least - by, *rest],
    )


def delay(rows: Rows, by: float, seed: int) -> int | None:
    """Answers from the drift to the first alert."""
    draws = np.random.default_rng(seed)
    watch = DriftWatch(make(WatchPlan(signals=SIGNALS), "ocr", "measured", drawn(rows, BASELINE, draws), []))
    watch.feed(drawn(rows, 5000, draws))
    before = watch.samples
    for sample in drawn(rows, LATE, draws):
        if any(alert.state == "firing" for alert in watch.feed([lowered(sample, by)])):
            return watch.samples - before
    return None


def run() -> dict[str, Any]:
    """Alerts in 100,000 requests without a drift, and how soon drifts are seen."""
    rows, names = recorded()
    alerts, looks, took_s, clumping = [], 0, 0.0, 1.0
    for seed in range(SEEDS):
        draws = np.random.default_rng(seed)
        baseline = make(WatchPlan(signals=SIGNALS), "ocr", "measured", drawn(rows, BASELINE, draws), [])
        clumping = max(clumping, *baseline.clumping)
        watch = DriftWatch(baseline)
        samples = drawn(rows, REQUESTS, draws)
        began_s = time.process_time()
        alerts += [f"{seed}: {alert.text} [{alert.test}]" for alert in watch.feed(samples) if alert.state == "firing"]
        took_s += time.process_time() - began_s
        looks += watch.looks
    return {
        "requests": SEEDS * REQUESTS,
        "inputs": len(set(names)),
        "clumping_most": clumping,
        "windows_tested": looks,
        "false_alarms": len(alerts),
        "false_alarms_said": "; ".join(alerts) or "none",
        "us_per_sample": 1e6 * took_s / (SEEDS * REQUESTS),
        **{f"delay_{by:g}_lower_samples": delay(rows, by, seed=1) for by in (0.005, 0.01, 0.02, 0.05)},
    }
