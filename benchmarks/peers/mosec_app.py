"""Mosec and ONNX Runtime: raw bytes in, raw bytes out, batched by its Rust front.

As `fastapi_app`, after Mosec's own arguments.
"""

import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
from mosec import Server, Worker

model, shape, workers = os.environ["PEER_MODEL"], [int(s) for s in os.environ["PEER_SHAPE"].split("x")], 1
workers = int(os.environ["PEER_WORKERS"])


class Model(Worker):
    """The model."""

    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def deserialize(self, data: bytes) -> np.ndarray:
        """A row."""
        return np.frombuffer(data, np.float32).reshape(shape)

    def serialize(self, data: np.ndarray) -> bytes:
        """A row."""
        return data.tobytes()

    def forward(self, data: list[np.ndarray]) -> list[np.ndarray]:
        """A batch."""
        rows = self.session.run(None, {"x": np.concatenate(data)})[0]
        return [rows[index : index + 1] for index in range(len(data))]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=workers, max_batch_size=32, max_wait_time=1)
    server.run()
    sys.exit(0)
