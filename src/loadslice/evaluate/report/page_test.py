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
