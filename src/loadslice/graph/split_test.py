"""Halves of operators: the same outputs as the whole, in one model and as two."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.cuts import flow
from loadslice.graph.load import load
from loadslice.graph.shapes import infer
from loadslice.graph.slicing_test import REAL, real
from loadslice.graph.split import SPLIT_OPS, By, channels, half_models, split_node
from loadslice.graph.stitch import draw_inputs, run_slices
from loadslice.spec.errors import InputError

outputs = pytest.importorskip("loadslice.graph.measure").outputs
pytest.importorskip("onnxruntime")


def one(
    op: str, x: list[int], operands: dict[str, list[int]], stored: set[str], **attributes: object
) -> onnx.ModelProto:
    """A model of one operator named ``it`` between two Relus, so that its halves have neighbours."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in operands.items()}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node(op, ["a", *operands], ["b"], name="it", **attributes),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in operands.items() if n not in stored]
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = TensorProto.FLOAT
    kept = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in stored]
    graph = helper.make_graph(nodes, "g", inputs, [output], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES = {
    "conv": (one("Conv", [2, 6, 9, 9], {"w": [10, 6, 3, 3], "c": [10]}, {"w", "c"}, pads=[1, 1, 1, 1]), "channel", 4),
    "conv without bias": (one("Conv", [2, 6, 9, 9], {"w": [10, 6, 3, 3]}, {"w"}, strides=[2, 2]), "channel", 7),
    "depthwise": (one("Conv", [2, 8, 9, 9], {"w": [8, 1, 3, 3], "c": [8]}, {"w", "c"}, group=8), "channel", 3),
    "grouped": (one("Conv", [2, 8, 9, 9], {"w": [12, 2, 3, 3]}, {"w"}, group=4), "channel", 6),
    "conv by batch": (one("Conv", [5, 6, 9, 9], {"w": [10, 6, 3, 3], "c": [10]}, {"w", "c"}), "batch", 2),
    "matmul": (one("MatMul", [2, 7, 16], {"w": [16, 24]}, {"w"}), "channel", 16),
    "batched matmul": (one("MatMul", [2, 7, 16], {"w": [2, 16, 24]}, {"w"}), "channel", 8),
    "matmul by batch": (one("MatMul", [6, 7, 16], {"w": [16, 24]}, {"w"}), "batch", 4),
    "gemm": (one("Gemm", [5, 16], {"w": [16, 24], "c": [24]}, {"w", "c"}, alpha=0.5), "channel", 8),
    "gemm transposed": (one("Gemm", [5, 16], {"w": [24, 16], "c": [5, 24]}, {"w", "c"}, transB=1), "channel", 20),
    "gemm with one column of bias": (one("Gemm", [5, 16], {"w": [16, 24], "c": [5, 1]}, {"w", "c"}), "channel", 8),
    "gemm by batch": (one("Gemm", [16, 5], {"w": [16, 24], "c": [24]}, {"w", "c"}, transA=1), "batch", 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_two_halves_and_a_concat_answer_what_the_operator_answers(case: str) -> None:
    model, by, first = CASES[case]
    divided = split_node(model, "it", first, by)  # type: ignore[arg-type]
    feeds = draw_inputs(model, infer(model, {}), seed=1)
    expected, got = outputs(model, feeds)["y"], outputs(divided, feeds)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    assert np.abs(expected).max() > 0.1
    assert [node.op_type for node in divided.graph.node].count(model.graph.node[1].op_type) == 2
    assert {t.name for t in divided.graph.initializer}.isdisjoint({"w"} if by == "channel" else set())


@pytest.mark.parametrize("case", CASES)
def test_the_halves_are_models_of_their_own(case: str) -> None:
    model, by, first = CASES[case]
    divided = split_node(model, "it", first, by)  # type: ignore[arg-type]
    body = infer(divided, {})
    parts = half_models(divided, body, body, "it")
    feeds = draw_inputs(model, body, seed=2)
    before = {"a": np.maximum(feeds["x"], 0)}
    handed = run_slices(parts, before)
    axis = {"Conv": 1, "Gemm": 1, "MatMul": -1}[model.graph.node[1].op_type] if by == "channel" else 0
    joined = np.concatenate([handed["it.split.half0"], handed["it.split.half1"]], axis=axis)
    np.testing.assert_allclose(np.maximum(joined, 0), outputs(model, feeds)["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reference", list(REAL)[:3])
def test_every_heavy_operator_of_a_real_model_can_be_halved(reference: str) -> None:
    model = load(real(reference), weights=True)
    body = infer(model, REAL[reference])
    feeds = draw_inputs(model, body, seed=0)
    divided, count = model, 0
    for step in flow(body).ops:
        if step.node.op_type not in SPLIT_OPS or count == 12:
            continue
        try:
            found = channels(model, step.node.name)
        except InputError:  # attention multiplies two activations
            continue
        if found.units >= 2 * found.step:
            divided = split_node(divided, step.node.name, found.units // 2 // found.step * found.step, "channel")
            count += 1
    assert count == 12
    expected, got = outputs(model, feeds), outputs(divided, feeds)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "node", "first", "by", "words"),
    [
        ("conv", "nobody", 4, "channel", "0 nodes of that name"),
        ("conv", "it", 0, "channel", "from 1 to 9"),
        ("conv", "it", 10, "channel", "from 1 to 9"),
        ("grouped", "it", 4, "channel", "in steps of 3"),
        ("gemm transposed", "it", 2, "batch", "rows of its own"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(case: str, node: str, first: int, by: By, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        split_node(CASES[case][0], node, first, by)
    assert f"'{node}'" in str(refused.value)


def test_an_operator_of_two_activations_has_no_channels_to_divide() -> None:
    model = one("MatMul", [2, 7, 16], {"w": [16, 24]}, set())
    with pytest.raises(InputError, match="'w' are not stored"):
        channels(model, "it")
