"""The real HTP compiler, where `loadslice toolchain install qnn` has put it."""

import importlib.util
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.app.coverage import compile_onnx
from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.process import ToolchainError
from loadslice.graph import ops
from loadslice.graph.coverage import by_compiler, by_table
from loadslice.graph.coverage_compare import disagreements
from loadslice.graph.coverage_stage import stage
from loadslice.graph.load import load
from loadslice.graph.rewrites.rewrites_test import quantised, transformer_block
from loadslice.graph.shapes import infer
from loadslice.spec.coverage import Coverage
from loadslice.spec.files import resolve_model
from loadslice.spec.toolchain import CompilerReport

pytestmark = pytest.mark.skipif(
    not environment.usable(registry.QNN),
    reason="the HTP compiler is not installed: loadslice toolchain install qnn",
)

OCR = {
    "ch_PP-OCRv4_det_infer": [1, 3, 320, 320],
    "ch_PP-OCRv4_rec_infer": [1, 3, 48, 320],
    "ch_ppocr_mobile_v2.0_cls_infer": [1, 3, 48, 192],
}


def both(path: Path, shapes: dict[str, list[int]]) -> tuple[Coverage, Coverage, CompilerReport]:
    """Coverage by our table and by the compiler, and the compiler's report."""
    staged, names = stage(load(path, weights=True), shapes)
    report = compile_onnx(path, shapes, "qnn-htp:soc_model=60")
    body = infer(staged, {})
    table = ops.of_device("qnn-htp")
    assert table is not None
    return by_table(body, table), by_compiler(body, report, names), report


def placed(coverage: Coverage) -> dict[str, str]:
    """Every node that runs each time; what is folded at load is on neither side."""
    return {node.node: node.on for node in coverage.nodes if node.on != "load"}


def agree(table: Coverage, compiled: Coverage) -> None:
    """The same place for every node both place, and the same border."""
    assert disagreements(table, compiled) == []
    left, right = placed(table), placed(compiled)
    assert {name: right[name] for name in left} == left
    assert (table.unknown_nodes, compiled.unknown_nodes) == (0, 0)
    assert (table.segments, table.cuts, table.transfer_bytes) == (
        compiled.segments,
        compiled.cuts,
        compiled.transfer_bytes,
    )


@pytest.mark.parametrize("name", OCR)
def test_an_ocr_model_is_covered_as_the_compiler_partitions_it(name: str) -> None:
    if importlib.util.find_spec("rapidocr_onnxruntime") is None:
        pytest.skip("the OCR models come with rapidocr-onnxruntime (extra 'example')")
    path = resolve_model(f"package:rapidocr_onnxruntime/models/{name}.onnx", Path())
    table, compiled, report = both(path, {"x": OCR[name]})
    agree(table, compiled)
    assert compiled.segments == report.figures["device_segments"] == 1
    assert report.figures["device_nodes"] == report.figures["nodes_after_optimisation"]


@pytest.mark.parametrize("pairs", [False, True])
def test_a_transformer_block_is_covered_as_the_compiler_partitions_it(tmp_path: Path, pairs: bool) -> None:
    """One part in float, two when quantised: Erf stands alone once pairs surround it."""
    model = quantised(transformer_block(13)) if pairs else transformer_block()
    onnx.save(model, tmp_path / "block.onnx")
    table, compiled, report = both(tmp_path / "block.onnx", {})
    agree(table, compiled)
    assert compiled.segments == report.figures["device_segments"] == (2 if pairs else 1)
    hosted = [node.op for node in compiled.nodes if node.on == "host"]
    units = ["QuantizeLinear", "DequantizeLinear", "Erf", "QuantizeLinear", "DequantizeLinear"]
    assert hosted == (units if pairs else [])


def fragmented() -> onnx.ModelProto:
    """Float, with operators the HTP lacks on two of its paths."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "a"),
        helper.make_node("Sinh", ["a"], ["b"], "b"),
        helper.make_node("Add", ["a", "b"], ["c"], "c"),
        helper.make_node("Sigmoid", ["a"], ["d"], "d"),
        helper.make_node("Softsign", ["c"], ["e"], "e"),
        helper.make_node("Mul", ["d", "e"], ["y"], "y"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 8, 8]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("model", [quantised(transformer_block(13)), fragmented()], ids=["quantised", "fragmented"])
def test_what_crosses_the_border_are_the_edges_of_the_compiled_parts(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Inputs and outputs of the EPContext nodes that the compiler wrote, the model's own apart."""
    onnx.save(model, tmp_path / "m.onnx")
    table, compiled, _ = both(tmp_path / "m.onnx", {})
    agree(table, compiled)
    compile_onnx(tmp_path / "m.onnx", {}, "qnn-htp", out=tmp_path)
    context = onnx.load(tmp_path / "ctx.onnx", load_external_data=False).graph
    own = {info.name for info in [*context.input, *context.output]}
    parts = [node for node in context.node if node.op_type == "EPContext"]
    edges = sorted((name, "to_device") for part in parts for name in part.input if name not in own)
    edges += sorted((name, "to_host") for part in parts for name in part.output if name not in own)
    found = sorted((transfer.tensor, transfer.direction) for transfer in compiled.transfers)
    assert found == sorted(edges)
    assert len(parts) == compiled.segments


def test_open_shapes_leave_every_node_to_the_host_and_say_so(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "r")], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    table, compiled, _ = both(tmp_path / "m.onnx", {})
    assert placed(table) == placed(compiled) == {"r": "host"}
    assert compiled.nodes[0].reason == "Cannot get shape"


def test_a_chip_that_does_not_exist_is_no_silent_success(tmp_path: Path) -> None:
    """The session itself succeeds, on the CPU."""
    onnx.save(transformer_block(), tmp_path / "block.onnx")
    with pytest.raises(ToolchainError, match="it compiled nothing with soc_model=999"):
        compile_onnx(tmp_path / "block.onnx", {}, "qnn-htp:soc_model=999")


def test_an_operator_that_crashes_the_compiler_is_one_line(tmp_path: Path) -> None:
    """Mish between two convolutions is a segmentation fault in 2.7.0."""
    import numpy as np
    from onnx import numpy_helper

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "c0", pads=[1] * 4),
        helper.make_node("Mish", ["a"], ["b"], "m"),
        helper.make_node("Conv", ["b", "w"], ["y"], "c1", pads=[1] * 4),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 16, 16]) for name in "xy")
    weights = numpy_helper.from_array(np.full((16, 16, 3, 3), 0.1, np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(ToolchainError, match="crashed with SIGSEGV"):
        compile_onnx(tmp_path / "m.onnx", {}, "qnn-htp")


def test_numerics_are_those_of_the_vendors_simulator(tmp_path: Path) -> None:
    """Float runs at fp16 there: close to ONNX Runtime, and not equal to it."""
    onnx.save(transformer_block(), tmp_path / "block.onnx")
    report = compile_onnx(tmp_path / "block.onnx", {}, "qnn-htp", numerics=True, out=tmp_path / "kept")
    assert report.numerics_basis is not None
    assert report.numerics_basis.startswith("emulated")
    assert report.numerics[0].cosine == pytest.approx(1.0, abs=1e-4)
    assert 0 < report.numerics[0].max_abs_diff < 0.05
    assert (tmp_path / "kept" / "ctx_qnn.bin").stat().st_size > 10_000
