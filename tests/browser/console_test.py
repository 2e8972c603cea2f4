"""The console in a real browser, driven over its debugging protocol: widths, shades, keyboard, names with markup."""

import asyncio
import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import onnx
import pytest
from onnx import TensorProto, helper
from tests.browser.chromium import BROWSER, QUIET, marks

from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.server import Server
from loadslice.spec.access import Tokens, make
from loadslice.spec.pipeline import Pipeline, check

pytestmark = marks

ENGINES = 64
UPDATE_MS_MAX, UPDATE_TURNS = 50, 31
MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
SAFE_WAIT_S = 60

UPDATES = """new Promise(done => {
  const enough = () => Number(document.documentElement.dataset.updates || 0) >= %d && done(true);
  new MutationObserver(enough).observe(document.documentElement, {attributes: true});
  enough();
})"""

WIDE = """[...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest(".skip")
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 80))"""

COLOURS = """["body", "caption", "figcaption", "a[href='#engines']", "button"].map(name => {
  const node = document.querySelector(name);
  let behind = node;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor];
})"""

FOCUSED = """(() => { const e = document.activeElement;
  return e === document.body ? "" : (e.id || e.getAttribute("href") || e.getAttribute("aria-label")
    || e.getAttribute("aria-labelledby") || e.tagName); })()"""


HOSTILE = """(() => {
  const markup = MARKUP;
  const hostile = (one) => {
    if (typeof one === "string") return markup;
    if (Array.isArray(one)) return one.map(hostile);
    if (!one || typeof one !== "object") return one;
    return Object.fromEntries(Object.entries(one).map(([key, value]) => [key, hostile(value)]));
  };
  const said = { ...hostile(last), kind: "pipeline", number: last.number + 1 };
  const analysis = { [markup]: { decision: "fail", why: markup, figures: { [markup]: 1 } } };
  said.rollout = { state: markup, candidate: markup, decision: markup, why: markup, weight: 0.1, analysis };
  update(said);
})()"""


class Running:
    """A server on a loop of its own in a thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SAFE_WAIT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def running(server: Server) -> Iterator[Running]:
    found = Running(server)
    try:
        found.run(server.start())
        yield found
        found.run(server.stop())
    finally:
        found.close()


def pipeline(engines: int) -> Pipeline:
    names = [f"e{number}" for number in range(engines)]
    text = {
        "version": 1,
        "pipeline": "many",
        "tenants": {"<b>acme</b>": {"share": 0.1}},
        "engines": {name: {"backend": "onnxruntime"} for name in names},
        "stages": [
            {"name": "double", "model": "double.onnx", "engines": names, "prefer": "fastest", "breaker": {}},
        ],
    }
    return check(msgspec.convert(text, Pipeline), "many")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("console")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "tiny", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "double.onnx")
    return folder


@pytest.fixture(scope="module")
def many(folder: Path) -> Iterator[str]:
    """A server of 64 engines that has answered requests with markup in their names."""
    for found in running(Server(pipeline(ENGINES), folder, port=0, console=True)):
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        for number in range(40):
            headers = {
                "Content-Type": "application/json",
                "x-request-id": f"{MARKUP}{number}",
                "x-loadslice-tenant": "<b>acme</b>",
            }
            asked = urllib.request.Request(
                f"{found.server.url}/v2/models/many/infer", json.dumps(body).encode(), headers
            )
            with urllib.request.urlopen(asked, timeout=10) as reply:
                assert reply.status == 200
        yield found.server.url


class Tab:
    """One page of the browser."""

    def __init__(self, socket: Any, run: Any) -> None:
        self._socket, self._run = socket, run
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; events that come meanwhile are kept."""
        return self._run(self._call(method, parameters))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive(timeout=SAFE_WAIT_S)).data)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def value(self, script: str) -> Any:
        """What a script gives, its promise awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, url: str, *, updates: int = 2, width: int = 1280, dark: bool = False, calm: bool = False) -> None:
        """Show a page, and wait until it has been updated some times."""
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        shade = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"}
        self.call("Emulation.setEmulatedMedia", features=[shade, motion])
        self.call("Page.navigate", url=f"{url}/console")
        self.value("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        if updates:
            self.value(UPDATES % updates)

    def press(self, key: str) -> None:
        """One key, down and up."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key)
        down = {"text": text} if text else {}
        for kind, extra in (("keyDown", down), ("keyUp", {})):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], code=key, **extra)

    @property
    def faults(self) -> list[str]:
        """Whatever the browser complained about: errors, refused styles and scripts, exceptions."""
        return [
            json.dumps(event["params"])[:300]
            for event in self.events
            if event["method"] == "Runtime.exceptionThrown"
            or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
        ]

    @property
    def asked(self) -> list[str]:
        """Addresses that were asked."""
        return [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, aiohttp.ClientSession, str]]:
    assert BROWSER is not None
    profile = tmp_path_factory.mktemp("profile")
    command = [BROWSER, *QUIET, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    with (
        asyncio.Runner() as runner,
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process,
    ):
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "DevTools listening on" in line)
            port = re.search(r":(\d+)/", said)
            assert port is not None
            drain = threading.Thread(target=process.stderr.read)
            drain.start()

            async def connect() -> aiohttp.ClientSession:
                return aiohttp.ClientSession()

            session = runner.run(connect())
            yield runner.run, session, f"http://127.0.0.1:{port[1]}"
            runner.run(session.close())
        finally:
            process.terminate()
            process.wait(20)
            drain.join(20)


