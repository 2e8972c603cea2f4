"""What the core decides beyond where and when: whose turn, which version, padded to what, instead of a refusal."""

import asyncio
import time
from collections import Counter
from typing import Any

import aiohttp
import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.serve.envelope import key_of
from loadslice.serve.limits import Limits
from loadslice.serve.server import Server
from loadslice.sim.check import check
from loadslice.spec import journal
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Canary, Engine, Pipeline, Tenant

pytestmark = pytest.mark.live


async def ask(
    client: aiohttp.ClientSession, name: str, rows: Any, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    """Status, headers, and the first output's rows or the error."""
    given = np.atleast_2d(np.asarray(rows, np.float32))
    tensor = {"name": "x", "datatype": "FP32", "shape": given.shape, "data": given.ravel().tolist()}
    async with client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]}, headers=headers) as reply:
        document = await reply.json()
        if reply.status != 200:
            return reply.status, dict(reply.headers), document["error"]
        (output,) = document["outputs"]
        return 200, dict(reply.headers), np.array(output["data"]).reshape(output["shape"]).tolist()


async def scraped(client: aiohttp.ClientSession) -> dict[str, float]:
    async with client.get("/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_whose_a_request_is_reaches_the_core_and_the_journal(pipeline, folder, tmp_path, serving) -> None:
    shared = msgspec.structs.replace(pipeline("tiny"), tenants={"gold": Tenant(share=0.5), "büro": Tenant(share=0.2)})
    given = [{"x-loadslice-tenant": name} for name in ("gold", "büro", "somebody")]
    given += [{}, {"x-loadslice-key": "user 7", "x-loadslice-tokens": "512"}]

    async def run() -> None:
        async with serving(shared, folder, journal=tmp_path / "kept") as (_, client):
            for headers in given:
                assert (await ask(client, "tiny", [1, 2, 3, 4], headers))[0] == 200

    asyncio.run(run())
    kept = journal.load(tmp_path / "kept")
    assert [finding for finding in check(kept, tmp_path / "kept") if not finding.held] == []
    assert kept.requests["tenant"].to_list() == ["gold", "büro", "somebody", None, None]
    arrivals = kept.events.filter(pl.col("kind") == events.ARRIVAL)
    assert arrivals["a9"].to_list() == [1, 2, 0, 0, 0]
    assert arrivals["a10"].to_list() == [-1, -1, -1, -1, key_of("user 7")]
    assert arrivals["a5"].to_list() == [-1, -1, -1, -1, 512]


def test_a_canary_gets_its_exact_share_and_every_reply_says_which_version_made_it(
    pipeline, folder, tmp_path, serving
) -> None:
    seen: Counter[str] = Counter()

    async def run() -> None:
        async with serving(pipeline("canary"), folder, journal=tmp_path / "kept") as (_, client):

            async def one(number: int) -> None:
                status, headers, rows = await ask(client, "canary", [number, 0, 0, 0])
                version = headers["x-loadslice-version"]
                assert status == 200
                assert rows[0][0] == {"stable": -2 * number, "canary": -number}[version]
                seen[version] += 1

            await asyncio.gather(*(one(number) for number in range(1, 41)))
            values = await scraped(client)
            assert values['loadslice_canary_split_requests{version="canary"}'] == 10
            assert values['loadslice_version_requests_total{outcome="completed",version="stable"}'] == 30
            assert values['loadslice_version_request_seconds_count{version="canary"}'] == 10

    asyncio.run(run())
    assert seen == {"stable": 30, "canary": 10}
    kept = journal.load(tmp_path / "kept")
    assert [finding for finding in check(kept, tmp_path / "kept") if not finding.held] == []
    assert Counter(kept.requests["version"].to_list()) == seen
    assert set(kept.stages["bucket"].to_list()) == {0}, "a version is no shape"


def test_one_user_gets_one_version(pipeline, folder, serving) -> None:
    async def run() -> None:
        async with serving(pipeline("canary"), folder) as (_, client):
            versions: dict[str, set[str]] = {}
            for number in range(60):
                key = f"user {number % 20}"
                _, headers, _ = await ask(client, "canary", [1, 0, 0, 0], {"x-loadslice-key": key})
                versions.setdefault(key, set()).add(headers["x-loadslice-version"])
            assert all(len(versions_of_one) == 1 for versions_of_one in versions.values())
            assert {version for versions_of_one in versions.values() for version in versions_of_one} == {
                "stable",
                "canary",
            }

    asyncio.run(run())


def test_a_canary_may_be_a_function_and_readiness_passes_through_both_versions(pipeline, folder, serving) -> None:
    text = pipeline("text")
    stages = [text.stages[0], msgspec.structs.replace(text.stages[1], canary=Canary(model="keep.onnx")), text.stages[2]]
    stages[0] = msgspec.structs.replace(stages[0], canary=Canary(python="stages:parse"))

    async def run() -> None:
        async with serving(msgspec.structs.replace(text, stages=stages), folder) as (server, client):
            async with client.get("/v2/health/ready") as reply:
                assert reply.status == 200
            server.generation._stages[1].versions[c.CANARY].runners[1].session.close()
            await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=1.1)
            async with client.get("/v2/health/ready") as reply:
                assert (reply.status, (await reply.json())["error"]) == (503, "no answer from ort")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        (Canary(model="no.onnx"), r"stage 'double'.canary: .*no.onnx"),
        (Canary(variant="v2"), r"stage 'double'.canary: .*'v2' only"),
        (Canary(model="renamed.onnx"), r"stage 'double'.canary: its inputs are 'w' .*'x' "),
    ],
)
def test_a_canary_that_cannot_serve_the_same_clients_is_refused_in_one_line(pipeline, folder, canary, says) -> None:
    served = pipeline("canary")
    stages = [msgspec.structs.replace(served.stages[0], canary=canary), served.stages[1]]

    async def run() -> None:
        with pytest.raises(InputError, match=says) as refused:
            await Server(msgspec.structs.replace(served, stages=stages), folder, port=0).start()
        assert "\n" not in str(refused.value)

    asyncio.run(run())


