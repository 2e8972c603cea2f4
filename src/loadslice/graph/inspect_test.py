"""Costs against hand-made formulas, and real models against ONNX Runtime."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.inspect import inspect
from loadslice.graph.load import load
from loadslice.graph.measure import observe
from loadslice.graph.shapes import infer
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.inspection import Inspection

F = TensorProto.FLOAT
Build = Callable[..., Path]

OCR = {
    "ch_PP-OCRv4_det_infer": ([1, 3, 640, 640], 1_171_841),
    "ch_PP-OCRv4_rec_infer": ([1, 3, 48, 320], 2_690_407),
    "ch_ppocr_mobile_v2.0_cls_infer": ([1, 3, 48, 192], 133_777),
}


def ocr(name: str) -> Path:
    if importlib.util.find_spec("rapidocr_onnxruntime") is None:
        pytest.skip("the OCR models come with rapidocr-onnxruntime (extra 'example')")
    return resolve_model(f"package:rapidocr_onnxruntime/models/{name}.onnx", Path())


def weights(name: str, *shape: int, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def tensor(name: str, shape: list[int | str | None] | None, dtype: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def builder(folder: Path) -> Build:
    """Writes a model of nodes, inputs and stored tensors; the last node's first output is the model's."""

    def write(
        nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], stored: list[TensorProto], opset: int = 17
    ) -> Path:
        output = onnx.ValueInfoProto(name=nodes[-1].output[0])
        output.type.tensor_type.elem_type = F
        graph = helper.make_graph(nodes, "g", inputs, [output], stored)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        path = folder / "model.onnx"
        path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())
        return path

    return write


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return builder(tmp_path)


def flops(result: Inspection, op: str) -> int | None:
    return next(count.flops for count in result.ops if count.type == op)


@pytest.mark.parametrize("name", OCR)
def test_parameters_in_constant_nodes_are_counted(name: str) -> None:
    shape, parameters = OCR[name]
    for shapes in ({"x": shape}, None):
        assert inspect(ocr(name), shapes, []).parameters == parameters


@pytest.mark.parametrize("name", OCR)
def test_every_shape_agrees_with_onnx_runtime(name: str) -> None:
    pytest.importorskip("onnxruntime")
    shapes = {"x": OCR[name][0]}
    observed = observe(ocr(name), shapes)
    env = infer(load(ocr(name)), shapes).env
    assert {tensor: env[tensor].shape for tensor in observed} == observed
    assert len(observed) > 500


def test_work_of_the_ocr_models_is_what_their_layers_add_up_to() -> None:
    """onnx-tool 1.0.1 counts 2,249,399,464 for the convolutions of detection, one for each bias included."""
    detect = inspect(ocr("ch_PP-OCRv4_det_infer"), {"x": [1, 3, 640, 640]}, [])
    convolutions = [node for node in detect.nodes_cost if node.op == "Conv"]
    assert sum(node.flops - node.macs for node in convolutions if node.flops and node.macs) == 2_249_399_464
    assert detect.complete
    assert detect.flops == 4_784_354_096
    assert detect.memory is not None
    assert (detect.memory.input_bytes, detect.memory.arena_bytes) == (4_915_200, 46_694_520)
    assert detect.peak_activation_bytes == 4_915_200 + 46_694_520


def test_without_shapes_work_is_unknown_and_the_rest_is_right() -> None:
    result = inspect(ocr("ch_PP-OCRv4_det_infer"), None, [])
    assert (result.flops, result.bytes_moved, result.peak_activation_bytes) == (None, None, None)
    assert [entry.name for entry in result.dynamic_inputs] == ["x"]
    assert result.dynamic_inputs[0].given is None
    assert {op.type: op.count for op in result.ops}["Conv"] == 62


def test_a_convolution_is_two_flops_a_product_and_one_a_bias(build: Build) -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=2, strides=[2, 2], pads=[1, 1, 1, 1])
    path = build([node], [tensor("x", [1, 8, 16, 16])], [weights("w", 6, 4, 3, 3), weights("b", 6)])
    result = inspect(path, None, [])
    out = 6 * 8 * 8
    assert result.macs == out * 4 * 9
    assert result.flops == 2 * out * 4 * 9 + out
    assert result.bytes_moved == 4 * (8 * 16 * 16 + 6 * 4 * 9 + 6 + out)
    assert result.weight_bytes == 4 * (6 * 4 * 9 + 6)


def test_a_transposed_convolution_works_over_its_input(build: Build) -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    result = inspect(build([node], [tensor("x", [1, 8, 5, 5])], [weights("w", 8, 3, 2, 2)]), None, [])
    assert result.macs == 8 * 25 * 3 * 4


@pytest.mark.parametrize(
    ("op", "gates", "pointwise"), [("LSTM", 4, 19 + 8), ("GRU", 3, 14 + 6), ("RNN", 1, 2 + 2)]
)  # fmt: skip
def test_recurrences_count_every_step_and_gate(build: Build, op: str, gates: int, pointwise: int) -> None:
    hidden, width, steps, batch = 16, 8, 5, 2
    node = helper.make_node(op, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction="bidirectional")
    stored = [weights("w", 2, gates * hidden, width), weights("r", 2, gates * hidden, hidden)]
    stored.append(weights("b", 2, 2 * gates * hidden))
    result = inspect(build([node], [tensor("x", [steps, batch, width])], stored), None, [])
    cells = steps * batch * 2 * hidden
    assert result.macs == cells * gates * (width + hidden)
    assert result.flops == 2 * cells * gates * (width + hidden) + cells * pointwise


def test_products_of_matrices(build: Build) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["g"], transA=1),
        helper.make_node("MatMul", ["g", "v"], ["m"]),
        helper.make_node("Einsum", ["m", "m"], ["e"], equation="ij,kj->ik"),
    ]
    path = build(nodes, [tensor("x", [5, 4])], [weights("w", 5, 6), weights("v", 6, 7)])
    result = inspect(path, None, [])
    assert [node.macs for node in result.nodes_cost] == [4 * 5 * 6, 4 * 6 * 7, 4 * 7 * 4]


def test_quantised_products_count_like_float_ones(build: Build) -> None:
    scale, zero = weights("s"), numpy_helper.from_array(np.array(0, np.int8), "z")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearConv", ["q", "s", "z", "w", "s", "z", "s", "z"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    path = build(nodes, [tensor("x", [1, 3, 8, 8])], [scale, zero, weights("w", 4, 3, 1, 1, dtype=np.int8)])
    result = inspect(path, None, [])
    out = 4 * 64
    assert flops(result, "QLinearConv") == 2 * out * 3 + 3 * out
    assert result.precision == "int8"
    assert result.weight_dtypes == {"int8": 13, "float": 4}


@pytest.mark.parametrize("op", ["MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits", "FusedMatMul"])
def test_runtime_specific_products_are_known(build: Build, op: str) -> None:
    domain = "" if op == "MatMulInteger" else "com.microsoft"
    left = TensorProto.UINT8 if op == "MatMulInteger" else F
    stored = {
        "MatMulInteger": [weights("w", 64, 8, dtype=np.uint8)],
        "DynamicQuantizeMatMul": [weights("w", 64, 8, dtype=np.uint8), weights("s")],
        "MatMulNBits": [weights("w", 8, 2, 16, dtype=np.uint8), weights("s", 16)],
        "FusedMatMul": [weights("w", 8, 64)],
    }[op]
    attributes = {"MatMulNBits": {"K": 64, "N": 8, "bits": 4, "block_size": 32}, "FusedMatMul": {"transB": 1}}
    node = helper.make_node(op, ["x", *(t.name for t in stored)], ["y"], domain=domain, **attributes.get(op, {}))
    result = inspect(build([node], [tensor("x", [3, 64], left)], stored), None, [])
    assert result.macs == 3 * 64 * 8
    assert result.nodes_cost[0].output_shapes == [[3, 8]]
    if op == "MatMulNBits":
        assert result.parameters == 64 * 8 + 16


def test_quantised_operators_of_the_runtime_have_the_shapes_of_their_float_twins(build: Build) -> None:
    """QOperator models are made of these; each keeps the 8-bit type that its float twin's schema does not know."""
    scale, zero = weights("s"), numpy_helper.from_array(np.array(0, np.int8), "z")
    quantised = ["s", "z"]
    ms = "com.microsoft"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *quantised], ["q"]),
        helper.make_node("QLinearMul", ["q", *quantised, "c", *quantised, *quantised], ["m"], domain=ms),
        helper.make_node("QLinearAdd", ["m", *quantised, "q", *quantised, *quantised], ["a"], domain=ms),
        helper.make_node("QLinearConcat", [*quantised, "a", *quantised, "q", *quantised], ["t"], domain=ms, axis=1),
        helper.make_node("QLinearGlobalAveragePool", ["t", *quantised, *quantised], ["p"], domain=ms, channels_last=0),
        helper.make_node("QLinearSigmoid", ["p", *quantised, *quantised], ["g"], domain=ms),
        helper.make_node("DequantizeLinear", ["g", *quantised], ["y"]),
    ]
    stored = [scale, zero, weights("c", 1, 3, 1, 1, dtype=np.int8)]
    result = inspect(build(nodes, [tensor("x", [2, 3, 8, 8])], stored), None, [])
    assert result.complete
    sizes = [[2, 3, 8, 8]] * 3 + [[2, 6, 8, 8]] + [[2, 6, 1, 1]] * 3
    assert [node.output_shapes for node in result.nodes_cost] == [[size] for size in sizes]
    assert flops(result, "QLinearMul") == (1 + 3) * 2 * 3 * 64


