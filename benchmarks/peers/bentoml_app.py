"""BentoML and ONNX Runtime: JSON in, JSON out, batched by its dispatcher. As `mosec_app`: what is served is in the
environment, the port is an argument of `bentoml serve`.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import bentoml
import numpy as np
import onnxruntime as ort

model, shape = os.environ["PEER_MODEL"], [int(side) for side in os.environ["PEER_SHAPE"].split("x")]


@bentoml.service(workers=int(os.environ["PEER_WORKERS"]), traffic={"timeout": 60, "max_concurrency": 256})
class Peer:
    """The model."""

    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    @bentoml.api(batchable=True, batch_dim=0, max_batch_size=32, max_latency_ms=10_000)
    def predict(self, x: np.ndarray) -> np.ndarray:
        """A batch."""
        return self.session.run(None, {"x": np.asarray(x, np.float32).reshape(-1, *shape[1:])})[0]