def test_models_built_for_some_row_counts_serve_any_and_padding_never_comes_back(
    pipeline, folder, tmp_path, serving
) -> None:
    async def run() -> None:
        async with serving(pipeline("padded"), folder, journal=tmp_path / "kept") as (_, client):
            async with client.get("/v2/models/padded") as reply:
                assert (await reply.json())["inputs"][0]["shape"] == [-1, 4]

            async def one(first: int, rows: int) -> None:
                given = np.arange(first, first + 4 * rows, dtype=np.float32).reshape(rows, 4)
                assert (await ask(client, "padded", given))[2] == (-2 * given).tolist()

            await asyncio.gather(*(one(100 * number, 1 + number % 4) for number in range(30)))
            rows = 4 * sum(
                value for name, value in (await scraped(client)).items() if "double" in name and "closed" in name
            )
            padding = (await scraped(client))['loadslice_padding_rows_total{engine="ort",stage="double"}']
            assert rows - padding == sum(1 + number % 4 for number in range(30))
            status, _, error = await ask(client, "padded", np.zeros((5, 4)))
            assert (status, error) == (400, "input 'x' has shape 5x4, it must be 4x4.")

    asyncio.run(run())
    stages = journal.load(tmp_path / "kept").stages.filter(pl.col("stage") == "double", pl.col("items") <= 4)
    assert stages["batch_rows"].max() <= 4, "rows of requests, not of padding"


def test_an_engine_that_does_not_hold_its_models_loads_and_drops_them_by_turns(
    pipeline, folder, tmp_path, serving
) -> None:
    tiny = pipeline("tiny")
    engines = {"ort": Engine(backend="onnxruntime", memory_mb=99, max_inflight=2)}
    stages = [
        msgspec.structs.replace(stage, engine="ort", batch={}, memory_mb=50, load_ms=0.01) for stage in tiny.stages
    ]
    served = msgspec.structs.replace(tiny, engines=engines, stages=stages)

    async def run() -> None:
        async with serving(served, folder, journal=tmp_path / "kept") as (server, client):
            runners = [stage.stable.runners[0] for stage in server.generation._stages]
            assert [runner.is_open for runner in runners] == [True, False], "the first that fits"
            for number in range(1, 6):
                assert (await ask(client, "tiny", [number, 0, 0, 0]))[2] == [[-2 * number, 0, 0, 0]]
                assert [runner.is_open for runner in runners] == [False, True]
            many = await asyncio.gather(*(ask(client, "tiny", [number, 0, 0, 0]) for number in range(1, 31)))
            assert [rows[0][0] for _, _, rows in many] == [-2 * number for number in range(1, 31)]
            assert sum(runner.is_open for runner in runners) == 1, "both together do not fit"
            async with client.get("/v2/health/ready") as reply:
                assert reply.status == 200
            values = await scraped(client)
            assert values['loadslice_model_loads_total{engine="ort"}'] >= 10
            assert values['loadslice_model_load_seconds_count{engine="ort"}'] == 70
            assert values['loadslice_model_load_seconds_sum{engine="ort"}'] > 0

    asyncio.run(run())
    kept = journal.load(tmp_path / "kept")
    assert [finding for finding in check(kept, tmp_path / "kept") if not finding.held] == []


