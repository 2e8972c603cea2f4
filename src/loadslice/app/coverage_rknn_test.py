"""The real Rockchip compiler, where `loadslice toolchain install rknn --python PATH` has named one."""

from pathlib import Path

import onnx
import pytest

from loadslice.app.coverage import compile_onnx
from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.process import ToolchainError
from loadslice.graph import ops, rewrites
from loadslice.graph.coverage import by_compiler, by_table
from loadslice.graph.coverage_compare import disagreements
from loadslice.graph.coverage_stage import stage
from loadslice.graph.rewrites.rewrites_test import transformer_block
from loadslice.graph.shapes import infer

pytestmark = pytest.mark.skipif(
    not environment.usable(registry.RKNN),
    reason="no interpreter with rknn-toolkit2 is named: loadslice toolchain install rknn --python PATH",
)


def rewritten(*names: str) -> onnx.ModelProto:
    model = transformer_block()
    for name in names:
        model = rewrites.apply(rewrites.find(name, {}), model).model
    return model


def test_the_block_falls_back_at_erf_alone_and_the_table_agrees(tmp_path: Path) -> None:
    onnx.save(transformer_block(), tmp_path / "block.onnx")
    staged, names = stage(transformer_block(), {})
    report = compile_onnx(tmp_path / "block.onnx", {}, "rknn-rk3588")
    body = infer(staged, {})
    compiled = by_compiler(body, report, names)
    table = ops.of_device("rknn-rk3588")
    assert table is not None
    assert [node.op for node in compiled.nodes if node.on == "host"] == ["Erf"]
    assert compiled.segments == 2
    assert disagreements(by_table(body, table), compiled) == []
    assert report.figures["layers_without_cycles"] > 0


@pytest.mark.parametrize("names", [(), ("lift-opset-17", "fuse-layer-norm")])
def test_either_form_of_normalisation_runs_on_the_device(tmp_path: Path, names: tuple[str, ...]) -> None:
    onnx.save(rewritten(*names), tmp_path / "block.onnx")
    report = compile_onnx(tmp_path / "block.onnx", {}, "rknn-rk3588")
    assert [layer.on for layer in report.layers if layer.op == "exNorm"] == ["device", "device"]


def test_an_opset_it_does_not_know_is_one_line(tmp_path: Path) -> None:
    onnx.save(rewritten("lift-opset-20"), tmp_path / "block.onnx")
    with pytest.raises(ToolchainError, match="opset 20, need <= 19"):
        compile_onnx(tmp_path / "block.onnx", {}, "rknn-rk3588")
