"""Two answers to one question in one report: they agree, or it is said why they do not."""

import math

import msgspec
import pytest

from loadslice.app.study_observed import observed, side_by_side
from loadslice.evaluate.rehearsed import Rehearsed
from loadslice.evaluate.report.specimen import specimen
from loadslice.plan.advice_test import SEEN, plan
from loadslice.plan.money.specimen import engine, fleet
from loadslice.spec.latency import LatencyTable
from loadslice.spec.plan import Plan
from loadslice.spec.report import Compared, PlanReport

SLO = specimen().budget.slo
_TABLE = LatencyTable(entries=[])


def measured(*, keeps: bool) -> PlanReport:
    made = specimen().plans[0]
    return msgspec.structs.replace(
        made, title="OpenVINO alone", engines={"host": "Python", "ov": "openvino bf16"}, meets_slo=keeps
    )


def test_rehearsals_and_replays_say_what_times_and_tails_are_off_by() -> None:
    made = specimen().plans[0]
    stage = made.stages[0]
    assert stage.measured is not None
    half = msgspec.structs.replace(stage.measured, service_ms_mean=stage.measured.service_ms_mean / 2)
    doubled = msgspec.structs.replace(stage, predicted=half)
    figure = Compared(
        figure="p95", unit="ms", predicted=100.0, measured=530.0, error_pct=-81.0, measured_95=None, inside=None
    )
    tail = next(iter(SLO.latency_limits_ms))
    one = msgspec.structs.replace(
        made, stages=[doubled], compared=[msgspec.structs.replace(figure, figure=tail)], title="Hybrid"
    )
    ratios = {(stage.stage, "ov"): 1.5, ("read", "host"): 9.0}
    found = observed([one], [Rehearsed(_TABLE, ratios, {}, [], [])], {stage.stage}, SLO)
    assert found is not None
    assert found.times_seen == {"ov": [1.5, 2.0]}
    assert found.times_sd["ov"] == pytest.approx(math.sqrt((math.log(1.5) ** 2 + math.log(2.0) ** 2) / 2))
    assert found.tail_seen == {"Hybrid": 5.3}
    assert found.tail_factor_max == 5.3
    assert observed([msgspec.structs.replace(one, measured=None)], [], set(), SLO) is None


def planned() -> Plan:
    chosen = fleet("1 x host + 1 x ov", {"host": engine("cpu", 1), "ov": engine("cpu", 1)})
    return plan(chosen, recommended=chosen.name, observed=SEEN)


def test_a_measured_no_beside_a_simulated_yes_is_told_with_its_reasons() -> None:
    (told,) = side_by_side([measured(keeps=False)], None, planned(), SLO)
    assert told.startswith("Two answers on the same engines differ. Keeps the promise: ")
    assert "Breaks it: OpenVINO alone, measured at 1 times the recorded pace" in told
    assert "was 5.3 times its own prediction" in told
    assert "44% (Hybrid)" in told
    assert "What was measured goes before what was simulated" in told


def test_answers_that_agree_say_so() -> None:
    (told,) = side_by_side([measured(keeps=True)], measured(keeps=True).name, planned(), SLO)
    assert told.startswith("Both answers agree: OpenVINO alone, measured")


def test_two_recommendations_are_put_side_by_side() -> None:
    one = measured(keeps=False)
    other = msgspec.structs.replace(one, name="both", title="Hybrid", engines=one.engines | {"ort": "fp32"})
    told = side_by_side([one, other], "both", planned(), SLO)
    assert "The study recommends Hybrid" in told[1]


@pytest.mark.parametrize("names", [("host", "gpu"), ("ov",)])
def test_engines_that_were_not_measured_are_no_comparison(names: tuple[str, ...]) -> None:
    one = msgspec.structs.replace(measured(keeps=True), engines=dict.fromkeys(names, ""))
    assert "it was not measured" in side_by_side([one], None, planned(), SLO)[0]
    assert side_by_side([one], None, None, SLO) == []
