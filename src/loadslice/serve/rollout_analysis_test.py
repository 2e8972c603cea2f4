"""The tests that decide about a canary: how often they are wrong, and how soon they are right."""

import math

import msgspec
import numpy as np
import pytest

from loadslice.serve.rollout_analysis import Evidence, Value, findings, judge, metric
from loadslice.serve.sequential import RiskTest, ShareTest, lower_bound, quarter, slowest, upper_bound
from loadslice.spec.errors import InputError
from loadslice.spec.rollout import LatencyRule, MetricRule, OutputRule, RolloutPlan, check

PLAN = RolloutPlan()
RULE = LatencyRule(slower_max_ms=0)
HOUR_REQUESTS = 100_000


def traffic(
    seed: int,
    *,
    requests: int = HOUR_REQUESTS,
    share: float = 0.05,
    failure_rate: float = 0.002,
    risk: float = 1.0,
    slower: float = 1.0,
    gap: float = 1e-6,
    plan: RolloutPlan = PLAN,
) -> tuple[Evidence, int | None]:
    """Recorded-like traffic: failure rate and times swing with the hour, kinds of batch differ in their times.

    Returns:
        The evidence, and after how many requests it first said fail.
    """
    generator = np.random.default_rng(seed)
    evidence = Evidence()
    phase = np.linspace(0, 4 * np.pi, requests)
    canary = generator.random(requests) < share
    rates = failure_rate * (1 + 0.9 * np.sin(phase)) * np.where(canary, risk, 1.0)
    failed = generator.random(requests) < rates
    kinds = generator.integers(0, 4, requests)
    times = (1 + kinds) * (1 + 0.5 * np.sin(phase)) * generator.lognormal(0, 0.3, requests)
    times = np.where(canary, times * slower, times)
    shadow = generator.random(requests) < 0.05
    for number in range(requests):
        version = int(canary[number])
        evidence.ended(version, failed=bool(failed[number]))
        evidence.took(f"kind {kinds[number]}", version, float(times[number]), RULE)
        if shadow[number] and not version:
            evidence.compared(gap * float(generator.lognormal(0, 0.5)), 0.01, 0.02)
        if number % 50 == 49:
            evidence.close_window()
            if judge(plan, evidence, 0, math.inf, 0).decision == "fail":
                return evidence, number + 1
    return evidence, None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("failure_rate", [0.0, 0.002, 0.1])
def test_no_false_alarm_in_a_hundred_thousand_requests_of_equal_versions(seed, failure_rate) -> None:
    evidence, alarm = traffic(seed, failure_rate=failure_rate)
    assert alarm is None
    assert evidence.pairs > 4000


def test_equal_versions_pass_once_everything_has_been_shown() -> None:
    evidence, _ = traffic(1)
    finding = judge(PLAN, evidence, 10, 10, 0)
    assert (finding.decision, finding.why) == ("pass", "every signal passes")
    assert judge(PLAN, evidence, 9, 10, 0).decision == "inconclusive"


def test_one_scale_off_by_two_percent_is_caught_in_the_first_pairs() -> None:
    evidence, alarm = traffic(2, gap=0.02)
    assert alarm is not None
    assert alarm <= 0.05 * HOUR_REQUESTS
    assert findings(PLAN, evidence, 0)["outputs"].decision == "fail"
    assert evidence.pairs_all < 50


def test_a_canary_that_fails_four_times_as_often_is_caught_within_the_hour() -> None:
    evidence, alarm = traffic(3, failure_rate=0.01, risk=4)
    assert alarm is not None
    assert findings(PLAN, evidence, 0)["errors"].decision == "fail"
    assert alarm < HOUR_REQUESTS / 2


def test_a_canary_that_always_fails_is_caught_within_its_first_dozen_requests() -> None:
    evidence, alarm = traffic(4, failure_rate=0.001, risk=1000)
    assert alarm is not None
    assert evidence.requests[1] < 12


