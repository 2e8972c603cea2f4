"""Detectors say what is there, at the rates they promise, and nothing below the minimum sample."""

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("river")
pytest.importorskip("scipy")

from loadslice.evaluate.scrape import Scrape, percentile_s, read, since
from loadslice.evaluate.watch import compare, operation
from loadslice.evaluate.watch.contrast import VersionMeans, advice
from loadslice.evaluate.watch.drift import DriftWatch
from loadslice.evaluate.watch.operation import OperationWatch
from loadslice.evaluate.watch.reference import make
from loadslice.evaluate.watch.sensors import Sensed, Sensors, parse_cards
from loadslice.spec.watch import Baseline, Contrast, Range, Reading, Sample, Signal, WatchPlan

PLAN = WatchPlan(
    signals=[
        Signal(name="confidence", output="c", take="mean", abstains_below=0.5),
        Signal(name="kind", output="k", take="class"),
    ]
)


def answers(draws, count, a=9.0, b=1.5, shares=(0.5, 0.3, 0.2), version=None):
    confidence, kinds = draws.beta(a, b, count), draws.choice(len(shares), count, p=shares)
    return [
        Sample(number, float(number), version, [float(c), float(k)])
        for number, (c, k) in enumerate(zip(confidence, kinds, strict=True), 1)
    ]


def watch(draws, plan=PLAN):
    return DriftWatch(make(plan, "p", "measured", answers(draws, 3000), []))


def first_delay(seed, **drift):
    draws = np.random.default_rng(seed)
    one = watch(draws)
    assert one.feed(answers(draws, 2000)) == []
    for sample in answers(draws, 20_000, **drift):
        if one.feed([sample]):
            return one.samples - 2000
    return math.inf


def test_twenty_thousand_answers_as_in_the_baseline_raise_nothing() -> None:
    for seed in range(3):
        draws = np.random.default_rng(seed)
        one = watch(draws)
        assert one.feed(answers(draws, 20_000)) == []
        assert one.looks == 40 + 10 + 2


def test_a_large_drift_of_confidence_is_seen_within_some_hundred_answers_and_a_small_one_within_some_thousand() -> None:
    assert max(first_delay(seed, a=6.0, b=1.8) for seed in range(3)) <= 500
    assert max(first_delay(seed, a=8.0, b=1.6) for seed in range(3)) <= 4000


def test_below_the_minimum_sample_nothing_is_said_however_far_answers_are() -> None:
    draws = np.random.default_rng(1)
    one = watch(draws)
    assert one.feed(answers(draws, PLAN.minimum - 1, a=1.0, b=9.0)) == []
    assert one.quiet
    alerts = one.feed(answers(draws, 1, a=1.0, b=9.0))
    assert not one.quiet
    assert {alert.test for alert in alerts} >= {"adwin", "ks", "psi", "abstention"}
    assert all(alert.samples == PLAN.minimum for alert in alerts)


def test_a_drift_that_is_over_is_resolved() -> None:
    draws = np.random.default_rng(2)
    one = watch(draws)
    begun = {(a.what, a.test) for a in one.feed(answers(draws, 3000, a=4.0, b=2.0)) if a.state == "firing"}
    ended = {(a.what, a.test) for a in one.feed(answers(draws, 40_000)) if a.state == "resolved"}
    assert ("confidence", "ks") in begun
    assert begun == ended
    assert one.firing == []


def test_a_mix_of_classes_that_changes_is_told_from_a_class_whose_confidence_changes() -> None:
    draws = np.random.default_rng(3)
    mixed = watch(draws).feed(answers(draws, 2000, shares=(0.2, 0.3, 0.5)))
    assert {(alert.what, alert.test) for alert in mixed} == {("kind", "classes")}
    lower = [
        Sample(one.number, one.at_s, None, [one.values[0] * (0.6 if one.values[1] == 2 else 1.0), one.values[1]])
        for one in answers(draws, 2000)
    ]
    named = {alert.what for alert in watch(draws).feed(lower)}
    assert "confidence of kind 2" in named
    assert named.isdisjoint({"confidence of kind 0", "confidence of kind 1", "kind"})


def test_answers_that_lack_the_value_are_abstentions() -> None:
    draws = np.random.default_rng(4)
    silent = [Sample(one.number, one.at_s, None, [None if one.number % 5 == 0 else one.values[0], one.values[1]])
              for one in answers(draws, 1000)]  # fmt: skip
    alerts = watch(draws).feed(silent)
    assert {alert.test for alert in alerts} == {"abstention"}
    assert alerts[0].figures["distance"] == pytest.approx(0.2, abs=0.02)


