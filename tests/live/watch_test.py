"""Watching and diagnosing live servers: drift is said and nothing is done, going back is the rollout's alone."""

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
import numpy as np
import pytest

from loadslice.app.admin_client import ADMIN_TOKEN
from loadslice.app.cli import run as loadslice
from loadslice.app.served import Source
from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.drift import DriftSampler
from loadslice.serve.server import Server
from loadslice.spec.rollout import ErrorRule, MetricRule, RolloutPlan
from loadslice.spec.watch import load_plan

pytest.importorskip("river")
pytest.importorskip("scipy")

pytestmark = pytest.mark.live

SECRET = "an-administrators-secret-of-some-length"
HEADERS = {"Authorization": f"Bearer {SECRET}"}

STAGES = """
import time
import numpy as np
from loadslice.spec.work import Work

last = []


def score(work):
    return Work({"confidence": work.tensors["x"][:, 0]})


def score_too(work):
    return score(work)


def lower(work):
    return Work({"confidence": work.tensors["x"][:, 0] * np.float32(0.8)})


def prepare(work):
    rows = work.items
    time.sleep(0.002 if last == [rows] else 0.012)
    last[:] = [rows]
    return score(work)


def steady(work):
    time.sleep(0.002)
    return score(work)
"""

PIPELINE = """
version: 1
pipeline: m
rollout: {{steps: [0.5, 1.0]}}
engines: {{host: {{backend: python, max_inflight: 1, queue: {{limit: 4000}}}}}}
max_requests: 8000
stages: [{{name: work, python: "watched:{stage}", engine: host{canary}}}]
"""

WATCH = """
signals: [{name: confidence, output: confidence, take: mean, abstains_below: 0.3}]
samples_per_s: 10000
minimum: 200
operating: {temperature_rise_c: null, power_ratio: null, memory_ratio: null, rate_ratio: null, latency_ratio: null}
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes a pipeline of one stage, and sets the token."""
    monkeypatch.setenv(ADMIN_TOKEN, SECRET)
    (tmp_path / "watched.py").write_text(STAGES)
    (tmp_path / "watch.yaml").write_text(WATCH)

    def write(stage: str = "score", canary: str | None = None) -> Path:
        path = tmp_path / "m.yaml"
        more = "" if canary is None else f', canary: {{python: "watched:{canary}"}}'
        path.write_text(PIPELINE.format(stage=stage, canary=more))
        return path

    return write


@contextlib.asynccontextmanager
async def serving(path: Path, *, watched: bool = True, drills: bool = False, **options: Any) -> AsyncIterator[Server]:
    source = Source(path, profile=None, dilate=1.0, allow_code=False)
    first = source.first()
    witnesses = [DriftSampler(load_plan(path.parent / "watch.yaml"), first.pipeline)] if watched else []
    server = Server(
        first.pipeline, first.folder, port=0, source=source.now, witnesses=witnesses,
        guard=Guard(Access(None, admin_secret=SECRET), drills=drills), state=path.parent / "state.sqlite", **options,
    )  # fmt: skip
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Traffic:
    """Clients that keep asking, with values of a distribution that can be changed."""

    def __init__(self, server: Server, a: float, b: float) -> None:
        self.shape = (a, b)
        self._url = server.url
        self._stop = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._run(number)) for number in range(4)]

    async def _run(self, seed: int) -> None:
        draws = np.random.default_rng(seed)
        async with aiohttp.ClientSession(self._url) as client:
            while not self._stop.is_set():
                await post(client, [float(draws.beta(*self.shape))])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


async def post(client: aiohttp.ClientSession, values: list[float]) -> int:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values), 1], "data": values}]}
    async with client.post("/v2/models/m/infer", json=body) as reply:
        await reply.read()
        return reply.status


async def command(*arguments: object) -> int:
    """A command in a thread of its own, as the server is on this loop."""
    return await asyncio.to_thread(loadslice, [str(one) for one in arguments])


