"""The example finds the faults it drew, on the twin and on the CPU, and says what of it is emulated."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import polars as pl
import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")
pytest.importorskip("PIL", reason="the extra 'example' is not installed")

from loadslice.app import study_folder, twins
from loadslice.profiles.chain import close, open_steps, walk
from loadslice.profiles.measure import measure
from loadslice.serve.server import Server
from loadslice.sim import simulate
from loadslice.spec import journal as journals
from loadslice.spec.functions import load_function
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline, load
from loadslice.spec.twin import TwinEngine
from loadslice.spec.work import RawInput, StageInputError, Work

HERE = Path(__file__).resolve().parent

samples = load_function("inspection_inputs:samples", HERE)
assign = load_function("inspection_inputs:assign", HERE)
score = load_function("inspection_inputs:score", HERE)
prepare = load_function("inspection_stages:prepare", HERE)
pick = load_function("inspection_stages:pick", HERE)
traffic = load_function("build_traffic:traffic", HERE)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return twins.resolved(load(HERE / "pipeline.yaml"), HERE)


@pytest.fixture(scope="module")
def table(pipeline: Pipeline) -> LatencyTable:
    return measure(pipeline, HERE, samples()[:3], seconds=0, repeats=1)


def test_every_fault_is_found_by_the_network_the_twin_computes(pipeline: Pipeline) -> None:
    steps = open_steps(pipeline, HERE, ["npu"])
    try:
        answers = [walk(sample, steps)[-1].tensors["text"].tolist() for sample in samples()]
    finally:
        close(steps)
    marked = [score(sample.truth, texts) for sample, texts in zip(samples(), answers, strict=True)]
    assert [wrong for wrong, _ in marked] == [0] * 24
    assert sum(len(sample.truth) for sample in samples()) == 60


def test_the_backbone_on_the_twin_takes_its_modelled_time_and_says_so(table: LatencyTable) -> None:
    by_engine = {entry.engine: entry for entry in table.entries if entry.variant == "backbone"}
    npu = by_engine["npu"]
    assert (npu.basis, npu.batch, npu.shape) == ("emulated", 4, [3, 352, 352])
    assert npu.latency_ms.p50 == pytest.approx(3.72, abs=0.01)
    assert npu.energy_j is None
    assert "ethos-u-vela" in (npu.source or "")
    assert by_engine["ort"].basis == "measured"


def test_the_compilers_estimate_is_slower_than_the_roofline_which_is_the_best_case() -> None:
    given = load(HERE / "pipeline.yaml")
    npu = msgspec.structs.replace(given.engines["npu"], options={})
    found = twins.resolved(msgspec.structs.replace(given, engines={**given.engines, "npu": npu}), HERE).engines["npu"]
    assert isinstance(found, TwinEngine)
    (sheet,) = found.sheets.values()
    assert [(known.rows, known.shape) for known in sheet.times] == [(4, (3, 352, 352))]
    assert sheet.times[0].ms == pytest.approx(1.12, abs=0.01)


def test_a_simulation_over_the_twin_says_emulated(pipeline: Pipeline, table: LatencyTable) -> None:
    stretch = pl.read_parquet(HERE / "traffic.parquet").head(200)
    names = pl.Series("input", [f"plate-{number % 3:02d}" for number in range(200)])
    prepared = simulate.prepare(stretch.with_columns(names), pipeline, table)
    assert prepared.basis == "simulated on emulated times"


def test_a_study_names_the_plan_that_is_emulated() -> None:
    found = study_folder.read(HERE)
    assert [(plan.name, plan.title) for plan in found.plans] == [
        ("hybrid", "Hybrid (emulated)"),
        ("cpu", "ONNX Runtime alone (cpu)"),
    ]


def test_the_traffic_is_what_its_program_draws() -> None:
    assert pl.read_parquet(HERE / "traffic.parquet").equals(traffic())


@pytest.mark.live
def test_a_dilated_server_answers_right_in_the_devices_time(tmp_path: Path) -> None:
    dilated = twins.resolved(load(HERE / "pipeline.yaml"), HERE, 20.0)
    chosen = [samples()[number] for number in (4, 12, 20, 23)]

    async def serve() -> list[tuple[dict[str, str], Any]]:
        server = Server(dilated, HERE, port=0, journal=tmp_path / "journal")
        await server.start()
        try:
            async with aiohttp.ClientSession() as client:
                metrics = await (await client.get(f"{server.url}/metrics")).text()
                assert "loadslice_dilation 20.0" in metrics
                assert 'loadslice_twin_late_runs_total{engine="npu"} 0.0' in metrics
                return await asyncio.gather(*(_ask(client, server.url, sample) for sample in chosen))
        finally:
            await server.stop()

    replies = asyncio.run(serve())
    for sample, (headers, texts) in zip(chosen, replies, strict=True):
        assert score(sample.truth, texts)[0] == 0
        assert headers["x-loadslice-basis"] == "emulated, dilated 20x"
        assert headers["x-loadslice-engine"] == "host, npu, ort, host"
    journal = journals.load(tmp_path / "journal")
    assert journal.head.basis == "emulated"
    assert "sheets" not in journal.head.pipeline_yaml
    compute_ms = journal.stages.filter(pl.col("engine") == "npu")["compute_ns"].to_numpy() / 1e6
    assert np.all(compute_ms >= 3.7)


async def _ask(client: aiohttp.ClientSession, url: str, sample: Any) -> tuple[dict[str, str], list[str]]:
    where = f"{url}/v1/pipelines/inspection"
    async with client.post(where, data=sample.body, headers={"content-type": sample.content_type}) as reply:
        assert reply.status == 200
        return {key.lower(): value for key, value in reply.headers.items()}, _texts(await reply.json())


def _texts(document: dict[str, Any]) -> list[str]:
    (texts,) = [output["data"] for output in document["outputs"] if output["name"] == "text"]
    return texts


@pytest.mark.parametrize(
    ("content_type", "body", "unsupported"), [("text/plain", b"x", True), ("image/png", b"x", False)]
)
def test_what_is_no_image_is_the_clients_fault(content_type: str, body: bytes, unsupported: bool) -> None:
    with pytest.raises(StageInputError) as caught:
        prepare(Work(context=RawInput(content_type, body)))
    assert caught.value.unsupported_type is unsupported


def test_a_grid_that_says_nothing_is_a_plate_without_faults() -> None:
    answer = pick(Work({"grid": np.zeros((1, 6, 22, 22), np.float32)})).tensors
    assert (answer["text"].tolist(), answer["box"].shape) == ([], (0, 4))


def test_of_two_boxes_in_one_place_the_surer_stays() -> None:
    grid = np.zeros((1, 6, 22, 22), np.float32)
    grid[0, :, 5, 5] = 0.9, 0.0, 0.0, 1.0, 1.0, 0.0
    grid[0, :, 5, 6] = 0.8, -0.5, 0.0, 1.0, 0.0, 1.0
    grid[0, :, 15, 15] = 0.7, 0.0, 0.0, 0.5, 0.0, 1.0
    assert [text.split()[0] for text in pick(Work({"grid": grid})).tensors["text"]] == ["pit", "chip"]


@pytest.mark.parametrize(
    ("truth", "texts", "wrong"),
    [
        (["pit 0.5 0.5"], ["pit 0.51 0.5"], 0),
        (["pit 0.5 0.5"], ["chip 0.5 0.5"], 1),
        (["pit 0.5 0.5"], ["pit 0.6 0.5"], 2),
        ([], ["pit 0.5 0.5"], 1),
    ],
)
def test_missed_made_up_and_mistaken_faults_are_counted(truth: list[str], texts: list[str], wrong: int) -> None:
    assert score(truth, texts) == (wrong, max(1, len(truth)))


def test_more_tokens_are_more_faults() -> None:
    assert assign(np.array([5, 1, 9])) == ["plate-08", "plate-00", "plate-16"]
