"""Rollouts on live servers: bad canaries go back by themselves at the first step, good ones become the version."""

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.live.rollout_scenes import BODY, HEADERS, PLAN, Traffic, ask, scraped, server_on, until_state

from loadslice.app.cli import run as loadslice
from loadslice.serve.rollout_versions import has_canary
from loadslice.serve.state_file import StateFile
from loadslice.spec import journal
from loadslice.spec.rollout import MetricRule, OutputRule, RolloutPlan

pytestmark = pytest.mark.live


STAGES = """
import time
import numpy as np
from loadslice.spec.work import Work


def double(work):
    return Work({"y": work.tensors["x"] * np.float32(2)})


def double_too(work):
    return Work({"y": work.tensors["x"] * np.float32(2)})


def off(work):
    return Work({"y": work.tensors["x"] * np.float32(2.04)})


def fail(work):
    raise ValueError("a defect of the new version")


def slow(work):
    time.sleep(0.06)
    return double(work)
"""

PIPELINE = """
version: 1
pipeline: m
rollout: {steps: [0.25, 0.5, 1.0]}
engines: {host: {backend: python, max_inflight: 2}}
stages: [{name: work, python: "canaries:double", engine: host, canary: {python: "canaries:CANARY"}}]
"""


@pytest.fixture
def served(tmp_path):
    """Writes a pipeline file with a canary of a name."""
    (tmp_path / "canaries.py").write_text(STAGES)

    def write(canary: str) -> Path:
        path = tmp_path / "m.yaml"
        path.write_text(PIPELINE.replace("CANARY", canary))
        return path

    return write


def roll_out(path: Path, state: Path, plan: RolloutPlan, *states: str) -> tuple[dict, Counter, dict[str, Any]]:
    """Start a rollout under traffic and wait for a state; status, replies by status and version, and what serves."""

    async def run() -> tuple[dict, Counter, dict[str, Any]]:
        server = server_on(path, state)
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            traffic = Traffic(client)
            status, _ = await ask(client, "start", {"plan": plan})
            assert status == 200
            answer = await until_state(client, *states)
            async with asyncio.timeout(60):
                while has_canary(server.generation.pipeline):  # traffic moves first, capacity goes afterwards
                    await ask(client, "")
            await server.retired()
            during = traffic.answers.copy()
            await traffic.end()
            traffic.answers.clear()
            async with client.post("/v2/models/m/infer", json=BODY) as reply:
                after = (await reply.json())["outputs"][0]["data"][0]
        left = [stage.canary for stage in server.generation.pipeline.stages if stage.canary is not None]
        await server.stop()
        return answer, during, {"answer": after, "canaries": left}

    return asyncio.run(run())


@pytest.mark.parametrize(("canary", "signal"), [("off", "outputs"), ("fail", "errors"), ("slow", "latency")])
def test_a_bad_canary_goes_back_by_itself_at_the_first_step(served, tmp_path, canary, signal) -> None:
    rules = {"errors": "outputs", "outputs": "latency", "latency": "outputs"}
    plan = msgspec.structs.replace(PLAN, **{rules[signal]: None})  # so that it is this signal that finds it
    answer, seen, now = roll_out(served(canary), tmp_path / "state.sqlite", plan, "rolled_back", "promoted")
    assert (answer["state"], answer["decision"], answer["weight"], answer["step"]) == ("rolled_back", "fail", 0.0, 0)
    assert answer["analysis"][signal]["decision"] == "fail"
    assert answer["why"].startswith(signal)
    assert now == {"answer": 2, "canaries": []}
    served_by_canary = sum(count for (_, version), count in seen.items() if version == "canary")
    assert served_by_canary < 0.5 * sum(seen.values())
    if canary != "fail":
        assert {status for status, _ in seen} == {200}


def test_a_good_canary_takes_every_step_and_becomes_the_version(served, tmp_path) -> None:
    answer, seen, now = roll_out(served("double_too"), tmp_path / "state.sqlite", PLAN, "promoted", "rolled_back")
    assert (answer["state"], answer["decision"], answer["weight"]) == ("promoted", "pass", 1.0)
    assert {status for status, _ in seen} == {200}
    assert now == {"answer": 2, "canaries": []}
    events = [event for _, event, _ in StateFile(tmp_path / "state.sqlite").history()]
    assert events == ["started", "step", "promoted"]


