"""Each rewrite on a block that has what it looks for, held to ONNX Runtime; and on models that are none for it."""

import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph import rewrites
from loadslice.graph.load import load
from loadslice.graph.rewrites.edit import HALF, opset
from loadslice.graph.rewrites.links import Links
from loadslice.graph.rewrites.patterns import erf_gelu, layer_norm, scale_softmax
from loadslice.graph.rewrites.proof import prove
from loadslice.graph.shapes import model_inputs
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model

WIDTH, STEPS, HEADS = 16, 8, 2


def transformer_block(opset_version: int = 12) -> onnx.ModelProto:
    """One attention and one feed-forward layer, everything written out as exporters do below opset 17."""
    generator = np.random.default_rng(0)
    stored: dict[str, npt.NDArray[np.generic]] = {
        name: (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in {
            **{f"w{part}": (WIDTH, WIDTH) for part in "qkvo"},
            "up": (WIDTH, 4 * WIDTH),
            "down": (4 * WIDTH, WIDTH),
            "gain": (WIDTH,),
            "bias": (WIDTH,),
        }.items()
    }
    numbers = {"two": 2.0, "eps": 1e-5, "scale": (WIDTH / HEADS) ** -0.5, "root": 0.5**0.5, "one": 1.0, "half": 0.5}
    stored |= {name: np.array(value, np.float32) for name, value in numbers.items()}
    stored["split"] = np.array([1, STEPS, HEADS, WIDTH // HEADS], np.int64)
    stored["join"] = np.array([1, STEPS, WIDTH], np.int64)
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], f"{output}_node", **attributes))
        return output

    def norm(x: str, y: str) -> str:
        mean = add("ReduceMean", [x], f"{y}_mean", axes=[-1], keepdims=1)
        centre = add("Sub", [x, mean], f"{y}_centre")
        variance = add("ReduceMean", [add("Pow", [centre, "two"], f"{y}_square")], f"{y}_var", axes=[-1], keepdims=1)
        root = add("Sqrt", [add("Add", [variance, "eps"], f"{y}_shifted")], f"{y}_root")
        scaled = add("Mul", [add("Div", [centre, root], f"{y}_plain"), "gain"], f"{y}_scaled")
        return add("Add", [scaled, "bias"], y)

    normed = norm("x", "n1")
    for part in "qkv":
        heads = add("Reshape", [add("MatMul", [normed, f"w{part}"], f"{part}0"), "split"], f"{part}1")
        add("Transpose", [heads], part, perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3])
    scores = add("Mul", [add("MatMul", ["q", "k"], "scores"), "scale"], "scaled_scores")
    mixed = add("MatMul", [add("Softmax", [scores], "weights", axis=-1), "v"], "mixed")
    joined = add("Reshape", [add("Transpose", [mixed], "back", perm=[0, 2, 1, 3]), "join"], "joined")
    first = add("Add", [add("MatMul", [joined, "wo"], "attended"), "x"], "first")
    hidden = add("MatMul", [norm(first, "n2"), "up"], "hidden")
    erf = add("Erf", [add("Mul", [hidden, "root"], "argument")], "erf")
    gelu = add("Mul", [add("Mul", [hidden, add("Add", [erf, "one"], "plus")], "product"), "half"], "gelu")
    add("Add", [add("MatMul", [gelu, "down"], "fed"), first], "y")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, STEPS, WIDTH]) for name in "xy"]
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "block", infos[:1], infos[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_version)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """A pair of quantise and dequantise nodes after every tensor, as a quantiser leaves them; 8 bits, range -8 to 8."""
    after = onnx.ModelProto()
    after.CopyFrom(model)
    graph = after.graph
    floats = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    kept = [tensor for tensor in graph.initializer if tensor.name not in floats]
    stored = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    stored += [
        numpy_helper.from_array(np.array(16 / 255, np.float32), "act_scale"),
        numpy_helper.from_array(np.array(128, np.uint8), "act_zero"),
        numpy_helper.from_array(np.array(0, np.uint8), "zero"),
    ]
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}

    def pair(name: str) -> None:
        out = {info.name for info in graph.output}
        source = f"{name}_float" if name in out else name
        back = name if name in out else f"{name}_back"
        nodes.append(helper.make_node("QuantizeLinear", [source, "act_scale", "act_zero"], [f"{name}_q"], f"{name}_Q"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "act_scale", "act_zero"], [back], f"{name}_DQ"))
        renamed[name] = back

    for name, value in floats.items():
        low, high = min(0.0, float(value.min())), max(0.0, float(value.max()))
        scale = np.float32((high - low) / 255)
        zero = np.uint8(round(-low / float(scale)))
        codes = np.clip(np.round(value / scale) + zero, 0, 255).astype(np.uint8)
        parts = {"codes": codes, "step": np.array(scale), "origin": np.array(zero)}
        stored += [numpy_helper.from_array(np.asarray(part), f"{name}_{kind}") for kind, part in parts.items()]
        inputs = [f"{name}_codes", f"{name}_step", f"{name}_origin"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_back"], f"{name}_DQ"))
        renamed[name] = f"{name}_back"
    for info in graph.input:
        pair(info.name)
    for node in graph.node:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[:] = [renamed.get(name, name) for name in node.input]
        if node.output[0] in {info.name for info in graph.output}:
            made.output[0] = f"{node.output[0]}_float"
        nodes.append(made)
        pair(node.output[0])
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(stored)
    return onnx.shape_inference.infer_shapes(after)


def apply(names: str, model: onnx.ModelProto, shapes: dict[str, list[int]] | None = None) -> onnx.ModelProto:
    """Several rewrites, each proved against the model before it."""
    pytest.importorskip("onnxruntime")
    for name in names.split("+"):
        result = rewrites.apply(rewrites.find(name, shapes or {}), model)
        proof = prove(model, result.model, shapes or {}, seed=1)
        assert proof.relative is not None
        assert proof.relative <= result.tolerance, (name, proof)
        model = result.model
    onnx.checker.check_model(model)
    return model


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_the_patterns_of_a_transformer_block_are_found_once_each() -> None:
    links = Links(transformer_block().graph)
    assert [len(match.nodes) for match in layer_norm(links)] == [9, 9]
    assert [len(match.nodes) for match in erf_gelu(links)] == [5]
    assert [len(match.nodes) for match in scale_softmax(links)] == [2]
    assert layer_norm(links)[0].inputs == ("x", "gain", "bias")


def test_a_quantised_gelu_is_found_only_through_its_pairs() -> None:
    links = Links(quantised(transformer_block(13)).graph)
    assert erf_gelu(links) == []
    assert len(erf_gelu(links, through_quantisation=True)) == 1


@pytest.mark.parametrize(
    ("names", "gone", "made"),
    [
        ("lift-opset-20+fuse-gelu", {"Erf"}, {"Gelu": 1}),
        ("lift-opset-17+fuse-layer-norm", {"Pow", "Sqrt", "ReduceMean"}, {"LayerNormalization": 2}),
        ("lift-opset-17+fuse-layer-norm+split-layer-norm", {"LayerNormalization"}, {"Sqrt": 2, "ReduceMean": 4}),
        ("lift-opset-18+fuse-layer-norm+split-layer-norm", {"LayerNormalization"}, {"Sqrt": 2, "ReduceMean": 4}),
        ("lift-opset-20+fuse-layer-norm+fuse-gelu", {"Erf", "Sqrt"}, {"LayerNormalization": 2, "Gelu": 1}),
    ],
)
def test_rewrites_of_a_block_compute_the_same(names: str, gone: set[str], made: dict[str, int]) -> None:
    found = ops(apply(names, transformer_block()))
    assert not gone & set(found)
    assert {op: found.count(op) for op in made} == made


def test_fusing_a_quantised_gelu_keeps_its_outer_pairs() -> None:
    before = apply("lift-opset-20", quantised(transformer_block(13)))
    after = apply("fuse-gelu", before)
    makers = {name: node for node in after.graph.node for name in node.output}
    readers = {name: node for node in after.graph.node for name in node.input}
    gelu = next(node for node in after.graph.node if node.op_type == "Gelu")
    assert "Erf" not in ops(after)
    assert makers[gelu.input[0]].op_type == "DequantizeLinear"
    assert readers[gelu.output[0]].op_type == "QuantizeLinear"
    assert ops(before).count("QuantizeLinear") - ops(after).count("QuantizeLinear") == 4


@pytest.mark.parametrize("order", ["x-first", "half-first", "sum-first"])
def test_a_gelu_is_found_in_every_order_of_its_factors(order: str) -> None:
    numbers = {"root2": 2.0**0.5, "one": 1.0, "half": 0.5}
    nodes = [
        helper.make_node("Div", ["x", "root2"], ["a"]),
        helper.make_node("Erf", ["a"], ["e"]),
        helper.make_node("Add", ["one", "e"], ["s"]),
    ]
    last = {
        "x-first": [("x", "s", "m"), ("m", "half", "y")],
        "half-first": [("x", "half", "m"), ("m", "s", "y")],
        "sum-first": [("s", "half", "m"), ("x", "m", "y")],
    }[order]
    nodes += [helper.make_node("Mul", [left, right], [out]) for left, right, out in last]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy"]
    stored = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert ops(apply("fuse-gelu", model)) == ["Gelu"]


def test_what_only_looks_like_a_gelu_is_left_alone() -> None:
    model = transformer_block(20)
    for tensor in model.graph.initializer:
        if tensor.name == "one":
            tensor.CopyFrom(numpy_helper.from_array(np.array(1.5, np.float32), "one"))
    with pytest.raises(InputError, match="no GELU written with Erf"):
        rewrites.apply(rewrites.find("fuse-gelu", {}), model)


def test_a_normalisation_that_others_look_into_is_left_alone() -> None:
    model = transformer_block()
    model.graph.output.append(helper.make_tensor_value_info("n1_root", TensorProto.FLOAT, [1, STEPS, 1]))
    assert [match.output for match in layer_norm(Links(model.graph))] == ["n2"]


def test_a_hard_sigmoid_becomes_a_clip_at_six() -> None:
    node = helper.make_node("HardSigmoid", ["x"], ["y"], alpha=1 / 6, beta=0.5)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 50]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    after = apply("hard-sigmoid-to-clip", model)
    assert ops(after) == ["Mul", "Add", "Clip", "Mul"]


