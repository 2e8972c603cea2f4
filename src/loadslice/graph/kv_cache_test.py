"""Two layers with 3 heads of 8: 2 layers x (key + value) x 3 x 8 x 4 bytes = 384 bytes for each token."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.kv_cache import kv_cache
from loadslice.graph.shapes import infer

F = TensorProto.FLOAT
LAYERS, HEADS, SIZE = 2, 3, 8


def decoder(*, stacked: bool = False) -> onnx.ModelProto:
    node = helper.make_node
    shape = ["batch", HEADS, "past", SIZE]
    inputs = [helper.make_tensor_value_info("new", F, ["batch", HEADS, "now", SIZE])]
    nodes, outputs = [], []
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            inputs.append(helper.make_tensor_value_info(f"past.{layer}.{kind}", F, shape))
            nodes.append(node("Concat", [f"past.{layer}.{kind}", "new"], [f"now.{layer}.{kind}"], axis=-2))
            outputs.append(f"now.{layer}.{kind}")
    nodes.append(node("Transpose", ["now.0.key"], ["keys"], perm=[0, 1, 3, 2]))
    nodes.append(node("MatMul", ["new", "keys"], ["scores"]))
    if stacked:
        stored = numpy_helper.from_array(np.array([0], np.int64), "zero")
        nodes += [node("Unsqueeze", [name, "zero"], [f"{name}.one"]) for name in outputs]
        nodes.append(node("Concat", [f"{name}.one" for name in outputs], ["cache"], axis=0))
        outputs = ["cache"]
    infos = [onnx.ValueInfoProto(name=name) for name in ["scores", *outputs]]
    for info in infos:
        info.type.tensor_type.elem_type = F
    graph = helper.make_graph(nodes, "g", inputs, infos, [stored] if stacked else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_token_takes_a_position_of_every_layers_key_and_value(stacked: bool) -> None:
    model = decoder(stacked=stacked)
    past = {f"past.{layer}.{kind}": [2, HEADS, 100, SIZE] for layer in range(LAYERS) for kind in ("key", "value")}
    result = kv_cache(model, infer(model, {"new": [2, HEADS, 1, SIZE], **past}))
    assert result is not None
    assert result.bytes_per_token == LAYERS * 2 * HEADS * SIZE * 4
    assert result.bytes == 2 * 100 * result.bytes_per_token
    assert (len(result.inputs), result.axis) == (2 * LAYERS, 2)


def test_without_shapes_the_bytes_of_a_token_are_known_and_those_of_the_cache_are_not() -> None:
    model = decoder()
    result = kv_cache(model, infer(model, {}))
    assert result is not None
    assert (result.bytes_per_token, result.bytes) == (384, None)


def test_an_input_that_comes_back_no_longer_is_no_cache() -> None:
    """A recurrent state has one size for ever."""
    model = decoder()
    for step in model.graph.node:
        if step.op_type == "Concat":
            step.op_type = "Add"
            del step.attribute[:]
    assert kv_cache(model, infer(model, {})) is None
