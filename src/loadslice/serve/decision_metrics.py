"""Every decision of the core at work, read from its state when somebody scrapes.

Labels are names of the pipeline file, classes, and codes of the core, so their sets are bounded; a tenant that the file
does not name is counted as `OTHER_TENANTS`. What a pipeline does not use (tenants, shares, a canary) has no samples.
"""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from loadslice.policy import columns as c
from loadslice.policy.tables import State, Tables, tenant_names
from loadslice.serve.refusals import NS_PER_S
from loadslice.serve.request import VERSIONS
from loadslice.spec.outcome import Reason
from loadslice.spec.pipeline import CLASSES, Pipeline
from loadslice.spec.pipeline_shares import OTHER_TENANTS

CLOSINGS = {c.ALONE: "alone", c.FULL: "full", c.WINDOW: "window", c.SLACK: "slack"}

Family = CounterMetricFamily | GaugeMetricFamily


class DecisionMetrics:
    """Reads one pipeline's state.

    Args:
        pipeline: Gives the names.
        tables: Say what the pipeline uses.
        state: Read at each scrape; on the loop's thread, between two decisions.
    """

    def __init__(self, pipeline: Pipeline, tables: Tables, state: State) -> None:
        self.tenants = [OTHER_TENANTS, *tenant_names(pipeline)]
        self._engines = list(pipeline.engines)
        self._stages = [stage.name for stage in pipeline.stages]
        self._pairs = [
            (number, self._engines.index(name))
            for number, stage in enumerate(pipeline.stages)
            for name in stage.engine_names
        ]
        self._has_canary = any(stage.canary is not None for stage in pipeline.stages)
        self._tables = tables
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """All families, whether they have samples or not."""
        yield from self._placements()
        yield from self._batches()
        yield from self._classes()
        yield from self._shares()
        yield from self._estimates()
        yield from self._breakers()
        yield from self._retries()
        yield from self._rollout()

    def _placements(self) -> Iterator[Metric]:
        placed = CounterMetricFamily(
            "loadslice_placements",
            "Requests placed on this engine, by why there.",
            labels=["stage", "engine", "reason"],
        )
        for stage, engine in self._pairs:
            for reason in Reason:
                if count := int(self._state.placed[stage, engine, reason]):
                    placed.add_metric([*self._names(stage, engine), reason.name.lower()], count)
        yield placed
        for name, text, column in (
            (
                "loadslice_overflow",
                "Requests that found the preferred engine of this stage past its limits.",
                c.G_OVERFLOWS,
            ),
            ("loadslice_overflow_sent", "Those of them that went to the backup.", c.G_SENT),
        ):
            family = CounterMetricFamily(name, text, labels=["stage"])
            for stage, stage_name in enumerate(self._stages):
                if self._tables.stages[stage, c.S_FAILOVER_TO] >= 0:
                    family.add_metric([stage_name], int(self._state.stages[stage, column]))
            yield family

    def _batches(self) -> Iterator[Metric]:
        closed = CounterMetricFamily(
            "loadslice_batches_closed",
            "Batches dispatched, by why they were closed; slack: a deadline would not wait.",
            labels=["stage", "engine", "why"],
        )
        for stage, engine in self._pairs:
            for code, why in CLOSINGS.items():
                if count := int(self._state.closed[stage, engine, code]):
                    closed.add_metric([*self._names(stage, engine), why], count)
        yield closed
        yield self._per_engine(
            CounterMetricFamily("loadslice_engine_requests", "Requests dispatched here.", labels=["engine"]),
            c.N_DISPATCHED,
        )
        loads = CounterMetricFamily(
            "loadslice_model_loads", "Models loaded into an engine of bounded memory.", labels=["engine"]
        )
        for engine, name in enumerate(self._engines):
            if self._tables.engines[engine, c.E_MEMORY_BYTES] < c.FOREVER:
                loads.add_metric([name], int(self._state.engines[engine, c.N_LOADS]))
        yield loads

    def _classes(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "loadslice_class_waiting", "Requests of this class that wait here.", labels=["engine", "class"]
        )
        credit = GaugeMetricFamily(
            "loadslice_floor_credit_ratio",
            "What a waiting class is owed of its floor, in dispatches; at 1 it is its turn.",
            labels=["engine", "class"],
        )
        for engine, name in enumerate(self._engines):
            for priority, class_name in enumerate(CLASSES):
                labels = [name, class_name]
                waiting.add_metric(labels, int(self._state.engines[engine, c.N_WAITING + priority]))
                if self._tables.run[c.W_FLOOR_PPM + priority] > 0:
                    credit.add_metric(labels, int(self._state.floors[engine, priority]) / c.PPM)
        yield waiting
        yield credit

    def _shares(self) -> Iterator[Metric]:
        served = CounterMetricFamily(
            "loadslice_tenant_served_seconds",
            "Expected engine time of this tenant's requests dispatched here.",
            labels=["engine", "tenant"],
        )
        waiting = GaugeMetricFamily(
            "loadslice_tenant_waiting", "Requests of this tenant that wait here.", labels=["engine", "tenant"]
        )
        stages = CounterMetricFamily(
            "loadslice_stage_served_seconds",
            "Expected engine time of this stage's requests dispatched on an engine with guaranteed shares.",
            labels=["stage", "engine"],
        )
        if len(self.tenants) > 1:
            for engine, name in enumerate(self._engines):
                flows = self._state.tenant_flows[engine].sum(axis=0)
                for index, tenant in enumerate(self.tenants):
                    served.add_metric([name, tenant], int(flows[index, c.Y_SERVED_NS]) / NS_PER_S)
                    waiting.add_metric([name, tenant], int(flows[index, c.Y_WAITING]))
        for stage, engine in self._pairs:
            if self._tables.engines[engine, c.E_HAS_SHARES] == 1:
                served_ns = int(self._state.stage_flows[engine, :, stage, c.Y_SERVED_NS].sum())
                stages.add_metric(self._names(stage, engine), served_ns / NS_PER_S)
        yield from (served, waiting, stages)

    def _estimates(self) -> Iterator[Metric]:
        backlog = GaugeMetricFamily(
            "loadslice_engine_backlog_seconds", "Expected time of what waits here.", labels=["engine"]
        )
        for engine, name in enumerate(self._engines):
            backlog.add_metric([name], int(self._state.backlog_ns[-1, engine]) / NS_PER_S)
        yield backlog
        scale = GaugeMetricFamily(
            "loadslice_service_scale_ratio",
            "Time of batches as seen lately over what the latency table says; what deadlines are held against.",
            labels=["stage", "engine"],
        )
        learned = GaugeMetricFamily(
            "loadslice_service_learned_seconds", "Mean time of a batch as seen lately.", labels=["stage", "engine"]
        )
        for stage, engine in self._pairs:
            if (seen_ns := int(self._state.learned_ns[stage, engine])) > 0:
                learned.add_metric(self._names(stage, engine), seen_ns / NS_PER_S)
            if self._tables.base_ns[stage, engine].any() or self._tables.row_ns[stage, engine].any():
                scale.add_metric(self._names(stage, engine), int(self._state.scale_ppm[stage, engine]) / c.PPM)
        yield scale
        yield learned

    def _breakers(self) -> Iterator[Metric]:
        labels = ["stage", "engine"]
        withheld = "Times a breaker would have opened on the last engine that is well, and did not."
        families: tuple[tuple[Family, int], ...] = (
            (GaugeMetricFamily("loadslice_breaker_state", "0 closed, 1 open, 2 half-open.", labels=labels), c.X_STATE),
            (
                CounterMetricFamily("loadslice_breaker_transitions", "Changes of a breaker's state.", labels=labels),
                c.X_TRANSITIONS,
            ),
            (CounterMetricFamily("loadslice_breaker_withheld", withheld, labels=labels), c.X_WITHHELD),
        )
        admits = GaugeMetricFamily(
            "loadslice_engine_admits",
            "Whether an engine may be given more at a stage: it is up and its breaker admits.",
            labels=["stage", "engine"],
        )
        for stage, engine in self._pairs:
            for family, column in families:
                family.add_metric(self._names(stage, engine), int(self._state.breakers[stage, engine, column]))
            admits.add_metric(self._names(stage, engine), int(self._state.admission[stage, engine] == 0))
        yield from (family for family, _ in families)
        yield admits

    def _retries(self) -> Iterator[Metric]:
        for name, text, column in (
            ("loadslice_retries", "Extra attempts made.", c.C_RETRIES),
            ("loadslice_retries_denied", "Extra attempts the retry budget did not cover.", c.C_RETRIES_DENIED),
        ):
            yield CounterMetricFamily(name, text, value=self._counter(column))
        yield GaugeMetricFamily(
            "loadslice_retry_budget_attempts",
            "Extra attempts the budget covers, without what time has granted since it was last asked.",
            value=self._counter(c.C_BUDGET_PPM) / c.PPM,
        )

    def _rollout(self) -> Iterator[Metric]:
        step = GaugeMetricFamily("loadslice_canary_step", "Step of the rollout, from 1; 0: no traffic.")
        share = GaugeMetricFamily("loadslice_canary_share_ratio", "Share of requests that the canary is to get.")
        split = GaugeMetricFamily(
            "loadslice_canary_split_requests",
            "Requests without a key that were split since this step began, by version.",
            labels=["version"],
        )
        inside = GaugeMetricFamily("loadslice_canary_inside", "Requests of the canary admitted and not ended.")
        inconclusive = CounterMetricFamily(
            "loadslice_canary_inconclusive", "Analyses of the canary that could not be made and moved nothing."
        )
        if self._has_canary:
            step.add_metric([], self._counter(c.C_STEP))
            share.add_metric([], int(self._tables.steps[int(self._counter(c.C_STEP))]) / c.PPM)
            sent = self._counter(c.C_SPLIT_SENT)
            split.add_metric([VERSIONS[c.STABLE]], self._counter(c.C_SPLIT_SEEN) - sent)
            split.add_metric([VERSIONS[c.CANARY]], sent)
            inside.add_metric([], self._counter(c.C_CANARY_INSIDE))
            inconclusive.add_metric([], self._counter(c.C_INCONCLUSIVE))
        yield from (step, share, split, inside, inconclusive)

    def _names(self, stage: int, engine: int) -> list[str]:
        return [self._stages[stage], self._engines[engine]]

    def _per_engine(self, family: Family, column: int) -> Family:
        for engine, name in enumerate(self._engines):
            family.add_metric([name], int(self._state.engines[engine, column]))
        return family

    def _counter(self, column: int) -> float:
        return float(self._state.counters[column])
