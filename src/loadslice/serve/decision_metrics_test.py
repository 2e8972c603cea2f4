"""Every decision the core takes shows in a metric, and only what a pipeline uses has samples."""

import asyncio
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client.metrics_core import Metric

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.tables import State, Tables, fresh, lower
from loadslice.serve.clock import Clock
from loadslice.serve.decision_metrics import DecisionMetrics
from loadslice.serve.metrics import Metrics
from loadslice.spec.pipeline import Pipeline, check

PLAIN = b"""
version: 1
pipeline: p
engines: {e: {backend: onnxruntime}}
stages: [{name: s, model: m.onnx, engine: e}]
"""

RICH = b"""
version: 1
pipeline: p
tenants: {gold: {share: 0.5}}
classes: {sheddable: {floor: 0.1}}
rollout: {steps: [0.5, 1.0]}
engines:
  a: {backend: onnxruntime, memory_mb: 10, queue: {limit: 8, overflow_at: 2}}
  b: {backend: onnxruntime}
stages:
  - name: s
    model: m.onnx
    engines: [a, b]
    memory_mb: 5
    load_ms: 1
    share: {a: 0.5}
    batch: {a: {size: 4, window_ms: 2}}
    failover: {to: b, share: 0.5}
    canary: {model: n.onnx}
    breaker: {failure_rate: 0.5}
"""


def made(text: bytes) -> tuple[Pipeline, Tables, State]:
    pipeline = check(msgspec.yaml.decode(text, type=Pipeline), "p")
    tables = lower(pipeline)
    return pipeline, tables, fresh(tables, pipeline.max_requests)


def arrive(now_ns: int, tables: Tables, state: State, tag: int, tenant: int = 0, priority: int = 1) -> None:
    desk.on_arrival(now_ns, tables, state, tag, priority, c.FOREVER, 1, 0, -1, -1, 0, 1, tenant, -1)


def samples(families: list[Metric]) -> dict[tuple[str, ...], float]:
    """Values by name and label values."""
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_what_a_pipeline_does_not_use_has_no_samples() -> None:
    pipeline, tables, state = made(PLAIN)
    names = {name for name, *_ in samples(list(DecisionMetrics(pipeline, tables, state).collect()))}
    unused = "tenant|canary|model_loads|overflow|floor|stage_served"
    assert not [name for name in names if re.search(unused, name)]
    assert {"loadslice_engine_admits", "loadslice_class_waiting", "loadslice_retry_budget_attempts"} <= names


def test_each_decision_moves_its_metric() -> None:
    pipeline, tables, state = made(RICH)
    metrics = DecisionMetrics(pipeline, tables, state)
    for tag in range(8):
        arrive(0, tables, state, tag, tenant=tag % 2, priority=1 if tag < 6 else 3)
    desk.on_timer(2_000_000, tables, state)
    values = samples(list(metrics.collect()))

    placed = {key[1:]: value for key, value in values.items() if key[0] == "loadslice_placements_total"}
    assert sum(placed.values()) == 8
    assert values["loadslice_overflow_total", "s"] == int(state.stages[0, c.G_OVERFLOWS]) > 0
    assert values["loadslice_overflow_sent_total", "s"] == placed["s", "b", "failover"] > 0
    closed = {key[1:]: value for key, value in values.items() if key[0] == "loadslice_batches_closed_total"}
    assert closed
    assert sum(closed.values()) == int(state.engines[:, c.N_BATCHES].sum())
    dispatched = [values["loadslice_engine_requests_total", engine] for engine in ("a", "b")]
    waiting = sum(value for key, value in values.items() if key[0] == "loadslice_class_waiting")
    assert sum(dispatched) + waiting == 8
    assert waiting == sum(value for key, value in values.items() if key[0] == "loadslice_tenant_waiting")
    assert values["loadslice_model_loads_total", "a"] == 0
    assert ("loadslice_model_loads_total", "b") not in values, "its memory is not bounded"
    assert values["loadslice_canary_share_ratio",] == 0.5
    assert (
        values["loadslice_canary_split_requests", "stable"] == values["loadslice_canary_split_requests", "canary"] == 4
    )
    assert values["loadslice_canary_inside",] == 4
    assert values["loadslice_floor_credit_ratio", "a", "sheddable"] >= 0


def test_a_rollout_shows_its_step_and_what_could_not_be_said() -> None:
    pipeline, tables, state = made(RICH)
    metrics = DecisionMetrics(pipeline, tables, state)
    desk.on_rollout(0, tables, state, c.INCONCLUSIVE)
    desk.on_rollout(1, tables, state, c.PASS)
    values = samples(list(metrics.collect()))
    assert values["loadslice_canary_inconclusive_total",] == 1
    assert (values["loadslice_canary_step",], values["loadslice_canary_share_ratio",]) == (2, 1.0)
    desk.on_rollout(2, tables, state, c.FAIL)
    values = samples(list(metrics.collect()))
    assert (values["loadslice_canary_step",], values["loadslice_canary_share_ratio",]) == (0, 0.0)


def test_an_engine_that_is_down_admits_nothing() -> None:
    pipeline, tables, state = made(RICH)
    metrics = DecisionMetrics(pipeline, tables, state)
    assert samples(list(metrics.collect()))["loadslice_engine_admits", "s", "a"] == 1
    desk.on_engine_down(0, tables, state, 0)
    assert samples(list(metrics.collect()))["loadslice_engine_admits", "s", "a"] == 0


def test_served_time_goes_to_whose_it_was() -> None:
    pipeline, tables, state = made(RICH)
    state.tenant_flows[0, 1, 1, c.Y_SERVED_NS] = 3_000_000_000
    state.tenant_flows[0, 3, 1, c.Y_SERVED_NS] = 500_000_000
    state.stage_flows[0, 1, 0, c.Y_SERVED_NS] = 2_000_000_000
    values = samples(list(DecisionMetrics(pipeline, tables, state).collect()))
    assert values["loadslice_tenant_served_seconds_total", "a", "gold"] == 3.5
    assert values["loadslice_tenant_served_seconds_total", "a", "others"] == 0
    assert values["loadslice_stage_served_seconds_total", "s", "a"] == 2


@pytest.mark.parametrize("text", [PLAIN, RICH])
def test_a_scrape_reads_and_changes_nothing(text) -> None:
    pipeline, tables, state = made(text)
    before = [np.array(array) for array in state]
    assert asyncio.run(Metrics(pipeline, tables, state, Clock()).scrape()).endswith(b"\n")
    assert all(np.array_equal(old, new) for old, new in zip(before, state, strict=True))


def test_the_page_names_a_metric_for_every_decision_and_no_metric_that_is_not_there() -> None:
    pipeline, tables, state = made(PLAIN)
    families = Metrics(pipeline, tables, state, Clock()).collect()
    exposed = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    page = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = page.partition("## Decisions and the metrics that show them")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(loadslice_[a-z_]+)`", table))
    assert named <= exposed
    assert {f"{name}_total" if f"{name}_total" in exposed else name for name in DECIDED} <= named


DECIDED = {
    "loadslice_placements",
    "loadslice_overflow_sent",
    "loadslice_batches_closed",
    "loadslice_class_waiting",
    "loadslice_tenant_served_seconds",
    "loadslice_stage_served_seconds",
    "loadslice_breaker_withheld",
    "loadslice_retries_denied",
    "loadslice_degraded",
    "loadslice_canary_share_ratio",
    "loadslice_model_loads",
    "loadslice_floor_credit_ratio",
}
