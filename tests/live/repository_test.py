"""A server on a repository: it follows switches, serves on when a version is corrupt, comes back after a restart."""

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from loadslice.app.cli import run as loadslice
from loadslice.app.served import Source
from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.server import Server
from loadslice.spec.outcome import Outcome
from loadslice.spec.repository import Model

pytestmark = pytest.mark.live

SECRET = "an-administrators-secret-of-some-length"
VERSIONS = {"double.onnx": 2.0, "keep.onnx": 1.0}

PIPELINE = """
version: 1
pipeline: m
engines: {{ort: {{backend: onnxruntime}}}}
stages: [{{name: work, model: {model}, engine: ort, batch: {{ort: {{size: 8}}}}}}]
"""


@pytest.fixture
def repo(folder, tmp_path) -> Path:
    """Version 1 doubles and serves; version 2 keeps what it is given."""
    repo = tmp_path / "repo"
    for model in VERSIONS:
        file = folder / f"m-{model}.yaml"
        file.write_text(PIPELINE.format(model=model))
        assert loadslice(["model", "add", str(repo), str(file)]) == 0
    assert loadslice(["model", "use", str(repo), "m", "1"]) == 0
    return repo


def server_on(repo: Path, **options) -> Server:
    source = Source(repo, profile=None, dilate=1.0, allow_code=False)
    first = source.first()
    return Server(
        first.pipeline,
        first.folder,
        port=0,
        version=first.version,
        probation=first.probation,
        source=source.now,
        guard=Guard(Access(None, admin_secret=SECRET)),
        **options,
    )


BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


async def first_output(client: aiohttp.ClientSession) -> float:
    async with client.post("/v2/models/m/infer", json=BODY) as reply:
        assert reply.status == 200
        return (await reply.json())["outputs"][0]["data"][0]


async def command(server: Server, monkeypatch, *arguments: object) -> int:
    monkeypatch.setenv("LOADSLICE_ADMIN_TOKEN", SECRET)
    return await asyncio.to_thread(loadslice, [*map(str, arguments), "--url", server.admin_url])


def test_a_switch_and_the_way_back_are_one_command_each_and_drop_nothing(repo, monkeypatch) -> None:
    seen: Counter[float] = Counter()

    async def run() -> Server:
        server = server_on(repo)
        await server.start()
        stop = asyncio.Event()
        async with aiohttp.ClientSession(server.url) as client:

            async def keep_asking() -> None:
                while not stop.is_set():
                    seen[await first_output(client)] += 1

            senders = [asyncio.ensure_future(keep_asking()) for _ in range(4)]
            assert await command(server, monkeypatch, "model", "use", repo, "m", "2") == 0
            assert await first_output(client) == 1
            assert await command(server, monkeypatch, "model", "rollback", repo, "m") == 0
            assert await first_output(client) == 2
            stop.set()
            await asyncio.gather(*senders)
        await server.stop()
        return server

    server = asyncio.run(run())
    assert set(seen) == {1, 2}
    assert server.outcomes[Outcome.COMPLETED] == sum(seen.values()) + 2
    assert sum(server.outcomes.values()) == server.outcomes[Outcome.COMPLETED]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "linked", "other answers"])
def test_a_corrupt_version_never_harms_the_one_that_serves(repo, monkeypatch, damage, tmp_path) -> None:
    """Even when somebody has moved the pointer by hand, past every check of the command."""
    model = Model(repo / "m")
    weights = repo / "m" / "2" / "models" / "keep.onnx"
    data = weights.read_bytes()
    if damage == "truncated":
        weights.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "missing":
        weights.unlink()
    elif damage == "linked":
        weights.unlink()
        weights.symlink_to(repo / "m" / "1" / "models" / "double.onnx")
    else:
        golden = (repo / "m" / "1" / "golden.npz").read_bytes()
        (repo / "m" / "2" / "golden.npz").write_bytes(golden)
    seen: Counter[int] = Counter()

    async def run() -> None:
        server = server_on(repo)
        await server.start()
        stop = asyncio.Event()
        async with aiohttp.ClientSession(server.url) as client:

            async def keep_asking() -> None:
                while not stop.is_set():
                    async with client.post("/v2/models/m/infer", json=BODY) as reply:
                        seen[reply.status] += 1

            sender = asyncio.ensure_future(keep_asking())
            assert await command(server, monkeypatch, "model", "use", repo, "m", "2") == 3
            model.use("2")
            async with client.post("/admin/reload", headers={"Authorization": f"Bearer {SECRET}"}) as reply:
                assert reply.status == 409
                assert str(tmp_path) not in await reply.text()
            assert await first_output(client) == 2
            stop.set()
            await sender
            assert (server.generation.number, server.generation.serving.version) == (1, "1")
        await server.stop()

    asyncio.run(run())
    assert set(seen) == {200}


def test_a_restart_serves_the_current_version_and_where_that_is_damaged_the_one_before(repo, capsys) -> None:
    model = Model(repo / "m")
    model.use("2")

    async def output() -> float:
        server = server_on(repo)
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            first = await first_output(client)
        await server.stop()
        return first

    assert asyncio.run(output()) == 1
    (repo / "m" / "2" / "models" / "keep.onnx").unlink()
    assert asyncio.run(output()) == 2
    assert "version 1 is served, not the current one" in capsys.readouterr().err
