import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.plan.decision.facts import Fact, Facts, NpuMatch
from loadslice.plan.decision.tree import Decision, decide
from loadslice.spec.budget import Budget, ModelLife, Offline, People, Power, Slo


def fact(value):
    return Fact(value, f"{value} as the test says", "measured")


def npu(share: float = 1.0, fits: str | None = "onchip", unsupported: int = 0):
    return fact(NpuMatch("rockchip-rk3588-npu", share, unsupported, fits))


def budget(
    limit_ms: float = 300.0, *, scenario="interactive", box_w=None, model=None, offline=None, people=None
) -> Budget:
    return Budget(
        slo=Slo(p99_ms=limit_ms),
        scenario=scenario,
        power=Power(per_box_w=box_w),
        model=model or ModelLife(changes_per_year=1.0, in_production=True),
        offline=offline,
        people=people or People(count=10, heterogeneous_experience=True),
    )


def decision(limit_ms: float = 300.0, *, parameters=5e7, rate=20.0, rows=1.0, match=None, **rest) -> Decision:
    keys = ("utilisation", "gpu_box_w", "cpu_box_w", "offline_share")
    known = {key: fact(rest.pop(key)) for key in keys if key in rest}
    return decide(
        Facts(
            budget=budget(limit_ms, **rest),
            parameters=None if parameters is None else fact(parameters),
            rate_per_s=None if rate is None else fact(rate),
            rows=None if rows is None else fact(rows),
            npu=match,
            **known,
        )
    )


@pytest.mark.parametrize(
    ("parameters", "rate", "limit_ms"), [(7e9, 50.0, 300.0), (3e9, 20.0, 200.0), (1e6, 1.0, 900.0)]
)
def test_up_to_seven_billion_and_fifty_requests_and_a_few_hundred_ms_is_a_processor_first(
    parameters: float, rate: float, limit_ms: float
) -> None:
    made = decision(limit_ms, parameters=parameters, rate=rate)
    assert (made.kind, made.codes) == ("cpu", ("cpu_first",))
    assert "optimised processor first" in made.advice


@pytest.mark.parametrize(("parameters", "rate"), [(7.1e9, 20.0), (3e9, 51.0)])
def test_a_larger_model_or_more_traffic_is_not_for_a_processor_alone(parameters: float, rate: float) -> None:
    assert decision(parameters=parameters, rate=rate).kind == "gpu"


def test_a_strict_p99_with_small_batches_is_an_npu_where_it_matches() -> None:
    assert decision(20.0, match=npu(fits="device")).codes == ("strict_npu",)


@pytest.mark.parametrize("match", [None, npu(share=0.8, unsupported=7), npu(fits="no")])
def test_a_strict_p99_with_small_batches_is_a_low_latency_gpu_where_no_npu_matches(match) -> None:
    made = decision(20.0, match=match)
    assert (made.kind, made.codes) == ("gpu", ("strict_gpu",))
    assert "low-latency GPU" in made.advice


@pytest.mark.parametrize("how", [{"scenario": "offline"}, {"offline_share": 0.6}, {"limit_ms": 60_000.0}])
def test_large_offline_batches_are_a_gpu(how: dict) -> None:
    made = decision(rows=64.0, match=npu(), **how)
    assert (made.kind, made.codes) == ("gpu", ("offline_gpu",))


def test_operators_that_match_and_a_model_on_chip_are_an_npu_and_else_a_gpu() -> None:
    assert decision(rate=200.0, match=npu()).codes == ("fits_npu",)
    assert decision(rate=200.0, match=npu(fits="device")).codes == ("else_gpu",)
    assert decision(rate=200.0, match=npu(share=0.95, unsupported=3)).codes == ("else_gpu",)


def test_power_as_a_hard_limit_is_an_npu_when_operators_match() -> None:
    made = decision(rate=200.0, match=npu(fits="device"), box_w=60.0)
    assert (made.kind, made.codes) == ("npu", ("power_not_gpu", "power_npu"))
    assert "70 W" in made.excluded["gpu"]


def test_power_as_a_hard_limit_without_matching_operators_is_a_processor_and_never_a_gpu() -> None:
    assert decision(rate=200.0, match=npu(share=0.5), box_w=60.0).codes == ("power_not_gpu", "only_cpu")


def test_the_watts_of_a_simulated_box_go_before_the_rule_of_thumb() -> None:
    assert decision(rate=200.0, box_w=200.0, gpu_box_w=260.0).kind == "cpu"
    assert decision(rate=200.0, box_w=300.0, gpu_box_w=260.0).kind == "gpu"


def test_a_model_that_changes_often_is_a_gpu() -> None:
    made = decision(rate=200.0, match=npu(), model=ModelLife(changes_per_year=12.0))
    assert (made.kind, made.codes) == ("gpu", ("fits_npu", "changes_gpu"))


def test_gpu_first_and_an_npu_once_the_model_is_stable() -> None:
    made = decision(rate=200.0, match=npu(), model=ModelLife(changes_per_year=2.0, in_production=False))
    assert (made.kind, made.codes[-1]) == ("gpu", "gpu_then_npu")
    assert "once the model is stable" in made.advice