def test_a_canary_is_not_held_against_the_baseline() -> None:
    draws = np.random.default_rng(5)
    one = watch(draws)
    assert one.feed(answers(draws, 3000, a=2.0, b=5.0, version="canary")) == []
    assert one.samples == 0


def test_answers_in_clumps_are_worth_fewer_and_independent_ones_are_not() -> None:
    draws = np.random.default_rng(6)
    assert compare.clumping(draws.random(3000)) == pytest.approx(1, abs=0.6)
    assert compare.clumping(np.repeat(draws.random(60), 50)) > 10


def test_ks_against_numbers_drawn_alike_is_as_often_small_as_it_says() -> None:
    draws = np.random.default_rng(7)
    reference = np.sort(draws.random(2000))
    found = [compare.ks(reference, draws.random(300), 1.0).p for _ in range(400)]
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.09


def test_psi_and_its_probability_against_a_shift_by_hand() -> None:
    reference = np.arange(1000) / 1000
    shifted = np.concatenate([np.full(500, 0.05), np.full(500, 0.95)])
    found = compare.psi(reference, shifted, compare.edges(reference), 1.0)
    # Half in each of two deciles: 2 (.5 - .1) ln 5 + 8 (0 - .1) ln(0.5 / 1005 / .1).
    assert found.distance == pytest.approx(0.8 * math.log(5) + 0.8 * math.log(0.1 * 1005 / 0.5), rel=0.02)
    assert found.p < 1e-100


def test_holm_stops_at_the_first_that_does_not_count() -> None:
    assert compare.holm([0.04, 0.001, 0.02], 0.05) == [True, True, True]
    assert compare.holm([0.04, 0.001, 0.03], 0.05) == [False, True, False]
    assert compare.holm([], 0.05) == []


WELL = Baseline(
    plan=PLAN, pipeline="p", basis="measured", taken=0, rows=[], clumping=[1.0, 1.0],
    operating={
        "temperature_c": Range(low=40, high=60, readings=9),
        "power_w": Range(low=80, high=100, readings=9),
        "memory_bytes": Range(low=1e9, high=2e9, readings=9),
        "rate_per_s": Range(low=10, high=20, readings=9),
        "latency_ms_p95": Range(low=20, high=40, readings=9),
        "error_share": Range(low=0.0, high=0.002, readings=9),
    },
)  # fmt: skip


def reading(**figures):
    usual = {
        "temperature_c": 55.0, "power_w": 95.0, "memory_bytes": 1.9e9, "rate_per_s": 15.0, "latency_ms_p95": 35.0,
        "error_share": 0.001, "requests": 1000,
    }  # fmt: skip
    return Reading(**{**usual, **figures})


@pytest.mark.parametrize(
    ("rule", "figures"),
    [
        ("hot", {"temperature_c": 71.0}),
        ("power", {"power_w": 121.0}),
        ("memory", {"memory_bytes": 2.6e9}),
        ("rate", {"rate_per_s": 41.0}),
        ("rate", {"rate_per_s": 2.0}),
        ("latency", {"latency_ms_p95": 61.0}),
        ("errors", {"error_share": 0.05}),
    ],
)
def test_a_figure_out_of_its_range_three_times_in_a_row_fires_and_three_times_in_it_resolves(rule, figures) -> None:
    one = OperationWatch(WELL)
    assert [one.feed(reading()) for _ in range(5)] == [[]] * 5
    assert one.feed(reading(**figures)) == one.feed(reading(**figures)) == []
    (alert,) = one.feed(reading(**figures))
    assert (alert.test, alert.state) == (rule, "firing")
    assert alert.at_s is None, "two looks have no time on the server's clock"
    assert one.feed(reading()) == one.feed(reading()) == []
    (alert,) = one.feed(reading())
    assert (alert.test, alert.state) == (rule, "resolved")


def test_figures_that_are_unknown_or_of_few_requests_say_nothing() -> None:
    one = OperationWatch(WELL)
    for _ in range(5):
        assert one.feed(Reading(absent={"power_w": "no counter"})) == []
        assert one.feed(reading(latency_ms_p95=900.0, error_share=0.9, requests=20)) == []


def test_the_rules_of_prometheus_hold_the_baselines_limits() -> None:
    found = {rule["alert"]: rule["expr"] for rule in operation.prometheus_rules(WELL)}
    assert found["LoadsliceLatency"].endswith("> 0.06")
    assert found["LoadsliceErrors"].endswith("> 0.012")
    assert "LoadsliceDrift" in found


