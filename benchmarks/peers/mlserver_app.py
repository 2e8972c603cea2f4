"""MLServer and ONNX Runtime: Open Inference Protocol as JSON, batched adaptively. As `fastapi_app`.

The peer runs without parallel workers: they are slower than none on a tiny model.
"""

import asyncio
import os
import socket
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

model, port = sys.argv[1], int(sys.argv[4])


class Peer(MLModel):
    """The model."""

    async def load(self) -> bool:
        """Load it."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """A batch."""
        rows = self.session.run(None, {"x": NumpyCodec.decode_input(payload.inputs[0]).astype("float32")})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", rows)])


def free_port() -> int:
    """For what cannot be switched off."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def main() -> None:
    """Serve."""
    settings = Settings(
        host="127.0.0.1", http_port=port, grpc_port=free_port(), metrics_endpoint=None, parallel_workers=0, debug=False
    )
    server = MLServer(settings)
    one = ModelSettings(name="mlp", implementation=Peer, max_batch_size=32, max_batch_time=0.001)
    await server.start([one])


if __name__ == "__main__":
    asyncio.run(main())