@pytest.fixture
def tab(browser: tuple[Any, aiohttp.ClientSession, str]) -> Iterator[Tab]:
    run, session, address = browser

    async def begin() -> tuple[Any, str]:
        async with session.put(f"{address}/json/new?about:blank") as reply:
            target = await reply.json(content_type=None)
        return await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0), target["id"]

    async def end(socket: Any, name: str) -> None:
        await socket.close()
        async with session.get(f"{address}/json/close/{name}") as reply:
            await reply.read()

    socket, name = run(begin())
    yield Tab(socket, run)
    run(end(socket, name))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_everything_fits_can_be_read_and_comes_from_the_server(many: str, tab: Tab, width: int, dark: bool) -> None:
    tab.open(many, width=width, dark=dark)
    assert tab.value("document.getElementById('status').textContent").startswith("Live")
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(WIDE) == []
    assert tab.value("document.querySelectorAll('#engine-table tbody tr').length") == ENGINES
    assert tab.value("document.querySelectorAll('.plot canvas').length") >= 3
    colours = tab.value(COLOURS)
    assert (luminance(colours[0][1]) < 0.1) is dark
    for ink, paper in colours:
        # WCAG 2.2, success criterion 1.4.3: at least 4.5 to 1.
        high, low = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5
    assert tab.faults == []
    assert all(url.startswith((f"{many}/console", "data:")) for url in tab.asked)


def test_everything_is_reached_by_keyboard_in_order_and_no_engine_is_cut_off(many: str, tab: Tab) -> None:
    tab.open(many, width=1400)
    assert tab.value("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#engines .scroll'))") == 0
    found = []
    for _ in range(40):
        tab.press("Tab")
        found.append(tab.value(FOCUSED))
        if found[-1] == "list-all":
            break
    assert found[:4] == ["#main", "pause", "theme", "#traffic"]
    order = ["troubled", "engines-title", "Failover by stage", "request-id", "BUTTON", "list-notable", "list-all"]
    assert [one for one in found if one in order] == order
    tab.press("Enter")
    rows = "new Promise(done => { const look = () => document.querySelectorAll('#request-table tbody tr').length ? "
    tab.value(f"{rows} done() : setTimeout(look, 20); look(); }})")
    for _ in range(3):
        tab.press("Tab")
    assert tab.value("document.activeElement.closest('#request-table') !== null")
    tab.press("Enter")
    tab.value(
        "new Promise(done => { const look = () => document.querySelector('#story h3') ? done() : setTimeout(look, 20);"
        " look(); })"
    )
    assert "double on e" in tab.value("document.getElementById('story').textContent")


def test_every_control_and_picture_has_a_name_for_those_who_listen(many: str, tab: Tab) -> None:
    tab.open(many)
    roles = {"button", "link", "textbox", "checkbox", "combobox", "region", "image", "table", "navigation"}
    nodes = [
        node
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"] and node["role"]["value"] in roles
    ]
    assert len(nodes) > 20
    assert [node["role"]["value"] for node in nodes if not node["name"]["value"]] == []


