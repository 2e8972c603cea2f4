"""What `/metrics` says, in one format for every engine.

Gauges and counters the core keeps are read from its state when somebody scrapes. Histograms are counted here, on the
loop's thread alone and therefore without locks: one bisection and two additions per observation.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from loadslice.policy import columns as c
from loadslice.policy.tables import State, Tables
from loadslice.serve.clock import Clock
from loadslice.serve.decision_metrics import DecisionMetrics
from loadslice.serve.degraded import DegradedReplies
from loadslice.serve.refusals import NS_PER_S
from loadslice.serve.request import VERSIONS, Batch, Passage, Request
from loadslice.serve.serving_metrics import ServingMetrics
from loadslice.serve.twin_metrics import TwinMetrics
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline

BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of histogram buckets, seconds: from a tiny model's queue to a batch that has gone wrong."""

WINDOW_NS = 10 * NS_PER_S
"""Utilisation is over at least this long, or since the start."""


class Histogram:
    """Counts of durations by bucket."""

    __slots__ = ("_counts", "_sum_ns")

    _BOUNDS_NS = tuple(round(bound * NS_PER_S) for bound in BOUNDS_S)

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_ns = 0

    def observe_ns(self, duration_ns: int) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._BOUNDS_NS, duration_ns)] += 1
        self._sum_ns += duration_ns

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, count up to it), as Prometheus wants them."""
        total = 0
        pairs: list[tuple[str, float]] = []
        for bound, count in zip((*BOUNDS_S, float("inf")), self._counts, strict=True):
            total += count
            pairs.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return pairs

    @property
    def count(self) -> int:
        """Durations counted."""
        return sum(self._counts)

    @property
    def sum_ns(self) -> int:
        """Sum of all durations, nanoseconds."""
        return self._sum_ns

    @property
    def sum_s(self) -> float:
        """Sum of all durations, seconds."""
        return self._sum_ns / NS_PER_S


class Writes(Protocol):
    """The journal, as far as metrics look at it."""

    @property
    def is_well(self) -> bool:
        """Whether everything could be written so far."""


class Metrics:
    """One pipeline's metrics. Labels come from the pipeline file and the outcome codes, so their sets are bounded."""

    def __init__(self, pipeline: Pipeline, tables: Tables, state: State, clock: Clock) -> None:
        self.journal: Writes | None = None
        """Set where one is written."""
        self.degraded: DegradedReplies | None = None
        """Set once loaded."""
        self.serving = ServingMetrics()
        """Set to that of the generation."""
        self._pipeline = pipeline.pipeline
        self._engines = list(pipeline.engines)
        self._stages = [stage.name for stage in pipeline.stages]
        self._slots = tables.engines[:, c.E_MAX_INFLIGHT].tolist()
        self._state = state
        self._clock = clock
        self._passed = {
            (number, self._engines.index(name)): (Histogram(), Histogram(), Histogram())
            for number, stage in enumerate(pipeline.stages)
            for name in stage.engine_names
        }
        self._decisions = DecisionMetrics(pipeline, tables, state)
        self.twins = TwinMetrics(pipeline)
        self._has_canary = any(stage.canary is not None for stage in pipeline.stages)
        self._padded = {
            (number, engine)
            for number, engine in self._passed
            if pipeline.stages[number].python is None
            and (batch := pipeline.stages[number].batch.get(self._engines[engine])) is not None
            and batch.pad_to
        }
        self._padding_rows = dict.fromkeys(self._padded, 0)
        self._loading = {
            engine: Histogram()
            for engine in range(len(self._engines))
            if tables.engines[engine, c.E_MEMORY_BYTES] < c.FOREVER
        }
        self._downs = [0] * len(self._engines)
        self._degraded_stages = [number for number, stage in enumerate(pipeline.stages) if stage.degraded is not None]
        self._degraded_replies = [0] * len(self._stages)
        self._tenants = [[0] * len(Outcome) for _ in self._decisions.tenants]
        self._versions = [[0] * len(Outcome) for _ in VERSIONS]
        self._version_request = (Histogram(), Histogram())
        self._request = Histogram()
        self._failed_batches = [0] * len(self._engines)
        self._ended = [[0] * len(Reason) for _ in Outcome]
        self._refused: Counter[int] = Counter()
        self._seen: list[tuple[int, list[int]]] = [(0, [0] * len(self._engines))]
        self._scrape: asyncio.Future[bytes] | None = None

    def batch_ended(self, batch: Batch) -> None:
        """Count a batch that an engine failed on, and the rows that padded it."""
        if batch.failed:
            self._failed_batches[batch.engine] += 1
        if batch.engine in self._loading:
            self._loading[batch.engine].observe_ns(batch.load_ns)
        if self._padded and (pair := (batch.stage, batch.engine)) in self._padded:
            self._padding_rows[pair] += max(0, batch.padded - batch.rows)

    def engine_lost(self, engine: int) -> None:
        """Count an engine that the core was told is down."""
        self._downs[engine] += 1

    def passage_ended(self, passage: Passage) -> None:
        """Count the times of one request at one stage."""
        assert passage.started_ns is not None
        assert passage.copy_ns is not None
        assert passage.compute_ns is not None
        queue, copy, compute = self._passed[passage.stage, passage.engine]
        queue.observe_ns(passage.started_ns - passage.enqueued_ns)
        copy.observe_ns(passage.copy_ns)
        compute.observe_ns(passage.compute_ns)

    def request_ended(self, request: Request) -> None:
        """Count an outcome, and how long it took to come to it."""
        outcome = request.outcome
        self._ended[outcome][request.reason] += 1
        self._tenants[request.tenant_index][outcome] += 1
        if request.version is not None:
            self._versions[request.version][outcome] += 1
        if request.reason is Reason.DEGRADED:
            self._degraded_replies[request.stage] += 1
        elif request.outcome is Outcome.COMPLETED:
            assert request.end_ns is not None
            self._request.observe_ns(request.end_ns - request.received_ns)
            if request.version is not None:
                self._version_request[request.version].observe_ns(request.end_ns - request.received_ns)

    def refused_at_front(self, status: int) -> None:
        """Count a request that never reached the core."""
        self._refused[status] += 1

    def passages(self) -> list[tuple[int, int, int, int, int, int]]:
        """Of each stage and engine: their numbers, requests that passed, and sums of queue, copy and compute, ns."""
        return [
            (stage, engine, queue.count, queue.sum_ns, copy.sum_ns, compute.sum_ns)
            for (stage, engine), (queue, copy, compute) in self._passed.items()
        ]

    def tenants(self) -> dict[str, list[int]]:
        """Requests that ended, by tenant and outcome; only others: the pipeline names no tenants."""
        return {name: list(counts) for name, counts in zip(self._decisions.tenants, self._tenants, strict=True)}

    @property
    def refusals(self) -> int:
        """Requests refused before the core."""
        return self._refused.total()

    @property
    def failed_batches(self) -> list[int]:
        """By engine."""
        return self._failed_batches

    async def scrape(self) -> bytes:
        """The text that a scrape gets: whoever asks while one is being written gets that.

        With 64 engines it takes a tenth of a second, a quarter of it to read the numbers, which is done on the loop.
        """
        if self._scrape is None:
            families = list(self.collect())
            found: Any = SimpleNamespace(collect=lambda: families)  # as much of a registry as is asked for
            self._scrape = asyncio.ensure_future(asyncio.to_thread(generate_latest, found))
            self._scrape.add_done_callback(self._scraped)
        return await asyncio.shield(self._scrape)

    def _scraped(self, _scrape: object) -> None:
        self._scrape = None

    def collect(self) -> Iterator[Metric]:
        """All families, read now."""
        yield from self._engine_metrics()
        yield from self._stage_metrics()
        yield from self._decisions.collect()
        yield from self.twins.collect()
        yield from self.serving.collect()
        yield from self._kinds_of_requests()
        journal = GaugeMetricFamily("loadslice_journal_up", "Whether the journal, if one is kept, can be written.")
        if self.journal is not None:
            journal.add_metric([], float(self.journal.is_well))
        yield journal
        outcomes = CounterMetricFamily(
            "loadslice_requests", "Requests that ended, by outcome.", labels=["pipeline", "outcome", "reason"]
        )
        for outcome, reasons in zip(Outcome, self._ended, strict=True):
            for reason, count in zip(Reason, reasons, strict=True):
                if count:
                    outcomes.add_metric([self._pipeline, outcome.name.lower(), reason.name.lower()], count)
        yield outcomes
        refused = CounterMetricFamily(
            "loadslice_front_refusals", "Requests refused before the core.", labels=["pipeline", "status"]
        )
        for status, count in sorted(self._refused.items()):
            refused.add_metric([self._pipeline, str(status)], count)
        yield refused
        whole = HistogramMetricFamily(
            "loadslice_request_seconds",
            "From the request's head to its outcome, completed ones, not degraded.",
            labels=["pipeline"],
        )
        whole.add_metric([self._pipeline], self._request.cumulative(), self._request.sum_s)
        yield whole
        yield GaugeMetricFamily(
            "loadslice_requests_inside", "Requests admitted and not ended.", value=self._counter(c.C_IN_SYSTEM)
        )

    def _engine_metrics(self) -> Iterator[Metric]:
        counts = self._state.engines
        for name, text, column in (
            ("loadslice_engine_queue_length", "Requests waiting for this engine.", c.N_QUEUED),
            ("loadslice_engine_inflight", "Batches running on this engine.", c.N_INFLIGHT),
            ("loadslice_engine_up", "Whether this engine takes work.", c.N_UP),
        ):
            yield self._per_engine(GaugeMetricFamily(name, text, labels=["engine"]), counts[:, column].tolist())
        for name, text, values in (
            ("loadslice_engine_batches", "Batches started on this engine.", counts[:, c.N_BATCHES].tolist()),
            ("loadslice_engine_failures", "Batches this engine failed on.", self._failed_batches),
            ("loadslice_engine_downs", "Times this engine hung, or its runtime failed, and was left.", self._downs),
            ("loadslice_failover", "Requests moved to this engine.", counts[:, c.N_FAILOVER_IN].tolist()),
            ("loadslice_engine_busy_seconds", "Slot time spent on batches.", self._busy_s()),
        ):
            yield self._per_engine(CounterMetricFamily(name, text, labels=["engine"]), values)
        yield self._per_engine(
            GaugeMetricFamily(
                "loadslice_engine_utilisation_ratio", "Busy slot time over slot time, last 10 s.", labels=["engine"]
            ),
            self._utilisation(),
        )

    def _kinds_of_requests(self) -> Iterator[Metric]:
        """What became of requests, by tenant, version and stage."""
        tenants = CounterMetricFamily(
            "loadslice_tenant_requests", "Requests that ended, by tenant.", labels=["tenant", "outcome"]
        )
        if len(self._decisions.tenants) > 1:
            for tenant, counts in zip(self._decisions.tenants, self._tenants, strict=True):
                for outcome, count in zip(Outcome, counts, strict=True):
                    if count:
                        tenants.add_metric([tenant, outcome.name.lower()], count)
        yield tenants
        versions = CounterMetricFamily(
            "loadslice_version_requests", "Requests that ended, by version.", labels=["version", "outcome"]
        )
        seconds = HistogramMetricFamily(
            "loadslice_version_request_seconds", "As loadslice_request_seconds, by version.", labels=["version"]
        )
        if self._has_canary:
            for version, counts in zip(VERSIONS, self._versions, strict=True):
                for outcome, count in zip(Outcome, counts, strict=True):
                    if count:
                        versions.add_metric([version, outcome.name.lower()], count)
            for name, histogram in zip(VERSIONS, self._version_request, strict=True):
                seconds.add_metric([name], histogram.cumulative(), histogram.sum_s)
        yield versions
        yield seconds
        padding = CounterMetricFamily(
            "loadslice_padding_rows", "Rows computed only to fill a batch.", labels=["stage", "engine"]
        )
        for (stage, engine), rows in sorted(self._padding_rows.items()):
            padding.add_metric([self._stages[stage], self._engines[engine]], rows)
        yield padding
        loading = HistogramMetricFamily(
            "loadslice_model_load_seconds", "Spent per batch on having its model there.", labels=["engine"]
        )
        for engine, histogram in self._loading.items():
            loading.add_metric([self._engines[engine]], histogram.cumulative(), histogram.sum_s)
        yield loading
        replies = CounterMetricFamily(
            "loadslice_degraded", "Requests that a stage answered with its degraded reply.", labels=["stage"]
        )
        failures = CounterMetricFamily(
            "loadslice_degraded_failures", "Those of them whose reply could not be made in time.", labels=["stage"]
        )
        for stage in self._degraded_stages:
            replies.add_metric([self._stages[stage]], self._degraded_replies[stage])
            if self.degraded is not None:
                failures.add_metric([self._stages[stage]], self.degraded.failures[stage])
        yield replies
        yield failures

    def _per_engine(
        self, family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[float]
    ) -> GaugeMetricFamily | CounterMetricFamily:
        for name, value in zip(self._engines, values, strict=True):
            family.add_metric([name], value)
        return family

    def _stage_metrics(self) -> Iterator[Metric]:
        for position, (kind, text) in enumerate(
            (
                ("queue", "From being placed to a worker taking it up."),
                ("copy", "Gathering rows into a batch and handing results back."),
                ("compute", "Inside the runtime or the Python stage."),
            )
        ):
            family = HistogramMetricFamily(f"loadslice_stage_{kind}_seconds", text, labels=["stage", "engine"])
            for (stage, engine), histograms in self._passed.items():
                histogram = histograms[position]
                family.add_metric([self._stages[stage], self._engines[engine]], histogram.cumulative(), histogram.sum_s)
            yield family

    def busy_ns(self) -> list[int]:
        """Slot time spent so far, running batches included."""
        now_ns = self._clock.now_ns()
        busy: list[int] = self._state.engines[:, c.N_BUSY_NS].tolist()
        for batch in self._state.batches[self._state.batches[:, c.B_BUSY] == 1]:
            busy[int(batch[c.B_ENGINE])] += now_ns - int(batch[c.B_STARTED_NS])
        return busy

    def _busy_s(self) -> list[float]:
        return [busy / NS_PER_S for busy in self.busy_ns()]

    def _utilisation(self) -> list[float]:
        """Against the youngest scrape that is at least a window old, or the start of the run."""
        now_ns = self._clock.now_ns()
        busy = self.busy_ns()
        while len(self._seen) > 1 and self._seen[1][0] <= now_ns - WINDOW_NS:
            del self._seen[0]
        then_ns, before = self._seen[0]
        if now_ns - self._seen[-1][0] >= NS_PER_S:
            self._seen.append((now_ns, busy))
        span_ns = max(1, now_ns - then_ns)
        return [
            (after - earlier) / (span_ns * slots)
            for after, earlier, slots in zip(busy, before, self._slots, strict=True)
        ]

    def _counter(self, column: int) -> float:
        return float(self._state.counters[column])
