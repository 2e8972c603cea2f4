"""The evaluation's page says each figure with its unit, and how it was obtained."""

import html
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from loadslice.evaluate.closed_loop import Flow
from loadslice.evaluate.conclude import conclude
from loadslice.evaluate.environment import read
from loadslice.evaluate.report import evaluation_rows, words
from loadslice.evaluate.report.evaluation_page import render
from loadslice.evaluate.rules_test import WANTED, seen
from loadslice.evaluate.seen import Seen
from loadslice.spec.evaluation import LayerName
from loadslice.spec.evaluation_report import EvaluationReport, Knee
from loadslice.spec.report import Interval

HOSTILE = "<script>alert(1)</script>"


def climbed(name: str) -> Seen:
    """A placement whose ramp was predicted and asked again."""
    one = seen(name)
    assert one.ramp is not None
    flows = [Flow(clients, 40.0 * clients, 25.0, 30.0, 100, 0, 0) for clients in (1, 2)]
    one.ramp.predicted, one.ramp.measured, one.ramp.ended = flows, flows, "16 clients are the most that were asked for"
    one.ramp.lone_ms = [26.0, 27.0]
    spread = Interval(low=97.0, high=103.0)
    one.ramp.knee = Knee(
        clients=2.0, throughput_per_s=100.0, clients_most_power=2, throughput_range=spread,
        clients_range=Interval(low=1.9, high=2.1), rounds=3,
    )  # fmt: skip
    return one


@pytest.fixture(scope="module")
def report() -> EvaluationReport:
    return conclude([climbed("a"), climbed("b")], WANTED, read(Path("/nowhere")))


@pytest.fixture(scope="module")
def page(report: EvaluationReport) -> str:
    return render(report)


def test_every_layer_is_introduced() -> None:
    assert set(evaluation_rows.LAYERS) == set(get_args(LayerName))


def test_each_layer_says_how_its_figures_were_obtained(report: EvaluationReport, page: str) -> None:
    said = html.unescape(page)
    for layer in report.layers:
        assert evaluation_rows.LAYERS[layer.name].title in said
        assert evaluation_rows.LAYERS[layer.name].how in said


def test_a_measured_knee_stands_with_its_rounds_its_prediction_and_its_error(report: EvaluationReport) -> None:
    layer = next(layer for layer in report.layers if layer.name == "ramp")
    lines = dict(evaluation_rows.table("ramp", {"a": layer.figures["a"]}))
    assert lines["Most answers a second, measured"] == ["100 /s (97 to 103)"]
    assert lines["predicted"] == ["101 /s"]
    assert lines["Error of the prediction"] == ["+1.0%"]
    assert lines["Knee, measured"] == ["2 clients (1.9 to 2.1)"]
    assert lines["One client's requests, longer than predicted by"] == ["+6.0%"]


def test_no_line_is_told_of_which_nothing_is_known() -> None:
    lines = dict(evaluation_rows.table("latency", {"a": {"completed": 3, "requests": 3, "whole_ms_p95": None}}))
    assert lines == {"Requests completed": ["3 of 3"]}


def test_unknown_is_never_python_and_no_text_of_others_runs(report: EvaluationReport) -> None:
    placements = [msgspec.structs.replace(placed, advice=HOSTILE) for placed in report.placements]
    page = render(msgspec.structs.replace(report, placements=placements, limits=[HOSTILE]))
    assert HOSTILE not in page
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert not re.search(r"\b(None|nan|inf|undefined|True|False)\b", text)


def test_what_decides_the_verdict_comes_before_what_explains(page: str) -> None:
    places = [page.index(f"<td>{effect}<") for effect in ("warning", "note") if f"<td>{effect}<" in page]
    assert places == sorted(places)
    assert page.index('id="limits"') < page.index('id="correctness"')


def test_ids_are_unique_and_links_lead_somewhere(page: str) -> None:
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_a_share_below_nothing_has_a_true_minus() -> None:
    figures = {"latency_ms_mean": 10.0, "unexplained_ms": -0.1, "adds_up": True}
    lines = dict(evaluation_rows.table("attribution", {"a": figures}))
    assert lines["Unexplained"] == [f"{words.signed_pct(-1)[0]}0.10 ms ({words.signed_pct(-1)[0]}1%)"]
