"""KServe's Python server and ONNX Runtime: Open Inference Protocol with binary tensors. As `fastapi_app`."""

import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

model, workers, port = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])


class Peer(Model):
    """The model; loaded where it is first asked, for workers are made of copies."""

    def __init__(self) -> None:
        super().__init__("mlp")
        self.session: ort.InferenceSession | None = None
        self.ready = True

    def predict(self, payload: InferRequest, headers: object = None, response_headers: object = None) -> InferResponse:
        """A request."""
        if self.session is None:
            options = ort.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        rows = self.session.run(None, {"x": payload.inputs[0].as_numpy()})[0]
        output = InferOutput(name="y", shape=list(rows.shape), datatype="FP32")
        output.set_data_from_numpy(rows, binary_data=True)
        return InferResponse(response_id=payload.id or "0", model_name=self.name, infer_outputs=[output])


if __name__ == "__main__":
    ModelServer(http_port=port, enable_grpc=False, workers=workers).start([Peer()])
