"""Ray Serve and ONNX Runtime: raw bytes in, raw bytes out, batched by its replica. As `fastapi_app`."""

import os
import signal
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

model, shape, workers, port = sys.argv[1], [int(side) for side in sys.argv[2].split("x")], int(sys.argv[3]), sys.argv[4]


@serve.deployment(num_replicas=workers, max_ongoing_requests=256)
class Peer:
    """The model."""

    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0)
    async def compute(self, bodies: list[bytes]) -> list[bytes]:
        """A batch."""
        rows = self.session.run(
            None, {"x": np.concatenate([np.frombuffer(b, np.float32).reshape(shape) for b in bodies])}
        )
        return [row.tobytes() for row in rows[0]]

    async def __call__(self, request: Request) -> Response:
        """A request."""
        return Response(await self.compute(await request.body()))


if __name__ == "__main__":
    ray.init(address="local", include_dashboard=False, num_cpus=max(2, workers + 1), logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    serve.run(Peer.bind(), route_prefix="/infer")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()
