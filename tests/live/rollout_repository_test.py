"""Rollouts of versions in a repository, and of a canary that a pipeline file names."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.live.rollout_scenes import PLAN, SECRET, Traffic, ask, scraped, server_on, until_state

from loadslice.app.cli import run as loadslice
from loadslice.spec.functions import load_function
from loadslice.spec.pipeline import Canary, Pipeline, Rollout

pytestmark = pytest.mark.live


def write_matmul(path: Path, factor: float) -> None:
    """y = x @ w, with one layer's scale times a factor."""
    weights = np.random.default_rng(5).standard_normal((4, 4)).astype(np.float32) * np.float32(factor)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture
def repo(tmp_path) -> Path:
    """Version 1 serves; 2 is the same rounded otherwise, 3 has one layer's scale off by 2 %."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "m.yaml").write_text(
        "version: 1\npipeline: m\nrollout: {steps: [0.25, 0.5]}\nengines: {ort: {backend: onnxruntime}}\n"
        "stages: [{name: work, model: a.onnx, engine: ort}]\n"
    )
    for factor in (1.0, 1.000001, 1.02):
        write_matmul(source / "a.onnx", factor)
        assert loadslice(["model", "add", str(tmp_path / "repo"), str(source / "m.yaml")]) == 0
    assert loadslice(["model", "use", str(tmp_path / "repo"), "m", "1"]) == 0
    return tmp_path / "repo"


def test_by_commands_on_a_repository_a_silently_wrong_version_goes_back_and_a_right_one_is_adopted(
    repo, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("LOADSLICE_ADMIN_TOKEN", SECRET)
    plan = tmp_path / "plan.yaml"
    plan.write_bytes(msgspec.yaml.encode(PLAN))
    pointer = repo / "m" / "current.json"

    async def run() -> Counter:
        server = server_on(repo, tmp_path / "state.sqlite")
        await server.start()

        async def command(verb: str, *arguments: object) -> tuple[int, dict]:
            capsys.readouterr()
            words = ["rollout", verb, *map(str, arguments), "--url", server.admin_url, "--json"]
            code = await asyncio.to_thread(loadslice, words)
            return code, json.loads(capsys.readouterr().out or "{}")

        async with aiohttp.ClientSession(server.url) as client:
            traffic = Traffic(client)
            code, answer = await command("start", "--to", 3, "--plan", plan)
            assert (code, answer["state"], answer["weight"]) == (0, "running", 0.25)
            await until_state(client, "rolled_back", "promoted")
            code, answer = await command("status")
            assert (code, answer["state"], answer["decision"]) == (3, "rolled_back", "fail")
            assert answer["analysis"]["outputs"]["figures"]["distance_max"] == pytest.approx(0.02, rel=0.01)
            await server.retired()
            code, _ = await command("start", "--to", 2, "--plan", plan)
            assert code == 0
            await until_state(client, "rolled_back", "promoted")
            code, answer = await command("status")
            assert (code, answer["state"], answer["decision"]) == (0, "promoted", "pass")
            assert json.loads(pointer.read_text())["version"] == "2"
            async with asyncio.timeout(60):
                while server.generation.serving.version != "2":
                    await ask(client, "")
            told = [name for name in await scraped(client) if name.startswith("loadslice_version_info")]
            assert told == ['loadslice_version_info{version="2"}']
            await server.retired()
            code, answer = await command("rollback")
            assert (code, answer["state"]) == (0, "rolled_back")
            assert json.loads(pointer.read_text())["version"] == server.generation.serving.version == "1"
            await traffic.end()
        await server.stop()
        return traffic.answers

    assert {status for status, _ in asyncio.run(run())} == {200}


def test_a_candidate_that_is_damaged_or_differs_in_more_than_models_is_refused(repo, tmp_path) -> None:
    source = tmp_path / "source"
    text = (source / "m.yaml").read_text()
    (source / "m.yaml").write_text(text.replace("engine: ort}]", "engine: ort, timeout_ms: 5}]"))
    assert loadslice(["model", "add", str(repo), str(source / "m.yaml")]) == 0
    weights = repo / "m" / "2" / "models" / "a.onnx"
    weights.write_bytes(weights.read_bytes()[:-1])

    async def run() -> None:
        server = server_on(repo, tmp_path / "state.sqlite")
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            for version, words in (
                ("4", "differs in more than its model"),
                ("2", "SHA-256"),
                ("1", "serves already"),
                ("9", "no version '9'"),
                ("../1", "use 1 to 64"),
            ):
                status, answer = await ask(client, "start", {"to": version, "plan": PLAN})
                assert (status, words in answer["error"]) == (409, True)
                assert str(tmp_path) not in answer["error"]
            _, answer = await ask(client, "")
            assert (answer["state"], server.generation.number) == ("none", 1)
        await server.stop()

    asyncio.run(run())


def test_a_canary_of_the_file_serves_as_before_until_a_rollout_is_started(pipeline, folder, serving, infer) -> None:
    served: Pipeline = pipeline("canary")
    assert isinstance(served.stages[0].canary, Canary)
    assert isinstance(served.rollout, Rollout)
    load_function("stages:parse", folder)

    async def run() -> set[str]:
        async with serving(served, folder) as (_, client):
            return {(await infer(client, "canary"))[1]["x-loadslice-version"] for _ in range(8)}

    assert asyncio.run(run()) == {"stable", "canary"}