def test_without_traffic_nothing_is_promoted_and_a_missing_metric_holds_it(served, tmp_path) -> None:
    plan = msgspec.structs.replace(PLAN, metrics={"sales": MetricRule()})

    async def run() -> None:
        server = server_on(served("double_too"), tmp_path / "state.sqlite")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            await ask(client, "start", {"plan": plan})
            for _ in range(5):
                await server.rollout.look()
            _, answer = await ask(client, "")
            assert (answer["state"], answer["step"], answer["decision"]) == ("running", 1, "inconclusive")
            assert answer["analysis"]["errors"]["why"] == "no requests of one version"
            status, refused = await ask(client, "promote")
            assert status == 409
            assert "not shown to be well" in refused["error"]
            traffic = Traffic(client)
            async with asyncio.timeout(60):
                while answer["why"] != "metrics.sales: nobody has posted it":
                    _, answer = await ask(client, "")
            for values in ({"stable": 1.0, "canary": None}, {"stable": 1.0}):
                status, _ = await ask(client, "metric", {"name": "sales"} | values)
                assert status == (200 if "canary" in values else 400)
            await server.rollout.look()
            _, answer = await ask(client, "")
            assert (answer["step"], answer["analysis"]["metrics.sales"]["decision"]) == (1, "inconclusive")
            status, _ = await ask(client, "metric", {"name": "other", "stable": 1.0, "canary": 1.0})
            assert status == 409
            await ask(client, "metric", {"name": "sales", "stable": 1.0, "canary": 0.5})
            answer = await until_state(client, "rolled_back", "promoted")
            assert answer["why"] == "metrics.sales: the canary's is worse than allowed"
            await traffic.end()
        await server.stop()

    asyncio.run(run())


def test_a_rollout_goes_on_after_a_restart_where_it_was(served, tmp_path) -> None:
    state = tmp_path / "state.sqlite"
    plan = msgspec.structs.replace(PLAN, dwell_s=[0.0, 3600.0])
    path = served("double_too")

    async def first() -> dict:
        server = server_on(path, state)
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            await ask(client, "start", {"plan": plan})
            traffic = Traffic(client)
            async with asyncio.timeout(60):
                answer: dict = {"step": 1}
                while answer["step"] == 1:
                    _, answer = await ask(client, "")
            await traffic.end()
            _, answer = await ask(client, "")
        await server.stop()
        return answer

    async def second() -> tuple[dict, Counter]:
        server = server_on(path, state)
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            _, answer = await ask(client, "")
            traffic = Traffic(client)
            async with asyncio.timeout(60):
                while traffic.answers[200, "canary"] < 50:
                    await ask(client, "")
            await traffic.end()
            await ask(client, "abort")
            await server.retired()
        await server.stop()
        return answer, traffic.answers

    before = asyncio.run(first())
    after, seen = asyncio.run(second())
    assert (before["step"], before["weight"]) == (2, 0.5)
    assert {key: after[key] for key in ("state", "step", "weight", "since")} == {
        key: before[key] for key in ("state", "step", "weight", "since")
    }
    assert after["dwelt_s"] >= before["dwelt_s"]
    assert abs(seen[200, "canary"] / sum(seen.values()) - 0.5) < 0.05

    async def third() -> tuple[dict, list[Any]]:
        server = server_on(path, state)
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            _, answer = await ask(client, "")
        left = [stage.canary for stage in server.generation.pipeline.stages if stage.canary is not None]
        await server.stop()
        return answer, left

    answer, left = asyncio.run(third())
    assert (answer["state"], answer["weight"], left) == ("aborted", 0.0, [])


def test_a_user_keeps_their_version_while_the_share_grows(served, tmp_path) -> None:
    async def versions(client: aiohttp.ClientSession) -> dict[int, str]:
        found = {}
        for user in range(60):
            async with client.post("/v2/models/m/infer", json=BODY, headers={"x-loadslice-key": f"u{user}"}) as reply:
                found[user] = reply.headers["x-loadslice-version"]
        return found

    async def run() -> tuple[dict, dict]:
        server = server_on(served("double_too"), tmp_path / "state.sqlite")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            await ask(client, "start", {"plan": msgspec.structs.replace(PLAN, automatic=False)})
            first = await versions(client)
            status, _ = await ask(client, "promote", {"force": True})
            assert status == 200
            second = await versions(client)
            await ask(client, "rollback")
        await server.stop()
        return first, second

    first, second = asyncio.run(run())
    canaries = {user for user, version in first.items() if version == "canary"}
    assert 5 <= len(canaries) <= 25
    assert canaries < {user for user, version in second.items() if version == "canary"}


def test_what_is_asked_again_is_in_the_journal_and_in_no_clients_reply(served, tmp_path) -> None:
    async def run() -> Counter:
        server = server_on(served("double_too"), tmp_path / "state.sqlite", journal=tmp_path / "kept")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            await ask(client, "start", {"plan": msgspec.structs.replace(PLAN, automatic=False)})
            traffic = Traffic(client)
            async with asyncio.timeout(60):
                answer: dict = {"analysis": {"outputs": {"figures": {"pairs": 0}}}}
                while answer["analysis"]["outputs"]["figures"].get("pairs", 0) < 20:
                    _, answer = await ask(client, "")
            await traffic.end()
        await server.stop()
        return traffic.answers

    seen = asyncio.run(run())
    kept = journal.load(tmp_path / "kept" / "generation-2")
    shadows = kept.requests.filter(kept.requests["source"] == "shadow")
    assert len(shadows) >= 20
    assert set(shadows["version"]) <= {"canary", None}
    assert set(shadows["class"]) == {"sheddable"}
    replies = len(kept.requests) - len(shadows) + journal.load(tmp_path / "kept").head.requests
    assert replies == sum(seen.values())
    assert loadslice(["check", str(tmp_path / "kept" / "generation-2")]) == 0