def test_a_fused_convolution_has_the_shape_of_a_plain_one(build: Build) -> None:
    node = helper.make_node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft", activation="Relu", strides=[2, 2])
    result = inspect(build([node], [tensor("x", [1, 3, 9, 9])], [weights("w", 4, 3, 1, 1)]), None, [])
    assert result.nodes_cost[0].output_shapes == [[1, 4, 5, 5]]
    assert result.macs == 4 * 25 * 3


def test_attention_counts_projection_scores_and_sum(build: Build) -> None:
    node = helper.make_node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=4)
    path = build([node], [tensor("x", [2, 10, 32])], [weights("w", 32, 96), weights("b", 96)])
    assert inspect(path, None, []).macs == 2 * 10 * 32 * 96 + 2 * (2 * 10 * 10 * 32)


def test_attention_with_queries_keys_and_values_in_one_counts_like_apart(build: Build) -> None:
    """One new token past 128: nine heads of 64 that share three of keys."""
    node = helper.make_node(
        "GroupQueryAttention", ["q", "", "", "pk", "pv", "last", "longest"], ["y", "k", "v"], "gqa",
        domain="com.microsoft", num_heads=9, kv_num_heads=3,
    )  # fmt: skip
    past = [tensor(name, [1, 3, 128, 64]) for name in ("pk", "pv")]
    lengths = [tensor("last", [1], TensorProto.INT32), tensor("longest", [], TensorProto.INT32)]
    model = build([node], [tensor("q", [1, 1, (9 + 2 * 3) * 64]), *past, *lengths], [])
    assert inspect(model, None, []).flops == 2 * 2 * 129 * 9 * 64 + 6 * 129 * 9