def test_a_slow_canary_is_caught_and_one_within_its_margin_is_not() -> None:
    evidence, alarm = traffic(5, slower=2.0)
    assert alarm is not None
    assert alarm < 5000
    assert findings(PLAN, evidence, 0)["latency"].decision == "fail"
    assert traffic(6, slower=1.2)[1] is None


def test_no_traffic_no_baseline_and_no_pairs_never_pass() -> None:
    assert judge(PLAN, Evidence(), 1e9, 0, 0).decision == "inconclusive"
    evidence, _ = traffic(7, requests=20_000, share=0.0)
    assert judge(PLAN, evidence, 1e9, 0, 0).decision == "inconclusive"
    evidence, _ = traffic(8, requests=20_000, share=1.0)
    assert judge(PLAN, evidence, 1e9, 0, 0).decision == "inconclusive"


def test_a_signal_that_is_missing_fails_where_its_rule_says_so() -> None:
    plan = msgspec.structs.replace(PLAN, outputs=OutputRule(missing="fail"))
    assert judge(plan, Evidence(), 0, 0, 0).why == "outputs: no answers have been compared"
    assert judge(plan, Evidence(), 0, 0, 0).decision == "fail"


def test_a_pass_is_shown_anew_at_every_step_and_harm_is_not_forgotten() -> None:
    evidence, _ = traffic(9)
    before = evidence.error_harm.peak
    evidence.next_step()
    assert judge(PLAN, evidence, 10, 10, 0).decision == "inconclusive"
    assert evidence.error_harm.peak >= before


def test_evidence_survives_being_written_down() -> None:
    evidence, _ = traffic(10, requests=5000)
    again = msgspec.json.decode(msgspec.json.encode(evidence), type=Evidence)
    assert findings(PLAN, again, 0) == findings(PLAN, evidence, 0)


@pytest.mark.parametrize("rate", [0.002, 0.05, 0.5])
def test_the_evidence_of_equal_versions_keeps_villes_promise(rate) -> None:
    """2,000 runs of 60 looks each: at most alpha of them ever reach 1/alpha."""
    generator = np.random.default_rng(11)
    reached = 0
    for _ in range(2000):
        test = RiskTest()
        for _ in range(60):
            canary, stable = int(generator.integers(1, 20)), int(generator.integers(20, 200))
            hits = int(generator.binomial(canary + stable, rate))
            mine = int(generator.hypergeometric(canary, stable, hits)) if hits else 0
            test.add(mine, canary, hits - mine, stable)
        reached += test.peak >= 20
    assert reached <= 2000 / 20


def test_the_mean_of_one_factor_is_at_most_one_by_enumeration() -> None:
    for canary, stable, hits in ((1, 1, 1), (3, 7, 4), (5, 5, 9), (2, 30, 8), (8, 2, 5)):
        for risks in ((1.25,), (8.0,), (0.1,), (0.8,)):
            mean = 0.0
            for mine in range(max(0, hits - stable), min(canary, hits) + 1):
                chance = math.comb(canary, mine) * math.comb(stable, hits - mine) / math.comb(canary + stable, hits)
                test = RiskTest(risks=risks)
                test.add(mine, canary, hits - mine, stable)
                mean += chance * test.evidence
            assert mean <= 1 + 1e-12


def test_the_evidence_about_a_share_keeps_its_promise_and_grows_beyond_it() -> None:
    generator = np.random.default_rng(12)
    reached = 0
    for _ in range(1000):
        test = ShareTest(limit=0.02)
        for happened in generator.random(500) < 0.02:
            test.add(bool(happened))
        reached += test.peak >= 20
    assert reached <= 50
    test = ShareTest(limit=0.02)
    for _ in range(4):
        test.add(True)
    assert test.peak > 3000


def test_bounds_hold_at_all_times_at_once() -> None:
    generator = np.random.default_rng(13)
    missed = 0
    for _ in range(300):
        hits = np.cumsum(generator.random(400) < 0.03)
        missed += any(
            upper_bound(int(hits[n]), n + 1, 0.05) < 0.03 or lower_bound(int(hits[n]), n + 1, 0.05) > 0.03
            for n in range(9, 400, 10)
        )
    assert missed <= 30
    assert (upper_bound(0, 0, 0.05), lower_bound(0, 0, 0.05)) == (1.0, 0.0)
    assert upper_bound(5, 5, 0.05) == 1.0
    assert upper_bound(0, 1000, 0.025) == pytest.approx(1 - (1 / (1001 / 0.025)) ** (1 / 1000), rel=1e-6)


