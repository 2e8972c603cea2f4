import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from loadslice.serve.console import page

VOID = {"meta", "link", "input", "br", "hr", "img"}


class Outline(HTMLParser):
    """Elements with their attributes and texts; that all are closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"style": [], "script": []}
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.texts:
            self.texts[self.open[-1]].append(data)


@pytest.fixture(scope="module")
def html() -> str:
    return page.reply().body.decode()


@pytest.fixture(scope="module")
def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    found.close()
    return found


def test_the_page_is_well_formed(outline: Outline) -> None:
    assert outline.wrong == []
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.found if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched_from_elsewhere(html: str, outline: Outline) -> None:
    for tag, attributes in outline.found:
        assert tag not in ("iframe", "object", "embed", "img", "base")
        assert not {"src", "srcset", "action", "formaction"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
        assert "style" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
    own = "".join(page._inside(name) for name in (*page.STYLES, *page.SCRIPTS) if not name.startswith("vendor"))
    assert not re.search(r"https?:|@import|url\(", own)
    assert "url(" not in html.replace(page._inside("vendor/uPlot.iife.min.js"), "")


def test_the_policy_lets_nothing_run_but_what_is_in_the_page(outline: Outline) -> None:
    headers = dict(page.reply().headers)
    said = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    for kind in ("script", "style"):
        inside = [
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in outline.texts[kind]
        ]
        assert said[f"{kind}-src"].split() == inside
    assert said["default-src"] == said["base-uri"] == said["frame-ancestors"] == said["form-action"] == "'none'"
    assert said["connect-src"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_names_can_only_become_text() -> None:
    own = "".join(page._inside(name) for name in page.SCRIPTS if not name.startswith("vendor"))
    makes_elements = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setAttribute\(.(style|on)"
    assert not re.search(rf"{makes_elements}|\beval\b|new Function", own)


def test_every_control_has_a_label_and_every_part_of_the_page_a_name(outline: Outline) -> None:
    labelled = {attributes["for"] for tag, attributes in outline.found if tag == "label"}
    ids = {attributes["id"] for _, attributes in outline.found if "id" in attributes}
    for tag, attributes in outline.found:
        if tag in ("input", "select"):
            assert attributes["id"] in labelled
        if tag in ("section", "nav") or attributes.get("role") in ("region", "img"):
            assert attributes.get("aria-label") or attributes.get("aria-labelledby") in ids
        for reference in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(reference) is None or attributes[reference] in ids
        if tag == "a" and attributes.get("href", "").startswith("#"):
            assert attributes["href"].removeprefix("#") in ids


def test_the_order_of_the_keyboard_is_the_order_of_the_page(outline: Outline) -> None:
    assert {attributes["tabindex"] for _, attributes in outline.found if "tabindex" in attributes} <= {"0", "-1"}
    first = next(attributes for tag, attributes in outline.found if tag in ("a", "button", "input", "select"))
    assert first["href"] == "#main"


def test_what_is_bundled_is_what_its_readme_says() -> None:
    folder = page.FOLDER / "vendor"
    told = dict(re.findall(r"\| `([\w.]+)` \| `([0-9a-f]{64})` \|", (folder / "README.md").read_text()))
    assert set(told) == {path.name for path in folder.iterdir()} - {"README.md", "uPlot.LICENSE"}
    for name, digest in told.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert "MIT" in (folder / "uPlot.LICENSE").read_text()