@pytest.mark.parametrize(
    ("equation", "left", "right", "macs"),
    [
        ("bid,bdj->bij", [4, 3, 5], [1, 5, 2], 4 * 3 * 2 * 5),  # a side of 1 is repeated
        ("...ij,...jk->...ik", [7, 1, 4, 3], [6, 3, 2], 7 * 6 * 4 * 3 * 2),
        ("ij,jk", [4, 3], [3, 2], 24),
    ],
)
def test_einsum_counts_every_point_that_it_sums(
    build: Build, equation: str, left: list, right: list, macs: int
) -> None:
    node = helper.make_node("Einsum", ["x", "z"], ["y"], "e", equation=equation)
    model = build([node], [tensor("x", left), tensor("z", right)], [])
    assert inspect(model, None, []).macs == macs


def test_an_einsum_that_sums_nothing_multiplies_only(build: Build) -> None:
    for equation in ("i,j", "i,j->ij"):
        node = helper.make_node("Einsum", ["x", "z"], ["y"], "e", equation=equation)
        model = build([node], [tensor("x", [4]), tensor("z", [3])], [])
        found = inspect(model, None, [])
        assert (found.macs, found.flops) == (0, 12)


def test_a_quantised_recurrence_counts_like_the_float_one(build: Build) -> None:
    """ONNX Runtime's keeps its weights the other way round."""
    stored = [weights("W", 1, 3, 20, dtype=np.int8), weights("R", 1, 5, 20, dtype=np.int8)]
    for name in ("ws", "rs"):
        stored += [weights(name, 1, 20), weights(name.replace("s", "z"), 1, 20, dtype=np.int8)]
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "W", "R", "", "", "", "", "", "ws", "wz", "rs", "rz"], ["y"], "l",
        domain="com.microsoft", hidden_size=5,
    )  # fmt: skip
    model = build([node], [tensor("x", [7, 2, 3])], stored)
    assert inspect(model, None, []).macs == 7 * 2 * 20 * (3 + 5)


