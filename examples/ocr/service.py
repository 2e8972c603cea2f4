"""The same stages as a plain web service, as somebody might run it today: FastAPI, ONNX Runtime, one function.

It stands for a service that is not ours. All it takes from loadslice for its own sake is the recorder: one line of
middleware, and a `with stage(...)` around what should be told apart. A week later `recording/trace.parquet` says what
the load looks like.

    .venv/bin/python -m pip install fastapi uvicorn        # this service's own, no extra of loadslice has them
    cd examples/ocr && ../../.venv/bin/uvicorn --factory service:create_app --port 8080
    curl --data-binary @page.png -H 'content-type: image/png' http://127.0.0.1:8080/ocr
    loadslice portrait recording/trace.parquet        # once the service has stopped
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

# Read when ONNX Runtime starts; its uploader is on by default.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from loadslice.record import AsgiMiddleware, Recorder, note, stage
from loadslice.spec.files import resolve_model
from loadslice.spec.work import RawInput, StageInputError, Work
from ocr_stages import crop, prepare, read, turn

MODELS = "package:rapidocr_onnxruntime/models"


class Reader:
    """The three models and what lies between them."""

    def __init__(self) -> None:
        self._detect = _open("ch_PP-OCRv4_det_infer.onnx")
        self._orient = _open("ch_ppocr_mobile_v2.0_cls_infer.onnx")
        self._recognise = _open("ch_PP-OCRv4_rec_infer.onnx")

    def read(self, content_type: str, body: bytes) -> list[dict[str, Any]]:
        """Lines of text in an image, in reading order."""
        with stage("decode"):
            work = prepare(Work(context=RawInput(content_type, body)))
        with stage("detect"):
            work = _run(self._detect, work)
        with stage("crop"):
            work = crop(work)
        note(items=work.items)
        if work.items == 0:
            return []
        with stage("recognise"):
            work = turn(_run(self._orient, work))
            work = _run(self._recognise, work)
        with stage("read"):
            lines = read(work).tensors
        return [
            {"text": text, "confidence": float(confidence), "box": box.tolist()}
            for text, confidence, box in zip(lines["text"], lines["confidence"], lines["box"], strict=True)
        ]


def create_app(recording: Path = Path("recording")) -> FastAPI:
    """Make the service.

    Args:
        recording: Folder the recorder writes to.
    """
    reader = Reader()
    recorder = Recorder(recording)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(recorder.close)

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(AsgiMiddleware, recorder=recorder)

    @app.post("/ocr")
    async def ocr(request: Request) -> JSONResponse:
        body = await request.body()
        content_type = request.headers.get("content-type", "")
        try:
            lines = await run_in_threadpool(reader.read, content_type, body)
        except StageInputError as error:
            return JSONResponse({"error": str(error)}, status_code=415 if error.unsupported_type else 400)
        return JSONResponse({"lines": lines})

    return app


def _open(name: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = resolve_model(f"{MODELS}/{name}", Path(__file__).parent)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, work: Work) -> Work:
    (output,) = session.run(None, work.tensors)
    return Work({"output": output}, work.context)
