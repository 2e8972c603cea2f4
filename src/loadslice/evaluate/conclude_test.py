"""What did not run is never a pass; the verdict follows the worst that was seen."""

from pathlib import Path

import msgspec
import pytest

from loadslice.evaluate.conclude import conclude
from loadslice.evaluate.environment import read
from loadslice.evaluate.report.evaluation_page import render
from loadslice.evaluate.rules_test import WANTED, differ, rate, seen
from loadslice.spec.evaluation import DIMENSIONS

HERE = read(Path("/nowhere"))


def test_placements_that_keep_their_floors_pass_on_all_seven_dimensions() -> None:
    report = conclude([seen("a"), seen("b")], WANTED, HERE)
    assert report.verdict == "pass"
    assert [one.name for one in report.dimensions] == list(DIMENSIONS)
    assert report.placements[0].advice == "The reference."
    assert "Stay with the reference" in report.placements[1].advice


def test_a_placement_that_did_not_run_is_never_a_pass() -> None:
    other = seen("b")
    other.state, other.why = "not_run", "no such runtime here"
    report = conclude([seen("a"), other], WANTED, HERE)
    assert report.verdict == "incomplete"
    assert report.placements[1].basis is None
    assert report.placements[1].overall is None
    assert "nothing can be said" in report.placements[1].advice
    assert any("no such runtime here" in limit for limit in report.limits)
    assert all("b" not in one.by_placement for one in report.dimensions)


def test_a_server_that_ended_is_a_regression_with_what_was_seen_before() -> None:
    other = seen("b")
    other.state, other.why, other.soak, other.abnormal = "died", "the server ended during the layer 'soak'", None, None
    report = conclude([seen("a"), other], WANTED, HERE)
    assert report.verdict == "regression"
    soak = next(layer for layer in report.layers if layer.name == "soak")
    assert soak.notes == ["Not measured: b."]
    assert "b" in next(layer for layer in report.layers if layer.name == "latency").figures


def test_an_environment_that_changed_meanwhile_is_no_pass() -> None:
    assert conclude([seen("a"), seen("b")], WANTED, HERE, changed=True).verdict == "incomplete"


def test_clearly_different_outputs_are_refused_and_score_nothing() -> None:
    other = seen("b")
    differ("clearly")(other)
    report = conclude([seen("a"), other], WANTED, HERE)
    assert report.verdict == "regression"
    assert report.dimensions[0].by_placement["b"] == 0
    assert report.placements[1].advice.startswith("Refuse it: outputs-clearly-different")


def test_twice_the_throughput_at_equal_latency_scores_above_the_reference() -> None:
    other = seen("b")
    rate(200.0)(other)
    report = conclude([seen("a"), other], WANTED, HERE)
    performance = report.dimensions[1].by_placement
    assert performance["a"] == pytest.approx(0.5)
    assert (performance["b"] or 0) > 0.5


def test_weights_follow_the_scenario_and_the_file() -> None:
    offline = conclude([seen("a")], msgspec.structs.replace(WANTED, scenario="offline", weights={"cost": 9.0}), HERE)
    assert offline.dimensions[-1].weight == 9.0
    interactive = conclude([seen("a")], WANTED, HERE)
    assert interactive.dimensions[3].weight > offline.dimensions[3].weight


def test_without_labels_the_metric_is_null_and_a_limit_says_so() -> None:
    one = seen("a")
    assert one.correctness is not None
    one.correctness.metric = None
    report = conclude([one], WANTED, HERE)
    assert report.layers[0].figures["a"]["metric"] is None
    assert any("no labels" in limit for limit in report.limits)


def test_times_that_were_taken_on_a_busy_machine_are_a_limit_of_what_was_predicted() -> None:
    one = seen("a")
    one.times_disturbed = "other processes took 74 % of the machine"
    said = "a: what was predicted is not to be relied on, other processes took 74 % of the machine"
    assert said in conclude([one], WANTED, HERE).limits


def test_a_clock_that_jumped_is_a_limit() -> None:
    one = seen("a")
    one.clock_jump_s = 3600.0
    assert any("jumped by +3600.0 s" in limit for limit in conclude([one], WANTED, HERE).limits)


def test_the_page_stands_alone_and_says_everything_that_was_found() -> None:
    other = seen("b")
    other.state, other.why = "not_run", "<script>alert(1)</script>"
    page = render(conclude([seen("a"), other], WANTED, HERE))
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    for said in ("seven dimensions", "Limits of the conclusion", "not run", "Incomplete"):
        assert said in page
