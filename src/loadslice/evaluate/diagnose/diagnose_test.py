"""Every row of the table of symptoms: fires on a fault that was put in, and not on the healthy run beside it."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from loadslice.evaluate import environment
from loadslice.evaluate.diagnose import drawn, from_journal, losses, operators, precision, shapes
from loadslice.evaluate.diagnose.avalanche import onset
from loadslice.evaluate.diagnose.evidence import EndedSeen, Evidence, NotSeenError, PowerSeen
from loadslice.evaluate.diagnose.power import RULE as POWER
from loadslice.evaluate.diagnose.queues import growth
from loadslice.evaluate.diagnose.rule import ask
from loadslice.evaluate.diagnose.rules import RULES
from loadslice.evaluate.diagnose.specimen import CAPACITY_PER_S, ONE, journal, one_engine, poisson, times
from loadslice.spec import journal as journals
from loadslice.spec.evaluation_report import EvaluationReport, Layer, Rule
from loadslice.spec.faults import Clients, Fault
from loadslice.spec.pipeline import Batch, Engine, Pipeline, Queue, Retry, Stage, check
from loadslice.spec.variant import Difference, LayerSensitivity, MetricFigure, Precision, Scheme, Variant

SPAN_S = 120.0
SLOW = Fault(at_s=50, for_s=8, engine="a", kind="slow", factor=4.0)
STUBBORN = Clients(timeout_ms=1000, attempts=4, cancels=False, states_deadline=False)
GENEROUS = Retry(budget=1.0, per_s=10.0, reserve=100_000)


def found(folder, pipeline=None, table=ONE, arrivals=None, **more):
    arrivals = poisson(0.75 * CAPACITY_PER_S, SPAN_S) if arrivals is None else arrivals
    kept = journal(folder / "run", pipeline or one_engine(), table, arrivals, **more)
    evidence = from_journal.evidence(journals.load(kept), kept)
    findings, looked = ask(RULES, evidence)
    return {one.rule: one for one in findings}, {one.rule: one for one in looked}, evidence


def test_a_healthy_run_has_no_findings_and_says_what_was_looked_at(tmp_path) -> None:
    findings, looked, _ = found(tmp_path)
    assert findings == {}
    assert {name for name, one in looked.items() if one.looked} == {
        "engine-lost", "requests-lost", "shape-change", "queue-growth", "low-utilisation", "avalanche",
    }  # fmt: skip
    assert "--budget" in looked["power-wall"].why
    assert "second stage" in looked["stage-jitter"].why


def test_engines_that_were_lost_and_what_it_cost_come_before_what_is_idle(tmp_path) -> None:
    pair = check(
        Pipeline(
            version=1, pipeline="pair",
            engines={name: Engine(backend="twin", queue=Queue(limit=64)) for name in ("a", "b")},
            stages=[Stage(name="work", variant="v", engines=["a", "b"])],
        ),
        "test",
    )  # fmt: skip
    down = [
        Fault(at_s=20, for_s=4, engine="a", kind="down"),
        Fault(at_s=40, for_s=6, engine="a", kind="down"),
        Fault(at_s=42, for_s=2, engine="b", kind="down"),
    ]
    kept = journal(
        tmp_path / "run", pair, times(("v", "a", 1, 20.0), ("v", "b", 1, 20.0)), poisson(10, 60), faults=down
    )
    findings, _ = ask(RULES, from_journal.evidence(journals.load(kept), kept))
    assert [one.rule for one in findings[:3]] == ["engine-lost", "engine-lost", "requests-lost"]
    first, second, lost = findings[:3]
    assert (first.figures["engine"], first.figures["downs"], first.figures["is_down"]) == ("a", 2, 0)
    assert first.figures["down_s"] == pytest.approx(10, abs=0.5)
    assert "stage 'work' had no engine at all for 2.0 s" in second.evidence
    assert (lost.figures["outcome"], lost.figures["reason"]) == ("failed", "engine_down")
    assert lost.figures["requests"] == lost.figures["of"] - journals.load(kept).head.outcomes["completed"] > 5
    assert lost.confidence == "high"
    idle = [one for one in findings if one.rule == "low-utilisation"]
    assert idle
    assert all("fewer engines for" not in one.remedy for one in idle)


def test_a_few_refusals_are_no_finding_and_many_are(tmp_path) -> None:
    small = check(
        Pipeline(
            version=1, pipeline="small", engines={"a": Engine(backend="twin", queue=Queue(limit=2))},
            stages=[Stage(name="work", variant="v", engine="a")],
        ),
        "test",
    )  # fmt: skip
    table = times(("v", "a", 1, 100.0))
    calm, _, evidence = found(tmp_path / "calm", small, table, np.concatenate([np.arange(400) * 0.11, [44.0] * 5]))
    assert 0 < sum(one.requests for one in evidence.ended if one.outcome != "completed") < 4
    assert "requests-lost" not in calm
    busy = found(tmp_path / "busy", small, table, poisson(15, 60))[0]["requests-lost"]
    assert busy.figures["reason"] == "queue_full"
    assert "queue.limit" in busy.cause


def test_a_queue_that_grows_behind_an_engine_that_became_slow_is_the_engines_fault(tmp_path) -> None:
    one = found(tmp_path, faults=[SLOW])[0]["queue-growth"]
    assert one.confidence == "high"
    assert "slower" in one.cause
    assert 45 <= one.figures["from_s"] <= 55
    assert one.figures["service_ratio"] > 2
    assert one.basis == "simulated"


def test_a_queue_that_grows_in_a_burst_is_the_loads_doing(tmp_path) -> None:
    burst = np.sort(np.concatenate([poisson(25, SPAN_S), 50 + poisson(60, 10, seed=2)]))
    one = found(tmp_path, arrivals=burst)[0]["queue-growth"]
    assert "more arrived" in one.cause
    assert one.figures["service_ratio"] == pytest.approx(1, abs=0.05)


def test_an_avalanche_names_the_engine_that_rose_first_and_the_retries(tmp_path) -> None:
    first = check(
        Pipeline(
            version=1, pipeline="two", retry=GENEROUS, max_requests=20_000,
            engines={
                "b": Engine(backend="twin", max_inflight=8, queue=Queue(limit=10_000)),
                "a": Engine(backend="twin", max_inflight=4, queue=Queue(limit=10_000)),
            },
            stages=[Stage(name="before", variant="w", engine="b"), Stage(name="work", variant="v", engine="a")],
        ),
        "test",
    )  # fmt: skip
    table = times(("v", "a", 1, 100.0), ("w", "b", 1, 20.0))
    fault = Fault(at_s=60, for_s=15, engine="a", kind="slow", factor=6.0)
    findings, _, _ = found(
        tmp_path, first, table, poisson(0.85 * CAPACITY_PER_S, 180), faults=[fault], clients=STUBBORN
    )
    one = findings["avalanche"]
    assert one.figures["first_engine"] == "a"
    assert 55 <= one.figures["first_at_s"] <= 66
    assert one.figures["retries_share"] > 0.4
    assert one.figures["service_ratio"] > 4
    assert one.confidence == "high"


def test_the_same_fault_with_patient_clients_is_no_avalanche(tmp_path) -> None:
    fault = Fault(at_s=60, for_s=15, engine="a", kind="slow", factor=6.0)
    findings, looked, _ = found(tmp_path, arrivals=poisson(0.75 * CAPACITY_PER_S, 180), faults=[fault])
    assert looked["avalanche"].looked
    assert "avalanche" not in findings
    assert "queue-growth" in findings


def lumps(batch):
    return check(
        Pipeline(
            version=1, pipeline="two", max_requests=20_000,
            engines={name: Engine(backend="twin", queue=Queue(limit=1000)) for name in ("a", "b")},
            stages=[
                Stage(name="before", variant="v", engine="a", batch=batch),
                Stage(name="after", variant="w", engine="b"),
            ],
        ),
        "test",
    )  # fmt: skip


TWO = times(("v", "a", 1, 21.0), ("v", "a", 8, 28.0), ("w", "b", 1, 20.0))


def test_batches_that_are_handed_on_whole_are_jitter_of_the_next_stage(tmp_path) -> None:
    pipeline = lumps({"a": Batch(size=8, window_ms=300)})
    one = found(tmp_path, pipeline, TWO, poisson(28, SPAN_S))[0]["stage-jitter"]
    assert "whole batches" in one.cause
    assert one.figures["stage"] == "after"
    assert one.figures["gap_variation"] > 2
    assert one.confidence == "high"


def test_stages_that_hand_on_one_by_one_are_no_jitter(tmp_path) -> None:
    findings, looked, _ = found(tmp_path, lumps({}), TWO, poisson(28, SPAN_S))
    assert looked["stage-jitter"].looked
    assert "stage-jitter" not in findings


def test_an_idle_engine_waits_for_a_full_one_or_for_load(tmp_path) -> None:
    alone = found(tmp_path / "1", arrivals=poisson(5, SPAN_S))[0]["low-utilisation"]
    assert "no more" in alone.cause
    table = times(("v", "a", 1, 5.0), ("w", "b", 1, 34.0))
    behind = found(tmp_path / "2", lumps({}), table, poisson(28, SPAN_S))[0]["low-utilisation"]
    assert "waits for 'b'" in behind.cause
    assert behind.confidence == "high"


def test_a_reserve_is_idle_because_the_other_engine_is_preferred(tmp_path) -> None:
    pipeline = check(
        Pipeline(
            version=1, pipeline="reserve", max_requests=20_000,
            engines={name: Engine(backend="twin", queue=Queue(limit=1000)) for name in ("a", "b")},
            stages=[Stage(name="work", variant="v", engines=["a", "b"], prefer="fastest")],
        ),
        "test",
    )  # fmt: skip
    table = times(("v", "a", 1, 50.0), ("v", "b", 1, 90.0))
    findings, _, _ = found(tmp_path, pipeline, table, poisson(12, SPAN_S))
    one = findings["low-utilisation"]
    assert one.figures["engine"] == "b"
    assert "'a' is preferred" in one.cause


def test_an_emulated_gpu_whose_box_allows_less_than_it_draws_is_at_a_power_wall(tmp_path) -> None:
    pipeline = one_engine(device="nvidia-l4", active_w=72.0, idle_w=16.0)
    _, _, evidence = found(tmp_path, pipeline)
    drawn.add(evidence, pipeline, 60.0, "budget.yaml, power.per_box_w")
    (one,) = POWER.look(evidence)
    assert one.figures["busy_share"] > 0.2
    assert "60 W allowed" in one.evidence
    assert one.basis == "modelled"


def test_the_same_gpu_in_a_box_that_allows_it_is_at_none(tmp_path) -> None:
    pipeline = one_engine(device="nvidia-l4", active_w=72.0, idle_w=16.0)
    _, _, evidence = found(tmp_path, pipeline)
    drawn.add(evidence, pipeline, 150.0, "budget.yaml, power.per_box_w")
    assert list(POWER.look(evidence)) == []


def test_a_wall_that_slows_batches_is_named_with_more_confidence() -> None:
    wall = PowerSeen("gpu", 298.0, 300.0, "the driver", 0.9, 1.3, "measured")
    assert next(iter(POWER.look(Evidence(powers=[wall])))).confidence == "high"
    cool = dataclasses.replace(wall, drawn_w=220.0)
    assert list(POWER.look(Evidence(powers=[cool]))) == []


def batches(penalty: float):
    """Rows 1 and 2 by turns of random length; a change costs so many times the usual time."""
    draws = np.random.default_rng(3)
    rows, kinds, before = [], (1, 2), None
    for number in range(300):
        kind = kinds[int(draws.integers(2))]
        usual = 5.0 * kind * float(draws.uniform(0.9, 1.1))
        rows.append(
            {
                "stage": "work",
                "engine": "a",
                "start_ns": number,
                "bucket": 0,
                "rows": kind,
                "service_ms": usual * (penalty if before not in (None, kind) else 1.0),
            }
        )
        before = kind
    return pl.DataFrame(rows)


def test_batches_that_are_slow_after_a_change_of_shape_are_told_from_batches_that_are_larger() -> None:
    (one,) = shapes.RULE.look(Evidence(batches=batches(3.0)))
    assert one.figures["ratio"] == pytest.approx(3.0, rel=0.1)
    assert list(shapes.RULE.look(Evidence(batches=batches(1.0)))) == []


def variant(figure: float, *, sqnr_db: float | None = 35.0, bits: int = 8) -> Variant:
    return Variant(
        name="m.int8", target="cpu-int8", path=None, sha256=None, engine=None,
        scheme=Scheme(weight_bits=bits, activation_bits=bits, tool="test"), speedup_vs_untuned=2.0,
        metric=MetricFigure(name="top1", source=0.90, variant=figure, labelled=True, inputs=500), sqnr_db=sqnr_db,
        shipped=False, why="below the floor",
    )  # fmt: skip


def test_an_int8_variant_that_lost_and_one_that_did_not() -> None:
    steps = Precision(
        plain="m.int8",
        differences=[
            Difference(
                output="y", category="", inputs=9, sqnr_db=9.0, bias_share=0.1, outlier_share=0.8, kind="outliers"
            )
        ],
        layers=[LayerSensitivity(layer="/head/MatMul", kind="MatMul", proxy_db=8.0, alone_db=9.0)],
    )
    lost = Evidence(variants=[("squeeze.json", variant(0.80, sqnr_db=9.0), "top1>=0.89")], precision=[("s", steps)])
    (one,) = precision.RULE.look(lost)
    assert "large values" in one.cause
    assert "/head/MatMul" in one.remedy
    assert one.confidence == "high"
    assert one.figures["loss_share"] == pytest.approx(1 / 9)
    kept = Evidence(variants=[("squeeze.json", variant(0.899), "top1>=0.89")])
    assert list(precision.RULE.look(kept)) == []


@pytest.mark.parametrize("code", ["outputs-clearly-different", "outputs-slightly-different"])
def test_an_evaluation_whose_answers_are_clearly_different_is_a_finding_and_rounding_is_none(code) -> None:
    report = EvaluationReport(
        verdict="regression", headline="", dimensions=[], placements=[], limits=[], scenario="interactive",
        varied="placement", environment=environment.read(),
        layers=[Layer(name="correctness", passed=code == "outputs-slightly-different", figures={})],
        rules_fired=[Rule(code=code, placement="int8", text="", evidence="24 inputs compared", effect="regression")],
    )  # fmt: skip
    found = list(precision.RULE.look(Evidence(evaluations=[("evaluation.json", report)])))
    assert bool(found) is (code == "outputs-clearly-different")


def test_a_16_bit_variant_is_nothing_the_rule_is_about() -> None:
    with pytest.raises(NotSeenError):
        list(precision.RULE.look(Evidence(variants=[("squeeze.json", variant(0.5, bits=16), "top1>=0.89")])))


def test_no_inspection_is_not_the_same_as_all_operators_supported() -> None:
    with pytest.raises(NotSeenError):
        list(operators.RULE.look(Evidence()))


@pytest.mark.parametrize(
    ("queue", "stretch"),
    [
        ([1.0] * 20, None),
        ([0, 1, 0, 2, 1, 0, 30, 0, 1, 0, 1, 0], None),
        ([1, 1, 1, 1, 2, 5, 9, 14, 20, 25, 12, 4, 1, 1, 1, 1, 1, 1, 1, 1], (3, 9)),
        ([0, 2, 4, 6, 8, 10, 12, 14, 16, 18], (0, 9)),
        ([3, 4, 5, 6, 7, 7, 7, 7, 7, 7], None),
    ],
    ids=["flat", "one spike", "a hill", "all the time", "too small"],
)
def test_growth_is_a_rise_that_lasts_and_matters(queue, stretch) -> None:
    assert growth(np.array(queue, float)) == stretch


def test_an_onset_is_the_first_of_two_bins_far_above_the_beginning() -> None:
    values = np.array([1.0, 2, 1, 2, 1, 1, 30, 1, 1, 20, 40, 80, 80, 80, 80, 80])
    assert onset(values, 4.0) == 9
    assert onset(np.full(20, 50.0), 4.0) is None


def test_what_was_refused_at_the_door_is_one_finding_and_a_few_tries_are_none() -> None:
    tries = [EndedSeen("refused", f"HTTP {code}", 1) for code in (404, 405, 415)]
    served = EndedSeen("completed", None, 96)
    assert list(losses.RULE.look(Evidence(ended=[served, *tries]))) == []
    (one,) = losses.RULE.look(Evidence(ended=[served, *tries, EndedSeen("refused", "HTTP 400", 20)]))
    assert one.symptom == "23 of 119 requests refused (HTTP 400: 20, HTTP 404: 1, HTTP 405: 1, HTTP 415: 1)"
    (failed,) = losses.RULE.look(Evidence(ended=[served, EndedSeen("failed", "stage_failed", 1)]))
    assert failed.figures["outcome"] == "failed", "a failure is told however rare"
