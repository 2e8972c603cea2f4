"""The public `tritonclient`, over HTTP and over gRPC, against one server: it works, and both say the same."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.serve.server import Server
from loadslice.spec.pipeline import Pipeline, check

pytestmark = pytest.mark.live

TYPES = {
    "BOOL": TensorProto.BOOL, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32, "UINT64": TensorProto.UINT64, "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE, "BYTES": TensorProto.STRING,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that gives back one tensor of every type."""
    from tests.live.conftest import LiveServer

    folder = tmp_path_factory.mktemp("types")
    graph = helper.make_graph(
        [helper.make_node("Identity", [name.lower()], [f"{name.lower()}_out"]) for name in TYPES],
        "types",
        [helper.make_tensor_value_info(name.lower(), kind, ["n", 2]) for name, kind in TYPES.items()],
        [helper.make_tensor_value_info(f"{name.lower()}_out", kind, ["n", 2]) for name, kind in TYPES.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "types.onnx")
    document = {
        "version": 1,
        "pipeline": "types",
        "engines": {"ort": {"backend": "onnxruntime"}},
        "stages": [{"name": "same", "model": "types.onnx", "engine": "ort"}],
    }
    import msgspec

    live = LiveServer(Server(check(msgspec.convert(document, Pipeline), "types"), folder, port=0, grpc=0))
    try:
        live.run(live.server.start())
        yield live.server
        live.run(live.server.stop())
    finally:
        live.close()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[tuple[Any, Any]]:
    """The client's module, and a client."""
    module = importlib.import_module(f"tritonclient.{request.param}")
    port = server.grpc_port if request.param == "grpc" else server.url.rpartition(":")[2]
    with module.InferenceServerClient(f"127.0.0.1:{port}") as found:
        yield module, found


def values(datatype: str) -> np.ndarray:
    from tritonclient.utils import triton_to_np_dtype

    if datatype == "BYTES":
        return np.array([[b"a", b""], ["ä".encode(), b"\xff"[:0]]], np.object_)
    return np.array([[0, 1], [1, 0]], triton_to_np_dtype(datatype))


def asked(module: Any) -> list[Any]:
    inputs = []
    for datatype in TYPES:
        tensor = module.InferInput(datatype.lower(), [2, 2], datatype)
        tensor.set_data_from_numpy(values(datatype))
        inputs.append(tensor)
    return inputs


def test_health_and_metadata(client: tuple[Any, Any]) -> None:
    module, found = client
    assert found.is_server_live()
    assert found.is_server_ready()
    assert found.is_model_ready("types")
    assert found.is_model_ready("types", "1")
    told = found.get_server_metadata()
    assert (told.name if module.__name__.endswith("grpc") else told["name"]) == "loadslice"
    model = found.get_model_metadata("types")
    inputs = model.inputs if module.__name__.endswith("grpc") else model["inputs"]
    seen = {one.name if hasattr(one, "name") else one["name"] for one in inputs}
    assert seen == {name.lower() for name in TYPES}


def test_every_datatype_comes_back_as_it_went(client: tuple[Any, Any]) -> None:
    module, found = client
    reply = found.infer("types", asked(module), request_id="7")
    for datatype in TYPES:
        got = reply.as_numpy(f"{datatype.lower()}_out")
        if datatype == "BYTES":
            assert [[bytes(cell) for cell in row] for row in got.tolist()] == values(datatype).tolist()
        else:
            np.testing.assert_array_equal(got, values(datatype))
            assert got.dtype == values(datatype).dtype


def test_outputs_can_be_chosen(client: tuple[Any, Any]) -> None:
    module, found = client
    reply = found.infer("types", asked(module), outputs=[module.InferRequestedOutput("int8_out")])
    np.testing.assert_array_equal(reply.as_numpy("int8_out"), values("INT8"))
    assert reply.as_numpy("fp32_out") is None


def test_headers_are_heard(client: tuple[Any, Any]) -> None:
    module, found = client
    from tritonclient.utils import InferenceServerException

    found.infer("types", asked(module), headers={"x-loadslice-priority": "sheddable"})
    with pytest.raises(InferenceServerException, match="x-loadslice-priority must be one of"):
        found.infer("types", asked(module), headers={"x-loadslice-priority": "best"})


def test_an_unknown_model_and_a_missing_input_are_said(client: tuple[Any, Any]) -> None:
    module, found = client
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match="there is 'types'"):
        found.infer("nowhere", asked(module))
    with pytest.raises(InferenceServerException, match="bool"):
        found.infer("types", asked(module)[1:])


def test_requests_at_once_are_each_answered(client: tuple[Any, Any]) -> None:
    module, found = client
    if module.__name__.endswith("grpc"):
        import queue

        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for _ in range(50):
            found.async_infer("types", asked(module), lambda result, error: answers.put((result, error)))
        got = [answers.get(timeout=20) for _ in range(50)]
        assert all(error is None for _, error in got)
    else:
        pending = [found.async_infer("types", asked(module)) for _ in range(50)]
        assert all(one.get_result().as_numpy("fp64_out") is not None for one in pending)