def test_names_with_markup_are_shown_as_text(many: str, tab: Tab) -> None:
    tab.open(many)
    tab.value("list(false)")
    tab.value(f"tell({json.dumps(MARKUP + '3')})")
    assert MARKUP in tab.value("document.getElementById('story').textContent")
    assert MARKUP[:30] in tab.value("document.getElementById('request-table').textContent")
    assert "<b>acme</b>" in tab.value("document.getElementById('tenant-table').textContent")
    # And whatever else a document may bring: every name and word in it is markup.
    tab.value(HOSTILE.replace("MARKUP", json.dumps(MARKUP)))
    assert MARKUP in tab.value("document.getElementById('engine-table').textContent")
    assert MARKUP in tab.value("document.getElementById('rollout-table').textContent")
    assert tab.value("document.querySelectorAll('main img, main script, main b').length") == 0
    assert tab.value("document.title") != "run"
    assert tab.faults == []


def task_s(tab: Tab) -> float:
    """Processor time that the page's thread has spent so far."""
    found = tab.call("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


def test_an_update_of_64_engines_takes_less_than_50_ms(many: str, tab: Tab) -> None:
    tab.open(many)
    # Of the page's thread alone, so that what else the machine does is not in it.
    tab.call("Performance.enable", timeDomain="threadTicks")
    tab.value("document.getElementById('pause').click()")
    before_s = task_s(tab)
    tab.value(
        """(async () => {
          for (let turn = 0; turn < TURNS; turn += 1) {
            const said = structuredClone(last);
            said.number += 1;
            said.points = Object.fromEntries(Object.entries(points).map(([key, values]) => [key, values.slice(-1)]));
            said.engines.utilisation = said.engines.utilisation.map((_, at) => ((at + turn) % 64) / 64);
            said.engines.queued = said.engines.queued.map((_, at) => (at * turn) % 64);
            said.pairs.compute_ms = said.pairs.compute_ms.map((_, at) => at + turn / 7);
            said.pairs.breaker = said.pairs.breaker.map((_, at) => ((at + turn) % 5 ? "closed" : "open"));
            update(said);
            document.body.getBoundingClientRect();
            await new Promise(requestAnimationFrame);
          }
        })()""".replace("TURNS", str(UPDATE_TURNS))
    )
    assert 1000 * (task_s(tab) - before_s) / UPDATE_TURNS < UPDATE_MS_MAX
    assert tab.faults == []


def test_who_wants_less_motion_gets_fewer_updates(many: str, tab: Tab) -> None:
    tab.open(many, calm=True, updates=1)
    assert tab.value("EVERY_MS") == 5000
    tab.open(many, updates=1)
    assert tab.value("EVERY_MS") == 1000


def test_a_shade_can_be_chosen_and_the_page_paused(many: str, tab: Tab) -> None:
    tab.open(many, dark=False)
    tab.value("(() => { const s = find('theme'); s.value = 'dark'; s.dispatchEvent(new Event('change')); })()")
    assert luminance(tab.value(COLOURS)[0][1]) < 0.1
    tab.value("find('theme').value = 'auto'; localStorage.clear()")
    tab.value("find('pause').focus()")
    tab.press(" ")
    assert tab.value("find('pause').getAttribute('aria-pressed')") == "true"
    assert tab.value("find('status').textContent") == "Paused."


def test_a_token_opens_it_and_is_kept_nowhere(folder: Path, tab: Tab) -> None:
    token, kept = make("ops", scopes=["metrics"])
    guard = Guard(Access(Tokens(version=1, tokens=[kept])))
    for found in running(Server(pipeline(1), folder, port=0, console=True, guard=guard)):
        tab.open(found.server.url, updates=0)
        tab.value(
            "new Promise(done => { const look = () => find('login').hidden ? setTimeout(look, 20) : done(); look(); })"
        )
        assert tab.value("document.activeElement.id") == "token"
        assert tab.value("find('name').textContent") == "No server yet"
        tab.call("Input.insertText", text=token)
        tab.press("Enter")
        tab.value(UPDATES % 1)
        assert tab.value("find('name').textContent") == "many"
        assert tab.value("find('login').hidden")
        places = "JSON.stringify([localStorage, sessionStorage, document.cookie, document.documentElement.outerHTML])"
        secret = token.rsplit("_", 1)[1]
        assert secret not in tab.value(places)
        assert tab.value("find('token').value") == ""
        assert not any(secret in url for url in tab.asked)


def luminance(colour: str) -> float:
    """Relative luminance of an ``rgb(..)`` colour as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