def test_the_slowest_quarter_counts_doubt_for_whom_it_is_told_to() -> None:
    assert quarter(1) == 1
    assert slowest([1.0], [1.0, 1.0, 1.0], doubt_for_canary=True) == 0
    assert slowest([1.0], [1.0, 1.0, 1.0], doubt_for_canary=False) == 1
    assert slowest([9.0, 9.0], [1.0] * 6, doubt_for_canary=True) == 2


@pytest.mark.parametrize(("slower_max_ms", "alarms"), [(0.0, True), (1.0, False)])
def test_milliseconds_are_granted_beside_the_share(slower_max_ms, alarms) -> None:
    rule = LatencyRule(slower_max_ms=slower_max_ms)
    evidence = Evidence()
    for number in range(2000):
        version = int(number % 20 == 0)
        evidence.took("tiny", version, (20e-6 if version else 10e-6) * (1 + number % 7 / 100), rule)
    assert (evidence.latency_harm.peak > 3000) == alarms


@pytest.mark.parametrize(
    ("value", "decision"),
    [
        (None, "inconclusive"),
        (Value(stable=1.0, canary=None, at_s=990), "inconclusive"),
        (Value(stable=math.nan, canary=1.0, at_s=990), "inconclusive"),
        (Value(stable=math.inf, canary=1.0, at_s=990), "inconclusive"),
        (Value(stable=1.0, canary=1.0, at_s=899), "inconclusive"),
        (Value(stable=1.0, canary=1.0, at_s=1001), "inconclusive"),
        (Value(stable=1.0, canary=0.97, at_s=990), "fail"),
        (Value(stable=1.0, canary=0.99, at_s=990), "pass"),
        (Value(stable=0.0, canary=0.0, at_s=990), "pass"),
        (Value(stable=-1.0, canary=-1.5, at_s=990), "fail"),
    ],
)
def test_a_business_metric_passes_only_with_two_numbers_of_now(value, decision) -> None:
    assert metric(MetricRule(age_max_s=100), value, 1000).decision == decision
    strict = MetricRule(age_max_s=100, missing="fail")
    assert metric(strict, value, 1000).decision == ("fail" if decision == "inconclusive" else decision)


def test_lower_may_be_better() -> None:
    assert metric(MetricRule(better="lower"), Value(stable=1, canary=2, at_s=0), 0).decision == "fail"
    assert metric(MetricRule(better="lower"), Value(stable=2, canary=1, at_s=0), 0).decision == "pass"


def test_more_kinds_of_batch_than_are_kept_cost_no_memory() -> None:
    evidence = Evidence()
    for number in range(10_000):
        evidence.took(f"kind {number}", number % 2, 1.0, RULE)
    for _ in range(10_000):
        evidence.took("kind 0", 0, 1.0, RULE)
    assert len(evidence.windows) <= 256
    assert len(evidence.windows["kind 0"].stable) <= 256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dwell_s": []}, "dwell_s"),
        ({"dwell_s": [math.nan]}, r"dwell_s\[0\]"),
        ({"false_alarm": 0.0}, "false_alarm"),
        ({"requests_min": 0}, "requests_min"),
        ({"latency": LatencyRule(slower_max=math.inf)}, "slower_max"),
        ({"outputs": OutputRule(inflight_max=1000)}, "inflight_max"),
        ({"metrics": {"": MetricRule()}}, "metrics"),
        ({"metrics": {str(n): MetricRule() for n in range(33)}}, "more than 32"),
    ],
)
def test_a_plan_out_of_range_is_refused_with_its_key(changes, words) -> None:
    with pytest.raises(InputError, match=words):
        check(msgspec.structs.replace(PLAN, **changes), "plan.yaml")
