import asyncio
from dataclasses import dataclass

import msgspec

from loadslice.policy.tables import fresh, lower
from loadslice.serve.clock import Clock
from loadslice.serve.metrics import BOUNDS_S, Histogram, Metrics
from loadslice.spec.pipeline import Pipeline, check

PIPELINE = b"""
version: 1
pipeline: p
engines: {e: {backend: onnxruntime}}
stages: [{name: s, model: m.onnx, engine: e}]
"""


@dataclass
class Journal:
    is_well: bool


def made() -> Metrics:
    pipeline = check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "p")
    tables = lower(pipeline, None, [])
    return Metrics(pipeline, tables, fresh(tables, pipeline.max_requests), Clock())


def test_a_journal_that_cannot_be_written_shows() -> None:
    metrics = made()
    assert b"\nloadslice_journal_up" not in asyncio.run(metrics.scrape()), "none is kept"
    metrics.journal = Journal(True)
    assert b"loadslice_journal_up 1.0\n" in asyncio.run(metrics.scrape())
    metrics.journal.is_well = False
    assert b"loadslice_journal_up 0.0\n" in asyncio.run(metrics.scrape())


def test_a_histogram_counts_up_to_each_bound_and_sums_seconds() -> None:
    histogram = Histogram()
    for seconds in (0.00005, 0.0001, 0.00011, 0.3, 100.0):
        histogram.observe_ns(round(seconds * 1e9))
    counts = dict(histogram.cumulative())
    assert counts["0.0001"] == 2, "a bound holds what equals it"
    assert counts["0.00025"] == 3
    assert counts["0.5"] == 4
    assert counts["10.0"] == 4
    assert counts["+Inf"] == 5
    assert len(counts) == len(BOUNDS_S) + 1
    assert abs(histogram.sum_s - 100.30026) < 1e-9


def test_whoever_scrapes_meanwhile_gets_the_same_text_and_one_that_leaves_takes_it_from_nobody() -> None:
    metrics = made()

    async def scrape() -> None:
        leaves, stays = (asyncio.ensure_future(metrics.scrape()) for _ in range(2))
        await asyncio.wait((leaves,), timeout=0)
        leaves.cancel()
        first = await stays
        assert first.endswith(b"\n")
        assert await metrics.scrape() is not first

    asyncio.run(scrape())