def test_a_changing_model_makes_no_gpu_where_power_forbids_one() -> None:
    made = decision(rate=200.0, match=npu(), box_w=10.0, model=ModelLife(changes_per_year=12.0))
    assert made.kind == "npu"


@pytest.mark.parametrize("count", [2, 3])
def test_a_team_of_two_or_three_runs_one_engine_well(count: int) -> None:
    made = decision(people=People(count=count, heterogeneous_experience=True))
    assert "small_team" in made.codes
    assert "one kind of engine" in made.advice
    assert "small_team" not in decision(people=People(count=4, heterogeneous_experience=True)).codes


def test_without_experience_of_several_kinds_observability_comes_first() -> None:
    green = People(count=10, heterogeneous_experience=False)
    made = decision(20.0, match=npu(), people=green)
    assert "observability_first" in made.codes
    assert "Observability first" in made.advice
    assert "observability_first" not in decision(people=green).codes


def test_a_nightly_fp16_job_of_ten_minutes_is_not_an_npu() -> None:
    job = Offline(requests_per_day=20_000.0, window_minutes=10.0, precision="fp16")
    made = decision(60_000.0, rows=32.0, match=npu(), scenario="offline", offline=job)
    assert made.kind == "gpu"
    assert "npu" in made.excluded
    assert "nightly_fp16_not_npu" in made.codes
    assert "npu" not in decision(60_000.0, match=npu(), offline=Offline(requests_per_day=1.0)).excluded


def test_a_wake_word_at_one_watt_and_100_ms_is_not_a_gpu() -> None:
    made = decision(100.0, parameters=3e5, rate=1.0, match=npu(), box_w=1.0, scenario="edge")
    assert made.kind == "npu"
    assert {"gpu", "cpu"} <= set(made.excluded)
    assert {"power_not_gpu", "power_not_cpu", "power_npu"} <= set(made.codes)
    nothing = decision(100.0, parameters=3e5, rate=1.0, box_w=1.0, scenario="edge")
    assert nothing.kind is None
    assert nothing.codes[-1] == "nothing_fits"


def test_answers_that_need_fp16_rule_an_npu_out() -> None:
    made = decision(20.0, match=npu(), model=ModelLife(precision_min="fp16", changes_per_year=1.0))
    assert made.kind == "gpu"
    assert "precision_not_npu" in made.codes


def test_under_40_percent_used_is_optimise_first_whatever_else_holds() -> None:
    made = decision(rate=200.0, match=npu(), utilisation=0.39)
    assert made.kind is None
    assert made.codes == ("optimise_first", "fits_npu")
    assert made.advice.startswith("Optimise what is there before buying anything. If that is not enough: an NPU")
    assert "optimise_first" not in decision(utilisation=0.4).codes


def test_the_path_holds_question_answer_and_evidence_in_the_order_of_the_method() -> None:
    questions = [step.question for step in decision().path]
    assert questions == [
        "Is what is there busy?",
        "How quickly must an answer come?",
        "How large are batches?",
        "Does an NPU run the operators and hold the model on chip?",
        "Is power a hard limit?",
        "Is the model small and the traffic light?",
        "Does the model change often?",
        "Who will run it?",
    ]
    assert all(step.answer and step.evidence for step in decision().path)


def test_what_is_not_known_is_said_and_is_never_taken_as_yes() -> None:
    bare = decide(Facts(budget=Budget(slo=Slo(p95_ms=300.0))))
    assert bare.kind == "gpu"
    assert [step.answer for step in bare.path].count("not known") == 6
    assert "loadslice inspect" in bare.path[3].evidence


@settings(deadline=None, max_examples=200)
@given(
    limit_ms=st.sampled_from([5.0, 50.0, 100.0, 300.0, 4000.0, 60_000.0]),
    parameters=st.sampled_from([None, 1e5, 7e9, 7e10]),
    rate=st.sampled_from([None, 1.0, 50.0, 5000.0]),
    rows=st.sampled_from([None, 1.0, 64.0]),
    share=st.sampled_from([None, 0.5, 1.0]),
    fits=st.sampled_from([None, "onchip", "device", "no"]),
    box_w=st.sampled_from([None, 0.5, 10.0, 80.0, 1000.0]),
    scenario=st.sampled_from(["interactive", "offline", "multi-user", "edge"]),
    changes=st.sampled_from([None, 0.0, 12.0]),
)
def test_no_advice_names_a_kind_that_is_ruled_out(
    limit_ms, parameters, rate, rows, share, fits, box_w, scenario, changes
) -> None:
    made = decision(
        limit_ms,
        parameters=parameters,
        rate=rate,
        rows=rows,
        match=None if share is None else npu(share, fits),
        box_w=box_w,
        scenario=scenario,
        model=ModelLife(changes_per_year=changes),
    )
    assert made.kind not in made.excluded
    assert made.codes
    for first, second in itertools.pairwise(made.path):
        assert first.question != second.question