@pytest.mark.parametrize("name", ["hard-sigmoid-to-clip", "split-layer-norm"])
def test_constants_are_of_the_type_of_the_tensors_they_meet(name: str) -> None:
    """A half-precision model stays one that ONNX Runtime loads."""
    half = TensorProto.FLOAT16
    node = helper.make_node("HardSigmoid", ["x"], ["y"])
    stored = []
    if name == "split-layer-norm":
        node = helper.make_node("LayerNormalization", ["x", "gain", "bias"], ["y"])
        stored = [numpy_helper.from_array(np.ones(8, np.float16), part) for part in ("gain", "bias")]
    infos = [helper.make_tensor_value_info(part, half, [4, 8]) for part in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    apply(name, model)


def test_shape_arithmetic_goes_away_once_shapes_are_fixed() -> None:
    if importlib.util.find_spec("rapidocr_onnxruntime") is None:
        pytest.skip("the OCR models come with rapidocr-onnxruntime (extra 'example')")
    path = resolve_model("package:rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", Path())
    after = apply("static-shapes+fold-constants", load(path, weights=True), {"x": [1, 3, 48, 192]})
    assert not {"Constant", "Shape", "Slice", "Cast", "Concat", "Identity"} & set(ops(after)[:-1])
    assert [dim.dim_value for dim in after.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 48, 192]
    assert len(after.graph.node) == 234


def listed(ir_version: int) -> onnx.ModelProto:
    """A hard sigmoid of ``x w + (-b)``, with its stored tensors among the inputs, and one that nobody reads."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Neg", ["b"], ["minus"]),
        helper.make_node("Add", ["h", "minus"], ["k"]),
        helper.make_node("HardSigmoid", ["k"], ["y"]),
        helper.make_node("Constant", [], ["unread"], value=numpy_helper.from_array(np.ones(1, np.float32))),
    ]
    shapes = {"x": [2, 4], "w": [4, 4], "b": [4], "idle": [3]}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    stored = [numpy_helper.from_array(np.ones(shapes[name], np.float32), name) for name in ("w", "b", "idle")]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    graph = helper.make_graph(nodes, "g", list(infos.values()), [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=ir_version)


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("name", ["fold-constants", "hard-sigmoid-to-clip", "lift-opset-17"])
def test_a_rewritten_model_asks_its_caller_for_no_more_than_before(name: str, ir_version: int) -> None:
    """A stored tensor that is dropped and stays listed as an input would have to be given from then on."""
    before = listed(ir_version)
    after = apply(name, before)
    onnx.checker.check_model(after)
    assert [info.name for info in model_inputs(after.graph)] == ["x"]
    assert prove(before, after, {}, seed=0).max_abs_diff < 1e-6


def test_a_default_that_the_caller_may_replace_is_not_folded() -> None:
    assert any(node.op_type == "Neg" for node in apply("fold-constants", listed(8)).graph.node)
    assert not any(node.op_type == "Neg" for node in apply("fold-constants", listed(3)).graph.node)


def test_what_half_precision_cannot_tell_apart_is_no_difference() -> None:
    """Folded by NumPy, a root of float16 is rounded otherwise than ONNX Runtime does it."""
    nodes = [helper.make_node("Sqrt", ["c"], ["root"]), helper.make_node("Mul", ["x", "root"], ["y"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4]) for name in "xy"]
    stored = [numpy_helper.from_array(np.array(0.3, np.float16), "c")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert rewrites.apply(rewrites.find("fold-constants", {}), model).tolerance == HALF


def test_folding_goes_on_with_what_a_fold_makes_known() -> None:
    """This Identity is older than the type, so that nothing is known behind it until it is gone."""
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Shape", ["same"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT8E4M3FN, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2])
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=9)
    after = rewrites.apply(rewrites.find("fold-constants", {}), model).model
    assert not after.graph.node
    assert numpy_helper.to_array(after.graph.initializer[0]).tolist() == [2, 3]


def test_lifting_keeps_the_operator_sets_of_branches() -> None:
    def branch(name: str, op: str, domain: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["x"], [name], domain=domain)
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])])

    choice = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("then", "Gelu", "com.microsoft"),
        else_branch=branch("else", "Relu", ""),
    )
    x, c, y = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.FLOAT, [4]),
            ("c", TensorProto.BOOL, []),
            ("y", TensorProto.FLOAT, [4]),
        )
    )
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([choice], "g", [x, c], [y]), opset_imports=imports, ir_version=8)
    onnx.checker.check_model(apply("lift-opset-17", model))


def test_a_rewrite_leaves_the_model_it_was_given_alone() -> None:
    model = transformer_block()
    before = model.SerializeToString(deterministic=True)
    for name in ("fold-constants", "lift-opset-17", "lift-opset-20"):
        rewrite = rewrites.find(name, {})
        if rewrite.requires(model) is None:
            rewrite.call(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fuse-gelu", "lift it first"),
        ("fuse-layer-norm", "lift it first"),
        ("hard-sigmoid-to-clip", "no HardSigmoid"),
        ("split-layer-norm", "no LayerNormalization"),
        ("static-shapes", "already has a fixed shape"),
        ("lift-opset-12", "at opset 12 already"),
        ("lift-opset-999", "newer than"),
    ],
)
def test_a_model_that_is_none_for_a_rewrite_is_told_why(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        rewrites.apply(rewrites.find(name, {}), transformer_block())


def test_an_open_input_without_a_shape_is_named() -> None:
    model = transformer_block()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    assert rewrites.find("static-shapes", {}).requires(model) == "input 'x' is open; give --shape x=..."


def test_an_unknown_rewrite_lists_those_there_are() -> None:
    with pytest.raises(InputError, match="fuse-layer-norm"):
        rewrites.find("make-it-fast", {})


def test_the_default_lift_is_the_one_that_layer_norm_needs() -> None:
    assert opset(apply("lift-opset-17", transformer_block())) == 17
