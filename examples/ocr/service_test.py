"""A service that is not ours, recorded: what it answers, and what the recording says afterwards."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("cv2", reason="the extra example is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnxruntime is not installed")

import httpx
import polars as pl
from fastapi import FastAPI

from loadslice.spec.functions import load_function

pytestmark = pytest.mark.skipif(
    find_spec("rapidocr_onnxruntime") is None, reason="the models are missing: make install"
)

FOLDER = Path(__file__).parent
samples = load_function("ocr_inputs:samples", FOLDER)
score = load_function("ocr_inputs:score", FOLDER)


async def serve(app: FastAPI, inputs: list[tuple[str, bytes]]) -> list[httpx.Response]:
    """Start the service, send it bodies one after the other, and stop it."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        return [
            await client.post("/ocr", content=body, headers={"content-type": content_type})
            for content_type, body in inputs
        ]


def test_a_plain_service_leaves_a_trace_of_its_requests_and_their_stages(tmp_path: Path) -> None:
    inputs = samples()[:8]
    app = load_function("service:create_app", FOLDER)(tmp_path / "recording")
    bad = [("image/png", b"no"), ("text/plain", b"no")]
    replies = asyncio.run(serve(app, [*((sample.content_type, sample.body) for sample in inputs), *bad]))
    assert [reply.status_code for reply in replies] == [200] * 8 + [400, 415]
    for sample, reply in zip(inputs, replies, strict=False):
        wrong, characters = score(sample.truth, [line["text"] for line in reply.json()["lines"]])
        assert wrong <= 0.05 * characters

    trace = pl.read_parquet(tmp_path / "recording" / "trace.parquet")
    assert trace["status"].to_list() == [200] * 8 + [400, 415]
    assert trace["items"].to_list() == [len(sample.truth) for sample in inputs] + [None, None]
    assert trace["bytes_in"].to_list()[:8] == [len(sample.body) for sample in inputs]
    stages = trace.select("stage_ms.decode", "stage_ms.detect", "stage_ms.crop", "stage_ms.recognise", "stage_ms.read")
    answered = trace.with_columns(stages=stages.sum_horizontal())[:8]
    assert (answered["stages"] > 0).all()
    assert (answered["stages"] <= answered["latency_ms"]).all()