async def rollout(server: Server, verb: str = "", document: Any = None) -> dict[str, Any]:
    async with aiohttp.ClientSession(server.url) as client:
        method = client.post if verb else client.get
        path = f"/admin/rollout/{verb}" if verb else "/admin/rollout"
        body = None if document is None else msgspec.json.encode(document)
        async with method(path, data=body, headers=HEADERS) as reply:
            return await reply.json()


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address on loopback, and what was posted to it."""
    posted: list[dict[str, Any]] = []

    class Keeper(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/alerts", posted
    server.shutdown()
    thread.join()
    server.server_close()


async def baseline(server: Server, out: Path) -> None:
    assert await command(
        "watch", "baseline", server.url, "--samples", 1000, "--for-s", 600, "--every-s", 0.1, "--out", out
    ) == 0  # fmt: skip


async def watched(
    server: Server, tmp_path: Path, *more: object, until: Callable[[int, Path], Awaitable[bool]]
) -> tuple[int, Path]:
    """Watch for four seconds, and again as often as a busy machine needs to have seen enough.

    Returns:
        The exit code of the last time, and where it wrote.
    """
    for number in range(15):
        out = tmp_path / f"watched {number}"
        ended = await command(
            "watch", "run", server.url, "--baseline", tmp_path / "well/baseline.json", "--every-s", 0.1,
            "--for-s", 4, "--out", out, *more,
        )  # fmt: skip
        if await until(ended, out):
            break
    return ended, out


def report(out: Path) -> dict[str, Any]:
    return json.loads((out / "watch.json").read_bytes())


def test_drift_is_said_everywhere_and_changes_nothing(files, tmp_path, webhook, capsys) -> None:
    address, posted = webhook

    async def fires(ended: int, _out: Path) -> bool:
        return ended == 3

    async def run() -> tuple[int, int, Path, dict[str, Any]]:
        async with serving(files()) as server, Traffic(server, 9, 1.5) as traffic:
            await baseline(server, tmp_path / "well")
            watch = ("watch", "run", server.url, "--baseline", tmp_path / "well/baseline.json", "--every-s", 0.1)
            well = await command(*watch, "--for-s", 2, "--out", tmp_path / "a")
            traffic.shape = (3, 3)
            ill, out = await watched(server, tmp_path, "--webhook", address, "--metrics", 0, "--json", until=fires)
            return well, ill, out, await rollout(server)

    well, ill, out, state = asyncio.run(run())
    assert (well, ill) == (0, 3)
    assert report(tmp_path / "a")["alerts"] == []
    found = report(out)
    assert {alert["what"] for alert in found["alerts"]} == {"confidence"}
    assert "rollout start" in found["advice"]
    assert [alert["test"] for alert in posted] == [alert["test"] for alert in found["alerts"]]
    lines = (out / "alerts.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == posted
    document = capsys.readouterr().out.rpartition("\n{\n")[2]
    assert json.loads("{" + document)["firing"] == found["firing"]
    assert state["state"] == "none"


def test_a_worse_canary_goes_back_on_contrast_that_the_watch_has_handed_over(files, tmp_path) -> None:
    plan = RolloutPlan(
        dwell_s=[3600.0], requests_min=20, look_s=0.05, errors=ErrorRule(excess_max=0.3), latency=None, outputs=None,
        metrics={"sureness": MetricRule(worse_max=0.05)},
    )  # fmt: skip

    async def run() -> tuple[Path, dict[str, Any]]:
        async with serving(files(canary="lower")) as server, Traffic(server, 9, 1.5):
            await baseline(server, tmp_path / "well")
            assert (await rollout(server, "start", {"plan": plan}))["state"] == "running"

            async def is_decided(_ended: int, out: Path) -> bool:
                return bool(report(out)["contrast"]["state"] != "running")

            _, out = await watched(server, tmp_path, "--tell", "confidence=sureness", until=is_decided)
            return out, await rollout(server)

    out, state = asyncio.run(run())
    assert state["state"] == "rolled_back"
    assert state["why"].startswith("metrics.sureness")
    assert report(out)["contrast"]["state"] == "rolled_back"


def test_drift_of_both_versions_raises_an_alarm_and_the_rollout_stands(files, tmp_path) -> None:
    plan = RolloutPlan(
        dwell_s=[3600.0], look_s=0.05, latency=None, outputs=None, metrics={"sureness": MetricRule(worse_max=0.1)}
    )

    async def run() -> tuple[int, Path, dict[str, Any]]:
        async with serving(files(canary="score_too")) as server, Traffic(server, 9, 1.5) as traffic:
            await baseline(server, tmp_path / "well")
            await rollout(server, "start", {"plan": plan})
            traffic.shape = (3, 3)

            async def is_decided(ended: int, _out: Path) -> bool:
                analysis = (await rollout(server)).get("analysis") or {}
                return ended == 3 and analysis.get("metrics.sureness", {}).get("decision") == "pass"

            ended, out = await watched(server, tmp_path, "--tell", "confidence=sureness", until=is_decided)
            state = await rollout(server)
            await rollout(server, "abort")
            return ended, out, state

    ended, out, state = asyncio.run(run())
    found = report(out)
    assert ended == 3
    assert found["firing"] >= 1
    assert state["state"] == "running"
    assert state["analysis"]["metrics.sureness"]["decision"] == "pass"
    assert "Nothing goes back on drift alone" in found["advice"]


def test_what_cannot_be_watched_is_one_line(files, tmp_path, capsys) -> None:
    async def run() -> list[int]:
        async with serving(files()) as server, Traffic(server, 9, 1.5):
            await baseline(server, tmp_path / "well")
            async with aiohttp.ClientSession(server.url) as client:
                async with client.get("/admin/watch?after=x", headers=HEADERS) as reply:
                    refused = reply.status
                async with client.get("/admin/watch?after=1") as reply:
                    stranger = reply.status
        other = json.loads((tmp_path / "well/baseline.json").read_bytes())
        other["pipeline"] = "another"
        (tmp_path / "other.json").write_text(json.dumps(other))
        async with serving(files()) as server:
            alien = await command("watch", "run", server.url, "--baseline", tmp_path / "other.json", "--for-s", 1)
        async with serving(files(), watched=False) as server:
            blind = await command("watch", "baseline", server.url, "--for-s", 0)
        return [refused, stranger, alien, blind]

    assert asyncio.run(run()) == [409, 401, 2, 2]
    said = capsys.readouterr().err
    assert "of pipeline 'another'" in said
    assert "--watch watch.yaml" in said


def diagnosis(out: Path) -> dict[str, dict[str, Any]]:
    return {one["rule"]: one for one in json.loads((out / "diagnosis.json").read_bytes())["findings"]}


@pytest.mark.parametrize(("stage", "fires"), [("prepare", True), ("steady", False)])
def test_a_stage_that_prepares_each_new_shape_is_found_in_the_journal(files, tmp_path, stage, fires) -> None:
    draws = np.random.default_rng(1)

    async def run() -> None:
        async with (
            serving(files(stage), journal=tmp_path / "journal") as server,
            aiohttp.ClientSession(server.url) as client,
        ):
            for rows in draws.integers(1, 3, 150).tolist():
                assert await post(client, [0.5] * rows) == 200
        assert await command("diagnose", tmp_path / "journal", "--out", tmp_path / "d") == 0

    asyncio.run(run())
    assert ("shape-change" in diagnosis(tmp_path / "d")) is fires


def test_a_queue_that_grows_behind_a_slow_engine_is_seen_on_the_live_server(files, tmp_path) -> None:
    async def drive(server: Server, stop: asyncio.Event) -> None:
        async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as client:
            sent = set()
            while not stop.is_set():
                sent.add(asyncio.ensure_future(post(client, [0.5])))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await stop.wait()
            await asyncio.gather(*sent)

    async def look(server: Server, out: str) -> dict[str, dict[str, Any]]:
        stop = asyncio.Event()
        driving = asyncio.ensure_future(drive(server, stop))
        ended = await command(
            "diagnose", server.url, "--for-s", 3, "--every-s", 0.25, "--out", tmp_path / out
        )  # fmt: skip
        stop.set()
        async with aiohttp.ClientSession(server.url) as client:
            await client.post("/admin/drills/clear", headers=HEADERS)
        await driving
        assert ended == 0
        return diagnosis(tmp_path / out)

    async def run() -> tuple[Any, Any]:
        async with serving(files("steady"), drills=True) as server:
            well = await look(server, "well")
            fault = {"engine": "host", "kind": "slow", "for_s": 60, "factor": 20}
            async with (
                aiohttp.ClientSession(server.url) as client,
                client.post("/admin/drills/fault", json=fault, headers=HEADERS) as reply,
            ):
                assert reply.status == 200
            return well, await look(server, "slow")

    well, slow = asyncio.run(run())
    assert "queue-growth" not in well
    assert "avalanche" not in well
    assert slow["queue-growth"]["figures"]["engine"] == "host"
    assert slow["queue-growth"]["basis"] == "measured"


INPUTS = """

def samples():
    from loadslice.spec.work import Sample

    return [Sample(f"x{n}", "", b"", tensors={"x": np.full((1, 1), n / 12, np.float32)}) for n in range(VALUES)]
"""


@pytest.mark.parametrize(("values", "code", "words"), [(12, 0, "an alarm after"), (1, 3, "not applicable: no number")])
def test_the_drill_of_drift_on_a_pipeline_of_ones_own(files, tmp_path, capsys, values, code, words) -> None:
    path = files()
    path.write_text(path.read_text() + "inputs: watched:samples\n")
    (tmp_path / "watched.py").write_text(STAGES + INPUTS.replace("VALUES", str(values)))
    assert loadslice(["drill", "drift", "--pipeline", str(path), "--json", "--out", str(tmp_path / "d")]) == code
    (one,) = json.loads((tmp_path / "d/drills.json").read_bytes())["drills"]
    assert one["held"] is (True if code == 0 else None)
    assert words in one["figure"]
    if code == 0:
        assert one["figures"]["alarm_samples"] >= one["figures"]["minimum"]
        assert one["figures"]["early_alarms"] == 0
