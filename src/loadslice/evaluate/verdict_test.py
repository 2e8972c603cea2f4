import msgspec
import pytest

from loadslice.evaluate.report.specimen import specimen
from loadslice.evaluate.verdict import judge, verdict
from loadslice.spec.budget import Slo
from loadslice.spec.report import Interval, PlanReport
from loadslice.spec.simulation import LatencyMs

SLO = Slo(p95_ms=300.0, error_rate=0.01)


def plan(
    name: str, *, p95_ms: float, cpu_ms: float, hybrid: bool = False, failed: int = 0, others: float = 0.0
) -> PlanReport:
    """A judged plan whose figures are the given ones."""
    like = specimen().plans[0]
    assert like.measured is not None
    assert like.cpu is not None
    outcomes = {**like.measured.outcomes, "completed": 1000 - failed, "failed": failed}
    measured = msgspec.structs.replace(
        like.measured, latency_ms=LatencyMs(p50=p95_ms / 2, p95=p95_ms, p99=p95_ms, mean=p95_ms / 2), outcomes=outcomes
    )
    made = msgspec.structs.replace(
        like,
        name=name,
        title=name,
        hybrid=hybrid,
        measured=measured,
        cpu=msgspec.structs.replace(like.cpu, cpu_ms_per_request=cpu_ms, others_utilisation=others),
        compared=[
            msgspec.structs.replace(figure, measured_95=Interval(low=0.9 * p95_ms, high=1.1 * p95_ms))
            for figure in like.compared
            if figure.figure == "p95"
        ],
    )
    meets, too_close, misses = judge(made, SLO)
    return msgspec.structs.replace(made, meets_slo=meets, too_close=too_close, misses=misses)


def codes(plans: list[PlanReport]) -> set[str]:
    return {rule.code for rule in verdict(plans, SLO).rules}


def test_stay_on_one_engine_when_the_hybrid_is_faster_but_costs_more() -> None:
    plans = [plan("both", p95_ms=100, cpu_ms=90, hybrid=True), plan("a", p95_ms=150, cpu_ms=70)]
    found = verdict(plans, SLO)
    assert found.recommended == "a"
    assert found.action.startswith("Stay on one engine: run a.")
    assert "50 ms" in found.action
    assert "stay_on_one_engine" in codes(plans)


def at_pace(made: PlanReport, speed: float, recorded_p95_ms: float) -> PlanReport:
    """The plan as measured at a pace, with what is predicted for the recorded one."""
    assert made.measured is not None
    assert made.simulated is not None
    latency = msgspec.structs.replace(made.simulated.latency_ms, p95=recorded_p95_ms)
    return msgspec.structs.replace(
        made,
        measured=msgspec.structs.replace(made.measured, speed=speed),
        simulated_recorded=msgspec.structs.replace(
            made.simulated, latency_ms=latency, outcomes={**made.simulated.outcomes, "failed": 0, "shed": 0}
        ),
    )


def test_a_promise_broken_at_another_pace_is_not_said_of_the_recorded_one() -> None:
    found = verdict([at_pace(plan("a", p95_ms=500, cpu_ms=70), 21.0, 90)], SLO)
    assert found.headline.startswith("At 21 times the recorded pace: a does not keep the promise")
    assert found.action == (
        "At the recorded pace a is predicted to keep it: measure that with `--speed 1` before anything is squeezed or "
        "bought."
    )
    assert found.sentences[-1].endswith("At that itself, by prediction only: a P95 90 ms, kept.")


def test_a_promise_kept_at_a_slower_pace_is_not_said_of_the_recorded_one() -> None:
    found = verdict([at_pace(plan("a", p95_ms=100, cpu_ms=70), 0.29, 900)], SLO)
    assert found.recommended == "a"
    assert found.headline.startswith("At 0.29 times the recorded pace: a keeps the promise")
    assert found.action.endswith(
        "at the recorded pace it is predicted to break the promise: `--speed 1` measures that."
    )
    kept = verdict([at_pace(plan("a", p95_ms=100, cpu_ms=70), 0.29, 200)], SLO)
    assert "break" not in kept.action
    assert "another_pace" not in {rule.code for rule in verdict([plan("a", p95_ms=100, cpu_ms=70)], SLO).rules}


