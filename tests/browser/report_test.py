"""The report in a real browser: nothing wider than the screen, nothing fetched, in light and in dark."""

import html
import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.browser.chromium import BROWSER, QUIET, marks

from loadslice.evaluate.report.page import render
from loadslice.evaluate.report.specimen import specimen

pytestmark = marks

PRECISIONS = {"ort": "fp32", "ov": "bf16"}
"""As a study has them: the head's table is widest then."""

# Only the test's copy of the page runs a script: it measures, and leaves what it found in an attribute.
PROBE = """<script>
const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg")
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 80));
const cut = [...document.querySelectorAll("main > .scroll")].filter(e => e.scrollWidth > e.clientWidth).length;
const texts = [...document.querySelectorAll("figure svg text")].map(e => e.getBoundingClientRect());
document.documentElement.dataset.found = JSON.stringify({
  view: document.documentElement.clientWidth, page: document.documentElement.scrollWidth, wide, cut,
  outside: texts.filter(b => b.left < -1 || b.right > document.documentElement.clientWidth + 1).length,
  paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
  muted: getComputedStyle(document.querySelector("caption")).color,
  loaded: performance.getEntriesByType("resource").map(e => e.name)});
</script></body>"""


# Headless windows are at least 500 wide whatever is asked for, so a phone is a frame inside one.
FRAME = """<!doctype html><iframe src="/" style="width:%dpx;height:2000px;border:0"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => { document.documentElement.dataset.found =
  frame.contentDocument.documentElement.dataset.found; };</script>"""


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves the report, frames of a width around it, and keeps what else was asked for."""

    report = b""
    others: list[str]

    def do_GET(self) -> None:
        width = self.path.removeprefix("/frame/")
        body = self.report if self.path == "/" else FRAME.replace("%d", width).encode() if width.isdigit() else None
        if body is None:
            self.others.append(self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    made = specimen()
    plans = [msgspec.structs.replace(plan, precisions=PRECISIONS, title="ONNX Runtime alone") for plan in made.plans]
    page = render(msgspec.structs.replace(made, plans=plans))
    assert PROBE not in page
    page = page.replace("style-src 'unsafe-inline'", "style-src 'unsafe-inline'; script-src 'unsafe-inline'")
    others: list[str] = []
    handler = type("Handler", (Pages,), {"report": page.replace("</body>", PROBE).encode(), "others": others})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", others
        listening.shutdown()
        thread.join()


def look(server: str, profile: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """What the page says about itself at a width."""
    assert BROWSER is not None
    command = [BROWSER, *QUIET, f"--user-data-dir={profile}", "--window-size=1400,2100", "--dump-dom"]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run([*command, f"{server}/frame/{width}"], capture_output=True, text=True, timeout=90, check=True)
    return json.loads(html.unescape(done.stdout.partition('data-found="')[2].partition('"')[0]))


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(server: tuple[str, list[str]], tmp_path: Path, width: int) -> None:
    found = look(server[0], tmp_path, width)
    assert found["view"] <= width
    assert found["wide"] == []
    assert found["page"] <= found["view"]
    assert found["outside"] == 0
    if width == 1200:
        assert found["cut"] == 0, "the table at the head is read without scrolling"


def test_nothing_is_fetched(server: tuple[str, list[str]], tmp_path: Path) -> None:
    found = look(server[0], tmp_path, 1280)
    assert found["loaded"] == []
    assert set(server[1]) <= {"/favicon.ico"}


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_light_and_in_dark(server: tuple[str, list[str]], tmp_path: Path, dark: bool) -> None:
    found = look(server[0], tmp_path, 1280, dark=dark)
    paper = luminance(found["paper"])
    assert (paper < 0.1) is dark
    # WCAG 2.2, success criterion 1.4.3: at least 4.5 to 1.
    for colour in ("ink", "muted"):
        high, low = sorted((paper, luminance(found[colour])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Relative luminance of an ``rgb(..)`` colour as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
