import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from loadslice.evaluate.report import views
from loadslice.evaluate.report.page import render
from loadslice.evaluate.report.specimen import HOSTILE, specimen
from loadslice.spec import report as reports
from loadslice.spec.files import encode_json, write_bytes
from loadslice.spec.latency import Entry, Milliseconds, Pooled


class Outline(HTMLParser):
    """Collects what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page() -> str:
    return render(specimen())


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    return found


def test_the_page_needs_nothing_outside_itself(page: str, outline: Outline) -> None:
    names = {tag for tag, _ in outline.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed"}
    assert "url(" not in page
    assert "@import" not in page
    for tag, attributes in outline.tags:
        for key in ("src", "href", "srcset", "action"):
            assert (attributes.get(key) or "#").startswith("#"), (tag, attributes)


def test_text_of_others_is_shown_and_never_run(page: str) -> None:
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;alert(1)") == 3


def test_the_verdict_comes_first_and_headings_do_not_skip_a_level(outline: Outline) -> None:
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    seen = {1}
    for level in levels:
        assert level <= max(seen) + 1 or level == 4, levels
        seen.add(level)


def test_every_table_has_a_caption_and_every_chart_a_name_and_a_description(page: str, outline: Outline) -> None:
    tags = [tag for tag, _ in outline.tags]
    assert tags.count("table") == tags.count("caption") > 8
    charts = [attributes for tag, attributes in outline.tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(charts) >= 8
    ids = {attributes.get("id") for _, attributes in outline.tags}
    for chart in charts:
        assert set((chart["aria-labelledby"] or "").split()) <= ids
    given = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
    assert len(given) == len(set(given))


def test_a_report_without_any_result_is_still_a_page() -> None:
    bare = msgspec.structs.replace(
        specimen(), portrait=None, rate_curve=None, sizes=[], machine=None, models=[], latency_table=[], agreements=[]
    )
    empty = msgspec.structs.replace(bare, plans=[bare.plans[2]])
    assert "could not be made" in render(empty)
    assert views.all_charts(empty) == {}


def test_nothing_on_the_page_is_python_for_unknown(page: str) -> None:
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert not re.search(r"\b(None|nan|inf|undefined)\b", text)


def test_the_json_twin_reads_back_as_it_was_written(tmp_path: Path) -> None:
    made = specimen()
    write_bytes(tmp_path / "report.json", encode_json(made))
    assert reports.load(tmp_path / "report.json") == made
    assert json.loads((tmp_path / "report.json").read_bytes())["verdict"]["headline"] == made.verdict.headline


def _one_time(entry: Entry) -> str:
    made = msgspec.structs.replace(specimen(), latency_table=[entry])
    table = render(made).partition("Time of one batch, ms")[2].partition("</table>")[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", table))


TIMED = Entry(
    variant="recognise",
    engine="ort",
    batch=1,
    latency_ms=Milliseconds(p50=37.1, p90=60.0, p99=73.4),
    contended_ms=Milliseconds(p50=37.1, p90=60.0, p99=73.4),
    n=1,
    basis="measured",
)


def test_the_longest_of_a_few_runs_is_not_shown_as_a_p99() -> None:
    assert "73.4 longest of 1 " in _one_time(TIMED)
    assert "longest" not in _one_time(msgspec.structs.replace(TIMED, n=100))


def test_pooled_figures_say_what_was_measured_and_what_is_shared() -> None:
    pooled = Pooled(rehearsed=2, spread_of="stage", spread_runs=52, contention=1.0)
    told = _one_time(msgspec.structs.replace(TIMED, pooled=pooled))
    assert "73.4 pooled " in told
    assert (
        "mean: measured 1 time, 2 more in the server; P50 and P99: that mean and the spread of 52 passages of the "
        "stage, all shapes; contended: modelled, the engine's factor 1.00"
    ) in told.replace("&#39;", "'")


def test_an_error_beside_a_wide_interval_is_no_pass() -> None:
    made = specimen()
    figure = msgspec.structs.replace(made.plans[0].compared[0], inside=None, too_wide=True)
    page = render(msgspec.structs.replace(made, plans=[msgspec.structs.replace(made.plans[0], compared=[figure])]))
    assert "cannot be told: the interval is wider than 50% of what was measured" in page


def test_both_verdicts_stand_at_the_top() -> None:
    told = "Two answers on the same engines differ."
    page = render(msgspec.structs.replace(specimen(), side_by_side=[told]))
    assert told in page.partition("<table>")[0]


def test_every_plan_says_what_it_computes_in_and_that_precisions_differ() -> None:
    made = specimen()
    same = [msgspec.structs.replace(plan, precisions={"ort": "fp32"}) for plan in made.plans]
    differ = [msgspec.structs.replace(same[0], title="OpenVINO alone", precisions={"ov": "bf16"}), *same[1:]]
    pages = [render(msgspec.structs.replace(made, plans=plans)) for plans in (same, differ)]
    assert "<td>bf16</td>" in pages[1]
    assert ["different precisions" in page for page in pages] == [False, True]
    assert "OpenVINO alone: ov bf16" in pages[1]