def test_what_is_asked_again_is_not_in_step_with_the_split(served, tmp_path) -> None:
    """One client, a split of one in four by turns, and a quarter that is asked again: it must not be the same one."""
    plan = msgspec.structs.replace(PLAN, automatic=False, outputs=OutputRule(share=0.25, pairs_min=10))

    async def run() -> int:
        server = server_on(served("double_too"), tmp_path / "state.sqlite")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            await ask(client, "start", {"plan": plan})
            for _ in range(100):
                async with client.post("/v2/models/m/infer", json=BODY) as reply:
                    assert reply.status == 200
            await server.drained()
            _, answer = await ask(client, "")
        await server.stop()
        return answer["analysis"]["outputs"]["figures"]["pairs"]

    assert asyncio.run(run()) >= 10


def test_where_the_rollout_stands_can_be_scraped(served, tmp_path) -> None:
    async def run() -> None:
        server = server_on(served("double_too"), tmp_path / "state.sqlite")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            before = await scraped(client)
            assert before["loadslice_generation"] == 1
            assert [name for name, value in before.items() if "state=" in name and value] == [
                'loadslice_rollout_state{state="none"}'
            ]
            assert "loadslice_rollout_dwell_seconds" not in before
            plan = msgspec.structs.replace(PLAN, dwell_s=[3600.0])
            status, _ = await ask(client, "start", {"plan": plan})
            assert status == 200
            during = await scraped(client)
            assert (during["loadslice_generation"], during["loadslice_canary_step"]) == (2, 1)
            assert (during['loadslice_rollout_state{state="running"}'], during["loadslice_rollout_dwell_seconds"]) == (
                1,
                3600,
            )
            assert 0 <= during["loadslice_rollout_dwelt_seconds"] < 3600
            await ask(client, "abort")
            await until_state(client, "aborted")
            after = await scraped(client)
            assert sum(value for name, value in after.items() if "state=" in name) == 1
            assert after['loadslice_rollout_state{state="aborted"}'] == 1
            assert "loadslice_rollout_dwelt_seconds" not in after
        await server.stop()

    asyncio.run(run())


def test_what_cannot_be_written_down_is_not_begun_and_no_step_is_taken(served, tmp_path, monkeypatch) -> None:
    plan = msgspec.structs.replace(PLAN, automatic=False)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def run() -> None:
        server = server_on(served("double_too"), tmp_path / "state.sqlite")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            with monkeypatch.context() as disk:
                disk.setattr(StateFile, "_write", full)
                status, answer = await ask(client, "start", {"plan": plan})
                assert (status, "is full" in answer["error"]) == (409, True)
            assert server.generation.number == 1
            _, answer = await ask(client, "")
            assert answer["state"] == "none"
            status, _ = await ask(client, "start", {"plan": plan})
            assert status == 200
            with monkeypatch.context() as disk:
                disk.setattr(StateFile, "_write", full)
                status, _ = await ask(client, "promote", {"force": True})
                assert status == 409
            _, answer = await ask(client, "")
            assert (answer["step"], answer["weight"]) == (1, 0.25)
            status, answer = await ask(client, "promote", {"force": True})
            assert (status, answer["step"], answer["weight"]) == (200, 2, 0.5)
        await server.stop()

    asyncio.run(run())


def test_a_second_rollout_and_one_of_nothing_are_refused(served, tmp_path) -> None:
    async def run() -> None:
        path = served("double_too")
        server = server_on(path, tmp_path / "state.sqlite")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            for verb in ("promote", "abort", "rollback"):
                status, _ = await ask(client, verb)
                assert status == 409
            status, _ = await ask(client, "start", {"to": "2"})
            assert status == 409
            status, _ = await ask(client, "start", {"plan": {"false_alarm": 7}})
            assert status == 409
            status, _ = await ask(client, "start", {"plan": {"unknown": 7}})
            assert status == 400
            status, _ = await ask(client, "start", {"plan": PLAN})
            assert status == 200
            status, answer = await ask(client, "start", {"plan": PLAN})
            assert (status, "runs already" in answer["error"]) == (409, True)
            path.write_text(path.read_text().replace(', canary: {python: "canaries:double_too"}', ""))
            async with client.post("/admin/reload", headers=HEADERS) as reply:
                assert reply.status == 200
            _, answer = await ask(client, "")
            assert (answer["state"], answer["why"]) == ("aborted", "what is served has changed")
            status, answer = await ask(client, "start", {"plan": PLAN})
            assert (status, "no stage" in answer["error"]) == (409, True)
        await server.stop()

    asyncio.run(run())