def test_products_repeat_sides_of_1_on_either_hand(build: Build) -> None:
    node = helper.make_node("FusedMatMul", ["x", "z"], ["y"], "m", domain="com.microsoft", transB=1)
    model = build([node], [tensor("x", [1, 1, 3, 4]), tensor("z", [5, 7, 2, 4])], [])
    assert inspect(model, None, []).macs == 5 * 7 * 3 * 2 * 4


def test_reading_a_few_rows_of_a_table_moves_only_those(build: Build) -> None:
    path = build(
        [helper.make_node("Gather", ["w", "x"], ["y"])], [tensor("x", [5], TensorProto.INT64)], [weights("w", 1000, 8)]
    )
    assert inspect(path, None, []).bytes_moved == 5 * 8 * 4 * 2 + 5 * 8


def test_work_on_weights_alone_is_done_at_load(build: Build) -> None:
    nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    result = inspect(build(nodes, [tensor("x", [2, 3])], [weights("w", 4, 3)]), None, [])
    assert [node.times for node in result.nodes_cost] == [0, 1]
    assert result.bytes_moved == 4 * (2 * 3 + 3 * 4 + 2 * 4)


def test_an_operator_nobody_knows_is_reported_and_not_counted_as_nothing(build: Build) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Strange", ["r"], ["y"], domain="com.microsoft")]
    result = inspect(build(nodes, [tensor("x", [2, 3])], []), None, [])
    assert result.flops == 6
    assert not result.complete
    assert [(op.type, op.count) for op in result.unknown_ops] == [("Strange", 1)]
    assert flops(result, "Strange") is None
    assert result.peak_activation_bytes is None


def test_peak_memory_is_the_largest_set_alive_at_once(build: Build) -> None:
    """x lives until its last reader; b and c make the peak with it; the reshape is free."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["b"], axis=0),
        helper.make_node("Reshape", ["b", "flat"], ["v"]),
        helper.make_node("Concat", ["v", "v"], ["c"], axis=0),
        helper.make_node("ReduceMax", ["c"], ["m"]),
        helper.make_node("Add", ["m", "x"], ["y"]),
    ]
    result = inspect(build(nodes, [tensor("x", [10])], [ints("flat", -1)]), None, [])
    assert result.peak_activation_bytes == 4 * (10 + 20 + 40)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"y": [1, 3, 8, 8]}, "no such input; the model has x"),
        ({"x": [1, 3, 8]}, "rank 3, the model wants 4"),
        ({"x": [1, 3, 0, 8]}, "0 is not a dimension"),
        ({"x": [1, 3, 8, -8]}, "-8 is not a dimension"),
        ({"x": [1, 3, 2**31, 8]}, "is not a dimension"),
        ({"x": [1, 3, 2**20, 2**20]}, "elements are more than"),
        ({"x": [1, 4, 8, 8]}, "dimension 1 is fixed at 3"),
        ({"x": [1, 3, 7, 9]}, "cannot run through node 'sum'"),
    ],
)
def test_shapes_the_model_cannot_have_are_refused(build: Build, shapes: dict[str, list[int]], words: str) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("Add", ["x", "t"], ["y"], name="sum"),
    ]
    path = build(nodes, [tensor("x", [1, 3, "h", "w"])], [])
    with pytest.raises(InputError) as error:
        inspect(path, shapes, [])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_one_symbol_given_once_holds_for_every_input(build: Build) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    path = build(nodes, [tensor("a", ["n", 4]), tensor("b", ["n", 4])], [])
    result = inspect(path, {"a": [3, 4]}, [])
    assert result.nodes_cost[0].output_shapes == [[3, 4]]
    assert result.flops == 12
