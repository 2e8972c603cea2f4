"""Small models made in code, for tests of what real models must not be needed for."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F, I64 = TensorProto.FLOAT, TensorProto.INT64
WIDTH = 16


def _weight(rng: np.random.Generator, name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)


def transformer(blocks: int = 3) -> onnx.ModelProto:
    """Token and position embeddings, a mask made of the second input, blocks of attention and a feed-forward part."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    stored = [_weight(rng, "embedding", 2, WIDTH), _weight(rng, "positions", 64, WIDTH)]
    stored += [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("one", 1.0), ("far", -1e4))]
    stored += [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("axis1", [1]), ("zero", 0), ("two", 1))]
    stored += [numpy_helper.from_array(np.array(1, np.int64), "step")]
    nodes = [
        node("Gather", ["embedding", "ids"], ["tokens"]),
        node("Shape", ["ids"], ["ids_shape"]),
        node("Gather", ["ids_shape", "two"], ["length"]),
        node("Range", ["zero", "length", "step"], ["places"]),
        node("Gather", ["positions", "places"], ["placed"]),
        node("Add", ["tokens", "placed"], ["h0"]),
        node("Cast", ["mask"], ["mask_float"], to=F),
        node("Sub", ["one", "mask_float"], ["hidden_tokens"]),
        node("Mul", ["hidden_tokens", "far"], ["bias_flat"]),
        node("Unsqueeze", ["bias_flat", "axis1"], ["bias"]),
    ]
    for k in range(blocks):
        for letter in "qkvo":
            stored.append(_weight(rng, f"w{letter}{k}", WIDTH, WIDTH))
        stored += [_weight(rng, f"up{k}", WIDTH, 64), _weight(rng, f"down{k}", 64, WIDTH)]
        stored += [_weight(rng, f"scale{k}", WIDTH), _weight(rng, f"shift{k}", WIDTH)]
        nodes += [
            node("MatMul", [f"h{k}", f"wq{k}"], [f"q{k}"]),
            node("MatMul", [f"h{k}", f"wk{k}"], [f"k{k}"]),
            node("MatMul", [f"h{k}", f"wv{k}"], [f"v{k}"]),
            node("Transpose", [f"k{k}"], [f"kt{k}"], perm=[0, 2, 1]),
            node("MatMul", [f"q{k}", f"kt{k}"], [f"scores{k}"]),
            node("Add", [f"scores{k}", "bias"], [f"masked{k}"]),
            node("Softmax", [f"masked{k}"], [f"probability{k}"], axis=-1),
            node("MatMul", [f"probability{k}", f"v{k}"], [f"context{k}"]),
            node("MatMul", [f"context{k}", f"wo{k}"], [f"attended{k}"]),
            node("Add", [f"attended{k}", f"h{k}"], [f"residual{k}"]),
            node("LayerNormalization", [f"residual{k}", f"scale{k}", f"shift{k}"], [f"normal{k}"], axis=-1),
            node("MatMul", [f"normal{k}", f"up{k}"], [f"wide{k}"]),
            node("Relu", [f"wide{k}"], [f"active{k}"]),
            node("MatMul", [f"active{k}", f"down{k}"], [f"narrow{k}"]),
            node("Add", [f"narrow{k}", f"normal{k}"], [f"h{k + 1}"]),
        ]
    inputs = [helper.make_tensor_value_info(name, I64, ["batch", "sequence"]) for name in ("ids", "mask")]
    output = helper.make_tensor_value_info(f"h{blocks}", F, ["batch", "sequence", WIDTH])
    graph = helper.make_graph(nodes, "transformer", inputs, [output], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