def test_a_canary_on_an_engine_that_holds_one_version_only_is_refused_with_what_it_needs(pipeline, folder) -> None:
    served = pipeline("canary")
    small = served.engines | {"ort": Engine(backend="onnxruntime", memory_mb=99)}
    first = msgspec.structs.replace(served.stages[0], memory_mb=50, load_ms=1)

    async def run() -> None:
        stages = [first, served.stages[1]]
        with pytest.raises(InputError, match=r"engines.ort.memory_mb: 99 is less than the 100 "):
            await Server(msgspec.structs.replace(served, engines=small, stages=stages), folder, port=0).start()

    asyncio.run(run())


@pytest.fixture
def degraded(pipeline) -> Pipeline:
    return pipeline("degraded")


def test_a_stage_that_would_refuse_answers_from_the_work_it_was_given(
    degraded, folder, tmp_path, gate, serving, until
) -> None:
    async def run() -> None:
        gate("shut")
        limits = Limits(degraded_timeout_s=2.0)
        async with serving(degraded, folder, journal=tmp_path / "kept", limits=limits) as (server, client):
            first = asyncio.ensure_future(ask(client, "degraded", [1, 0, 0, 0]))
            await until(lambda: int(server.state.engines[1, c.N_INFLIGHT]) == 1)
            status, headers, rows = await ask(client, "degraded", [5, 6, 7, 8])
            assert (status, rows) == (200, [[-10, -12, -14, -16]])
            assert headers["x-loadslice-degraded"] == "wait"
            assert headers["x-loadslice-engine"] == "ort"
            for bad in (2, 3, 4):  # it raises, it hangs, it gives what has no form on the wire
                status, headers, error = await ask(client, "degraded", [bad, 0, 0, 0])
                assert (status, error) == (503, "there is no capacity for this request, and no degraded reply to it")
                assert int(headers["Retry-After"]) >= 1
                assert "x-loadslice-degraded" not in headers
            async with client.get("/v2/health/live") as reply:
                assert reply.status == 200
            assert (await ask(client, "degraded", [5, 6, 7, 8]))[0] == 200, "one that hangs leaves a thread to answer"
            gate("open")
            status, headers, _ = await first
            assert status == 200
            assert "x-loadslice-degraded" not in headers
            assert server.outcomes[Outcome.COMPLETED] == 6
            values = await scraped(client)
            assert values['loadslice_degraded_failures_total{stage="wait"}'] == 3
            assert values['loadslice_degraded_total{stage="wait"}'] == 5

    asyncio.run(run())
    kept = journal.load(tmp_path / "kept")
    assert [finding for finding in check(kept, tmp_path / "kept") if not finding.held] == []
    requests = kept.requests
    assert Counter(requests["reason"].to_list()) == {"degraded": 5, "none": 1}
    assert set(requests["outcome"].to_list()) == {"completed"}


@pytest.mark.parametrize("reference", ["stages:none", "nowhere:plain"])
def test_a_degraded_reply_that_is_not_there_is_refused_before_serving(degraded, folder, reference) -> None:
    last = msgspec.structs.replace(degraded.stages[1], degraded=reference)

    async def run() -> None:
        with pytest.raises(InputError, match=reference):
            await Server(msgspec.structs.replace(degraded, stages=[degraded.stages[0], last]), folder, port=0).start()

    asyncio.run(run())


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_ends_nobody(pipeline, folder, serving, infer, monkeypatch, jump_s: float) -> None:
    wall_s, wall_ns = time.time, time.time_ns

    async def run() -> list[int]:
        async with serving(pipeline("tiny"), folder) as (_, client):
            within = {"x-loadslice-deadline-ms": "20000"}
            statuses = [(await infer(client, "tiny", within))[0] for _ in range(5)]
            waiting = [asyncio.ensure_future(infer(client, "tiny", within)) for _ in range(20)]
            monkeypatch.setattr(time, "time", lambda: wall_s() + jump_s)
            monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + round(jump_s * 1e9))
            statuses += [(await one)[0] for one in waiting]
            return statuses + [(await infer(client, "tiny", within))[0] for _ in range(5)]

    assert asyncio.run(run()) == [200] * 30