EXPOSITION = """
# TYPE loadslice_requests counter
loadslice_requests_total{{pipeline="p",outcome="completed",reason="none"}} {done}
loadslice_requests_total{{pipeline="p",outcome="failed",reason="engine_failed"}} {failed}
# TYPE loadslice_request_seconds histogram
loadslice_request_seconds_bucket{{pipeline="p",le="0.1"}} {fast}
loadslice_request_seconds_bucket{{pipeline="p",le="0.2"}} {done}
loadslice_request_seconds_bucket{{pipeline="p",le="+Inf"}} {done}
loadslice_request_seconds_count{{pipeline="p"}} {done}
loadslice_request_seconds_sum{{pipeline="p"}} 1
"""


def scrape(at_s: float, done: int, failed: int, fast: int) -> Scrape:
    return read(EXPOSITION.format(done=done, failed=failed, fast=fast), at_s)


def test_a_reading_is_what_happened_between_two_scrapes() -> None:
    found = operation.reading(scrape(10.0, 100, 0, 50), scrape(20.0, 290, 10, 145), None)
    assert found.requests == 200
    assert found.rate_per_s == 20.0
    assert found.error_share == 0.05
    assert found.latency_ms_p95 == pytest.approx(190)
    assert found.temperature_c is None
    assert "another machine" in found.absent["temperature_c"]


def test_a_server_that_has_started_anew_counts_from_nothing() -> None:
    grown = since(scrape(10.0, 100, 5, 50), scrape(20.0, 30, 0, 30))
    assert grown.total("loadslice_requests_total", outcome="completed") == 30
    assert percentile_s(grown, "loadslice_request_seconds", 0.5) == pytest.approx(0.05)
    assert percentile_s(since(scrape(1.0, 5, 0, 5), scrape(2.0, 5, 0, 5)), "loadslice_request_seconds", 0.5) is None


def test_sensors_that_are_not_there_are_named(tmp_path: Path) -> None:
    found = Sensors(root=tmp_path).look()
    assert isinstance(found, Sensed)
    assert found.memory_bytes is not None
    for figure in ("temperature_c", "power_w"):
        assert (getattr(found, figure) is None) == (figure in found.absent)
    assert Sensors(pid=2**22 + 1, root=tmp_path).look().absent["memory_bytes"].endswith("cannot be read")


def test_power_is_energy_over_time_and_a_counter_that_wrapped_says_nothing(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text("1000000")
    sensors = Sensors(root=tmp_path)
    sensors._nvidia = None
    assert sensors.look().power_w is None
    (zone / "energy_uj").write_text("9000000")
    assert sensors.look().power_w > 0
    (zone / "energy_uj").write_text("5")
    assert sensors.look().power_w is None


def test_lines_of_a_driver_that_are_not_whole_are_left_out() -> None:
    assert parse_cards("61, 298.1, 300.0, 97\n[N/A], 1, 2, 3\n\nno devices\n") == [
        {"temperature": 61.0, "power": 298.1, "limit": 300.0, "utilisation": 97.0}
    ]


def test_means_by_version_are_of_the_same_minutes_and_need_the_minimum_of_both() -> None:
    draws = np.random.default_rng(8)
    means = VersionMeans(PLAN)
    means.feed(answers(draws, 600, a=2, b=8, version="stable"))  # an hour before the canary came
    assert means.means("confidence") is None
    late = [Sample(one.number, one.at_s + 10_000, "stable", one.values) for one in answers(draws, 600)]
    canary = [Sample(one.number, one.at_s + 10_000, "canary", one.values) for one in answers(draws, 600, a=6, b=2)]
    means.feed(canary[:499])
    means.feed(late)
    assert means.means("confidence") is None
    means.feed(canary[499:])
    found = means.means("confidence")
    assert found["stable"] == pytest.approx(9 / 10.5, abs=0.02)
    assert found["canary"] == pytest.approx(0.75, abs=0.02)


def test_a_server_that_was_started_again_counts_its_times_anew_and_loses_no_sample_by_it() -> None:
    draws = np.random.default_rng(8)
    means = VersionMeans(PLAN)
    days = [Sample(one.number, one.at_s + 500_000, "stable", one.values) for one in answers(draws, 10)]
    days += [Sample(one.number, one.at_s + 500_000, "canary", one.values) for one in answers(draws, 10)]
    means.feed(days)
    means.feed(answers(draws, 600, version="stable"))
    means.feed(answers(draws, 600, version="canary"))
    assert means.means("confidence") is not None


def test_advice_never_says_to_go_back_on_drift_alone() -> None:
    running = Contrast(state="running", decision="inconclusive", why="few requests")
    assert "Nothing goes back on drift alone" in advice(["c"], running, quiet=False, samples=900, minimum=500)
    assert "nothing is said yet" in advice([], None, quiet=True, samples=9, minimum=500)
    failed = Contrast(state="running", decision="fail", why="metrics.c")
    assert "by itself" in advice(["c"], failed, quiet=False, samples=900, minimum=500)
