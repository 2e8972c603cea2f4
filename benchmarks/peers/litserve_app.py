"""LitServe and ONNX Runtime: JSON in, JSON out, batched by its worker. As `fastapi_app`."""

import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import litserve
import numpy as np
import onnxruntime as ort

model, shape, workers, port = sys.argv[1], [int(side) for side in sys.argv[2].split("x")], int(sys.argv[3]), sys.argv[4]


class Api(litserve.LitAPI):
    """The model."""

    def setup(self, device: str) -> None:
        """Load it, in a worker."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def decode_request(self, request: dict) -> np.ndarray:
        """A row."""
        return np.array(request["x"], np.float32).reshape(shape)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Rows."""
        return np.concatenate(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """A batch."""
        return self.session.run(None, {"x": x})[0]

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        """Rows."""
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict:
        """A row."""
        return {"y": output.tolist()}


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=0.0005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers)
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="error")