def test_differences_within_the_noise_go_to_the_simpler_plan() -> None:
    assert (
        verdict([plan("both", p95_ms=100, cpu_ms=70, hybrid=True), plan("a", p95_ms=150, cpu_ms=72)], SLO).recommended
        == "a"
    )
    assert (
        verdict([plan("both", p95_ms=100, cpu_ms=60, hybrid=True), plan("a", p95_ms=150, cpu_ms=72)], SLO).recommended
        == "both"
    )


def test_the_hybrid_pays_when_it_alone_keeps_the_promise() -> None:
    plans = [plan("both", p95_ms=200, cpu_ms=90, hybrid=True), plan("a", p95_ms=500, cpu_ms=70)]
    found = verdict(plans, SLO)
    assert found.recommended == "both"
    assert "only the hybrid keeps the promise" in found.action
    assert "hybrid_pays" in codes(plans)


def test_when_no_plan_keeps_the_promise_the_advice_is_software_first() -> None:
    plans = [plan("a", p95_ms=500, cpu_ms=70), plan("b", p95_ms=100, cpu_ms=70, failed=50)]
    found = verdict(plans, SLO)
    assert found.recommended is None
    assert found.action.startswith("Squeeze the software")
    assert "200 ms over the limit" in found.sentences[0]
    assert "5.0% of requests did not complete" in found.sentences[1]


def test_a_limit_inside_the_noise_is_called_too_close() -> None:
    near = plan("a", p95_ms=290, cpu_ms=70)
    assert near.meets_slo
    assert near.too_close
    assert "too_close" in codes([near])
    assert not plan("a", p95_ms=200, cpu_ms=70).too_close


def test_a_disturbed_run_is_named() -> None:
    plans = [plan("a", p95_ms=100, cpu_ms=70, others=0.4)]
    assert "disturbed" in codes(plans)
    assert any("40% (a)" in sentence for sentence in verdict(plans, SLO).sentences)


def test_on_a_crowded_machine_nothing_follows_but_a_promise_that_was_kept_all_the_same() -> None:
    late = verdict([plan("a", p95_ms=500, cpu_ms=70, others=0.9), plan("b", p95_ms=400, cpu_ms=70)], SLO)
    assert late.headline == (
        "It cannot be told which plan keeps the promise: "
        "other programs took up to 90% of this machine while it was measured."
    )
    assert late.recommended is None
    assert late.action.startswith("Repeat the study on a quiet machine.")
    assert {rule.code for rule in late.rules} >= {"none_meets", "disturbed", "crowded"}
    kept = verdict([plan("a", p95_ms=100, cpu_ms=70, others=0.9), plan("b", p95_ms=400, cpu_ms=70)], SLO)
    assert kept.recommended == "a"
    assert kept.headline.startswith("a keeps the promise")
    assert kept.headline.endswith("whether another plan would be cheaper cannot be told.")


def test_one_plan_alone_gets_an_answer_without_a_comparison() -> None:
    found = verdict([plan("a", p95_ms=100, cpu_ms=70)], SLO)
    assert found.headline.startswith("a keeps the promise")
    assert found.action.startswith("Stay with a")


@pytest.mark.parametrize("wrong_share", [0.002, 0.001])
def test_wrong_answers_break_a_promise_that_names_them(wrong_share: float) -> None:
    meets, _, misses = judge(plan("a", p95_ms=100, cpu_ms=70), Slo(p95_ms=300, wrong_characters_share=wrong_share))
    assert not meets
    assert "characters wrong" in misses[0]


def test_without_a_measurement_there_is_no_verdict() -> None:
    broken = specimen().plans[2]
    found = verdict([broken], SLO)
    assert found.recommended is None
    assert "no verdict" in found.headline
    incomplete = plan("a", p95_ms=100, cpu_ms=70)
    assert incomplete.measured is not None
    cut_short = msgspec.structs.replace(
        incomplete, measured=msgspec.structs.replace(incomplete.measured, complete=False)
    )
    assert judge(cut_short, SLO) == (None, False, [])
