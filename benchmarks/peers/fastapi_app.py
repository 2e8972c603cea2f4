"""FastAPI and ONNX Runtime by hand: raw bytes in, raw bytes out, on uvicorn with its compiled parser and loop.

MODEL, SHAPE, WORKERS and PORT come as arguments. Run by `serve_bench`, in an interpreter that has the packages.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import asyncio

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI, Request, Response

model, shape, workers, port = sys.argv[1], [int(side) for side in sys.argv[2].split("x")], int(sys.argv[3]), sys.argv[4]
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
pool = ThreadPoolExecutor(workers) if workers > 1 else None
app = FastAPI()


def compute(body: bytes) -> bytes:
    """One request."""
    return session.run(None, {"x": np.frombuffer(body, np.float32).reshape(shape)})[0].tobytes()


@app.post("/infer")
async def infer(request: Request) -> Response:
    """A fast model on the loop, a slow one on threads."""
    body = await request.body()
    if pool is None:
        return Response(compute(body))
    return Response(await asyncio.get_running_loop().run_in_executor(pool, compute, body))


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)
